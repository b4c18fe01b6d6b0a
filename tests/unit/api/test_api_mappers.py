"""Values survive the way to the wire and back; what cannot be represented is named."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from forecrest.v1 import control_pb2, event_pb2, workload_pb2
from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp
from hypothesis import given
from hypothesis import strategies as st

from controller.api import mappers
from controller.api.shapes import read_duration, read_timestamp
from controller.core.resources import EventState, PauseState, TrafficEvent
from controller.core.types import (
    Behavior,
    CapacityProfile,
    Mode,
    Override,
    OverrideKind,
    Policy,
    PolicyType,
    Precision,
    ScalingPolicy,
    ScalingRules,
    SelectPolicy,
    Slo,
    Workload,
)
from controller.usecases.errors import InvalidError
from controller.usecases.overrides import OwnedOverride, Pause

AT = st.datetimes(datetime(1990, 1, 1), datetime(2100, 1, 1), timezones=st.just(UTC))  # noqa: DTZ001 -- bounds
SPAN = st.timedeltas(timedelta(0), timedelta(days=30))
TEXT = st.text(st.characters(exclude_categories=("Cs",)), min_size=1, max_size=20)
POSITIVE = st.floats(0.001, 1e9)
RULES = st.builds(
    ScalingRules,
    SPAN,
    st.sampled_from(SelectPolicy),
    st.lists(st.builds(ScalingPolicy, st.sampled_from(PolicyType), st.integers(1, 99), SPAN), max_size=3).map(
        tuple
    ),
)
WORKLOADS = st.builds(
    Workload,
    name=st.just("rec"),
    model_name=TEXT,
    profiles=st.lists(
        st.builds(CapacityProfile, TEXT, TEXT, POSITIVE, precision=st.sampled_from(Precision)),
        min_size=1,
        max_size=3,
    ).map(tuple),
    min_replicas=st.integers(0, 99),
    max_replicas=st.integers(1, 99),
    slo=st.builds(Slo, POSITIVE, POSITIVE, POSITIVE),
    policy=st.builds(
        Policy,
        behavior=st.builds(Behavior, RULES, RULES, POSITIVE),
        stable_window=SPAN,
        break_even=st.none() | SPAN,
        quorum=POSITIVE,
    ),
    mode=st.sampled_from(Mode),
    priority=st.integers(-1000, 1000),
    quota_pool=st.none() | TEXT,
    target=st.dictionaries(TEXT, TEXT, max_size=3),
    engine_digest=st.none() | TEXT,
    generation=st.integers(1, 2**31 - 1),
)


@given(WORKLOADS)
def test_a_workload_survives_the_wire(workload: Workload) -> None:
    data = mappers.workload_to_wire(workload).SerializeToString()

    assert mappers.workload_from_wire(workload_pb2.Workload.FromString(data), "rec") == workload


def event(**changes: object) -> TrafficEvent:
    base = TrafficEvent(
        id="e",
        workloads=("rec",),
        start_at=datetime(2026, 11, 10, 16, tzinfo=UTC),
        end_at=datetime(2026, 11, 10, 18, tzinfo=UTC),
        time_zone="Asia/Shanghai",
        expected_multiplier=3.0,
    )
    return replace(base, **changes)  # type: ignore[arg-type]


EVENTS = st.builds(
    event,
    display_name=st.text(max_size=5),
    workloads=st.lists(st.sampled_from(["a", "b"]), min_size=1, max_size=2).map(tuple),
    rrule=st.none() | st.just("FREQ=DAILY"),
    exdates_at=st.lists(AT, max_size=2).map(tuple),
    confidence=POSITIVE,
    ramp=SPAN,
    margin=st.none() | SPAN,
    lead_override=st.none() | SPAN,
    max_replicas_override=st.none() | st.integers(1, 99),
    labels=st.dictionaries(TEXT, TEXT, max_size=3).map(lambda d: tuple(sorted(d.items()))),
    state=st.sampled_from(EventState),
    revision=st.integers(1, 2**31 - 1),
    created_at=st.none() | AT,
    cancelled_reason=st.text(max_size=5),
)


@given(EVENTS)
def test_an_event_survives_the_wire(value: TrafficEvent) -> None:
    data = mappers.event_to_wire(value).SerializeToString()

    assert mappers.event_from_wire(event_pb2.Event.FromString(data), "e") == value


@pytest.mark.parametrize("load", [{"expected_multiplier": None, "expected_peak_qps": 5.0}, {}])
def test_the_kind_of_expected_load_survives_the_wire(load: dict[str, object]) -> None:
    value = event(**load)

    assert mappers.event_from_wire(mappers.event_to_wire(value), "e") == value


def test_the_second_of_a_repeated_hour_survives_by_its_instant() -> None:
    # 02:30 happens twice on this day in Berlin; the wall clock alone would mean the first.
    second = datetime(2026, 10, 25, 1, 30, tzinfo=UTC)
    value = event(time_zone="Europe/Berlin", start_at=second, end_at=second + timedelta(hours=3))

    assert mappers.event_from_wire(mappers.event_to_wire(value), "e") == value


def test_fractions_of_a_second_survive_beside_the_wall_clock() -> None:
    start = datetime(2026, 11, 10, 16, 0, 0, 250_000, tzinfo=UTC)
    value = event(start_at=start, end_at=start + timedelta(hours=1))

    assert mappers.event_from_wire(mappers.event_to_wire(value), "e") == value


@given(AT, st.none() | st.integers(0, 99))
def test_an_override_survives_the_wire(at: datetime, replicas: int | None) -> None:
    kind = OverrideKind.PAUSE if replicas is None else OverrideKind.SET
    owned = OwnedOverride("rec", Override("hold", kind, replicas, at, "why", "me"), active=True)
    data = mappers.override_to_wire(owned).SerializeToString()

    assert mappers.owned_override_from_wire(control_pb2.Override.FromString(data)) == owned


@given(st.none() | AT)
def test_a_pause_survives_the_wire(at: datetime | None) -> None:
    pause = Pause("rec", PauseState(paused=True, reason="why", by="me", since_at=at), at)
    data = mappers.pause_to_wire(pause).SerializeToString()

    assert mappers.pause_from_wire(control_pb2.PauseState.FromString(data)) == pause


@pytest.mark.parametrize("seconds", [2**62, -(2**62), 253_402_300_800])
def test_a_time_outside_the_calendar_is_named(seconds: int) -> None:
    with pytest.raises(InvalidError, match=r"event\.start_time: is outside the calendar"):
        read_timestamp(Timestamp(seconds=seconds), "event.start_time")


def test_a_duration_out_of_range_is_named() -> None:
    with pytest.raises(InvalidError, match="ttl: is not a valid duration"):
        read_duration(Duration(seconds=2**62), "ttl")


@pytest.mark.parametrize("etag", ["", '"7"', "7"])
def test_an_etag_stands_for_a_version(etag: str) -> None:
    assert mappers.version_of(etag) == (7 if etag else None)


@pytest.mark.parametrize("etag", ['"', "x", "-1", '"1.5"', "٣", "9" * 30])
def test_an_etag_nobody_made_matches_no_version(etag: str) -> None:
    assert mappers.version_of(etag) == -1
