"""Answers a Prometheus server, or whatever stands at its address, may give; over a real socket."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from aiohttp import web

from controller.adapters.clock import SystemClock
from controller.adapters.embedded.folder import choose_port
from controller.adapters.prometheus import Prometheus, PrometheusAccess, QueryError
from controller.ports import UnavailableError

NOW = datetime(2026, 11, 11, tzinfo=UTC)
MINUTE = timedelta(minutes=1)
Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]


class ImpatientClock(SystemClock):
    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(0)


def success(kind: str, result: object, **more: object) -> web.Response:
    return web.json_response({"status": "success", "data": {"resultType": kind, "result": result}, **more})


def vector(value: str) -> web.Response:
    return success("vector", [{"metric": {}, "value": [1.0, value]}])


def failure(status: int, kind: str, error: str) -> web.Response:
    return web.json_response({"status": "error", "errorType": kind, "error": error}, status=status)


@dataclass
class Server:
    """Gives the answers a test puts in, the last one again and again, and keeps what it was asked."""

    url: str
    answers: list[web.Response | Answer] = field(default_factory=list[web.Response | Answer])
    asked: list[tuple[str, dict[str, str], dict[str, str]]] = field(
        default_factory=list[tuple[str, dict[str, str], dict[str, str]]]
    )

    async def respond(self, request: web.Request) -> web.StreamResponse:
        form = {key: str(value) for key, value in (await request.post()).items()}
        self.asked.append((request.path, form, dict(request.headers)))
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if callable(answer):
            return await answer(request)
        return web.Response(
            body=answer.body, status=answer.status, headers={"Content-Type": "application/json"}
        )


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    made = Server(f"http://127.0.0.1:{choose_port()}")
    app = web.Application()
    app.router.add_post("/{rest:.*}", made.respond)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", int(made.url.rpartition(":")[2])).start()
    yield made
    await runner.cleanup()


async def rate(server: Server, **options: object) -> float | None:
    client = Prometheus(PrometheusAccess(server.url, **options), ImpatientClock())  # type: ignore[arg-type]
    try:
        return await client.rate("up", NOW)
    finally:
        await client.close()


async def test_a_query_goes_as_a_form_with_its_time(server: Server) -> None:
    server.answers = [vector("2.5")]

    assert await rate(server) == 2.5
    path, form, headers = server.asked[0]
    assert (path, form) == ("/api/v1/query", {"query": "up", "time": f"{NOW.timestamp():.3f}"})
    assert "Authorization" not in headers


async def test_a_token_is_read_again_for_each_call(server: Server, tmp_path: Path) -> None:
    server.answers = [vector("1")]
    token = tmp_path / "token"
    client = Prometheus(
        PrometheusAccess(server.url, token_file=token, headers={"X-Scope-OrgID": "team"}), ImpatientClock()
    )
    for value in ("first\n", "second\n"):
        token.write_text(value)
        await client.rate("up", NOW)
    token.unlink()
    with pytest.raises(QueryError, match="token file"):
        await client.rate("up", NOW)
    await client.close()

    assert [h["Authorization"] for _, _, h in server.asked] == ["Bearer first", "Bearer second"]
    assert {h["X-Scope-OrgID"] for _, _, h in server.asked} == {"team"}


async def test_user_and_password_go_along(server: Server) -> None:
    server.answers = [vector("1")]
    await rate(server, username="me", password="geheim-ü")

    assert server.asked[0][2]["Authorization"] == "Basic bWU6Z2VoZWltLcO8"


async def test_secrets_are_in_no_repr_and_no_error(server: Server) -> None:
    server.answers = [failure(401, "unauthorized", "no")]
    access = PrometheusAccess(server.url, username="me", password="secret-word", headers={"X": "secret-word"})
    with pytest.raises(QueryError, match="refused us with 401") as caught:
        await rate(server, username="me", password="secret-word", headers={"X": "secret-word"})

    assert "secret-word" not in f"{access!r} {caught.value}"


@pytest.mark.parametrize("status", [429, 500, 502, 503, 504])
async def test_a_server_in_trouble_is_asked_again(server: Server, status: int) -> None:
    server.answers = [failure(status, "unavailable", "busy"), failure(status, "", ""), vector("7")]

    assert await rate(server, attempts_max=3) == 7.0
    assert len(server.asked) == 3


async def test_trouble_that_lasts_is_an_outage(server: Server) -> None:
    server.answers = [failure(503, "timeout", "query timed out in expression evaluation")]
    with pytest.raises(UnavailableError, match="query timed out"):
        await rate(server, attempts_max=2)

    assert len(server.asked) == 2


async def never(_: web.Request) -> web.StreamResponse:
    await asyncio.Event().wait()
    raise AssertionError


async def test_silence_is_an_outage(server: Server) -> None:
    server.answers = [never]
    with pytest.raises(UnavailableError, match=r"did not answer within 0\.2 s"):
        await rate(server, attempts_max=2, timeout_s=0.2)


async def without_end(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse()
    await response.prepare(request)
    try:
        while True:
            await response.write(b"x" * 1_000_000)
    except ConnectionResetError:
        return response


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (failure(400, "bad_data", "parse error: unexpected end of input"), "parse error"),
        (failure(422, "execution", "many-to-many matching not allowed"), "many-to-many"),
        (failure(403, "", ""), "refused us with 403"),
        (web.Response(status=404, body=b"<html>"), "not as Prometheus does"),
        (web.Response(status=302, body=b""), "not as Prometheus does"),
        (web.Response(status=200, body=b"<html>"), "not as Prometheus does"),
        (web.json_response([]), "not as Prometheus does"),
        (web.json_response({"status": "success"}), "not as Prometheus does"),
        (success("matrix", []), "not an instant vector"),
        (success("vector", [{"metric": {}, "value": [1, "1"]}] * 3), "gives 3 series"),
        (success("vector", [{"metric": {}}]), "no number"),
        (success("string", [1, "x"]), "not an instant vector"),
        (vector("-1"), "no rate"),
        (without_end, "has over"),
    ],
)
async def test_an_answer_that_cannot_be_used_is_refused_once_with_what_is_wrong(
    server: Server, answer: web.Response | Answer, said: str
) -> None:
    server.answers = [answer]
    with pytest.raises(QueryError, match=said):
        await rate(server)

    assert len(server.asked) == 1


@pytest.mark.parametrize("answer", [vector("NaN"), success("vector", []), success("scalar", [1, "NaN"])])
async def test_what_prometheus_does_not_know_is_unknown(server: Server, answer: web.Response) -> None:
    server.answers = [answer]

    assert await rate(server) is None


async def test_ranges_leave_out_nan_and_cover_the_window_without_overlap(server: Server) -> None:
    def points(*pairs: tuple[int, str]) -> web.Response:
        values = [[NOW.timestamp() + 60 * minute, value] for minute, value in pairs]
        return success("matrix", [{"metric": {}, "values": values}] if values else [])

    server.answers = [points((0, "1"), (1, "NaN")), points(), points((4, "2.5"))]
    client = Prometheus(PrometheusAccess(server.url, points_max=2), ImpatientClock())
    chunks = [chunk async for chunk in client.rates("up", NOW, NOW + 4 * MINUTE, MINUTE)]
    await client.close()

    assert chunks == [[(NOW, 1.0)], [], [(NOW + 4 * MINUTE, 2.5)]]
    asked = [
        ((float(f["start"]) - NOW.timestamp()) / 60, (float(f["end"]) - NOW.timestamp()) / 60, f["step"])
        for _, f, _ in server.asked
    ]
    assert asked == [(0, 1, "60"), (2, 3, "60"), (4, 4, "60")]


async def test_warnings_are_passed_on(server: Server, caplog: pytest.LogCaptureFixture) -> None:
    answer = json.loads(vector("1").body or b"")
    server.answers = [web.json_response({**answer, "warnings": ["some blocks are missing"]})]
    await rate(server)

    assert "some blocks are missing" in caplog.text


@pytest.mark.parametrize(
    ("url", "options"),
    [
        ("prometheus:9090", {}),
        ("ftp://prometheus", {}),
        ("http://", {}),
        ("http://host:99999", {}),
        ("http://user:secret-word@host", {}),
        ("http://host", {"token_file": Path("t"), "username": "u"}),
        ("http://host", {"points_max": 20_000}),
    ],
)
def test_wrong_settings_are_refused_at_once(url: str, options: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="prometheus") as caught:
        PrometheusAccess(url, **options)  # type: ignore[arg-type]

    assert "secret-word" not in str(caught.value)


async def test_a_server_certificate_is_checked_against_the_ca_file(tmp_path: Path) -> None:
    import ssl

    from tests.unit.auth.authority import Authority

    ours, other = Authority(tmp_path / "ours"), Authority(tmp_path / "other", "other")
    certificate, key = ours.server()
    secure = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    secure.load_cert_chain(certificate, key)

    async def respond(_: web.Request) -> web.Response:
        return vector("4")

    app = web.Application()
    app.router.add_post("/api/v1/query", respond)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    port = choose_port()
    await web.TCPSite(runner, "127.0.0.1", port, ssl_context=secure).start()
    found = []
    for ca in (ours.ca, other.ca, tmp_path / "missing.pem"):
        client = Prometheus(PrometheusAccess(f"https://127.0.0.1:{port}", ca_file=ca), ImpatientClock())
        try:
            found.append(await client.rate("up", NOW))
        except QueryError as error:
            found.append(str(error))
        await client.close()
    await runner.cleanup()

    assert found[0] == 4.0
    assert "TLS failed" in str(found[1])
    assert "CA file" in str(found[2])
