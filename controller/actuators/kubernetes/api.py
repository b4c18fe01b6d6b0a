"""Calls to the API server: bounded, retried where that is safe, and counted.

Promises: no more than ``CALLS_MAX`` calls at once, each with a time limit; 429 and 5xx are tried again with growing
pauses (and the server's own ``Retry-After``) within one bound; what fails in the end is a `PortError` that says what
was asked and what to do. Refuses to guess: 404, 409 and 403 are told apart. Called by the actuator and its watches.

The official client brings authentication, TLS and token renewal; paths are written out, so that any resource with a
scale subresource can be scaled without code of its own.
"""

import asyncio
import json
import logging
import random
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Final, Self, TypeAlias, cast

import urllib3

from controller.adapters.clock import SystemClock
from controller.ports import ConflictError, NotFoundError, PortError, UnavailableError

if TYPE_CHECKING:
    from kubernetes.client import ApiClient

log = logging.getLogger(__name__)

Object: TypeAlias = dict[str, Any]  # a Kubernetes object as JSON has it

CALLS_MAX: Final = 8
CONNECT_TIMEOUT_S: Final = 5.0
READ_TIMEOUT_S: Final = 20.0
TRIES_MAX: Final = 5
PAUSE_FIRST_S: Final = 0.2
PAUSE_MAX_S: Final = 10.0
_RETRIED: Final = frozenset({429, 500, 502, 503, 504})
# The server ends a watch after this, and a fresh one continues where it was. A quiet kind may send nothing at all
# meanwhile, so this bounds for how long a dead connection passes for silence.
_WATCH_S: Final = 60
_WATCH_SILENCE_S: Final = _WATCH_S + 15.0
_MERGE_PATCH: Final = "application/merge-patch+json"


class KubeError(PortError):
    """The API server refused; the message says what, and what to do."""


class ForbiddenError(KubeError):
    """The service account may not; the message names the permission."""


class GoneError(Exception):
    """A watch asked for a version that the server no longer has: list anew."""


class KubeApi:
    """A connection to one API server, for asyncio. Close it."""

    def __init__(self, client: "ApiClient") -> None:
        from kubernetes.client.exceptions import ApiException  # noqa: PLC0415 - as in `connect`

        self._client = client
        self._failures = (urllib3.exceptions.HTTPError, ApiException, OSError)
        self._threads = ThreadPoolExecutor(CALLS_MAX, thread_name_prefix="kube-api")
        self._clock = SystemClock()
        self._random = random.Random()
        self.calls: Counter[tuple[str, int]] = Counter()  # by verb and status code; 0: no answer

    @classmethod
    def connect(cls, kubeconfig: str | None = None, context: str | None = None) -> Self:
        """As the pod's service account where there is one, else by a kubeconfig file.

        Raises:
            KubeError: neither can be used.
        """
        # Hundreds of modules, which only who has an API server to talk to shall wait for.
        from kubernetes import client as kube  # noqa: PLC0415
        from kubernetes import config as kube_config  # noqa: PLC0415

        load = cast("Any", kube_config)  # the client library's loaders have no types
        configuration = kube.Configuration()
        configuration.retries = False  # retried here, where it is counted and bounded
        configuration.connection_pool_maxsize = CALLS_MAX + 16
        try:
            if kubeconfig is None and context is None:
                try:
                    load.load_incluster_config(client_configuration=configuration)
                    return cls(kube.ApiClient(configuration))
                except kube_config.ConfigException:
                    pass
            load.load_kube_config(kubeconfig, context=context, client_configuration=configuration)
        except (kube_config.ConfigException, OSError) as error:
            raise KubeError(
                "no way to the API server: run in a pod with a service account, or name a file in KUBECONFIG "
                f"({error})"
            ) from error
        return cls(kube.ApiClient(configuration))

    async def get(self, path: str, **query: str) -> Object:
        """Read one object or list. NotFoundError, ForbiddenError, UnavailableError, KubeError."""
        return await self._call("GET", path, query)

    async def create(self, path: str, body: Object, **query: str) -> Object:
        """Create. ConflictError if it exists."""
        return await self._call("POST", path, query, body)

    async def replace(self, path: str, body: Object, **query: str) -> Object:
        """Replace, at the body's ``resourceVersion`` if it has one: ConflictError if the object changed since."""
        return await self._call("PUT", path, query, body)

    async def patch(self, path: str, body: Object, **query: str) -> Object:
        """Merge-patch; a ``resourceVersion`` in the body is a precondition, as in ``replace``."""
        return await self._call("PATCH", path, query, body)

    async def delete(self, path: str, **query: str) -> Object:
        """Delete. NotFoundError if there is none."""
        return await self._call("DELETE", path, query)

    async def close(self) -> None:
        """Drop connections; watches that are open end with an error."""
        self._client.rest_client.pool_manager.clear()
        # Calls in flight end by their own limits; nobody waits for their answers any more.
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def _call(
        self, verb: str, path: str, query: Mapping[str, str], body: Object | None = None
    ) -> Object:
        pause_s = PAUSE_FIRST_S
        loop = asyncio.get_running_loop()
        for attempt in range(1, TRIES_MAX + 1):
            try:
                status, text, retry_after_s = await loop.run_in_executor(
                    self._threads, self._request, verb, path, query, body
                )
            except self._failures as error:
                self.calls[verb, 0] += 1
                # A POST may have been carried out though its answer was lost: creating twice is not ours to risk.
                if attempt == TRIES_MAX or verb == "POST":
                    raise UnavailableError(
                        f"{verb} {path}: the API server does not answer: {_brief(error)}"
                    ) from error
            else:
                self.calls[verb, status] += 1
                if status < 300:
                    return _parsed(text, path)
                if status not in _RETRIED or attempt == TRIES_MAX or _is_eviction_refused(path, status):
                    raise _refusal(verb, path, status, text)
                pause_s = max(pause_s, min(retry_after_s, PAUSE_MAX_S))
            await self._clock.sleep(pause_s * (0.5 + self._random.random()))
            pause_s = min(2 * pause_s, PAUSE_MAX_S)
        raise AssertionError("unreachable")

    def _request(
        self, verb: str, path: str, query: Mapping[str, str], body: Object | None
    ) -> tuple[int, str, float]:
        response = self._open(verb, path, list(query.items()), body, (CONNECT_TIMEOUT_S, READ_TIMEOUT_S))
        try:
            text = response.read().decode("utf-8", "replace")
        finally:
            response.response.release_conn()
        try:
            retry_after_s = float(response.getheader("Retry-After", "0"))
        except ValueError:  # a date: we pause as we would have
            retry_after_s = 0.0
        return int(response.status), text, retry_after_s

    def _open(
        self,
        verb: str,
        path: str,
        query: Sequence[tuple[str, str]],
        body: Object | None,
        timeout: tuple[float, float],
    ) -> Any:  # noqa: ANN401 - the client library's response is untyped
        wanted = {"Accept": "application/json"}
        if body is not None:
            wanted["Content-Type"] = _MERGE_PATCH if verb == "PATCH" else "application/json"
        method, url, headers, sent, post = self._client.param_serialize(
            verb, path, query_params=query, header_params=wanted, body=body, auth_settings=["BearerToken"]
        )
        return self._client.call_api(method, url, headers, sent, post, _request_timeout=timeout)

    def watch(self, path: str, version: str, query: Mapping[str, str]) -> Iterator[tuple[str, Object]]:
        """Changes after ``version`` as (type, object), in the calling thread; ends when the server ends it.

        The first is ("OPENED", ...), as soon as the server has agreed: from then on silence means no change.

        Raises:
            GoneError: the version is too old.
            UnavailableError: the connection broke, or nothing came for longer than the server's bookmarks take.
        """
        parameters = [
            *query.items(),
            ("watch", "true"),
            ("resourceVersion", version),
            ("allowWatchBookmarks", "true"),
            ("timeoutSeconds", str(_WATCH_S)),
        ]
        try:
            response = self._open("GET", path, parameters, None, (CONNECT_TIMEOUT_S, _WATCH_SILENCE_S))
            self.calls["WATCH", int(response.status)] += 1
            try:
                if response.status == 410:
                    raise GoneError
                if response.status != 200:
                    raise _refusal(
                        "WATCH", path, int(response.status), response.read().decode("utf-8", "replace")
                    )
                yield "OPENED", {"metadata": {"resourceVersion": version}}
                for line in _lines(response.response):
                    event = json.loads(line)
                    if event["type"] == "ERROR":
                        if event["object"].get("code") == 410:
                            raise GoneError
                        raise KubeError(f"WATCH {path}: {event['object'].get('message', 'error')}")
                    yield event["type"], event["object"]
            finally:
                # Not given back to the pool: what is left of a stream nobody reads would come out of it.
                response.response.close()
        except (*self._failures, ValueError) as error:
            raise UnavailableError(f"WATCH {path}: {_brief(error)}") from error


def _lines(response: urllib3.HTTPResponse) -> Iterator[bytes]:
    rest = b""
    for chunk in response.stream(amt=None, decode_content=False):
        *lines, rest = (rest + chunk).split(b"\n")
        yield from (line for line in lines if line)


def _parsed(text: str, path: str) -> Object:
    try:
        parsed: Object = json.loads(text)
    except ValueError as error:
        raise KubeError(f"{path}: the API server's answer is no JSON") from error
    return parsed


def _is_eviction_refused(path: str, status: int) -> bool:
    """Whether a disruption budget said no, which is an answer and not an overload."""
    return status == 429 and path.endswith("/eviction")


def _refusal(verb: str, path: str, status: int, text: str) -> PortError:
    try:
        message = str(json.loads(text).get("message", ""))[:500]
    except (ValueError, AttributeError):
        message = text[:200]
    what = f"{verb} {path}: {message or status}"
    if _is_eviction_refused(path, status):
        return KubeError(f"{what}; a PodDisruptionBudget keeps this pod, it is tried again")
    match status:
        case 401 | 403:
            return ForbiddenError(f"{what}; grant it to the controller's service account")
        case 404:
            return NotFoundError(what)
        case 409:
            return ConflictError(what)
        case 429 | 500 | 502 | 503 | 504:
            return UnavailableError(f"{what} ({status}, {TRIES_MAX} tries)")
        case _:
            return KubeError(what)


def _brief(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"[:300]
