"""A small world to look at: six workloads with history, forecasts, plans, decisions, events, an alarm and engines.

Everything that has an API is made through it; what only the loop makes is written to the store.
"""

import math
from collections.abc import Sequence
from datetime import datetime, timedelta

from forecrest.v1 import (
    control_pb2,
    control_service_pb2,
    engine_pb2,
    engine_service_pb2,
    event_pb2,
    event_service_pb2,
    telemetry_service_pb2,
    workload_pb2,
    workload_service_pb2,
)

from controller.accuracy import Parts
from controller.client import Client
from controller.core.resources import ForecastRun, Outcome
from controller.core.types import (
    Alarm,
    AlarmKind,
    CapacityPlan,
    Condition,
    ConditionType,
    Contract,
    ContractState,
    Decision,
    Floor,
    ForecastBand,
    ForecastState,
    InputAge,
    Mode,
    Reason,
    Recommendation,
    RecommendationKind,
    Source,
    WorkloadState,
)
from controller.ports import Store

MINUTE, HOUR, DAY = timedelta(minutes=1), timedelta(hours=1), timedelta(days=1)
LEVELS = (0.05, 0.1, 0.5, 0.9, 0.95)
STEP = 15 * MINUTE
# Name, mean demand, replicas asked for, replicas warm, days of history. `new-model` is known to nobody yet.
WORKLOADS = (
    ("recommender", 8000.0, 9, 6, 8),
    ("ranker", 2600.0, 6, 6, 2),
    ("speech-to-text", 340.0, 4, 4, 1),
    ("image-embedder", 90.0, 2, 1, 1),
    ("fraud-check", 1200.0, 3, 3, 1),
    ("new-model", 0.0, 0, 0, 0),
)


def demand_at(mean_qps: float, at: datetime) -> float:
    """A day's shape that needs no random numbers: two humps and a ripple."""
    hour = (at.timestamp() % 86_400) / 3600
    day = 1 + 0.45 * math.sin((hour - 9) / 24 * 2 * math.pi) + 0.14 * math.sin((hour - 3) / 12 * 2 * math.pi)
    return mean_qps * day * (1 + 0.02 * math.sin(at.timestamp() / 240))


async def make(client: Client, store: Store, now: datetime) -> None:
    """Fill an empty installation."""
    for name, _, _, _, _ in WORKLOADS:
        await client.workloads.CreateWorkload(
            workload_service_pb2.CreateWorkloadRequest(workload_id=name, workload=workload(name))
        )
    for name, mean_qps, _, _, days in WORKLOADS:
        await record_history(client, name, mean_qps, now, days)
    await _register_events(client, now)
    await _register_engines(client, now)
    override = control_pb2.Override(
        kind=control_pb2.OVERRIDE_KIND_AT_LEAST,
        replicas=3,
        ttl=6 * HOUR,
        reason="partner demo this afternoon",
    )
    await client.control.CreateOverride(
        control_service_pb2.CreateOverrideRequest(
            parent="workloads/fraud-check", override_id="demo", override=override
        )
    )
    for name, mean_qps, desired, warm, days in WORKLOADS:
        if days:
            await store_loop(store, name, mean_qps, desired, warm, now)


def workload(name: str) -> workload_pb2.Workload:
    """A workload of this world, to register."""
    engine = "engines/recommender-int8" if name == "recommender" else f"{name}-fp16"
    return workload_pb2.Workload(
        model_name=name.replace("-", "_"),
        profiles=[workload_pb2.CapacityProfile(engine=engine, gpu_type="L4", qps_max=2500.0)],
        max_replicas=24,
        mode=workload_pb2.MODE_FLOOR if name == "ranker" else workload_pb2.MODE_SCALE,
        labels={"team": "search"},
    )


async def record_history(client: Client, name: str, mean_qps: float, now: datetime, days: int) -> None:
    """Store minutes of demand up to the last whole one."""
    end_minute = int(now.timestamp() // 60)
    minutes = list(range(end_minute - days * 1440, end_minute))
    for first in range(0, len(minutes), 9000):
        part = minutes[first : first + 9000]
        series = telemetry_service_pb2.TrafficSeries(
            workload=f"workloads/{name}",
            minutes=part,
            demand_counts=[
                60 * demand_at(mean_qps, datetime.fromtimestamp(m * 60, now.tzinfo)) for m in part
            ],
        )
        request = telemetry_service_pb2.StreamTrafficRequest(batch=first, source="test", series=[series])

        async def batches(one: telemetry_service_pb2.StreamTrafficRequest = request):  # type: ignore[no-untyped-def]  # noqa: ANN202
            yield one

        async for _ in client.stream_traffic(batches()):
            pass


async def _register_events(client: Client, now: datetime) -> None:
    hour = now.replace(minute=0, second=0, microsecond=0)
    wanted = (
        (
            "midnight-sale",
            "Midnight sale",
            ["recommender", "ranker"],
            2 * HOUR,
            2 * HOUR,
            35_000.0,
            "promotion",
        ),
        ("live-lesson", "Live lesson", ["speech-to-text"], 26 * HOUR, HOUR, 900.0, "class"),
        ("flash-drop", "Flash drop", ["image-embedder"], -30 * MINUTE, 3 * HOUR, 220.0, "promotion"),
    )
    for event_id, title, workloads, after, length, peak_qps, category in wanted:
        event = event_pb2.Event(
            display_name=title,
            workloads=[f"workloads/{name}" for name in workloads],
            start_time=hour + after,
            end_time=hour + after + length,
            time_zone="Asia/Shanghai",
            expected_peak_qps=peak_qps,
            category=category,
        )
        await client.events.CreateEvent(event_service_pb2.CreateEventRequest(event=event, event_id=event_id))


async def _register_engines(client: Client, now: datetime) -> None:
    for number, (engine_id, precision) in enumerate(
        (("recommender-int8", workload_pb2.PRECISION_INT8), ("recommender-fp16", workload_pb2.PRECISION_FP16))
    ):
        engine = engine_pb2.Engine(
            model_name="recommender",
            digest=f"sha256:{number + 1:064x}",
            model_digest="sha256:" + "cd" * 32,
            kind=engine_pb2.ENGINE_KIND_TENSORRT,
            precision=precision,
            runtime_version="10.8.0",
            compute_capabilities=["8.9"],
            gpu_type="L4",
        )
        await client.engines.RegisterEngine(
            engine_service_pb2.RegisterEngineRequest(engine=engine, engine_id=engine_id)
        )
    validation = engine_pb2.EngineValidation(
        measures=[
            engine_pb2.EngineMeasure(measure="cosine", value=0.9991, min=0.99),
            engine_pb2.EngineMeasure(measure="top1_agreement", value=0.997, min=0.99),
        ]
    )
    name = "engines/recommender-int8"
    await client.engines.ValidateEngine(
        engine_service_pb2.ValidateEngineRequest(name=name, validation=validation)
    )
    await client.engines.PromoteEngine(engine_service_pb2.PromoteEngineRequest(name=name))
    profile = engine_pb2.EngineProfile(
        capacity=workload_pb2.CapacityProfile(engine="-", gpu_type="L4", qps_max=2500.0, batch_size_max=64),
        slo=workload_pb2.Slo(),
        measure_time=now - HOUR,
        tool="forecrest engine profile",
        points=[
            engine_pb2.CapacityPoint(offered_qps=500.0 * n, latency_ms_p99=4.0 + n * n, within_slo=n < 6)
            for n in range(1, 8)
        ],
    )
    await client.engines.RecordEngineProfile(
        engine_service_pb2.RecordEngineProfileRequest(parent=name, profile=profile)
    )


def band_for(name: str, mean_qps: float, now: datetime) -> ForecastBand:
    """Two days of quantiles around the day's shape, wider further on."""
    start_at = now.replace(minute=now.minute // 15 * 15, second=0, microsecond=0)
    rows: list[tuple[float, ...]] = []
    for index in range(192):
        middle = demand_at(mean_qps, start_at + index * STEP)
        width = 0.06 + 0.0012 * index
        rows.append(tuple(middle * (1 + width * z) for z in (-1.6, -1.28, 0.0, 1.28, 1.6)))
    return ForecastBand(
        id=f"{name}-f1",
        origin_at=start_at,
        start_at=start_at,
        step=STEP,
        levels=LEVELS,
        qps=tuple(rows),
        state=ForecastState.READY,
    )


def decisions_for(name: str, mean_qps: float, desired: int, warm: int, now: datetime) -> Sequence[Decision]:
    """Three hours of decisions, the last one just now."""
    made: list[Decision] = []
    # Slowly up to what was there before the last decision, which asks for all of it.
    steady = max(1, desired - 3) if warm < desired else desired
    counts = [max(1, steady - (12 - number) // 4) for number in range(12)] + [desired]
    for number in range(12):
        last = number == 11
        short = last and warm < desired
        at = now - (11 - number) * 15 * MINUTE
        before, after = counts[number], counts[number + 1]
        made.append(
            Decision(
                id=f"{name}-{number}",
                workload=name,
                at=at,
                mode=Mode.SCALE,
                current_replicas=before,
                desired_replicas=after,
                warm_replicas=warm if last else before,
                in_flight_replicas=desired - warm if last else 0,
                reason=Reason.EVENT_FLOOR
                if short
                else Reason.REACTIVE_UP
                if after > before
                else Reason.STEADY,
                binding=Source.EVENT if short else None,
                sentence=(
                    f"{after} replicas: Midnight sale needs {after} warm by its deadline."
                    if short
                    else f"{after} replicas carry {demand_at(mean_qps, at):,.0f} QPS within the SLO."
                ),
                recommendations=(
                    Recommendation(
                        Source.REACTIVE, RecommendationKind.SET, max(1, after - 2), "Present demand needs it."
                    ),
                    Recommendation(
                        Source.EVENT, RecommendationKind.AT_LEAST, after, "Midnight sale is announced."
                    ),
                    Recommendation(Source.MAX, RecommendationKind.AT_MOST, 24, "max_replicas is 24."),
                ),
                conditions=(
                    Condition(
                        ConditionType.ABLE_TO_SCALE,
                        ok=True,
                        reason="Ready",
                        message="The actuator takes orders.",
                    ),
                    Condition(
                        ConditionType.SCALING_ACTIVE,
                        ok=name != "fraud-check",
                        reason="Signals",
                        message="No demand signal for 12 minutes."
                        if name == "fraud-check"
                        else "Demand is known.",
                    ),
                    Condition(
                        ConditionType.SCALING_LIMITED,
                        ok=name == "ranker",
                        reason="Ceiling",
                        message="max_replicas holds it back." if name == "ranker" else "Nothing limits it.",
                    ),
                ),
                inputs=(InputAge("demand", 2.0), InputAge("forecast", 240.0), InputAge("replicas", 1.0)),
                demand_qps=None if name == "fraud-check" and last else demand_at(mean_qps, at),
                need_replicas=max(1, after - 2),
                plan_revision=1,
                forecast_id=f"{name}-f1",
                event_ids=("midnight-sale",) if short else (),
            )
        )
    return made


async def store_loop(
    store: Store, name: str, mean_qps: float, desired: int, warm: int, now: datetime
) -> None:
    """Write what a running loop would have: forecast, plan, decisions, state."""
    band = band_for(name, mean_qps, now)
    decisions = decisions_for(name, mean_qps, desired, warm, now)
    hour = now.replace(minute=0, second=0, microsecond=0)
    sale_at = hour + 2 * HOUR
    plan = CapacityPlan(
        workload=name,
        revision=1,
        created_at=now,
        floors=(
            Floor(max(1, desired - 2), now - HOUR, now - HOUR, now + HOUR, "The forecast needs it."),
            Floor(
                desired,
                sale_at - 20 * MINUTE,
                sale_at,
                sale_at + 2 * HOUR,
                "Midnight sale.",
                event_id="midnight-sale",
                demand_qps=35_000.0,
            ),
        ),
        forecast_id=band.id,
        start_at=band.start_at,
        step=STEP,
        need=tuple(max(1, math.ceil(row[3] / 2200)) for row in band.qps),
        quantile=0.999,
        digest=f"digest-{name}",
    )
    contracts: tuple[Contract, ...] = ()
    alarms: tuple[Alarm, ...] = ()
    if name == "recommender":
        contracts = (
            Contract(
                "midnight-sale",
                1,
                ContractState.PREWARMING,
                desired,
                sale_at - 30 * MINUTE,
                sale_at - MINUTE / 2,
                sale_at,
                sale_at + 2 * HOUR,
                ordered_count=desired,
                scheduled_count=desired,
                loaded_count=desired - 1,
                warmed_count=warm + 1,
                verified_count=warm,
                expected_warm_at=sale_at - 12 * MINUTE,
            ),
        )
    if name == "image-embedder":
        alarms = (
            Alarm(
                AlarmKind.PREWARM_MISSED,
                name,
                "flash-drop",
                "Flash drop started with 1 of 2 replicas warm; raise max_replicas or look at the pending pod.",
            ),
        )
    flat = (0.0,) * len(band.qps)
    async with store.unit_of_work() as uow:
        await uow.forecasts.save(ForecastRun(band.id, name, band.origin_at, now, len(band.qps)), band)
        await uow.accuracy.put_parts(
            Parts(
                band.id,
                name,
                now,
                "ensemble",
                "Won the newest backtest.",
                "The peak is the evening hump.",
                mean_qps,
                flat,
                flat,
                flat,
            )
        )
        await uow.decisions.save_plan(plan)
        await uow.decisions.append(list(decisions))
        await uow.decisions.outcome(Outcome(decisions[-1].id, now, applied=True, observed_replicas=warm))
        await uow.states.save(
            {
                name: WorkloadState(
                    desired_replicas=desired, plan=plan, contracts=contracts, alarms=alarms, last_at=now
                )
            }
        )
        await uow.commit()
