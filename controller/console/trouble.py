"""What an error of the API is to a viewer: an HTTP status and the sentence that says it.

Promises: who may not, who is not known, what took too long and an API that is away are told apart; what gRPC itself
says of a connection is not shown. Called by the application, by the login and by forms that keep what was typed.
"""

from dataclasses import dataclass

import grpc

from controller.client import explain

_STATUS = {
    grpc.StatusCode.INVALID_ARGUMENT: 400,
    grpc.StatusCode.UNAUTHENTICATED: 401,
    grpc.StatusCode.PERMISSION_DENIED: 403,
    grpc.StatusCode.NOT_FOUND: 404,
    grpc.StatusCode.FAILED_PRECONDITION: 409,
    grpc.StatusCode.ALREADY_EXISTS: 409,
    grpc.StatusCode.ABORTED: 409,
    grpc.StatusCode.RESOURCE_EXHAUSTED: 429,
    grpc.StatusCode.UNAVAILABLE: 503,
    grpc.StatusCode.CANCELLED: 503,
    grpc.StatusCode.DEADLINE_EXCEEDED: 504,
}
AWAY, SLOW = 503, 504
# Looking again may find it better.
PASSING = frozenset({429, 502, AWAY, SLOW})


@dataclass(frozen=True, slots=True)
class Trouble:
    """``key`` names the sentence; ``detail`` is the API's own, in English; ``violations`` are (field, remedy) pairs."""

    status: int
    key: str
    detail: str = ""
    reason: str = ""
    violations: tuple[tuple[str, str], ...] = ()

    @property
    def passing(self) -> bool:
        """Whether it may be over by itself."""
        return self.status in PASSING

    @property
    def unanswered(self) -> bool:
        """Whether the API may have done what it was asked, and not said so."""
        return self.status in {502, AWAY, SLOW} and self.key.startswith("error.status.")


def trouble_of(error: grpc.aio.AioRpcError) -> Trouble:
    """Return what to show of an error."""
    said = explain(error)
    status = _STATUS.get(error.code(), 502)
    # An API that says why it cannot is not away: its storage is, or it is not ready.
    key = "error.unable" if status == AWAY and said.reason else f"error.status.{status}"
    wire = status in {AWAY, SLOW} and not said.reason
    return Trouble(status, key, "" if wire else said.message, said.reason, said.violations)
