"""Filters and orders of listings: what they mean, and what they say of what they cannot read."""

from dataclasses import dataclass, field
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.usecases.errors import InvalidError
from controller.usecases.filters import Field, Kind, filter_of, order_of


@dataclass(frozen=True)
class Row:
    name: str = "sale"
    state: str = "ACTIVE"
    workloads: tuple[str, ...] = ("rec", "search")
    priority: int = 3
    peak: float | None = None
    recurring: bool = False
    at: datetime = datetime(2027, 1, 1, tzinfo=UTC)
    labels: dict[str, str] = field(default_factory=lambda: {"team": "growth", "a b": "c"})


FIELDS: dict[str, Field[Row]] = {
    "name": Field(lambda r: r.name, prefix="events/"),
    "state": Field(lambda r: r.state, choices=("ACTIVE", "DONE"), prefix="STATE_"),
    "workload": Field(lambda r: r.workloads, prefix="workloads/"),
    "priority": Field(lambda r: r.priority, Kind.NUMBER),
    "peak": Field(lambda r: r.peak, Kind.NUMBER),
    "recurring": Field(lambda r: r.recurring, Kind.FLAG),
    "at": Field(lambda r: r.at, Kind.TIME),
    "labels": Field(lambda r: r.labels, Kind.MAP),
}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", True),
        ("name = sale", True),
        ('name = "events/sale"', True),
        ("name != sale", False),
        ("name:AL", True),
        ("state = active", True),
        ("state = STATE_DONE", False),
        ("workload = workloads/search", True),
        ("workload != rec", False),
        ("workload:sea", True),
        ("priority >= 3 AND priority < 4", True),
        ("priority = 3.0", True),
        ("NOT priority = 3", False),
        ("recurring = false", True),
        ("at < 2027-01-01T00:00:01Z", True),
        ('at >= "2027-01-01T08:00:00+08:00"', True),
        ("labels.team = growth", True),
        ('labels."a b" = c', True),
        ("labels.team:*", True),
        ("labels.nobody:*", False),
        ("labels.nobody = x", False),
        ("labels.nobody != x", True),
        ("peak > 1", False),
        ("peak != 1", True),
        ("peak:*", False),
        ("name = a OR name = sale", True),
        ("(name = a OR name = b) AND state = ACTIVE", False),
        ("NOT (name = a OR name = b)", True),
        (r'name = "sa\le"', True),
    ],
)
def test_a_filter_means_what_it_says(text: str, expected: bool) -> None:
    assert expected == filter_of(text, FIELDS).matches(Row())


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("name", "ends where =, !="),
        ("= sale", "at character 1: '=' stands where a field is expected"),
        ("nobody = 1", "a field (name, state, workload"),
        ("labels = x", "a field (name"),
        ("name.first = x", "a field (name"),
        ("name = ", "ends where a value"),
        ("name sale", "at character 6: 'sale' stands where =, !="),
        ("name = AND", "at character 8: 'AND' stands where a value"),
        ("state = GONE", "at character 9: state must be one of ACTIVE, DONE"),
        ("name < sale", "at character 6: name cannot be compared by <; use =, !=, :"),
        ("priority = high", "priority must be compared with a number"),
        ("recurring = maybe", "true or false"),
        ("at > 2027-01-01T00:00:00", "a time with its zone"),
        ("at > yesterday", "a time with its zone"),
        ('name = "sale', "cannot be read"),
        ("name = sale state = ACTIVE", "AND, OR or the end"),
        ("(name = sale", "ends where ) is expected"),
        ("name = a OR name = b AND name = c", "at character 22: AND and OR stand side by side"),
        ("(" * 20 + "name = a" + ")" * 20, "not nest deeper than 10"),
        ("NOT " * 20 + "name = a", "not nest deeper than 10"),
        (" AND ".join(["name = a"] * 60), "at most 50 comparisons"),
        ("name = " + "x" * 1000, "at most 1000 characters"),
        ("name = a\x00", "control characters"),
    ],
)
def test_what_cannot_be_read_is_refused_at_its_place(text: str, words: str) -> None:
    with pytest.raises(InvalidError) as refused:
        filter_of(text, FIELDS)

    (violation,) = refused.value.violations
    assert "filter" == violation.field
    assert words in violation.description


def test_what_holds_in_any_case_is_told_so_that_less_is_read() -> None:
    assert {"workload": "rec", "state": "DONE"} == filter_of(
        "workload = rec AND (state = done) AND NOT name = a AND priority > 1", FIELDS
    ).equal
    assert {} == filter_of("workload = rec OR state = DONE", FIELDS).equal
    assert {} == filter_of("workload != rec", FIELDS).equal


@given(st.text(alphabet="namestpriority01 ()\"'<>=!:.ANDORT", max_size=120))
def test_any_text_is_a_filter_or_is_refused(text: str) -> None:
    try:
        filter_of(text, FIELDS).matches(Row())
    except InvalidError as error:
        assert [v.field for v in error.violations] == ["filter"]  # noqa: PT017 -- either outcome is right


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", ("at", False)),
        ("name", ("name", False)),
        ("name  DESC", ("name", True)),
        ("at asc", ("at", False)),
    ],
)
def test_an_order_is_read(text: str, expected: tuple[str, bool]) -> None:
    assert expected == order_of(text, {"name", "at"}, "at")


@pytest.mark.parametrize("text", ["nobody", "name down", "name, at", "name desc at"])
def test_an_order_nobody_knows_is_refused(text: str) -> None:
    with pytest.raises(InvalidError, match="order_by: must be one of at, name"):
        order_of(text, {"name", "at"}, "at")
