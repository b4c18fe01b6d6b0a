"""EventService over a real channel, on the fakes."""

from datetime import UTC, datetime, timedelta

import grpc
import pytest
from forecrest.v1 import event_pb2, event_service_pb2

from controller.adapters.fakes import FakeStore
from controller.client import ApiError, Client, explain, pages
from controller.core.resources import EventState

NAME = "events/double-eleven"


def an_event(**changes: object) -> event_pb2.Event:
    fields: dict[str, object] = {
        "workloads": ["workloads/rec"],
        "start_local": "2026-11-11T00:00",
        "end_local": "2026-11-11T02:00",
        "time_zone": "Asia/Shanghai",
        "expected_peak_qps": 20_000.0,
    }
    fields.update(changes)
    return event_pb2.Event(**{key: value for key, value in fields.items() if value is not None})  # type: ignore[arg-type]


async def create(client: Client, **changes: object) -> event_pb2.Event:
    request = event_service_pb2.CreateEventRequest(event=an_event(**changes), event_id="double-eleven")
    return await client.events.CreateEvent(request)


async def refused(call: object) -> ApiError:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call  # type: ignore[misc]
    return explain(caught.value)


async def test_a_registered_event_is_read_back_with_its_zone_and_in_utc(client: Client) -> None:
    created = await create(client)

    read = await client.events.GetEvent(event_service_pb2.GetEventRequest(name=NAME))

    assert created == read
    assert read.name == NAME
    assert read.start_time.ToDatetime(tzinfo=UTC) == datetime(2026, 11, 10, 16, 0, tzinfo=UTC)
    assert (read.start_local, read.time_zone) == ("2026-11-11T00:00:00", "Asia/Shanghai")
    assert read.state == event_pb2.EVENT_STATE_SCHEDULED
    assert read.confidence == pytest.approx(0.8)


async def test_an_event_without_an_id_gets_one(client: Client) -> None:
    created = await client.events.CreateEvent(event_service_pb2.CreateEventRequest(event=an_event()))

    assert created.name.startswith("events/event-")


@pytest.mark.parametrize(
    ("changes", "field", "words"),
    [
        pytest.param({"time_zone": ""}, "event.time_zone", "IANA", id="no zone"),
        pytest.param({"time_zone": "Mars/Olympus"}, "event.time_zone", "IANA", id="unknown zone"),
        pytest.param({"time_zone": "../../etc/passwd"}, "event.time_zone", "IANA", id="path as zone"),
        pytest.param({"start_local": ""}, "event.start_time", "required", id="no start"),
        pytest.param(
            {"start_local": "tomorrow"}, "event.start_local", "must look like", id="unreadable start"
        ),
        pytest.param(
            {"start_local": "2026-02-30T00:00"}, "event.start_local", "must look like", id="no such day"
        ),
        pytest.param(
            {"end_local": "2026-11-11T00:00"}, "event.end_time", "after start_time", id="end is start"
        ),
        pytest.param({"end_local": "2026-11-10T00:00"}, "event.end_time", "after start_time", id="end first"),
        pytest.param(
            {"start_local": "2026-11-01T00:00", "end_local": "2026-11-01T02:00"},
            "event.end_time",
            "in the future",
            id="past",
        ),
        pytest.param({"end_local": "2026-12-31T00:00"}, "event.end_time", "at most 31 days", id="too long"),
        pytest.param(
            {"start_local": "2036-01-01T00:00", "end_local": "2036-01-01T01:00"},
            "event.start_time",
            "5 years",
            id="too far",
        ),
        pytest.param({"workloads": []}, "event.workloads", "1 to 50", id="no workload"),
        pytest.param({"workloads": ["rec"]}, "event.workloads[0]", "workloads/{id}", id="bare workload"),
        pytest.param(
            {"workloads": ["workloads/rec", "workloads/nobody"]},
            "event.workloads[1]",
            "create it first",
            id="unknown workload",
        ),
        pytest.param(
            {"workloads": ["workloads/rec"] * 2}, "event.workloads", "twice", id="the same workload twice"
        ),
        pytest.param({"expected_peak_qps": None}, "event.expected_peak_qps", "exactly one", id="no load"),
        pytest.param({"expected_peak_qps": float("nan")}, "event.expected_peak_qps", "finite", id="NaN"),
        pytest.param({"expected_peak_qps": float("inf")}, "event.expected_peak_qps", "finite", id="infinite"),
        pytest.param({"expected_peak_qps": -1.0}, "event.expected_peak_qps", "more than 0", id="negative"),
        pytest.param({"expected_peak_qps": 0.0}, "event.expected_peak_qps", "more than 0", id="zero"),
        pytest.param(
            {"expected_peak_qps": 9e7},
            "event.expected_peak_qps",
            "more than 10000 replicas",
            id="absurd for it",
        ),
        pytest.param(
            {"expected_peak_qps": None, "expected_multiplier": 5000.0},
            "event.expected_multiplier",
            "at most 1000",
            id="multiplier too large",
        ),
        pytest.param({"confidence": 0.0}, "event.confidence", "more than 0", id="no confidence"),
        pytest.param(
            {"max_replicas_override": 0}, "event.max_replicas_override", "at least 1", id="zero override"
        ),
        pytest.param({"priority": 5000}, "event.priority", "at most 1000", id="priority"),
        pytest.param({"ramp": timedelta(hours=3)}, "event.ramp", "7200 s", id="ramp longer than the event"),
        pytest.param({"margin": timedelta(days=2)}, "event.margin", "86400 s", id="margin"),
        pytest.param({"lead_override": timedelta(0)}, "event.lead_override", "1 s", id="lead"),
        pytest.param(
            {"display_name": "a\x1b[2J"}, "event.display_name", "control characters", id="escape codes"
        ),
        pytest.param({"labels": {"": "x"}}, 'event.labels[""]', "1 to 63", id="label"),
        pytest.param(
            {"start_local": "0001-01-01T00:00"}, "event.start_local", "outside the calendar", id="year one"
        ),
        pytest.param(
            {
                "time_zone": "Europe/Berlin",
                "start_local": "2027-03-28T02:30",
                "end_local": "2027-03-28T04:00",
                "rrule": "FREQ=DAILY",
            },
            "event.start_local",
            "does not exist in Europe/Berlin",
            id="a recurrence from a gap on",
        ),
        pytest.param(
            {
                "rrule": "FREQ=DAILY;COUNT=2",
                "start_local": "2026-11-01T00:00",
                "end_local": "2026-11-01T02:00",
            },
            "event.rrule",
            "ends in the future",
            id="a recurrence that is over",
        ),
        pytest.param(
            {"rrule": "FREQ=DAILY", "exdate_times": [datetime(2020, 1, 1, tzinfo=UTC)]},
            "event.exdate_times",
            "between start_time",
            id="an exception before the start",
        ),
        pytest.param(
            {"start_time": datetime(9999, 12, 31, 23, 59, tzinfo=UTC)},
            "event.start_local",
            "outside the calendar",
            id="an instant that its zone cannot express",
        ),
        pytest.param({"rrule": "FREQ=SECONDLY"}, "event.rrule", "cannot use", id="secondly"),
        pytest.param(
            {"rrule": "FREQ=YEARLY;BYMONTH=2;BYMONTHDAY=30"}, "event.rrule", "first", id="30 February"
        ),
        pytest.param(
            {"exdate_times": [datetime(2026, 11, 12, tzinfo=UTC)]},
            "event.exdate_times",
            "need rrule",
            id="exdate",
        ),
    ],
)
async def test_a_bad_event_is_refused_by_the_name_of_its_field(
    client: Client, store: FakeStore, changes: dict[str, object], field: str, words: str
) -> None:
    error = await refused(create(client, **changes))

    assert (error.code, error.reason) == ("INVALID_ARGUMENT", "INVALID_FIELDS")
    assert field in dict(error.violations)
    assert words in dict(error.violations)[field]
    assert store.tables.events == {}
    assert store.tables.audit == {}


async def test_every_bad_field_is_named_at_once(client: Client) -> None:
    error = await refused(create(client, expected_peak_qps=-1.0, confidence=7.0, priority=9999))

    assert {"event.expected_peak_qps", "event.confidence", "event.priority"} == {
        f for f, _ in error.violations
    }


async def test_instant_and_wall_clock_must_agree(client: Client) -> None:
    error = await refused(create(client, start_time=datetime(2026, 11, 10, 17, 0, tzinfo=UTC)))

    assert "give one of them" in dict(error.violations)["event.start_local"]


@pytest.mark.parametrize("event_id", ["Double", "1st", "a" * 64, "a/b", "-a", "a-"])
async def test_an_id_must_fit_into_a_name(client: Client, event_id: str) -> None:
    request = event_service_pb2.CreateEventRequest(event=an_event(), event_id=event_id)

    error = await refused(client.events.CreateEvent(request))

    assert [field for field, _ in error.violations] == ["event_id"]


async def test_a_taken_id_is_refused(client: Client) -> None:
    await create(client)

    error = await refused(create(client))

    assert (error.code, error.reason) == ("ALREADY_EXISTS", "RESOURCE_EXISTS")


async def test_the_same_request_id_returns_the_first_response(client: Client, store: FakeStore) -> None:
    request = event_service_pb2.CreateEventRequest(event=an_event(), request_id="r-1")

    first = await client.events.CreateEvent(request)
    second = await client.events.CreateEvent(request)

    assert first == second
    assert len(store.tables.events) == 1
    assert len(store.tables.audit) == 1


async def test_a_request_id_with_another_body_is_refused(client: Client) -> None:
    first = event_service_pb2.CreateEventRequest(event=an_event(), request_id="r-1")
    other = event_service_pb2.CreateEventRequest(event=an_event(priority=1), request_id="r-1")
    await client.events.CreateEvent(first)

    error = await refused(client.events.CreateEvent(other))

    assert (error.code, error.reason) == ("ALREADY_EXISTS", "REQUEST_ID_REUSED")


async def test_validate_only_checks_everything_and_stores_nothing(client: Client, store: FakeStore) -> None:
    request = event_service_pb2.CreateEventRequest(event=an_event(), event_id="x", validate_only=True)

    checked = await client.events.CreateEvent(request)

    assert checked.name == "events/x"
    assert store.tables.events == {}
    request.event.priority = 9999
    assert (await refused(client.events.CreateEvent(request))).code == "INVALID_ARGUMENT"


async def test_an_update_changes_the_masked_fields_only(client: Client) -> None:
    await create(client, display_name="11.11", priority=3)
    request = event_service_pb2.UpdateEventRequest(
        event=event_pb2.Event(name=NAME, priority=7, display_name="ignored"),
        update_mask={"paths": ["priority"]},
    )

    updated = await client.events.UpdateEvent(request)

    assert (updated.display_name, updated.priority, updated.revision) == ("11.11", 7, 2)


async def test_an_update_without_a_mask_takes_the_fields_that_are_set(client: Client) -> None:
    await create(client, display_name="11.11", priority=3)

    updated = await client.events.UpdateEvent(
        event_service_pb2.UpdateEventRequest(event=event_pb2.Event(name=NAME, priority=7))
    )

    assert (updated.display_name, updated.priority) == ("11.11", 7)


async def test_the_wall_clock_alone_moves_an_event(client: Client) -> None:
    await create(client)
    request = event_service_pb2.UpdateEventRequest(
        event=event_pb2.Event(name=NAME, start_local="2026-11-10T23:00"),
        update_mask={"paths": ["start_local"]},
    )

    updated = await client.events.UpdateEvent(request)

    assert updated.start_time.ToDatetime(tzinfo=UTC) == datetime(2026, 11, 10, 15, 0, tzinfo=UTC)
    assert updated.end_time.ToDatetime(tzinfo=UTC) == datetime(2026, 11, 10, 18, 0, tzinfo=UTC)


async def test_a_multiplier_replaces_a_peak(client: Client) -> None:
    await create(client)

    updated = await client.events.UpdateEvent(
        event_service_pb2.UpdateEventRequest(event=event_pb2.Event(name=NAME, expected_multiplier=3.0))
    )

    assert updated.WhichOneof("expected_load") == "expected_multiplier"


@pytest.mark.parametrize("path", ["state", "revision", "name", "nonsense", "event.priority"])
async def test_an_update_mask_names_fields_that_can_be_changed(client: Client, path: str) -> None:
    await create(client)
    request = event_service_pb2.UpdateEventRequest(
        event=event_pb2.Event(name=NAME), update_mask={"paths": [path]}
    )

    error = await refused(client.events.UpdateEvent(request))

    assert [field for field, _ in error.violations] == ["update_mask"]


async def test_an_old_etag_is_refused_and_nothing_changes(client: Client, store: FakeStore) -> None:
    created = await create(client)
    change = event_pb2.Event(name=NAME, priority=1, etag=created.etag)
    await client.events.UpdateEvent(event_service_pb2.UpdateEventRequest(event=change))
    change.priority = 2

    error = await refused(client.events.UpdateEvent(event_service_pb2.UpdateEventRequest(event=change)))

    assert (error.code, error.reason) == ("ABORTED", "ETAG_MISMATCH")
    assert store.tables.events["double-eleven"][-1].priority == 1


async def test_an_etag_nobody_made_is_refused(client: Client) -> None:
    await create(client)
    change = event_pb2.Event(name=NAME, priority=1, etag="W/abc")

    error = await refused(client.events.UpdateEvent(event_service_pb2.UpdateEventRequest(event=change)))

    assert error.reason == "ETAG_MISMATCH"


async def test_an_update_that_changes_nothing_makes_no_revision(client: Client) -> None:
    created = await create(client, priority=3)

    updated = await client.events.UpdateEvent(
        event_service_pb2.UpdateEventRequest(event=event_pb2.Event(name=NAME, priority=3))
    )

    assert updated == created


async def test_a_cancelled_event_is_kept_and_cannot_be_changed(client: Client) -> None:
    await create(client)
    request = event_service_pb2.CancelEventRequest(name=NAME, reason="moved to spring")

    cancelled = await client.events.CancelEvent(request)
    again = await client.events.CancelEvent(event_service_pb2.CancelEventRequest(name=NAME))

    assert (cancelled.state, cancelled.cancel_reason) == (event_pb2.EVENT_STATE_CANCELLED, "moved to spring")
    assert again == cancelled
    change = event_service_pb2.UpdateEventRequest(event=event_pb2.Event(name=NAME, priority=1))
    error = await refused(client.events.UpdateEvent(change))
    assert (error.code, error.reason) == ("FAILED_PRECONDITION", "EVENT_CANCELLED")


async def test_the_state_follows_the_clock(client: Client, clock: "object") -> None:
    await create(client)
    states = []
    for at in (datetime(2026, 11, 10, 16, tzinfo=UTC), datetime(2026, 11, 10, 18, tzinfo=UTC)):
        clock.at = at  # type: ignore[attr-defined]
        states.append((await client.events.GetEvent(event_service_pb2.GetEventRequest(name=NAME))).state)

    assert states == [event_pb2.EVENT_STATE_ACTIVE, event_pb2.EVENT_STATE_COMPLETED]


async def test_what_is_over_cannot_be_changed(client: Client, clock: "object") -> None:
    await create(client)
    clock.at = datetime(2026, 11, 12, tzinfo=UTC)  # type: ignore[attr-defined]

    error = await refused(client.events.CancelEvent(event_service_pb2.CancelEventRequest(name=NAME)))

    assert error.reason == "EVENT_COMPLETED"


async def test_a_retry_after_the_end_still_gets_the_first_response(client: Client, clock: "object") -> None:
    request = event_service_pb2.CreateEventRequest(event=an_event(), request_id="r-1")
    first = await client.events.CreateEvent(request)
    clock.at = datetime(2026, 11, 12, tzinfo=UTC)  # type: ignore[attr-defined]

    assert first == await client.events.CreateEvent(request)


async def test_an_unknown_event_is_not_found(client: Client) -> None:
    error = await refused(client.events.GetEvent(event_service_pb2.GetEventRequest(name="events/nothing")))

    assert (error.code, error.reason) == ("NOT_FOUND", "RESOURCE_NOT_FOUND")


@pytest.mark.parametrize("name", ["", "events/", "event/x", "events/x/y", "events/X", "double-eleven"])
async def test_a_name_must_look_like_one(client: Client, name: str) -> None:
    error = await refused(client.events.GetEvent(event_service_pb2.GetEventRequest(name=name)))

    assert [field for field, _ in error.violations] == ["name"]


async def seed(client: Client, count: int) -> None:
    for day in range(count):
        await client.events.CreateEvent(
            event_service_pb2.CreateEventRequest(
                event=an_event(
                    start_local=f"2026-11-{11 + day}T00:00",
                    end_local=f"2026-11-{11 + day}T02:00",
                    workloads=["workloads/search" if day % 2 else "workloads/rec"],
                ),
                event_id=f"day-{day}",
            )
        )


async def test_pages_hold_every_event_once_in_order(client: Client) -> None:
    await seed(client, 7)

    found = pages(client.events.ListEvents, event_service_pb2.ListEventsRequest(page_size=3), "events")

    assert [f"events/day-{day}" for day in range(7)] == [event.name async for event in found]


async def test_a_listing_is_filtered_by_workload_window_and_state(client: Client, clock: "object") -> None:
    await seed(client, 6)
    await client.events.CancelEvent(event_service_pb2.CancelEventRequest(name="events/day-3"))
    clock.at = datetime(2026, 11, 11, 17, tzinfo=UTC)  # type: ignore[attr-defined]  # day-1 runs

    async def names(**fields: object) -> list[str]:
        request = event_service_pb2.ListEventsRequest(**fields)  # type: ignore[arg-type]
        return [event.name for event in (await client.events.ListEvents(request)).events]

    assert await names(workload="workloads/search") == ["events/day-1", "events/day-3", "events/day-5"]
    assert await names(states=[event_pb2.EVENT_STATE_CANCELLED]) == ["events/day-3"]
    assert await names(states=[event_pb2.EVENT_STATE_COMPLETED]) == ["events/day-0"]
    assert await names(states=[event_pb2.EVENT_STATE_ACTIVE]) == ["events/day-1"]
    assert await names(
        start_time=datetime(2026, 11, 12, 16, tzinfo=UTC),
        end_time=datetime(2026, 11, 13, 16, tzinfo=UTC),
    ) == ["events/day-2"]


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"page_token": "nonsense"}, "page_token"),
        ({"page_size": -1}, "page_size"),
        ({"states": [0]}, "states"),
        ({"states": [99]}, "states"),
        ({"workload": "rec"}, "workload"),
        ({"start_time": datetime(2026, 1, 1, tzinfo=UTC)}, "end_time"),
        (
            {"start_time": datetime(2026, 1, 2, tzinfo=UTC), "end_time": datetime(2026, 1, 1, tzinfo=UTC)},
            "end_time",
        ),
    ],
)
async def test_a_bad_listing_is_refused(client: Client, fields: dict[str, object], field: str) -> None:
    request = event_service_pb2.ListEventsRequest(**fields)  # type: ignore[arg-type]

    error = await refused(client.events.ListEvents(request))

    assert [field] == [name for name, _ in error.violations]


async def test_a_mutation_is_audited_with_its_request_id(client: Client, store: FakeStore) -> None:
    request = event_service_pb2.CreateEventRequest(event=an_event(), event_id="x", request_id="r-9")

    await client.events.CreateEvent(request)

    (entry,) = store.tables.audit.values()
    assert (
        entry.method,
        entry.resource,
        entry.outcome,
        entry.request_id,
    ) == ("CreateEvent", "events/x", "OK", "r-9")


async def test_cancelled_is_the_only_state_that_is_stored(client: Client, store: FakeStore) -> None:
    await create(client)
    await client.events.CancelEvent(event_service_pb2.CancelEventRequest(name=NAME))

    stored = [event.state for event in store.tables.events["double-eleven"]]

    assert stored == [EventState.SCHEDULED, EventState.CANCELLED]
