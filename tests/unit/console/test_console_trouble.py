"""An API that refuses, does not know, is slow or is away: each has its status and its words, on pages and at the login."""

import re
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import aiohttp
import grpc
import pytest
from google.rpc import error_details_pb2, status_pb2  # type: ignore[import-untyped]
from yarl import URL

from controller.console.app import create_app
from controller.console.render import LANGUAGES, strings
from controller.console.session import _UNABLE
from controller.console.trouble import _STATUS
from controller.listener import listen

Code = grpc.StatusCode
Visit = Callable[..., Awaitable[aiohttp.ClientSession]]
AWAY = "The API does not answer."
SLOW = "The API did not answer in time: it is busy, or the way to it is blocked."
LOOK_FIRST = "look whether it was done before you try again"


class Refusing(grpc.GenericRpcHandler):
    """An API that ends every call in the same way, once: what may be retried is told not to be."""

    def __init__(self, code: Code, reason: str) -> None:
        self._code, self._reason = code, reason

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Any:  # noqa: ANN401 -- gRPC's handlers are untyped
        async def refuse(request: bytes, context: grpc.aio.ServicerContext[Any, Any]) -> bytes:
            metadata: list[tuple[str, str | bytes]] = [("grpc-retry-pushback-ms", "-1")]
            if self._reason:
                status = status_pb2.Status(code=self._code.value[0], message="said by the API")
                status.details.add().Pack(error_details_pb2.ErrorInfo(reason=self._reason))
                metadata.append(("grpc-status-details-bin", status.SerializeToString()))
            await context.abort(self._code, "said by the API", tuple(metadata))
            return b""

        return grpc.unary_unary_rpc_method_handler(refuse)


@pytest.fixture
async def visit() -> AsyncIterator[Visit]:
    """Open a browser's session at a console whose API ends every call with ``code`` and ``reason``."""
    ends: list[Callable[[], Awaitable[object]]] = []

    async def begin(code: Code, reason: str = "") -> aiohttp.ClientSession:
        api = grpc.aio.server()
        api.add_generic_rpc_handlers((Refusing(code, reason),))
        port = api.add_insecure_port("127.0.0.1:0")
        await api.start()
        running = await listen(create_app(f"127.0.0.1:{port}"), "127.0.0.1", 0)
        http = aiohttp.ClientSession(
            running.url, cookie_jar=aiohttp.CookieJar(unsafe=True), headers={"Origin": running.url}
        )
        ends.extend([lambda: api.stop(None), running.stop, http.close])
        return http

    yield begin
    for end in reversed(ends):
        await end()


async def post(http: aiohttp.ClientSession, path: str, **fields: str) -> tuple[int, str]:
    async with http.get("/login") as response:
        found = re.search(r'name="csrf" content="(\w+)"', await response.text())
    assert found is not None
    form = aiohttp.FormData({"csrf": found[1], **fields})
    form.add_field("calendar", b"BEGIN:VCALENDAR", filename="events.ics", content_type="text/calendar")
    async with http.post(path, data=form, allow_redirects=False) as response:
        return response.status, await response.text()


@pytest.mark.parametrize(
    ("code", "reason", "status", "sentence", "detailed"),
    [
        (Code.UNAUTHENTICATED, "TOKEN_UNKNOWN", 401, "does not know this token, or it has ended", False),
        (Code.PERMISSION_DENIED, "ROLE_FORBIDDEN", 403, "knows this token but lets it do nothing", True),
        (Code.RESOURCE_EXHAUSTED, "RATE_LIMITED", 429, "asks to slow down: too many attempts", False),
        (Code.UNAVAILABLE, "", 503, "does not answer, so the token cannot be checked", False),
        (Code.UNAVAILABLE, "NOT_READY", 503, "could not check the token", True),
        (Code.DEADLINE_EXCEEDED, "", 504, "did not answer in time, so the token could not", False),
        (Code.INTERNAL, "INTERNAL", 502, "could not check the token", True),
        # A controller of a release that cannot say who calls.
        (Code.UNIMPLEMENTED, "", 502, "could not check the token", True),
    ],
)
async def test_a_login_says_why_it_cannot_begin(
    visit: Visit, code: Code, reason: str, status: int, sentence: str, *, detailed: bool
) -> None:
    http = await visit(code, reason)

    answered, text = await post(http, "/login", token="a-token", next="/night")

    assert status == answered
    assert sentence in text
    assert detailed == ("said by the API" in text)
    # What one was about to see is still the way on.
    assert 'name="next" value="/night"' in text
    assert "a-token" not in text


@pytest.mark.parametrize(
    ("code", "reason", "status", "sentences", "again"),
    [
        (Code.PERMISSION_DENIED, "ROLE_FORBIDDEN", 403, ("You may not do this.", "said by the API"), False),
        (Code.NOT_FOUND, "RESOURCE_NOT_FOUND", 404, ("There is no such thing here.",), False),
        (Code.RESOURCE_EXHAUSTED, "RATE_LIMITED", 429, ("The API asks to slow down",), True),
        (Code.INTERNAL, "INTERNAL", 502, ("The API answered with an error.", "said by the API"), True),
        (Code.UNAVAILABLE, "", 503, (AWAY, "Nothing was changed."), True),
        (
            Code.UNAVAILABLE,
            "DEPENDENCY_UNAVAILABLE",
            503,
            ("The API cannot do this now.", "said by the API"),
            True,
        ),
        (Code.DEADLINE_EXCEEDED, "", 504, (SLOW, "Nothing was changed."), True),
    ],
)
async def test_a_page_that_cannot_be_read_says_why_and_offers_to_try_again_where_that_may_help(
    visit: Visit, code: Code, reason: str, status: int, sentences: tuple[str, ...], *, again: bool
) -> None:
    http = await visit(code, reason)

    async with http.get("/events/midnight-sale/edit") as response:
        text = await response.text()

    assert status == response.status
    assert [] == [one for one in sentences if one not in text]
    assert again == ("Try again" in text)
    # The wire's own words help nobody, and an API that gives a reason is not away.
    assert bool(reason) == ("said by the API" in text)
    assert (not reason and status == 503) == (AWAY in text)
    assert LOOK_FIRST not in text


async def test_somebody_the_api_does_not_know_any_more_is_led_to_the_login_and_back(visit: Visit) -> None:
    http = await visit(Code.UNAUTHENTICATED, "TOKEN_UNKNOWN")

    async with http.get("/events/midnight-sale/edit", allow_redirects=False) as response:
        there = URL(response.headers["Location"])

    assert (303, "/login") == (response.status, there.path)
    assert "/events/midnight-sale/edit" == there.query["next"]


@pytest.mark.parametrize(
    ("from_page", "then"),
    [
        ("/overrides?workload=rec", "/overrides?workload=rec"),
        ("", "/"),
        ("//evil.example/overrides", "/overrides"),
    ],
)
async def test_a_change_of_somebody_not_known_any_more_leads_back_to_the_page_it_was_made_on(
    visit: Visit, from_page: str, then: str
) -> None:
    http = await visit(Code.UNAUTHENTICATED, "TOKEN_UNKNOWN")
    if from_page:
        http.headers["Referer"] = (
            f"http:{from_page}" if from_page.startswith("//") else f"{http.headers['Origin']}{from_page}"
        )
    async with http.get("/login") as response:
        found = re.search(r'name="csrf" content="(\w+)"', await response.text())
    assert found is not None

    form = {"csrf": found[1], "name": "workloads/rec/overrides/demo"}
    async with http.post("/overrides/end", data=form, allow_redirects=False) as response:
        there = URL(response.headers["Location"])

    assert (303, "/login", then) == (response.status, there.path, there.query["next"])


@pytest.mark.parametrize(
    ("code", "reason", "status", "sentence", "look_first"),
    [
        (Code.UNAVAILABLE, "", 503, AWAY, True),
        # What the API refuses with a reason, it did not do.
        (Code.UNAVAILABLE, "DEPENDENCY_UNAVAILABLE", 503, "The API cannot do this now.", False),
        (Code.DEADLINE_EXCEEDED, "", 504, SLOW, True),
        (Code.INTERNAL, "INTERNAL", 502, "The API answered with an error.", True),
        (Code.PERMISSION_DENIED, "ROLE_FORBIDDEN", 403, "You may not do this.", False),
    ],
)
async def test_a_change_that_may_have_been_made_is_to_be_looked_for_first(
    visit: Visit, code: Code, reason: str, status: int, sentence: str, *, look_first: bool
) -> None:
    http = await visit(code, reason)

    answered, text = await post(http, "/overrides/end", name="workloads/rec/overrides/demo")

    assert status == answered
    assert sentence in text
    assert look_first == (LOOK_FIRST in text)
    # A second look would send the change again.
    assert "Try again" not in text


@pytest.mark.parametrize("path", ["/events/preview", "/events/import/preview"])
async def test_a_preview_changes_nothing_and_says_so(visit: Visit, path: str) -> None:
    http = await visit(Code.UNAVAILABLE)
    form = {"workloads": "rec", "load": "peak", "peak_qps": "9", "time_zone": "UTC"}
    form |= {"start": "2030-01-01T00:00", "end": "2030-01-01T01:00", "confidence": "0.8", "repeat": "once"}

    status, text = await post(http, path, **form)

    assert status == 503
    assert f"{AWAY} Nothing was changed." in text
    assert LOOK_FIRST not in text


@pytest.mark.parametrize(
    ("code", "status", "sentence"),
    [
        (Code.UNAVAILABLE, 503, AWAY),
        (Code.DEADLINE_EXCEEDED, 504, SLOW),
        (Code.RESOURCE_EXHAUSTED, 429, "The API asks to slow down"),
        (Code.INTERNAL, 502, "The API answered with an error."),
    ],
)
async def test_a_form_that_is_kept_says_why_it_was_not_taken(
    visit: Visit, code: Code, status: int, sentence: str
) -> None:
    http = await visit(code)

    answered, text = await post(http, "/events/midnight-sale/cancel", reason="moved to April", etag="e")

    assert status == answered
    assert sentence in text
    assert "What you typed is kept: try again, nothing happens twice." in text
    assert 'value="moved to April"' in text


@pytest.mark.parametrize("language", sorted(LANGUAGES))
def test_every_trouble_has_words(language: str) -> None:
    asked = {f"error.status.{status}" for status in {*_STATUS.values(), 502}} | {*_UNABLE, *_UNABLE.values()}
    assert set() == asked - set(strings(language))
