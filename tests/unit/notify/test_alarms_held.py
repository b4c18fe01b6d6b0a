"""An alarm is told at once when it comes, and its end once it has stayed away; one that flaps is one."""

from collections.abc import Iterable
from dataclasses import replace
from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from controller.core.types import Alarm, AlarmKind, CapacityProfile, FleetState, Workload, WorkloadState
from controller.notify.milestones import news
from controller.notify.types import Held, Kind, Notification

START = datetime(2026, 11, 10, 16, tzinfo=UTC)
MINUTE = timedelta(minutes=1)
HOLD = 10 * MINUTE
REC = Workload("rec", "m", (CapacityProfile("e", "T4", 100.0),), namespace="shop")
SILENT = Alarm(AlarmKind.NO_DATA, "rec", "", "Nobody tells the demand.")
LATE = Alarm(AlarmKind.PREWARM_LATE, "rec", "sale", "6 of 14 replicas warm.")
RAISED, CLEARED = Kind.ALARM_RAISED, Kind.ALARM_CLEARED


def state(*alarms: Alarm) -> FleetState:
    return FleetState({"rec": WorkloadState(alarms=alarms)})


class Course:
    """Ticks a minute apart over what is remembered between them."""

    def __init__(self, hold: timedelta = HOLD) -> None:
        self.now, self.hold, self.before = START, hold, state()
        self.held: dict[str, Held] = {}
        self.told: list[Notification] = []

    def live(self, minutes: int, *alarms: Alarm) -> list[Notification]:
        """Let these stand for so long; return what is told in that time."""
        since = len(self.told)
        for _ in range(minutes):
            self.now += MINUTE
            after = state(*alarms)
            found = news(
                self.before, after, {"rec": REC}, self.now, held=list(self.held.values()), hold=self.hold
            )
            self.held.update({one.alarm.key: one for one in found.kept})
            for key in found.forgotten:
                del self.held[key]
            self.told += found.told
            self.before = after
        return self.told[since:]


def kinds(told: Iterable[Notification]) -> list[Kind]:
    return [one.kind for one in told]


def test_an_alarm_is_told_in_the_tick_it_comes_in_and_nothing_while_it_stands() -> None:
    course = Course()

    assert [RAISED] == kinds(course.live(1, LATE))
    assert [] == course.live(60, replace(LATE, sentence="7 of 14 replicas warm."))
    assert {} == course.held


def test_its_end_is_told_once_it_has_stayed_away_for_as_long_as_the_hold() -> None:
    course = Course()
    course.live(3, SILENT)

    assert [] == course.live(10)
    (ended,) = course.live(1)
    assert CLEARED is ended.kind
    assert "Over since 2026-11-10 16:04:00 UTC: Nobody tells the demand." == ended.sentence
    assert {} == course.held
    assert [] == course.live(30)


def test_one_that_flaps_is_told_once_and_its_end_says_how_often_it_came_back() -> None:
    course = Course()
    for _ in range(20):
        course.live(2, SILENT)
        course.live(7)
    ended = course.live(20)

    assert [RAISED, CLEARED] == kinds(course.told)
    assert ended[0].sentence.endswith("Nobody tells the demand. It had come back 19 times.")
    assert {} == course.held


def test_one_that_comes_back_after_the_hold_is_news() -> None:
    course = Course()
    course.live(1, SILENT)
    course.live(11)

    assert [RAISED, CLEARED] == kinds(course.told)
    assert [RAISED] == kinds(course.live(1, SILENT))
    assert 3 == len({one.id for one in course.told})


def test_one_that_comes_back_in_the_tick_its_hold_ends_is_told_with_its_end() -> None:
    course = Course()
    course.live(1, SILENT)
    course.live(10)

    assert [CLEARED, RAISED] == kinds(course.live(1, SILENT))


def test_another_alarm_of_the_workload_does_not_wait() -> None:
    course = Course()
    course.live(1, SILENT)
    course.live(1)

    (raised,) = course.live(1, LATE)
    assert AlarmKind.PREWARM_LATE is raised.alarm


def test_an_alarm_that_came_back_while_nobody_was_told_stands() -> None:
    course = Course()
    course.live(1, SILENT)
    course.live(1)
    course.before, course.now = state(SILENT), course.now + 60 * MINUTE

    assert [] == course.live(5, SILENT)
    course.live(1)
    (ended,) = course.live(10)
    assert ended.sentence.endswith("It had come back once.")


def test_what_is_held_of_a_workload_of_another_leader_is_left_to_it() -> None:
    held = Held(replace(SILENT, workload="other"), START - HOLD)

    found = news(state(), state(), {"rec": REC}, START, held=[held], hold=HOLD)
    assert ([], [], []) == (found.told, found.kept, found.forgotten)


@given(st.lists(st.tuples(st.booleans(), st.integers(1, 25)), max_size=30))
def test_whatever_the_course_told_beginnings_and_ends_alternate_and_all_is_forgotten(
    course: list[tuple[bool, int]],
) -> None:
    lived = Course()
    for stands, minutes in course:
        lived.live(minutes, *((SILENT,) if stands else ()))
        assert len(lived.held) <= 1
    lived.live(11)

    told = kinds(lived.told)
    assert told == [RAISED, CLEARED] * (len(told) // 2)
    assert bool(told) == any(stands for stands, _ in course)
    assert {} == lived.held


def test_one_whose_going_nobody_wrote_down_is_news_when_it_comes_again() -> None:
    course = Course()
    course.live(1, LATE)
    course.live(1)
    course.live(1, LATE)  # remembered as standing, and as told already
    course.before, course.now = state(), course.now + 600 * MINUTE  # notifications were off while it went

    assert [RAISED] == kinds(course.live(1, LATE))
    assert {} == course.held


def test_one_that_comes_after_the_clock_was_set_back_is_not_taken_for_one_that_never_went() -> None:
    course = Course()
    course.live(1, LATE)
    course.live(1)
    course.now -= 60 * MINUTE
    course.live(30)
    course.live(1, LATE)

    assert [RAISED, CLEARED, RAISED] == kinds(course.told)
    assert {} == course.held
