"""The time axis and tables of one workload."""

from datetime import UTC, datetime, timedelta

from forecrest.v1 import control_pb2, event_pb2, forecast_pb2, forecast_service_pb2

from controller.console.views import workloads as view

NOW = datetime(2026, 11, 11, 12, 0, tzinfo=UTC)
MINUTE, HOUR, DAY = timedelta(minutes=1), timedelta(hours=1), timedelta(days=1)


def a_span(start: timedelta, length: timedelta = HOUR) -> view.Span:
    return view.Span("sale", "Sale", NOW + start, NOW + start + length)


def test_windows_hold_at_most_a_thousand_buckets_of_whole_minutes() -> None:
    for name in (*view.RANGES, "nonsense"):
        window = view.window_of(name, NOW, ())
        assert (window.end_at - window.start_at) / window.step <= view.POINTS_MAX
        assert timedelta() == window.step % MINUTE


def test_the_event_preset_shows_the_event_with_what_is_around_it_and_now() -> None:
    window = view.window_of("event", NOW, (a_span(5 * HOUR), a_span(50 * HOUR)))
    assert (NOW, NOW + 8 * HOUR) == (window.start_at, window.end_at)


def test_the_event_to_look_at_is_on_then_next_then_last() -> None:
    on, ahead, over = a_span(-MINUTE), a_span(HOUR), a_span(-5 * HOUR)
    assert [on, ahead, over, None] == [
        view.focus((over, ahead, on), NOW),
        view.focus((over, ahead), NOW),
        view.focus((over,), NOW),
        view.focus((), NOW),
    ]


def test_gaps_in_history_stay_gaps_and_the_forecast_begins_where_it_begins() -> None:
    history = forecast_service_pb2.GetHistoryResponse()
    for index, value in enumerate((5.0, None, 0.0)):
        point = history.points.add()
        point.start_time.FromDatetime(NOW - (3 - index) * 5 * MINUTE)
        if value is not None:
            point.demand_qps = value
    forecast = forecast_pb2.Forecast()
    forecast.start_time.FromDatetime(NOW)
    forecast.step.FromTimedelta(5 * MINUTE)
    for level in (0.1, 0.5, 0.9):
        forecast.quantiles.add(level=level, qps=[10 * level] * 2)
    columns = view.demand_series(history, forecast, view.Window(NOW - HOUR, NOW + HOUR, 5 * MINUTE))
    assert [5.0, None, 0.0, None, None] == columns["past"]
    assert [None, None, None, 5.0, 5.0] == columns["median"]
    assert "low0" not in columns
    assert [None, None, None, 1.0, 1.0] == columns["low1"]
    assert columns["t"] == sorted(columns["t"], key=float)  # type: ignore[arg-type]


def test_replicas_hold_from_decision_to_decision_and_are_not_known_after_now() -> None:
    decisions = []
    for hours, desired, warm in ((2, 3, 3), (1, 5, None)):
        one = control_pb2.Decision(desired_replicas=desired, warm_replicas=warm)
        one.decide_time.FromDatetime(NOW - hours * HOUR)
        decisions.append(one)
    plan = control_pb2.CapacityPlan()
    plan.create_time.FromDatetime(NOW - HOUR)
    floor = plan.floors.add(replicas=8)
    floor.order_time.FromDatetime(NOW + HOUR)
    floor.need_time.FromDatetime(NOW + HOUR + 20 * MINUTE)
    floor.until_time.FromDatetime(NOW + 2 * HOUR)
    columns = view.replica_series(decisions, plan, view.Window(NOW - 3 * HOUR, NOW + 3 * HOUR, MINUTE), NOW)
    at = {time: index for index, time in enumerate(columns["t"])}

    def there(name: str, when: datetime) -> int | None:
        return columns[name][at[int(when.timestamp())]]

    assert (None, 3, 5, None) == (
        there("desired", NOW - 3 * HOUR),
        there("desired", NOW - HOUR - timedelta(seconds=1)),
        there("desired", NOW),
        there("desired", NOW + HOUR),
    )
    assert (3, None) == (there("warm", NOW - 2 * HOUR), there("warm", NOW))
    assert (None, 8, None) == (
        there("floor", NOW),
        there("floor", NOW + 2 * HOUR - timedelta(seconds=1)),
        there("floor", NOW + 2 * HOUR),
    )
    assert 20 * MINUTE == view.lead_of(plan)
    assert [8] == [one.replicas for one in view.floors_of(plan, NOW)]
    assert () == view.floors_of(plan, NOW + 2 * HOUR)


def test_cancelled_events_and_contracts_that_are_over_are_left_out() -> None:
    cancelled = event_pb2.Event(name="events/gone", state=event_pb2.EVENT_STATE_CANCELLED)
    over = event_pb2.Contract(occurrence_id="sale", state=event_pb2.CONTRACT_STATE_COMPLETED)
    planned = event_pb2.Contract(
        occurrence_id="show@20261112T000000Z",
        state=event_pb2.CONTRACT_STATE_AT_RISK,
        replicas=9,
        ordered_count=9,
        verified_count=6,
    )
    status = control_pb2.WorkloadStatus(contracts=[over, planned])
    (shown,) = view.contracts_of(status)
    assert () == view.spans_of([cancelled], [])
    assert ("show", "warn", (9, 9), (6, 9)) == (
        shown.event_id,
        shown.level,
        (shown.stages[0].count, shown.stages[0].wanted),
        (shown.stages[-1].count, shown.stages[-1].wanted),
    )


def test_the_highest_step_is_taken_apart() -> None:
    explanation = forecast_pb2.ForecastExplanation(
        median_qps=[5, 9],
        baseline_qps=[4, 4],
        trend_qps=[0, 1],
        season_qps=[1, 2],
        event_qps=[0, 2],
        correction_qps=[0, 0],
    )
    assert (
        ("baseline", 4.0),
        ("trend", 1.0),
        ("season", 2.0),
        ("event", 2.0),
        ("correction", 0.0),
    ) == view.composition(explanation)
    assert () == view.composition(None)


def test_unknown_scores_stay_unknown() -> None:
    accuracy = forecast_pb2.Accuracy(live=[forecast_pb2.LiveAccuracy(step_count=12)])
    (row,) = view.accuracy_of(accuracy)
    assert (None, None, ()) == (row.bias, row.daily_ratio, row.coverage)
    assert () == view.accuracy_of(None)
