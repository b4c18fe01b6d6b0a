"""Which occurrences the loop looks at."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from controller.core.resources import TrafficEvent
from controller.loop.calendar import events_by_workload

START = datetime(2026, 11, 1, 20, 0, tzinfo=UTC)


def test_beyond_the_limit_the_oldest_occurrences_go_and_the_coming_ones_stay() -> None:
    daily = TrafficEvent(
        id="show",
        workloads=("a", "b"),
        start_at=START,
        end_at=START + timedelta(hours=1),
        time_zone="UTC",
        rrule="FREQ=DAILY",
        expected_multiplier=2.0,
    )
    single = TrafficEvent(
        id="sale",
        workloads=("a",),
        start_at=START + timedelta(days=9, hours=2),
        end_at=START + timedelta(days=9, hours=3),
        time_zone="UTC",
        expected_peak_qps=10.0,
    )

    found = events_by_workload([daily, single], START, START + timedelta(days=10), limit=10)

    assert [e.start_at for e in found["b"]] == [START + timedelta(days=d) for d in range(10)]
    assert [e.id for e in found["a"]][-1] == "sale"
    assert len(found["a"]) == 10


def test_a_recurrence_that_cannot_be_expanded_leaves_the_other_events_alone(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Registration refuses such a rule; the loop must live on with whatever is stored all the same."""
    sound = TrafficEvent(
        id="sale",
        workloads=("a",),
        start_at=START + timedelta(days=45),
        end_at=START + timedelta(days=46),
        time_zone="UTC",
        expected_peak_qps=10.0,
    )
    broken = replace(
        sound, id="broken", start_at=START, end_at=sound.end_at, rrule="FREQ=MONTHLY;BYDAY=1SU,9MO"
    )

    found = events_by_workload([broken, sound], START, START + timedelta(days=60), limit=10)

    assert [e.id for e in found["a"]] == ["sale"]
    assert "event broken is left out" in caplog.text
