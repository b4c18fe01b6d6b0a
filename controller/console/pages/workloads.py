"""One workload: everything about it on one page, its demand and replicas on one time axis, every decision explained."""

from collections.abc import Awaitable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

import grpc
from aiohttp import web
from forecrest.v1 import (
    control_pb2,
    control_service_pb2,
    event_pb2,
    event_service_pb2,
    forecast_pb2,
    forecast_service_pb2,
    workload_pb2,
    workload_service_pb2,
)

from controller.client import Client
from controller.console.context import (
    CONSOLE,
    FRAGMENT_HEADER,
    compressed_json,
    refused,
    render,
    viewer_of,
)
from controller.console.live import READ_TIMEOUT_S, Source, gathered, instant, iso
from controller.console.trouble import AWAY, Trouble
from controller.console.views import fleet as fleet_view
from controller.console.views import workloads as view
from controller.counted import counted

T = TypeVar("T")

NAV = None
DECISIONS_SHOWN = 40
DECISIONS_DRAWN_MAX = 1000
# What changes with a refit or an hour is read less often than what changes with a tick.
SLOW_AGE = timedelta(seconds=60)
_ID = r"{id:[a-z][a-z0-9-]{0,62}}"


@dataclass(frozen=True, slots=True)
class Slow:
    """What is read every minute."""

    forecast: forecast_pb2.Forecast | None = None
    explanation: forecast_pb2.ForecastExplanation | None = None
    accuracy: forecast_pb2.Accuracy | None = None
    read_at: datetime | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class Workload:
    """What is known of one workload."""

    spec: workload_pb2.Workload
    status: control_pb2.WorkloadStatus | None
    decisions: tuple[control_pb2.Decision, ...]
    plan: control_pb2.CapacityPlan | None
    events: tuple[event_pb2.Event, ...]
    pause: control_pb2.PauseState
    overrides: tuple[control_pb2.Override, ...]
    demand: tuple[tuple[datetime, float | None], ...]
    slow: Slow
    stale_since: datetime | None = None


async def found(call: Awaitable[T]) -> T | None:
    """Await a call; None: there is no such thing (yet)."""
    try:
        return await call
    except grpc.aio.AioRpcError as error:
        if error.code() is grpc.StatusCode.NOT_FOUND:
            return None
        raise


async def load(client: Client, workload_id: str, previous: Workload | None, now: datetime) -> Workload:
    """Read the workload and what belongs to it; NOT_FOUND if there is none."""
    name = f"workloads/{workload_id}"
    spec = await client.workloads.GetWorkload(
        workload_service_pb2.GetWorkloadRequest(name=name), timeout=READ_TIMEOUT_S
    )
    recent = forecast_service_pb2.GetHistoryRequest(workload=name)
    recent.start_time.FromDatetime(now - timedelta(minutes=15))
    control, wait = client.control, READ_TIMEOUT_S
    status, decisions, plan, events, pause, overrides, history, slow = await gathered(
        found(control.GetStatus(control_service_pb2.GetStatusRequest(name=f"{name}/status"), timeout=wait)),
        control.ListDecisions(
            control_service_pb2.ListDecisionsRequest(workload=name, page_size=DECISIONS_SHOWN), timeout=wait
        ),
        found(control.GetPlan(control_service_pb2.GetPlanRequest(name=f"{name}/plan"), timeout=wait)),
        _events(client, name, now),
        control.GetPauseState(control_service_pb2.GetPauseStateRequest(workload=name), timeout=wait),
        control.ListOverrides(control_service_pb2.ListOverridesRequest(parent=name), timeout=wait),
        client.forecasts.GetHistory(recent, timeout=wait),
        _slow(client, name, previous.slow if previous else Slow(), now),
    )
    answers = (spec, status, decisions, plan, slow.forecast)
    stale = [at for one in answers if one is not None and (at := instant(one, "stale_since_time"))]
    return Workload(
        spec=spec,
        status=status,
        decisions=tuple(decisions.decisions),
        plan=plan,
        events=events,
        pause=pause,
        overrides=tuple(one for one in overrides.overrides if one.active),
        demand=tuple(
            (
                one.start_time.ToDatetime(UTC) + timedelta(minutes=1),
                one.demand_qps if one.HasField("demand_qps") else None,
            )
            for one in history.points
        ),
        slow=slow,
        stale_since=min(stale, default=None),
    )


async def _events(client: Client, name: str, now: datetime) -> tuple[event_pb2.Event, ...]:
    request = event_service_pb2.ListEventsRequest(workload=name, page_size=200)
    request.start_time.FromDatetime(now - timedelta(days=30))
    request.end_time.FromDatetime(now + timedelta(days=60))
    return tuple((await client.events.ListEvents(request, timeout=READ_TIMEOUT_S)).events)


async def _slow(client: Client, name: str, before: Slow, now: datetime) -> Slow:
    if before.read_at is not None and now - before.read_at < SLOW_AGE:
        return before
    forecasts, wait = client.forecasts, READ_TIMEOUT_S
    forecast, explanation, accuracy = await gathered(
        found(
            forecasts.GetForecast(
                forecast_service_pb2.GetForecastRequest(name=f"{name}/forecast"), timeout=wait
            )
        ),
        found(
            forecasts.ExplainForecast(
                forecast_service_pb2.ExplainForecastRequest(name=f"{name}/forecast"), timeout=wait
            )
        ),
        found(
            forecasts.GetAccuracy(
                forecast_service_pb2.GetAccuracyRequest(name=f"{name}/accuracy"), timeout=wait
            )
        ),
    )
    return Slow(forecast, explanation, accuracy, now)


@dataclass(frozen=True, slots=True)
class Series:
    """What is drawn: columns as ``views.workloads`` makes them."""

    window: view.Window = field(compare=False)
    demand: dict[str, list[float | int | None]]
    replicas: dict[str, list[int | None]]
    spans: tuple[view.Span, ...]
    stale_since: datetime | None = None


async def load_series(client: Client, argument: str, previous: Series | None, now: datetime) -> Series:
    """Read history, forecast, plan and decisions of ``{workload}/{range}``."""
    del previous
    workload_id, _, chosen = argument.partition("/")
    name, wait = f"workloads/{workload_id}", READ_TIMEOUT_S
    status, events, forecast, plan = await gathered(
        found(
            client.control.GetStatus(
                control_service_pb2.GetStatusRequest(name=f"{name}/status"), timeout=wait
            )
        ),
        _events(client, name, now),
        found(
            client.forecasts.GetForecast(
                forecast_service_pb2.GetForecastRequest(name=f"{name}/forecast"), timeout=wait
            )
        ),
        found(client.control.GetPlan(control_service_pb2.GetPlanRequest(name=f"{name}/plan"), timeout=wait)),
    )
    spans = view.spans_of(events, status.contracts if status else ())
    window = view.window_of(chosen, now, spans)
    history_asked = forecast_service_pb2.GetHistoryRequest(workload=name)
    history_asked.start_time.FromDatetime(window.start_at)
    history_asked.end_time.FromDatetime(min(now, window.end_at))
    history_asked.step.FromTimedelta(window.step)
    listed = control_service_pb2.ListDecisionsRequest(
        workload=name,
        page_size=DECISIONS_DRAWN_MAX,
        changes_only=window.end_at - window.start_at > timedelta(days=3),
    )
    listed.start_time.FromDatetime(window.start_at)
    history, decisions = await gathered(
        found(client.forecasts.GetHistory(history_asked, timeout=wait)),
        client.control.ListDecisions(listed, timeout=wait),
    )
    stale = [
        at for one in (forecast, plan, decisions, status) if one and (at := instant(one, "stale_since_time"))
    ]
    return Series(
        window=window,
        demand=view.demand_series(history, forecast, window),
        replicas=view.replica_series(decisions.decisions, plan, window, now),
        spans=view.spans_of(events, status.contracts if status else (), (window.start_at, window.end_at)),
        stale_since=min(stale, default=None),
    )


WORKLOAD: Source[Workload] = Source("workload", 5.0, load)
SERIES: Source[Series] = Source("series", 30.0, load_series)
SOURCES: tuple[Source[Any], ...] = (WORKLOAD, SERIES)


def routes() -> list[web.RouteDef]:
    """Return the pages of this group."""
    return [
        web.get(f"/workloads/{_ID}", show),
        web.get(f"/workloads/{_ID}/head", show_head),
        web.get(f"/workloads/{_ID}/parts", show_parts),
        web.get(f"/workloads/{_ID}/series", show_series),
        web.get("/decisions/{id}", explain),
    ]


async def show(request: web.Request) -> web.StreamResponse:
    """Show the whole page."""
    return await _shown(request, "workload.html")


async def show_head(request: web.Request) -> web.StreamResponse:
    """Show what stands above: alarms and the numbers of now."""
    return await _shown(request, "workload_head.html")


async def show_parts(request: web.Request) -> web.StreamResponse:
    """Show what stands below: decisions and why."""
    return await _shown(request, "workload_parts.html")


def _range(request: web.Request) -> str:
    chosen = request.query.get("range", "day")
    return chosen if chosen in view.RANGES else "day"


async def _shown(request: web.Request, template: str) -> web.StreamResponse:
    workload_id, chosen = request.match_info["id"], _range(request)
    reading = await viewer_of(request).feed.read(WORKLOAD, workload_id)
    one = reading.value
    now = request.app[CONSOLE].clock.now()
    seen_at = reading.at or now
    newest = one.decisions[0] if one and one.decisions else None
    spans = view.spans_of(one.events, one.status.contracts if one.status else ()) if one else ()
    demand_qps, demand_at = fleet_view.demand_now(newest, one.demand if one else ())
    counts = counted(one.status if one else None, newest, seen_at)
    desired = newest.desired_replicas if newest else None
    return render(
        request,
        template,
        reading,
        id=workload_id,
        range=chosen,
        ranges=view.RANGES,
        one=one,
        newest=newest,
        demand_qps=demand_qps,
        demand_at=demand_at,
        demand_old=demand_at is not None and seen_at - demand_at > fleet_view.DEMAND_OLD,
        counts=counts,
        counts_old=counts is not None and counts.is_old(desired, seen_at),
        conditions=fleet_view.conditions_of(newest),
        alarms=fleet_view.alarms_of(one.status if one else None),
        contracts=view.contracts_of(one.status if one else None),
        floors=view.floors_of(one.plan if one else None, seen_at),
        lead=view.lead_of(one.plan if one else None),
        accuracy=view.accuracy_of(one.slow.accuracy if one else None),
        parts=view.composition(one.slow.explanation if one else None),
        focus=view.focus(spans, seen_at),
        mode=workload_pb2.Mode.Name(one.spec.mode).removeprefix("MODE_") if one else "",
        names=Names,
        instant=instant,
        UTC=UTC,
    )


class Names:
    """Enum values without their prefixes, for templates."""

    reason = staticmethod(
        lambda value: control_pb2.DecisionReason.Name(value).removeprefix("DECISION_REASON_")
    )
    source = staticmethod(lambda value: control_pb2.Source.Name(value).removeprefix("SOURCE_"))
    kind = staticmethod(
        lambda value: control_pb2.RecommendationKind.Name(value).removeprefix("RECOMMENDATION_KIND_")
    )
    fate = staticmethod(
        lambda value: control_pb2.RecommendationFate.Name(value).removeprefix("RECOMMENDATION_FATE_")
    )
    trust = staticmethod(lambda value: forecast_pb2.ForecastTrust.Name(value).removeprefix("FORECAST_TRUST_"))
    forecast_state = staticmethod(
        lambda value: forecast_pb2.ForecastState.Name(value).removeprefix("FORECAST_STATE_")
    )
    override = staticmethod(lambda value: control_pb2.OverrideKind.Name(value).removeprefix("OVERRIDE_KIND_"))


async def show_series(request: web.Request) -> web.StreamResponse:
    """Answer with what is drawn, as JSON."""
    reading = await viewer_of(request).feed.read(SERIES, f"{request.match_info['id']}/{_range(request)}")
    series = reading.value
    if series is None:
        return refused(request, Trouble(AWAY, "error.waiting"))
    body = {
        "now": reading.at.timestamp() if reading.at else None,
        "at": iso(reading.at),
        "from": series.window.start_at.timestamp(),
        "to": series.window.end_at.timestamp(),
        "demand": series.demand,
        "replicas": series.replicas,
        "events": [
            {
                "title": span.title,
                "href": f"/events/{span.event_id}",
                "start": span.start_at.timestamp(),
                "end": span.end_at.timestamp(),
            }
            for span in series.spans
        ],
    }
    return compressed_json(request, body)


async def explain(request: web.Request) -> web.StreamResponse:
    """Explain one decision: a drawer's content for scripts, a page otherwise."""
    asked = control_service_pb2.ExplainDecisionRequest(name=f"decisions/{request.match_info['id'][:200]}")
    explanation = await viewer_of(request).feed.client.control.ExplainDecision(asked, timeout=READ_TIMEOUT_S)
    template = "decision_parts.html" if FRAGMENT_HEADER in request.headers else "decision.html"
    return render(request, template, one=explanation, names=Names, UTC=UTC)
