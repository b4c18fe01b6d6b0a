"""Which occurrences the loop looks at."""

from datetime import UTC, datetime, timedelta

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
