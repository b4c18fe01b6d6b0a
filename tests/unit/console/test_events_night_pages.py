"""The planners' pages over an API on fakes: what a form sends, what is refused, what an import does. No browser."""

import re
from collections.abc import AsyncIterator
from datetime import timedelta
from pathlib import Path
from urllib.parse import urlencode

import aiohttp
import pytest
from forecrest.v1 import (
    control_service_pb2,
    engine_pb2,
    engine_service_pb2,
    event_pb2,
    event_service_pb2,
    workload_pb2,
)

import controller.console
from controller.adapters.clock import SystemClock
from controller.adapters.fakes import FakeActuator, FakeSignalCache, FakeStore
from controller.api.server import ApiDependencies, RunningServer, serve
from controller.client import Client
from controller.console.app import create_app
from controller.core.types import (
    CapacityProfile,
    Contract,
    ContractState,
    Stage,
    Workload,
    WorkloadState,
)
from controller.listener import listen

WORKLOAD = Workload("rec", "recommender", (CapacityProfile("rec-int8", "L4", 1000.0),), max_replicas=30)
# Every replica has got as far as loading its model.
HALF_WAY = {Stage.ORDERED: 0.0, Stage.SCHEDULED: 0.0, Stage.LOADED: 0.0}


class World:
    """A console, the API behind it, and a browser's worth of cookies and tokens."""

    def __init__(
        self, store: FakeStore, actuator: FakeActuator, client: Client, url: str, api: RunningServer
    ) -> None:
        self.store, self.actuator, self.client, self.url, self.api = store, actuator, client, url, api
        self.http = aiohttp.ClientSession(cookie_jar=aiohttp.CookieJar(unsafe=True))

    async def get(self, path: str) -> str:
        async with self.http.get(self.url + path) as response:
            assert 200 == response.status, path
            return await response.text()

    async def post(self, path: str, **fields: str) -> tuple[int, str, str]:
        """Send a form as a page of ours would; return status, body and where it leads."""
        found = re.search(r'name="csrf" content="(\w+)"', await self.get("/events"))
        assert found is not None
        body = urlencode({"csrf": found[1], **fields})
        headers = {"Origin": self.url, "Content-Type": "application/x-www-form-urlencoded"}
        async with self.http.post(
            self.url + path, data=body, headers=headers, allow_redirects=False
        ) as response:
            return response.status, await response.text(), response.headers.get("Location", "")

    async def send_file(self, path: str, content: bytes, **fields: str) -> tuple[int, str]:
        found = re.search(r'name="csrf" content="(\w+)"', await self.get("/events"))
        assert found is not None
        form = aiohttp.FormData({"csrf": found[1], **fields})
        form.add_field("calendar", content, filename="events.ics", content_type="text/calendar")
        async with self.http.post(
            self.url + path, data=form, headers={"Origin": self.url}, allow_redirects=False
        ) as response:
            return response.status, await response.text()


@pytest.fixture
async def world() -> AsyncIterator[World]:
    clock = SystemClock()
    store, actuator = FakeStore(), FakeActuator(clock, HALF_WAY)
    store.tables.workloads["rec"] = WORKLOAD
    api = await serve(ApiDependencies(store, FakeSignalCache(clock), clock, actuator=actuator), "127.0.0.1:0")
    running = await listen(create_app(api.target), "127.0.0.1", 0)
    async with Client(api.target) as client:
        opened = World(store, actuator, client, running.url, api)
        yield opened
        await opened.http.close()
    await running.stop()
    await api.stop(grace_s=0)


SALE = {
    "display_name": "Midnight sale",
    "workloads": "rec",
    "time_zone": "Asia/Shanghai",
    "load": "peak",
    "peak_qps": "9000",
    "category": "promotion",
    "repeat": "once",
    "confidence": "0.8",
}


def sale(world: World, **more: str) -> dict[str, str]:
    del world
    start = SystemClock().now().replace(minute=0, second=0, microsecond=0) + timedelta(days=2)
    return {
        **SALE,
        "start": start.strftime("%Y-%m-%dT%H:%M"),
        "end": (start + timedelta(hours=2)).strftime("%Y-%m-%dT%H:%M"),
        **more,
    }


async def registered(world: World) -> event_pb2.Event:
    status, _, there = await world.post("/events/new", **sale(world))
    assert (303, "/events/midnight-sale?done=created") == (status, there)
    return await world.client.events.GetEvent(event_service_pb2.GetEventRequest(name="events/midnight-sale"))


async def test_a_form_registers_the_event_it_shows(world: World) -> None:
    event = await registered(world)
    assert ("Midnight sale", 9000, "promotion") == (
        event.display_name,
        event.expected_peak_qps,
        event.category,
    )
    assert "Midnight sale" in await world.get("/events/midnight-sale?done=created")


async def test_the_same_form_sent_twice_registers_one_event(world: World) -> None:
    request_id = "0b0e7a3e-8f0c-4f1e-9a53-0d8f5a1f2b11"
    first = await world.post("/events/new", **sale(world, request_id=request_id))
    second = await world.post("/events/new", **sale(world, request_id=request_id))
    assert first[2] == second[2]
    assert 1 == len((await world.client.events.ListEvents(event_service_pb2.ListEventsRequest())).events)


async def test_a_form_sent_while_the_api_is_away_keeps_what_was_typed_and_its_id(world: World) -> None:
    request_id = "0b0e7a3e-8f0c-4f1e-9a53-0d8f5a1f2b12"
    await world.api.stop(grace_s=0)
    status, text, _ = await world.post("/events/new", **sale(world, request_id=request_id))
    assert 503 == status
    assert 'value="Midnight sale"' in text
    assert f'name="request_id" value="{request_id}"' in text
    assert "What you typed is kept" in text


@pytest.mark.parametrize("page", ["edit", "cancel"])
async def test_a_page_that_cannot_be_read_says_so_without_the_wires_words_and_offers_to_try_again(
    world: World, page: str
) -> None:
    await world.api.stop(grace_s=0)
    async with world.http.get(f"{world.url}/events/midnight-sale/{page}") as response:
        text = await response.text()
    assert 503 == response.status
    assert "The API does not answer. Nothing was changed." in text
    assert "Try again" in text
    assert "failed to connect" not in text


async def test_an_id_that_is_taken_is_no_reason_to_refuse_a_title(world: World) -> None:
    await registered(world)
    status, _, there = await world.post("/events/new", **sale(world))
    assert 303 == status
    assert "/events/midnight-sale?" not in there


async def test_what_the_api_refuses_stands_at_its_field_with_the_remedy(world: World) -> None:
    status, text, _ = await world.post("/events/new", **sale(world, end=sale(world)["start"]))
    assert 400 == status
    assert re.search(r'id="error-end"[^>]*>must be after start_time<', text)
    assert 'value="Midnight sale"' in text


async def test_a_preview_says_when_prewarm_starts_and_how_many(world: World) -> None:
    status, text, _ = await world.post("/events/preview", **sale(world))
    assert 200 == status
    assert re.search(r'class="prewarm"><time', text)
    assert re.search(r'class="replicas">\d+<', text)


async def test_a_preview_of_half_a_form_asks_for_the_rest_and_of_a_bad_one_says_what_is_wrong(
    world: World,
) -> None:
    _, text, _ = await world.post("/events/preview", **sale(world, peak_qps=""))
    assert "the answer appears here" in text
    _, text, _ = await world.post("/events/preview", **sale(world, time_zone="Mars/Olympus"))
    assert 'data-field="time_zone"' in text


async def test_a_change_of_one_field_changes_that_field_alone(world: World) -> None:
    event = await registered(world)
    changed = sale(world, peak_qps="12000", etag=event.etag)
    status, _, _ = await world.post("/events/midnight-sale/edit", **changed)
    assert 303 == status
    after = await world.client.events.GetEvent(event_service_pb2.GetEventRequest(name=event.name))
    assert (12_000, event.start_time) == (after.expected_peak_qps, after.start_time)


async def test_somebody_elses_change_is_told_and_not_overwritten(world: World) -> None:
    event = await registered(world)
    theirs = event_pb2.Event(name=event.name, expected_peak_qps=7000)
    await world.client.events.UpdateEvent(event_service_pb2.UpdateEventRequest(event=theirs))
    mine = sale(world, peak_qps="12000", etag=event.etag)
    status, text, _ = await world.post("/events/midnight-sale/edit", **mine)
    assert 409 == status
    assert "Changed by someone else" in text
    stored = await world.client.events.GetEvent(event_service_pb2.GetEventRequest(name=event.name))
    assert 7000 == stored.expected_peak_qps
    status, _, _ = await world.post("/events/midnight-sale/edit", **mine | {"etag": stored.etag})
    assert 303 == status


async def test_a_form_keeps_what_it_does_not_show(world: World) -> None:
    event = await registered(world)
    await world.client.events.UpdateEvent(
        event_service_pb2.UpdateEventRequest(
            event=event_pb2.Event(name=event.name, labels={"team": "growth"})
        )
    )
    stored = await world.client.events.GetEvent(event_service_pb2.GetEventRequest(name=event.name))
    await world.post("/events/midnight-sale/edit", **sale(world, display_name="Sale", etag=stored.etag))
    after = await world.client.events.GetEvent(event_service_pb2.GetEventRequest(name=event.name))
    assert ("Sale", {"team": "growth"}) == (after.display_name, dict(after.labels))


async def test_a_cancelled_event_is_kept_with_its_reason(world: World) -> None:
    event = await registered(world)
    await world.post("/events/midnight-sale/cancel", etag=event.etag, reason="postponed")
    text = await world.get("/events/midnight-sale")
    assert "Cancelled: postponed" in text


def calendar_file() -> bytes:
    start = SystemClock().now() + timedelta(days=3)
    return "\r\n".join(
        (
            "BEGIN:VCALENDAR",
            "VERSION:2.0",
            "PRODID:-//test//EN",
            "BEGIN:VEVENT",
            "UID:stream-1@example.com",
            f"DTSTAMP:{start:%Y%m%dT%H0000Z}",
            f"DTSTART:{start:%Y%m%dT%H0000Z}",
            f"DTEND:{start + timedelta(hours=1):%Y%m%dT%H0000Z}",
            "SUMMARY:Evening stream",
            "END:VEVENT",
            "END:VCALENDAR",
            "",
        )
    ).encode()


FILLED = {
    "workloads": "rec",
    "load": "peak",
    "peak_qps": "4000",
    "time_zone": "UTC",
    "category": "livestream",
}


async def test_a_calendar_file_is_shown_before_it_is_imported(world: World) -> None:
    _, text = await world.send_file("/events/import/preview", calendar_file(), **FILLED)
    assert "Evening stream" in text
    assert 0 == len((await world.client.events.ListEvents(event_service_pb2.ListEventsRequest())).events)
    status, _ = await world.send_file("/events/import", calendar_file(), **FILLED)
    assert 303 == status
    (event,) = (await world.client.events.ListEvents(event_service_pb2.ListEventsRequest())).events
    assert ("Evening stream", 4000) == (event.display_name, event.expected_peak_qps)


async def test_a_file_that_cannot_be_read_imports_nothing_and_says_why(world: World) -> None:
    status, text = await world.send_file("/events/import", b"not a calendar", **FILLED)
    assert 400 == status
    assert "Nothing was imported" in text


async def test_events_leave_as_a_calendar_file(world: World) -> None:
    await registered(world)
    assert "SUMMARY:Midnight sale" in await world.get("/events/export.ics")


async def test_a_report_says_what_is_unknown_and_leads_to_earlier_occurrences(world: World) -> None:
    start = SystemClock().now().replace(minute=0, second=0, microsecond=0) - timedelta(days=3, hours=4)
    past = {"start": f"{start:%Y-%m-%dT%H:%M}", "end": f"{start + timedelta(hours=2):%Y-%m-%dT%H:%M}"}
    status, _, _ = await world.post("/events/new", **sale(world, **past, time_zone="UTC", repeat="daily"))
    assert 303 == status
    text = await world.get("/events/midnight-sale/report")
    assert "unknown" in text
    offered = re.findall(r'<option value="(midnight-sale@\w+)"', text)
    assert 4 == len(offered)
    assert f"{start:%Y-%m-%d %H:%M}" in await world.get(
        f"/events/midnight-sale/report?occurrence={offered[-1]}"
    )


async def test_event_night_shows_every_replica_on_its_rung(world: World) -> None:
    event = await registered(world)
    start_at = event.start_time.ToDatetime(SystemClock().now().tzinfo)
    await world.actuator.scale(WORKLOAD, 9, fence=1)
    world.store.tables.states["rec"] = WorkloadState(
        desired_replicas=9,
        contracts=(
            Contract(
                "midnight-sale",
                1,
                ContractState.PREWARMING,
                9,
                start_at - timedelta(minutes=10),
                start_at - timedelta(seconds=30),
                start_at,
                start_at + timedelta(hours=2),
                ordered_count=9,
                scheduled_count=9,
                loaded_count=9,
                expected_warm_at=start_at - timedelta(minutes=5),
            ),
        ),
    )
    text = await world.get("/night")
    assert 'data-verdict="on_time"' in text
    assert 9 == text.count('<li class="loaded">')
    assert "4 min 30 s to spare".replace(" ", "\xa0") in text.replace(" ", "\xa0")


async def test_without_an_event_the_night_says_so(world: World) -> None:
    assert "No event runs or is coming up" in await world.get("/night")


async def test_an_override_needs_a_reason_and_an_end(world: World) -> None:
    status, text, _ = await world.post("/overrides", workload="rec", kind="at_least", replicas="9")
    assert 400 == status
    assert "must end by itself" in text
    listed = await world.client.control.ListOverrides(control_service_pb2.ListOverridesRequest())
    assert 0 == len(listed.overrides)


async def test_an_override_is_put_in_force_refused_beyond_bounds_and_ended(world: World) -> None:
    said = {"workload": "rec", "kind": "at_least", "minutes": "60", "reason": "load test"}
    status, text, _ = await world.post("/overrides", replicas="99", **said)
    assert 400 == status
    assert "must be 0 to 30" in text
    status, _, _ = await world.post("/overrides", replicas="9", **said)
    assert 303 == status
    (override,) = (
        await world.client.control.ListOverrides(control_service_pb2.ListOverridesRequest())
    ).overrides
    assert (9, "load test") == (override.replicas, override.reason)
    assert "load test" in await world.get("/overrides")
    await world.post("/overrides/end", name=override.name)
    assert "load test" not in await world.get("/overrides")


async def test_a_workload_and_the_fleet_are_paused_and_resumed(world: World) -> None:
    await world.post("/overrides/pause", workload="rec", minutes="60", reason="maintenance")
    assert "maintenance" in await world.get("/overrides")
    await world.post("/overrides/resume", workload="rec")
    assert "maintenance" not in await world.get("/overrides")
    status, _, _ = await world.post("/overrides/pause", fleet="yes", reason="")
    assert 400 == status
    await world.post("/overrides/pause", fleet="yes", reason="incident")
    state = await world.client.control.GetPauseState(control_service_pb2.GetPauseStateRequest())
    assert (True, "incident") == (state.paused, state.reason)


async def test_an_engine_is_promoted_after_a_question(world: World) -> None:
    engine = engine_pb2.Engine(
        model_name="recommender",
        digest="sha256:" + "ab" * 32,
        model_digest="sha256:" + "cd" * 32,
        kind=engine_pb2.ENGINE_KIND_TENSORRT,
        precision=workload_pb2.PRECISION_INT8,
        runtime_version="10.8.0",
        compute_capabilities=["8.9"],
    )
    engines = world.client.engines
    await engines.RegisterEngine(
        engine_service_pb2.RegisterEngineRequest(engine=engine, engine_id="rec-int8")
    )
    assert "/engines/rec-int8/promote" not in await world.get("/engines/board")
    measure = engine_pb2.EngineMeasure(measure="cosine", value=0.999, min=0.99)
    validated = await engines.ValidateEngine(
        engine_service_pb2.ValidateEngineRequest(
            name="engines/rec-int8", validation=engine_pb2.EngineValidation(measures=[measure])
        )
    )
    assert "Serve rec-int8?" in await world.get("/engines/rec-int8/promote")
    status, text, _ = await world.post("/engines/rec-int8/promote", etag="stale")
    assert 409 == status, text
    status, _, _ = await world.post("/engines/rec-int8/promote", etag=validated.etag)
    assert 303 == status
    found = await engines.GetEngine(engine_service_pb2.GetEngineRequest(name="engines/rec-int8"))
    assert engine_pb2.ENGINE_STATE_ACTIVE == found.state


async def test_titles_are_text_whatever_they_hold(world: World) -> None:
    _, _, there = await world.post("/events/new", **sale(world, display_name="<script>alert(1)</script>"))
    for path in (there, "/events", "/events?view=agenda", "/events?view=list", "/night"):
        assert "<script>alert" not in await world.get(path)


@pytest.mark.parametrize(
    "path",
    [
        "/events?view=month&month=2027-02",
        "/events?view=month&month=junk",
        "/events?view=list&state=cancelled&text=x",
    ],
)
async def test_any_query_of_the_calendar_is_answered(world: World, path: str) -> None:
    await registered(world)
    assert "Traffic events" in await world.get(path)


def test_both_languages_say_everything() -> None:
    folder = Path(controller.console.__file__).parent / "i18n"
    for name in ("events", "night", "engines", "overrides"):
        english, chinese = (
            (folder / f"{name}.{code}.json").read_text(encoding="utf-8") for code in ("en", "zh")
        )
        keys = [re.findall(r'^  "([\w.]+)": ', text, re.MULTILINE) for text in (english, chinese)]
        assert keys[0] == keys[1]
        blanks = [re.findall(r"\{\w+\}", text) for text in (english, chinese)]
        assert sorted(blanks[0]) == sorted(blanks[1])


async def test_a_change_that_the_api_did_not_answer_keeps_what_was_typed(world: World) -> None:
    event = await registered(world)
    await world.api.stop(grace_s=0)
    ask = "00000000-0000-4000-8000-000000000001"

    status, text, _ = await world.post(
        "/events/midnight-sale/edit",
        **sale(world, peak_qps="12345", display_name="Moved", etag=event.etag, request_id=ask),
    )

    assert 503 == status
    assert "What you typed is kept" in text
    assert 'value="12345"' in text
    assert 'name="request_id" value="00000000-0000-4000-8000-000000000001"' in text
    assert 'name="name" value="midnight-sale"' in text
    assert f'name="etag" value="{event.etag.replace(chr(34), "&#34;")}"' in text


async def test_a_cancellation_that_the_api_did_not_answer_keeps_its_reason(world: World) -> None:
    event = await registered(world)
    await world.api.stop(grace_s=0)

    status, text, _ = await world.post(
        "/events/midnight-sale/cancel", reason="moved to April", etag=event.etag, title="Midnight sale"
    )

    assert 503 == status
    assert "What you typed is kept" in text
    assert 'value="moved to April"' in text
    assert "Midnight sale" in text


async def test_an_import_that_the_api_did_not_answer_keeps_what_was_filled_in(world: World) -> None:
    await world.api.stop(grace_s=0)

    status, text = await world.send_file(
        "/events/import",
        b"BEGIN:VCALENDAR\r\nEND:VCALENDAR\r\n",
        workloads="rec",
        peak_qps="777",
        load="peak",
    )

    assert 503 == status
    assert "choose the file again" in text
    assert 'value="777"' in text
    assert 'value="rec" checked' in text
