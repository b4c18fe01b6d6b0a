"""Rows of the fleet from messages of the API."""

from datetime import UTC, datetime, timedelta
from typing import Any

from forecrest.v1 import control_pb2, control_service_pb2, event_pb2, forecast_pb2, workload_pb2

from controller.console.views import fleet as view

NOW = datetime(2026, 11, 11, 12, 0, tzinfo=UTC)
MINUTE, HOUR = timedelta(minutes=1), timedelta(hours=1)


def a_workload(name: str) -> workload_pb2.Workload:
    return workload_pb2.Workload(name=f"workloads/{name}", model_name="m", mode=workload_pb2.MODE_SCALE)


def a_decision(name: str, at: datetime = NOW, **fields: Any) -> control_pb2.Decision:  # noqa: ANN401 -- fields of the message
    given: dict[str, Any] = {
        "desired_replicas": 4,
        "warm_replicas": 4,
        "demand_qps": 100.0,
        "sentence": "fine",
    }
    made = control_pb2.Decision(workload=f"workloads/{name}", **(given | fields))
    made.decide_time.FromDatetime(at)
    return made


def an_event(name: str, workload: str, start_at: datetime, length: timedelta = HOUR) -> event_pb2.Event:
    made = event_pb2.Event(
        name=f"events/{name}",
        display_name=name.title(),
        workloads=[f"workloads/{workload}"],
        state=event_pb2.EVENT_STATE_SCHEDULED,
    )
    made.start_time.FromDatetime(start_at)
    made.end_time.FromDatetime(start_at + length)
    return made


def seen(
    status: control_pb2.WorkloadStatus, demand_qps: float | None = None
) -> control_service_pb2.ObservedStatus:
    made = control_service_pb2.ObservedStatus(status=status, demand_qps=demand_qps)
    if demand_qps is not None:
        made.demand_time.FromDatetime(NOW - timedelta(seconds=5))
    return made


def a_status(
    verified: int, state: event_pb2.ContractState.ValueType = event_pb2.CONTRACT_STATE_PREWARMING
) -> Any:  # noqa: ANN401 -- a message
    contract = event_pb2.Contract(
        occurrence_id="sale", state=state, replicas=4, ordered_count=4, verified_count=verified
    )
    contract.start_time.FromDatetime(NOW + HOUR)
    contract.end_time.FromDatetime(NOW + 2 * HOUR)
    status = control_pb2.WorkloadStatus(contracts=[contract])
    status.last_time.FromDatetime(NOW - timedelta(seconds=5))
    return status


def test_warm_replicas_are_those_that_the_contract_counts_now_not_those_of_the_last_record() -> None:
    decision = a_decision("rec", NOW - 4 * MINUTE, warm_replicas=1, in_flight_replicas=3)
    status = a_status(3)
    (row,) = view.rows_of(
        known("rec", decisions={"workloads/rec": decision}, statuses={"workloads/rec": seen(status)}), NOW
    )
    assert (3, NOW - timedelta(seconds=5), False) == (row.warm, row.warm_at, row.warm_old)


def test_a_count_short_of_what_is_asked_for_says_of_when_it_is() -> None:
    fizzled = a_status(3, event_pb2.CONTRACT_STATE_FIZZLED)
    for at, warm, old in ((4 * MINUTE, 1, True), (timedelta(seconds=9), 1, False), (4 * MINUTE, 4, False)):
        decision = a_decision("rec", NOW - at, warm_replicas=warm, in_flight_replicas=2)
        (row,) = view.rows_of(
            known("rec", decisions={"workloads/rec": decision}, statuses={"workloads/rec": seen(fizzled)}),
            NOW,
        )
        assert (warm, NOW - at, old) == (row.warm, row.warm_at, row.warm_old)


def test_demand_is_what_the_loop_saw_before_any_mean_of_a_bucket() -> None:
    decision, past = a_decision("rec", NOW - 4 * MINUTE), ((NOW, 5400.0),)
    status = seen(control_pb2.WorkloadStatus(), demand_qps=0.0)
    (row,) = view.rows_of(
        known(
            "rec",
            decisions={"workloads/rec": decision},
            statuses={"workloads/rec": status},
            past={"workloads/rec": past},
        ),
        NOW,
    )
    assert (0.0, NOW - timedelta(seconds=5)) == (row.demand_qps, row.demand_at)


def known(*names: str, **fields: Any) -> view.Known:  # noqa: ANN401 -- fields of Known
    return view.Known(workloads=[a_workload(name) for name in names], **fields)


def test_a_workload_nobody_decided_about_is_unknown_in_every_number() -> None:
    (row,) = view.rows_of(known("rec"), NOW)
    assert (None, None, None, None, None) == (
        row.demand_qps,
        row.warm,
        row.desired,
        row.warm_share,
        row.band.peak,
    )
    assert view.UNKNOWN == row.level


def test_demand_is_the_newest_of_decision_and_history() -> None:
    decision = a_decision("rec", NOW - 4 * MINUTE)
    past = ((NOW - 6 * MINUTE, 90.0), (NOW - MINUTE, 120.0), (NOW, None))
    assert (120.0, NOW - MINUTE) == view.demand_now(decision, past)
    assert (100.0, NOW - 4 * MINUTE) == view.demand_now(decision, past[:1])
    assert (None, None) == view.demand_now(a_decision("rec", demand_qps=None), ())


def test_demand_of_long_ago_is_marked_as_old() -> None:
    (row,) = view.rows_of(known("rec", decisions={"workloads/rec": a_decision("rec", NOW - HOUR)}), NOW)
    assert row.demand_old


def test_trouble_comes_before_watch_before_moving_before_unknown_before_steady() -> None:
    inactive = control_pb2.Condition(
        type=control_pb2.CONDITION_TYPE_SCALING_ACTIVE, ok=False, message="no signal"
    )
    limited = control_pb2.Condition(type=control_pb2.CONDITION_TYPE_SCALING_LIMITED, ok=True, message="max")
    decisions = {
        "workloads/a": a_decision("a"),
        "workloads/c": a_decision("c", warm_replicas=2),
        "workloads/d": a_decision("d", conditions=[limited]),
        "workloads/e": a_decision("e", conditions=[inactive]),
    }
    rows = view.rows_of(known("a", "b", "c", "d", "e", decisions=decisions), NOW)
    shown = view.page_of(rows, view.Asked()).rows
    assert [("e", "bad"), ("d", "warn"), ("c", "event"), ("b", "unknown"), ("a", "good")] == [
        (r.name, r.level) for r in shown
    ]


def test_an_alarm_makes_trouble_and_says_why() -> None:
    alarm = control_pb2.Alarm(kind=control_pb2.ALARM_KIND_QUOTA_SHORT, sentence="4 GPUs short")
    status = control_pb2.WorkloadStatus(alarms=[alarm])
    (row,) = view.rows_of(
        known(
            "rec", decisions={"workloads/rec": a_decision("rec")}, statuses={"workloads/rec": seen(status)}
        ),
        NOW,
    )
    assert (view.BAD, (("QUOTA_SHORT", view.BAD, "4 GPUs short"),)) == (row.level, row.alarms)


def test_the_next_event_is_the_one_that_is_on_else_the_soonest_and_never_one_that_is_over() -> None:
    events = [
        an_event("later", "rec", NOW + 5 * HOUR),
        an_event("over", "rec", NOW - 3 * HOUR),
        an_event("soon", "rec", NOW + HOUR),
        an_event("on", "ranker", NOW - MINUTE),
    ]
    found = view.events_by_workload(events, {}, NOW)
    assert ("Soon", "On") == (found["workloads/rec"].title, found["workloads/ranker"].title)


def test_a_recurring_event_is_told_by_its_contract() -> None:
    event = an_event("show", "rec", NOW - 7 * 24 * HOUR)
    contract = event_pb2.Contract(
        occurrence_id="show@20261111T140000Z", state=event_pb2.CONTRACT_STATE_AT_RISK
    )
    contract.start_time.FromDatetime(NOW + 2 * HOUR)
    contract.end_time.FromDatetime(NOW + 3 * HOUR)
    status = control_pb2.WorkloadStatus(contracts=[contract])
    (row,) = view.rows_of(
        known(
            "rec",
            events=[event],
            statuses={"workloads/rec": seen(status)},
            decisions={"workloads/rec": a_decision("rec")},
        ),
        NOW,
    )
    assert row.event is not None
    assert ("Show", NOW + 2 * HOUR, "AT_RISK") == (row.event.title, row.event.start_at, row.event.state)
    assert view.WARN == row.level


def test_totals_count_what_is_unknown_instead_of_adding_zeros() -> None:
    decisions = {
        "workloads/a": a_decision("a"),
        "workloads/b": a_decision("b", warm_replicas=None, demand_qps=None),
    }
    totals = view.totals_of(view.rows_of(known("a", "b", "c", decisions=decisions), NOW))
    assert (100.0, 2) == (totals.demand_qps, totals.demand_unknown)
    assert (4, 4, 2) == (totals.warm, totals.desired, totals.replicas_unknown)
    assert (None, None) == (view.totals_of(()).demand_qps, view.totals_of(()).warm)


def test_what_is_unknown_stands_last_in_either_direction() -> None:
    decisions = {
        "workloads/a": a_decision("a", demand_qps=1.0),
        "workloads/b": a_decision("b", demand_qps=9.0),
    }
    rows = view.rows_of(known("a", "b", "c", decisions=decisions), NOW)
    orders = [
        [row.name for row in view.page_of(rows, view.Asked(sort="demand", down=down)).rows]
        for down in (False, True)
    ]
    assert [["a", "b", "c"], ["b", "a", "c"]] == orders


def test_every_order_can_be_asked_for() -> None:
    rows = view.rows_of(known("a", "b"), NOW)
    assert [2] * len(view.SORTS) == [len(view.page_of(rows, view.Asked(sort=one)).rows) for one in view.SORTS]


def test_a_filter_needs_all_its_words_and_a_page_beyond_the_last_is_the_last() -> None:
    rows = view.rows_of(known(*(f"rank-{n:03}" for n in range(120)), "other"), NOW)
    found = view.page_of(rows, view.Asked(text="rank 01", sort="name"))
    assert ["rank-001", "rank-010"] == [row.name for row in found.rows][:2]
    last = view.page_of(rows, view.Asked(text="RANK", sort="name", page=99))
    assert (3, 3, 120, 20) == (last.number, last.pages, last.matches, len(last.rows))


def test_a_forecast_is_drawn_on_the_same_grid_whatever_its_step() -> None:
    for minutes in (5, 15, 60):
        forecast = forecast_pb2.Forecast(state=forecast_pb2.FORECAST_STATE_READY)
        forecast.start_time.FromDatetime(NOW)
        forecast.step.FromTimedelta(timedelta(minutes=minutes))
        for level in (0.1, 0.5, 0.9):
            forecast.quantiles.add(level=level, qps=[100 * level] * (1440 // minutes))
        band = view.band_of(forecast, view.grid_start(NOW))
        ahead = [value for value in band.median if value is not None]
        assert [50.0] * (18 * 4) == ahead
        assert (50.0, 90.0) == (band.peak, band.peak_upper)


def test_a_forecast_without_numbers_draws_nothing_and_keeps_its_state() -> None:
    forecast = forecast_pb2.Forecast(state=forecast_pb2.FORECAST_STATE_INSUFFICIENT_HISTORY)
    band = view.band_of(forecast, view.grid_start(NOW))
    assert (None, "INSUFFICIENT_HISTORY", 0.0) == (band.peak, band.state, band.top)
