"""Translate explanations, accuracy and simulations between core values and ``forecrest.v1`` messages.

Promises: unknown (None) is an absent field and never 0. Refuses what cannot be represented, as InvalidError naming
the field. Called by the servicers.
"""

from collections.abc import Callable, Sequence
from math import nan

from forecrest.v1 import control_pb2, control_service_pb2, forecast_pb2, workload_pb2

from controller.accuracy import Backtest, LiveAccuracy, Parts, Standing
from controller.api.mappers import SHAPES, decision_to_wire, forecast_state
from controller.api.shapes import check_entries, duration, read_duration, read_timestamp, timestamp
from controller.core.resources import ForecastRun
from controller.core.types import Floor, ForecastBand, Policy, Recommendation
from controller.study import StudyResult
from controller.usecases.accuracy import Accuracy
from controller.usecases.errors import InvalidError, Violation
from controller.usecases.explain_decision import DecisionExplanation, SeenEvent, SeenForecast
from controller.usecases.simulate import AddedLoad, Change, Question, Simulated

# ---------------------------------------------------------------- forecasts


def explanation_to_wire(
    run: ForecastRun, band: ForecastBand, parts: Parts
) -> forecast_pb2.ForecastExplanation:
    """Return the message. The season is what the other parts leave of the median, so that they add up exactly."""
    middle = band.levels.index(0.5)
    median = [row[middle] for row in band.qps]
    rest = zip(median, parts.trend, parts.event, parts.correction, strict=True)
    return forecast_pb2.ForecastExplanation(
        name=f"workloads/{run.workload}/forecast",
        forecast_id=run.id,
        state=forecast_state(band.state),
        origin_time=timestamp(band.origin_at),
        start_time=timestamp(band.start_at),
        step=duration(band.step),
        median_qps=median,
        baseline_qps=[parts.baseline] * len(median),
        trend_qps=parts.trend,
        season_qps=[m - parts.baseline - t - e - c for m, t, e, c in rest],
        event_qps=parts.event,
        correction_qps=parts.correction,
        model=parts.model,
        model_reason=parts.model_reason,
        model_weights=dict(run.model_weights),
        occurrence_ids=sorted(band.event_ids),
        reasons=band.reasons,
        sentence=parts.sentence,
    )


def accuracy_to_wire(workload: str, accuracy: Accuracy) -> forecast_pb2.Accuracy:
    """Return the resource."""
    standing = accuracy.standing
    message = forecast_pb2.Accuracy(
        name=f"workloads/{workload}/accuracy",
        live=map(_live, accuracy.live),
        trust=forecast_pb2.ForecastTrust.Value(f"FORECAST_TRUST_{standing.trust}"),
        trust_sentence=standing.trust_reason,
        champion=_champion(standing),
    )
    if standing.backtest is not None:
        message.backtest.CopyFrom(_backtest(standing.backtest))
    return message


def _coverage(levels: Sequence[float], shares: Sequence[float]) -> list[forecast_pb2.QuantileCoverage]:
    return [
        forecast_pb2.QuantileCoverage(level=level, share=share)
        for level, share in zip(levels, shares, strict=True)
    ]


def _live(live: LiveAccuracy) -> forecast_pb2.LiveAccuracy:
    score = live.score
    count = max(score.step_count, 1)
    return forecast_pb2.LiveAccuracy(
        lead=duration(score.lead),
        span=duration(live.span),
        start_time=timestamp(live.start_at),
        end_time=timestamp(live.end_at),
        step_count=score.step_count,
        pinball_qps=score.loss_sum / count,
        daily_naive_ratio=score.daily.ratio,
        weekly_naive_ratio=score.weekly.ratio,
        bias=score.bias,
        coverage=_coverage(live.levels, [covered / count for covered in score.covered]),
    )


def _champion(standing: Standing) -> forecast_pb2.Champion:
    return forecast_pb2.Champion(
        model=standing.champion,
        since_time=None if standing.since_at is None else timestamp(standing.since_at),
        reason=standing.reason,
        challenger=standing.challenger,
        win_count=standing.win_count,
        switches=[
            forecast_pb2.ChampionSwitch(
                switch_time=timestamp(one.at),
                from_model=one.from_model,
                to_model=one.to_model,
                reason=one.reason,
            )
            for one in standing.switches
        ],
    )


def _backtest(backtest: Backtest) -> forecast_pb2.ForecastBacktest:
    return forecast_pb2.ForecastBacktest(
        create_time=timestamp(backtest.at),
        fold_count=backtest.fold_count,
        horizon=duration(backtest.horizon),
        scores=[
            forecast_pb2.ModelScore(
                model=s.model,
                stretch=s.stretch,
                step_count=s.step_count,
                pinball_qps=s.pinball_qps,
                naive_ratio=s.naive_ratio,
                bias=s.bias,
                coverage=_coverage(backtest.levels, s.coverage),
            )
            for s in backtest.scores
        ],
    )


# ---------------------------------------------------------------- decisions


def decision_explanation_to_wire(why: DecisionExplanation) -> control_pb2.DecisionExplanation:
    """Return the message."""
    return control_pb2.DecisionExplanation(
        decision=decision_to_wire((why.decision, why.outcome)),
        sentence=why.sentence,
        rule=why.rule,
        recommendations=[
            control_pb2.WeighedRecommendation(
                recommendation=_recommendation(one),
                fate=control_pb2.RecommendationFate.Value(f"RECOMMENDATION_FATE_{fate}"),
            )
            for one, fate in why.weighed
        ],
        clamp=why.clamp,
        forecast=None if why.forecast is None else _seen_forecast(why.forecast),
        events=map(_seen_event, why.events),
        floors=map(_floor, why.floors),
        until_time=None if why.until_at is None else timestamp(why.until_at),
    )


def _recommendation(one: Recommendation) -> control_pb2.Recommendation:
    return SHAPES.to_wire(one, control_pb2.Recommendation)


def _floor(floor: Floor) -> control_pb2.Floor:
    return SHAPES.to_wire(floor, control_pb2.Floor)


def _seen_forecast(seen: SeenForecast) -> control_pb2.ExplainedForecast:
    return control_pb2.ExplainedForecast(
        forecast_id=seen.band.id,
        state=seen.band.state,
        origin_time=timestamp(seen.band.origin_at),
        age_s=seen.age_s,
        median_qps=seen.median_qps,
    )


def _seen_event(seen: SeenEvent) -> control_pb2.ExplainedEvent:
    message = control_pb2.ExplainedEvent(
        occurrence_id=seen.occurrence_id, event=f"events/{seen.occurrence_id.partition('@')[0]}"
    )
    if seen.event is not None:
        message.display_name = seen.event.display_name
    if seen.occurrence is not None:
        message.start_time.CopyFrom(timestamp(seen.occurrence.start_at))
        message.end_time.CopyFrom(timestamp(seen.occurrence.end_at))
        if seen.occurrence.expected_peak_qps is not None:
            message.expected_peak_qps = seen.occurrence.expected_peak_qps
        if seen.occurrence.expected_multiplier is not None:
            message.expected_multiplier = seen.occurrence.expected_multiplier
    return message


# ---------------------------------------------------------------- simulations


def question_from_wire(request: control_service_pb2.SimulateRequest) -> Question:
    """Return what is asked; raise InvalidError."""
    for field in ("changes", "peers", "events"):
        check_entries(len(getattr(request, field)), field)
    return Question(
        end_at=read_timestamp(request.end_time, "end_time") if request.HasField("end_time") else None,
        window=read_duration(request.window, "window") if request.HasField("window") else None,
        learn=read_duration(request.learn, "learn") if request.HasField("learn") else None,
        changes=tuple(_change(one, f"changes[{index}]") for index, one in enumerate(request.changes)),
        peers=tuple(request.peers),
        loads=tuple(_load(one, f"events[{index}]") for index, one in enumerate(request.events)),
        cold_start=read_duration(request.cold_start, "cold_start")
        if request.HasField("cold_start")
        else None,
        timeline_size=request.timeline_size,
    )


def _change(given: control_service_pb2.SimulatedChange, at: str) -> Change:
    return Change(
        name=given.name,
        policy=_changed_policy(given.policy, f"{at}.policy") if given.HasField("policy") else None,
        min_replicas=given.min_replicas if given.HasField("min_replicas") else None,
        max_replicas=given.max_replicas if given.HasField("max_replicas") else None,
    )


def _changed_policy(given: workload_pb2.Policy, at: str) -> Callable[[Policy], Policy]:
    """Return what replaces a stored policy's fields by those that are set; a bad one is refused at once."""
    SHAPES.from_wire(given, Policy, at)

    def change(stored: Policy) -> Policy:
        merged = SHAPES.to_wire(stored, workload_pb2.Policy)
        for field, _ in given.ListFields():
            merged.ClearField(field.name)  # type: ignore[arg-type] # any field, by its name
        merged.MergeFrom(given)
        return SHAPES.from_wire(merged, Policy, at)

    return change


def _load(given: control_service_pb2.SimulatedEvent, at: str) -> AddedLoad:
    for name in ("start_time", "end_time"):
        if not given.HasField(name):
            raise InvalidError([Violation(f"{at}.{name}", "is required")])
    return AddedLoad(
        start_at=read_timestamp(given.start_time, f"{at}.start_time"),
        end_at=read_timestamp(given.end_time, f"{at}.end_time"),
        multiplier=given.multiplier if given.HasField("multiplier") else None,
        peak_qps=given.peak_qps if given.HasField("peak_qps") else None,
        announced=given.announced,
        category=given.category,
    )


def simulated_to_wire(workload: str, simulated: Simulated) -> control_service_pb2.SimulateResponse:
    """Return the response."""
    return control_service_pb2.SimulateResponse(
        workload=f"workloads/{workload}",
        start_time=timestamp(simulated.start_at),
        end_time=timestamp(simulated.end_at),
        cold_start=duration(simulated.cold_start),
        capacity_qps=simulated.capacity_qps,
        unknown_share=simulated.unknown_share,
        results=map(_result, simulated.results),
    )


def _result(result: StudyResult) -> control_pb2.SimulationResult:
    line = result.timeline
    message = control_pb2.SimulationResult(
        name=result.name,
        violation_share=result.violation_share,
        wait_ms_p99=result.wait_ms_p99,
        replica_hours=result.replica_hours,
        scale_changes=result.scale_changes,
        flaps=result.flaps,
        rejected_share=result.rejected_share,
        peak_replicas=result.peak_replicas,
        event_violation_share=result.event_violation_share,
        timeline=control_pb2.SimulationTimeline(
            demand_qps=[nan if value is None else value for value in line.demand_qps],
            ready_replicas=line.ready,
            paid_replicas=line.paid,
            violation_share=line.violation_share,
        ),
    )
    message.timeline.step.FromMilliseconds(round(line.step_s * 1000))
    return message
