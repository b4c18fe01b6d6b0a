"""Every record survives being stored.

Invariants:
1. decode(type(value), encode(value)) == value, for every type the stores keep.
2. A field that this release does not know is ignored; one that is missing takes its default.
3. NaN and infinity never come back, neither as themselves nor as "unknown".
4. A page token leads to the key it was made from; any other text is refused by the name of the field.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import is_dataclass
from datetime import UTC, datetime, timedelta
from types import UnionType
from typing import Any, get_args, get_origin, get_type_hints

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from controller.adapters.codec import RecordError, decode, encode
from controller.adapters.pages import cut, last_key
from controller.core.leadtime import LeadSample
from controller.core.resources import AuditEntry, ForecastRun, Outcome, Page, PauseState, TrafficEvent
from controller.core.types import (
    CapacityPlan,
    Decision,
    DemandObservation,
    ForecastBand,
    Override,
    Workload,
    WorkloadState,
)

RECORDS = (
    Workload,
    TrafficEvent,
    ForecastRun,
    ForecastBand,
    CapacityPlan,
    Decision,
    Outcome,
    WorkloadState,
    Override,
    PauseState,
    LeadSample,
    DemandObservation,
    AuditEntry,
)

# Not registered with Hypothesis for these types: that would reach every other test of the session.
LEAVES: dict[Any, st.SearchStrategy[Any]] = {
    float: st.floats(allow_nan=False, allow_infinity=False),
    datetime: st.datetimes(timezones=st.just(UTC)),
    timedelta: st.timedeltas(min_value=timedelta(days=-10_000), max_value=timedelta(days=10_000)),
}


def values(hint: Any) -> st.SearchStrategy[Any]:  # noqa: ANN401, PLR0911 - a case per kind of type hint
    """Values of a type hint; of a dataclass with every field drawn, also those that have defaults."""
    if hint in LEAVES:
        return LEAVES[hint]
    origin, parts = get_origin(hint), get_args(hint)
    if origin is UnionType:
        return st.one_of(*(values(part) for part in parts))
    if origin is tuple and parts[-1] is Ellipsis:
        return st.lists(values(parts[0]), max_size=3).map(tuple)
    if origin is tuple:
        return st.tuples(*(values(part) for part in parts))
    if origin is Mapping:
        return st.dictionaries(*(values(part) for part in parts), max_size=3)
    if isinstance(hint, type) and is_dataclass(hint):
        return st.builds(hint, **{name: values(part) for name, part in get_type_hints(hint).items()})
    return st.from_type(hint)


@pytest.mark.parametrize("kind", RECORDS, ids=lambda kind: kind.__name__)
@given(data=st.data())
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_1_a_record_reads_back_equal(kind: type[Any], data: st.DataObject) -> None:
    value = data.draw(values(kind))

    assert decode(kind, encode(value)) == value


@pytest.mark.parametrize("kind", RECORDS, ids=lambda kind: kind.__name__)
@given(data=st.data())
@settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_2_a_field_of_a_newer_release_is_ignored(kind: type[Any], data: st.DataObject) -> None:
    value = data.draw(values(kind))
    newer = json.dumps({**json.loads(encode(value)), "added_by_a_newer_release": {"nested": [1]}})

    assert decode(kind, newer) == value


def test_2_a_field_an_older_release_did_not_write_takes_its_default() -> None:
    assert decode(PauseState, "{}") == PauseState()


@pytest.mark.parametrize("text", ["", "null", "[]", "{", '{"replicas": "many"}', "\x00"])
def test_2_text_that_does_not_fit_is_refused_by_the_name_of_the_type(text: str) -> None:
    with pytest.raises(RecordError, match="a stored Override cannot be read: "):
        decode(Override, text)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_3_what_is_not_finite_never_reads_as_unknown(value: float) -> None:
    observation = DemandObservation(
        datetime(2026, 1, 1, tzinfo=UTC), 1.0, value, 0.0, 1, 1, timedelta(seconds=60)
    )

    with pytest.raises(RecordError, match="panic_qps"):
        decode(DemandObservation, encode(observation))


@given(at=st.datetimes(timezones=st.just(UTC)), name=st.text(max_size=63))
def test_4_a_token_leads_to_its_key(at: datetime, name: str) -> None:
    rows, token = cut(["row", "next"], [(at, name), (at, "next")], 1)

    assert rows == ["row"]
    assert last_key(Page(1, token), tuple[datetime, str]) == (at, name)


@given(token=st.text(min_size=1))
def test_4_any_other_text_is_no_token(token: str) -> None:
    with pytest.raises(ValueError, match="page_token: "):
        last_key(Page(1, token), tuple[datetime, str])
