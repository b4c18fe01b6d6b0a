"""How calls to an API server that refuses, stumbles or forgets end. The server is a small one of ours."""

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from http import HTTPStatus
from typing import Any

import pytest
from aiohttp import web
from kubernetes import client as kube

from controller.actuators.kubernetes import KubeApi, KubeError
from controller.actuators.kubernetes.api import TRIES_MAX, ForbiddenError
from controller.actuators.kubernetes.reflector import Reflector
from controller.ports import ConflictError, NotFoundError, UnavailableError

Answer = tuple[int, dict[str, Any]]
POD = {"metadata": {"name": "a", "namespace": "shop", "resourceVersion": "7"}}


class Server:
    """Answers each call with the next of the given answers, the last one for ever; remembers what was asked."""

    def __init__(self) -> None:
        self.answers: list[Answer] = [(200, {})]
        self.asked: list[tuple[str, str]] = []
        self.watched: list[list[dict[str, Any]]] = []

    async def answer(self, request: web.Request) -> web.StreamResponse:
        self.asked.append((request.method, request.path_qs))
        if request.query.get("watch"):
            return await self._stream(request)
        if request.path == "/pause":
            return web.json_response({})
        status, body = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        headers = {"Retry-After": "0"} if status == HTTPStatus.TOO_MANY_REQUESTS else {}
        return web.json_response(body, status=status, headers=headers)

    async def _stream(self, request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        for line in self.watched.pop(0) if self.watched else []:
            await response.write(json.dumps(line).encode() + b"\n")
        return response


@pytest.fixture
async def server() -> AsyncIterator[tuple[Server, KubeApi]]:
    made = Server()
    app = web.Application()
    app.router.add_route("*", "/{tail:.*}", made.answer)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    host, port = runner.addresses[0][:2]
    configuration = kube.Configuration(host=f"http://{host}:{port}")
    configuration.retries = False
    api = KubeApi(kube.ApiClient(configuration))
    yield made, api
    await api.close()
    await runner.cleanup()


@pytest.mark.parametrize("status", [429, 500, 503])
async def test_an_overloaded_server_is_asked_again_until_it_answers(
    server: tuple[Server, KubeApi], status: int
) -> None:
    there, api = server
    there.answers = [(status, {}), (status, {}), (200, {"kind": "Pod"})]

    assert await api.get("/api/v1/pods") == {"kind": "Pod"}
    assert api.calls == {("GET", status): 2, ("GET", 200): 1}


async def test_a_storm_of_refusals_ends_as_unavailable_and_is_bounded(server: tuple[Server, KubeApi]) -> None:
    there, api = server
    there.answers = [(429, {"message": "too many requests"})]
    with pytest.raises(UnavailableError, match="too many requests"):
        await api.get("/api/v1/pods")

    assert len(there.asked) == TRIES_MAX


@pytest.mark.parametrize(
    ("status", "error"),
    [
        (401, ForbiddenError),
        (403, ForbiddenError),
        (404, NotFoundError),
        (409, ConflictError),
        (422, KubeError),
    ],
)
async def test_a_no_is_not_asked_again_and_has_its_own_name(
    server: tuple[Server, KubeApi], status: int, error: type[Exception]
) -> None:
    there, api = server
    there.answers = [(status, {"message": "because"})]
    with pytest.raises(error, match="because"):
        await api.replace("/apis/apps/v1/namespaces/shop/deployments/a/scale", {})

    assert len(there.asked) == 1


async def test_a_disruption_budget_is_an_answer_and_no_overload(server: tuple[Server, KubeApi]) -> None:
    there, api = server
    there.answers = [(429, {"message": "Cannot evict pod"})]
    with pytest.raises(KubeError, match="PodDisruptionBudget"):
        await api.create("/api/v1/namespaces/shop/pods/a/eviction", {})

    assert len(there.asked) == 1


@pytest.mark.parametrize(
    "call",
    [
        pytest.param(lambda api: api.get("/api/v1/pods"), id="reading"),
        pytest.param(lambda api: api.create("/api/v1/pods", {}), id="creating"),
    ],
)
async def test_a_server_that_is_gone_is_unavailable(call: Callable[[KubeApi], Awaitable[object]]) -> None:
    configuration = kube.Configuration(host="http://127.0.0.1:1")
    configuration.retries = False
    api = KubeApi(kube.ApiClient(configuration))
    with pytest.raises(UnavailableError, match="does not answer"):
        await call(api)
    await api.close()


async def test_a_copy_is_listed_anew_when_its_version_is_forgotten(server: tuple[Server, KubeApi]) -> None:
    there, api = server
    changed = {"metadata": {**POD["metadata"], "resourceVersion": "9"}, "spec": {"nodeName": "b"}}
    page = {"metadata": {"resourceVersion": "8"}, "items": [POD]}
    later = {"metadata": {"resourceVersion": "20"}, "items": []}
    there.answers = [(200, page), (200, later)]
    there.watched = [
        [{"type": "MODIFIED", "object": changed}],
        [{"type": "ERROR", "object": {"kind": "Status", "code": 410}}],
    ]
    copy = Reflector(api, "/api/v1/pods")
    copy.start()
    while copy.list_count < 2:
        await api.get("/pause")  # each answer lets the watch go on
    await copy.close()
    watches = [path for _, path in there.asked if "watch=true" in path]

    assert dict(copy.objects) == {}
    assert "resourceVersion=8" in watches[0]
    assert "resourceVersion=9" in watches[1]


async def test_an_answer_of_our_own_is_seen_before_the_watch_tells_and_never_taken_back(
    server: tuple[Server, KubeApi],
) -> None:
    there, api = server

    def pod(name: str, version: str, node: str) -> dict[str, Any]:
        metadata = {"name": name, "namespace": "shop", "resourceVersion": version}
        return {"metadata": metadata, "spec": {"nodeName": node}}

    there.answers = [(200, {"metadata": {"resourceVersion": "8"}, "items": [pod("a", "8", "listed")]})]
    copy = Reflector(api, "/api/v1/pods")
    copy.start()
    while copy.list_count < 1:
        await api.get("/pause")
    copy.put(pod("a", "12", "ordered"))
    copy.put(pod("deleted", "11", "gone"))
    seen = [thing["spec"]["nodeName"] for thing in copy.objects.values()]
    late, newest = pod("a", "9", "before"), pod("b", "13", "after")
    there.watched = [[{"type": "MODIFIED", "object": late}, {"type": "ADDED", "object": newest}]]
    while len(copy.objects) < 2:
        await api.get("/pause")
    await copy.close()

    assert seen == ["ordered"]
    assert {key[1]: thing["spec"]["nodeName"] for key, thing in copy.objects.items()} == {
        "a": "ordered",
        "b": "after",
    }
