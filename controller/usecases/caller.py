"""Who is behind the call that runs right now, and how far they may see.

Promises: inside a call the edge has said who it is; outside of one (the loop, tests of a use case) it is the
process itself, which may see everything. Set by the API's guard, read by what records or filters.
"""

from contextvars import ContextVar
from dataclasses import dataclass

from controller.usecases.errors import UseCaseError

LOCAL = "local"


class ForbiddenError(UseCaseError):
    """The caller is known and may not do this; nothing was changed."""

    code = "PERMISSION_DENIED"


@dataclass(slots=True)
class Caller:
    """One call's caller. ``namespaces`` None: all of them. ``audited``: the call stands in the audit log already.

    ``grants``: (role, namespace) as proved; None where callers are not told apart.
    """

    principal: str = LOCAL
    namespaces: frozenset[str] | None = None
    audited: bool = False
    grants: tuple[tuple[str, str], ...] | None = None

    def may_use(self, namespace: str) -> bool:
        """Whether workloads of this namespace exist for the caller."""
        return self.namespaces is None or namespace in self.namespaces

    def require(self, namespace: str, field: str) -> None:
        """Raise ForbiddenError unless the caller may use a namespace that they named themselves."""
        if not self.may_use(namespace):
            raise ForbiddenError(
                "NAMESPACE_FORBIDDEN",
                f"{field}: {namespace!r} is no namespace you may use for this; ask for a grant",
                {"field": field, "namespace": namespace},
            )

    def require_fleet(self, what: str) -> None:
        """Raise ForbiddenError unless the caller may use every namespace."""
        if self.namespaces is not None:
            raise ForbiddenError(
                "FLEET_FORBIDDEN",
                f"{what} concerns every namespace; name a workload, or ask for a grant in all of them",
            )


_CALLER: ContextVar[Caller] = ContextVar("forecrest_caller")


def caller() -> Caller:
    """Return who calls; the process itself outside of a call."""
    return _CALLER.get(None) or Caller()


def enter(now_calling: Caller) -> None:
    """Say who calls, for the rest of this task."""
    _CALLER.set(now_calling)
