"""Events as the console shows them: calendar, form, errors, preview, report. Pure functions on messages."""

import re
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from forecrest.v1 import control_pb2, event_pb2, event_service_pb2, forecast_pb2
from google.protobuf.timestamp_pb2 import Timestamp
from hypothesis import example, given
from hypothesis import strategies as st

from controller.client import ApiError
from controller.console.views import events, events_preview

NOW = datetime(2026, 11, 10, 12, 0, tzinfo=UTC)
SHANGHAI = ZoneInfo("Asia/Shanghai")
BERLIN = ZoneInfo("Europe/Berlin")


def stamp(at: datetime) -> Timestamp:
    found = Timestamp()
    found.FromDatetime(at)
    return found


def an_event(
    start: str = "2026-11-11T00:00", hours: float = 2, zone: str = "Asia/Shanghai", **more: object
) -> event_pb2.Event:
    start_at = datetime.fromisoformat(start).replace(tzinfo=ZoneInfo(zone)).astimezone(UTC)
    end_at = start_at + timedelta(hours=hours)
    event = event_pb2.Event(
        name="events/midnight-sale",
        display_name="Midnight sale",
        workloads=["workloads/recommender"],
        start_time=stamp(start_at),
        end_time=stamp(end_at),
        start_local=start,
        end_local=end_at.astimezone(ZoneInfo(zone)).strftime("%Y-%m-%dT%H:%M"),
        time_zone=zone,
        state=event_pb2.EVENT_STATE_SCHEDULED,
        etag="3",
        **more,  # type: ignore[arg-type]  # fields of the message
    )
    if event.WhichOneof("expected_load") is None:
        event.expected_peak_qps = 35_000
    return event


def days_of(month: events.Month) -> dict[date, list[str]]:
    return {day.day: [e.event.id for e in day.entries] for week in month.weeks for day in week if day.entries}


def test_an_event_stands_on_the_day_it_starts_on_in_the_readers_zone() -> None:
    event = an_event("2026-11-11T00:00")
    assert days_of(events.month([event], date(2026, 11, 1), SHANGHAI, NOW)) == {
        date(2026, 11, 11): ["midnight-sale"]
    }
    assert days_of(events.month([event], date(2026, 11, 1), UTC, NOW)) == {
        date(2026, 11, 10): ["midnight-sale"]
    }


def test_an_event_goes_on_over_every_day_it_touches_and_ends_before_the_midnight_it_ends_at() -> None:
    event = an_event("2026-11-11T22:00", hours=26)
    sheet = events.month([event], date(2026, 11, 1), SHANGHAI, NOW)
    begins = {day.day: [e.begins for e in day.entries] for week in sheet.weeks for day in week if day.entries}
    assert begins == {date(2026, 11, 11): [True], date(2026, 11, 12): [False]}


def test_a_month_is_whole_weeks_from_monday_and_knows_its_neighbours() -> None:
    sheet = events.month([], date(2027, 1, 1), UTC, NOW)
    assert {0} == {week[0].day.weekday() for week in sheet.weeks}
    assert (sheet.before, sheet.after) == (date(2026, 12, 1), date(2027, 2, 1))


def test_a_recurrence_runs_on_wall_clock_time_when_clocks_change() -> None:
    event = an_event("2027-03-26T20:00", zone="Europe/Berlin", rrule="FREQ=WEEKLY;BYDAY=FR")
    starts = list(events.occurrences(event, NOW, datetime(2027, 4, 5, tzinfo=UTC)))
    assert [at.astimezone(BERLIN).hour for at in starts] == [20, 20]
    assert starts[1] - starts[0] == timedelta(days=7) - timedelta(hours=1)


def test_excluded_and_added_occurrences_are_respected() -> None:
    event = an_event("2026-11-11T00:00", rrule="FREQ=DAILY;COUNT=3")
    first = event.start_time.ToDatetime(UTC)
    event.exdate_times.append(stamp(first + timedelta(days=1)))
    event.rdate_times.append(stamp(first + timedelta(days=1, hours=6)))
    starts = list(events.occurrences(event, NOW, NOW + timedelta(days=9)))
    assert starts == [first, first + timedelta(days=1, hours=6), first + timedelta(days=2)]


def test_an_endless_daily_rule_is_cut_off() -> None:
    event = an_event(rrule="FREQ=DAILY")
    found = list(events.occurrences(event, NOW, NOW + timedelta(days=5000)))
    assert len(found) == events.OCCURRENCES_MAX


def test_a_rule_that_cannot_be_read_shows_the_first_occurrence() -> None:
    event = an_event(rrule="FREQ=SOMETIMES")
    assert list(events.occurrences(event, NOW, NOW + timedelta(days=9))) == [event.start_time.ToDatetime(UTC)]


def test_a_row_shows_the_next_occurrence_of_a_recurring_event() -> None:
    event = an_event("2026-11-01T00:00", rrule="FREQ=DAILY")
    assert events.event_row(event, NOW).start_at == datetime(2026, 11, 10, 16, 0, tzinfo=UTC)


@pytest.mark.parametrize("preset", [p for p in events.REPEATS if p not in {"once", "custom"}])
def test_a_preset_is_told_again_by_its_rule(preset: str) -> None:
    rule = events.rule_of(preset, "2026-11-11T00:00")
    assert events.repeat_of(rule, "2026-11-11T00:00") == preset


def test_weekly_means_the_weekday_of_the_start() -> None:
    assert events.rule_of("weekly", "2026-11-11T00:00") == "FREQ=WEEKLY;BYDAY=WE"


def test_a_form_shows_a_stored_event_and_says_the_same_again() -> None:
    event = an_event(rrule="FREQ=WEEKLY;BYDAY=WE", confidence=0.8, category="promotion", priority=3)
    event.ramp.FromTimedelta(timedelta(minutes=10))
    said, wrong = events.draft(events.form_of(event))
    assert wrong == {}
    for name in events.MASK:
        assert getattr(event, name) == getattr(said, name), name


def test_times_the_api_gives_with_seconds_are_typed_without_them() -> None:
    event = an_event()
    event.start_local, event.end_local = "2026-11-11T00:00:00", "2026-11-11T02:00:30"
    form = events.form_of(event)
    assert (form.start, form.end) == ("2026-11-11T00:00", "2026-11-11T02:00:30")


def test_text_that_is_no_number_is_said_at_its_field_and_not_sent() -> None:
    form = events.EventForm(load="peak", peak_qps="many", max_replicas="2.5", ramp_min="soon")
    event, wrong = events.draft(form)
    assert wrong == {
        "peak_qps": "events.error.number",
        "max_replicas": "events.error.whole",
        "ramp_min": "events.error.number",
    }
    assert event.WhichOneof("expected_load") is None


def test_only_the_chosen_kind_of_load_is_sent() -> None:
    event, _ = events.draft(events.EventForm(load="multiplier", peak_qps="35,000", multiplier="4.4"))
    assert (event.WhichOneof("expected_load"), event.expected_multiplier) == ("expected_multiplier", 4.4)
    event, _ = events.draft(events.EventForm(load="peak", peak_qps="35,000", multiplier="4.4"))
    assert event.expected_peak_qps == 35_000


def test_the_form_takes_what_a_browser_sends_and_nothing_else() -> None:
    form = events.form_from({"workloads": ["a", "b", "a"], "display_name": [" Sale "], "evil": ["1"]})
    assert (form.workloads, form.display_name) == (("a", "b"), "Sale")


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("event.start_local", "start"),
        ("event.end_time", "end"),
        ("event.workloads[0]", "workloads"),
        ("event.expected_peak_qps", "peak_qps"),
        ("event.rrule", "rrule"),
        ("event.max_replicas_override", "max_replicas"),
    ],
)
def test_a_violation_stands_at_the_field_in_which_it_is_put_right(path: str, name: str) -> None:
    error = ApiError("INVALID_ARGUMENT", "INVALID_FIELDS", "no", ((path, "must be better"),))
    assert events.field_errors(error, events.EventForm()).fields == {name: ("must be better",)}


def test_a_violation_of_the_load_follows_the_kind_of_load_chosen() -> None:
    error = ApiError("INVALID_ARGUMENT", "INVALID_FIELDS", "no", (("event.expected_peak_qps", "give one"),))
    found = events.field_errors(error, events.EventForm(load="multiplier"))
    assert found.fields == {"multiplier": ("give one",)}


def test_what_belongs_to_no_field_is_said_in_general() -> None:
    error = ApiError("INVALID_ARGUMENT", "INVALID_FIELDS", "no", (("event.labels", "too many"),))
    assert events.field_errors(error, events.EventForm()).general == ("event.labels: too many",)
    gone = ApiError("NOT_FOUND", "RESOURCE_NOT_FOUND", "there is no such event")
    assert events.field_errors(gone, events.EventForm()).general == ("there is no such event",)


def test_changes_name_each_field_that_differs_from_what_is_stored_now() -> None:
    mine, theirs = events.EventForm(peak_qps="40000", etag="1"), events.EventForm(peak_qps="35000", etag="2")
    assert events.changes(mine, theirs) == (("peak_qps", "40000", "35000"),)


def a_preview(**more: object) -> event_service_pb2.WorkloadPreview:
    start_at = datetime(2026, 11, 10, 16, 0, tzinfo=UTC)
    return event_service_pb2.WorkloadPreview(
        workload="workloads/recommender",
        start_time=stamp(start_at),
        end_time=stamp(start_at + timedelta(hours=2)),
        prewarm_start_time=stamp(start_at - timedelta(minutes=5)),
        deadline_time=stamp(start_at - timedelta(seconds=30)),
        replicas=14,
        baseline_replicas=4,
        unmet_replicas=2,
        sentence="recommender needs 16 replicas for 35000 QPS.",
        floors=[
            control_pb2.Floor(
                replicas=14,
                order_time=stamp(start_at - timedelta(minutes=5)),
                need_time=stamp(start_at - timedelta(seconds=30)),
                until_time=stamp(start_at + timedelta(hours=2)),
                demand_qps=35_000,
                reason="event midnight-sale: 35000 QPS",
            )
        ],
        **more,  # type: ignore[arg-type]  # fields of the message
    )


def test_a_preview_says_when_prewarm_starts_how_many_and_why() -> None:
    event = an_event(warnings=[event_pb2.EventWarning(sentence="quota is short")])
    one = event_service_pb2.PreviewEventResponse(event=event, workloads=[a_preview()], unmet_replicas=2)
    view = events_preview.preview_view(one, NOW, SHANGHAI)
    found = view.workloads[0]
    assert found.prewarm_at == datetime(2026, 11, 10, 15, 55, tzinfo=UTC)
    assert (found.needed, found.replicas, found.baseline, found.demand_qps) == (16, 14, 4, 35_000)
    assert found.reasons == ("event midnight-sale: 35000 QPS",)
    assert (found.lead, found.margin) == (timedelta(minutes=5), timedelta(seconds=30))
    assert (view.verdict, view.warnings) == ("short", ("quota is short",))


def test_a_prewarm_that_should_have_begun_is_late() -> None:
    one = event_service_pb2.PreviewEventResponse(event=an_event(), workloads=[a_preview()])
    view = events_preview.preview_view(one, datetime(2026, 11, 10, 15, 58, tzinfo=UTC), UTC)
    assert view.verdict == "late"


def test_a_size_nobody_knows_is_unknown_and_not_ready() -> None:
    unsized = a_preview()
    unsized.floors[0].ClearField("demand_qps")
    view = events_preview.preview_view(
        event_service_pb2.PreviewEventResponse(event=an_event(), workloads=[unsized]), NOW, UTC
    )
    assert (view.verdict, view.workloads[0].demand_qps) == ("unknown", None)


def test_without_a_forecast_no_demand_is_drawn() -> None:
    chart = events_preview.preview_chart(a_preview(), UTC)
    assert chart.demand is None
    assert chart.replicas is not None


def test_the_drawing_holds_marks_in_order_inside_the_frame() -> None:
    start_at = datetime(2026, 11, 10, 16, 0, tzinfo=UTC)
    one = a_preview(
        curve=[
            forecast_pb2.QuantileSeries(level=0.1, qps=[20_000.0] * 120),
            forecast_pb2.QuantileSeries(level=0.5, qps=[30_000.0] * 120),
            forecast_pb2.QuantileSeries(level=0.95, qps=[35_000.0] * 120),
        ],
        curve_start_time=stamp(start_at),
    )
    one.curve_step.FromTimedelta(timedelta(minutes=1))
    chart = events_preview.preview_chart(one, UTC)
    assert [mark.kind for mark in chart.marks] == ["prewarm", "deadline", "start", "end"]
    places = [mark.at for mark in chart.marks]
    assert places == sorted(places)
    assert all(0 <= at <= 100 for at in (*places, *(tick.at for tick in chart.ticks)))
    assert chart.demand is not None
    assert chart.demand.ticks[-1].value == 40_000
    assert "nan" not in chart.demand.line + chart.demand.band


def test_unobserved_minutes_leave_a_gap_in_the_report_and_none_at_all_no_drawing() -> None:
    start_at = datetime(2026, 11, 10, 16, 0, tzinfo=UTC)
    minutes = [start_at + timedelta(minutes=i) for i in range(4)]
    points = list(zip(minutes, [10.0, None, 30.0, 20.0], strict=True))
    chart = events_preview.report_chart(points, 35.0, start_at, start_at + timedelta(minutes=4), UTC)
    assert chart is not None
    assert chart.demand is not None
    assert chart.demand.line.count("M") == 2
    assert events_preview.report_chart([(start_at, None)], 35.0, start_at, start_at, UTC) is None


def test_a_report_leaves_unknown_figures_unknown() -> None:
    report = event_service_pb2.EventReport(
        event=an_event(),
        start_time=stamp(NOW),
        end_time=stamp(NOW + timedelta(hours=1)),
        workloads=[event_service_pb2.WorkloadReport(workload="workloads/recommender", actual_peak_qps=0.0)],
    )
    row = events.report_view(report).rows[0]
    assert (row.actual_peak_qps, row.expected_peak_qps, row.peak_ratio, row.outcome) == (
        0.0,
        None,
        None,
        "unknown",
    )


def test_an_import_says_what_became_of_each_entry() -> None:
    rows = events.import_rows(
        [
            event_service_pb2.ImportedEvent(
                uid="a@x", action=event_service_pb2.IMPORT_ACTION_CREATED, event=an_event()
            ),
            event_service_pb2.ImportedEvent(
                uid="b@x", action=event_service_pb2.IMPORT_ACTION_SKIPPED, sentence="it is over already"
            ),
        ]
    )
    assert [(r.action, r.title, r.sentence) for r in rows] == [
        ("created", "Midnight sale", ""),
        ("skipped", "b@x", "it is over already"),
    ]


def test_a_copy_is_the_same_event_tomorrow_at_the_same_time_of_day() -> None:
    form = events.copied_form(an_event("2026-03-08T20:00", hours=2, zone="Europe/Berlin"), NOW)
    assert ("2026-11-11T20:00", "2026-11-11T22:00", "35000", "") == (
        form.start,
        form.end,
        form.peak_qps,
        form.etag,
    )


def test_another_order_of_the_workloads_is_no_change() -> None:
    stored = an_event()
    stored.workloads.append("workloads/ranker")
    form = events.form_of(stored)
    turned, _ = events.draft(replace(form, workloads=tuple(reversed(form.workloads))))
    assert () == events.mask(stored, turned)
    assert () == events.changes(form, replace(form, workloads=tuple(reversed(form.workloads))))


def test_another_zone_moves_the_event_to_that_zones_wall_clock() -> None:
    stored = an_event()
    moved, _ = events.draft(replace(events.form_of(stored), time_zone="Europe/Berlin"))
    assert {"time_zone", "start_local", "end_local"} == set(events.mask(stored, moved))


def test_another_kind_of_load_replaces_the_one_before() -> None:
    stored = an_event()
    other, _ = events.draft(replace(events.form_of(stored), load="multiplier", multiplier="3"))
    assert ("expected_multiplier",) == events.mask(stored, other)


@given(st.lists(st.floats(0, 1e9), min_size=3, max_size=400), st.integers(0, 10_000), st.integers(1, 40_000))
@example([0.0, 0.0, 5e-324], 0, 1)
def test_every_drawing_stays_inside_its_frame(qps: list[float], replicas: int, minutes: int) -> None:
    start_at = datetime(2026, 11, 10, 16, 0, tzinfo=UTC)
    one = a_preview(
        curve=[forecast_pb2.QuantileSeries(level=level, qps=qps) for level in (0.1, 0.5, 0.9)],
        curve_start_time=stamp(start_at),
    )
    one.curve_step.FromTimedelta(timedelta(minutes=minutes))
    one.end_time.FromDatetime(start_at + timedelta(minutes=minutes * len(qps)))
    one.floors[0].replicas = replicas
    chart = events_preview.preview_chart(one, SHANGHAI)
    for panel in (chart.demand, chart.replicas):
        assert panel is not None
        places = [float(n) for n in re.findall(r"[-\d.]+", panel.line + panel.band + panel.other)]
        assert all(0 <= place <= 100 for place in places)
        assert panel.ticks[-1].value >= max(qps if panel is chart.demand else [replicas])


def test_what_registration_warns_of_is_not_called_ready() -> None:
    later = an_event(warnings=[event_pb2.EventWarning(sentence="next week the quota is short")])
    fine = a_preview()
    fine.unmet_replicas = 0
    one = event_service_pb2.PreviewEventResponse(event=later, workloads=[fine])
    assert "warned" == events_preview.preview_view(one, NOW, UTC).verdict
    one.event.ClearField("warnings")
    assert "ready" == events_preview.preview_view(one, NOW, UTC).verdict


def test_a_report_offers_the_newest_occurrences_that_have_started() -> None:
    event = an_event("2026-11-01T00:00", rrule="FREQ=DAILY")
    offered = events.past_occurrences(event, NOW)
    assert ("midnight-sale@20261109T160000Z", datetime(2026, 11, 9, 16, 0, tzinfo=UTC)) == offered[0]
    assert 10 == len(offered)
    assert () == events.past_occurrences(an_event(), NOW)
