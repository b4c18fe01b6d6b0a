"""``forecrest explain``, ``accuracy`` and ``what-if``: why a forecast, how good, and what would have been."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Annotated, Any

import typer
from forecrest.v1 import control_pb2, control_service_pb2, forecast_pb2, forecast_service_pb2
from google.protobuf import json_format

from controller.cli.common import (
    EXIT_USAGE,
    WIDTH_MAX,
    Address,
    AsJson,
    CliError,
    clock,
    connected,
    duration,
    out,
    parse_duration,
    parse_time,
    print_json,
    qps,
    resource,
    run,
    stamp,
    table,
    to_dict,
    when,
)
from controller.cli.complete import workload_names
from controller.cli.plots import Line, draw

ROWS_SHOWN = 16
PARTS = ("baseline", "trend", "season", "event", "correction")
PLOT_LETTERS = {"median": "o", "baseline": "-", "season": "s", "event": "e", "correction": "c", "trend": "t"}
# A replay of a day takes seconds; of a week with changes, a minute or two.
SIMULATE_DEADLINE_S = 150.0
BARS = "▁▂▃▄▅▆▇█"

Workload = Annotated[
    str, typer.Argument(metavar="WORKLOAD", help="Id of the workload.", autocompletion=workload_names)
]


def explain(
    workload: Workload,
    at: Annotated[str | None, typer.Option(help="The forecast of a past time: -1h or an instant.")] = None,
    hours: Annotated[float, typer.Option(help="How far ahead to show.", min=0.1, max=336)] = 24.0,
    plot: Annotated[bool, typer.Option("--plot", help="Draw the parts.")] = False,
    address: Address = None,
    as_json: AsJson = False,
) -> None:
    """Say what a workload's forecast is made of: parts that add up to its median.

    Example: `forecrest explain recommender --hours 48 --plot`
    """
    request = forecast_service_pb2.ExplainForecastRequest(name=f"{resource('workloads', workload)}/forecast")
    if at is not None:
        request.as_of_time.CopyFrom(stamp(parse_time(at, "--at", clock.now())))

    async def call() -> forecast_pb2.ForecastExplanation:
        async with connected(address) as client:
            return await client.forecasts.ExplainForecast(request)

    found = run(call())
    if as_json:
        print_json(to_dict(found))
        return
    console = out()
    state = forecast_pb2.ForecastState.Name(found.state).removeprefix("FORECAST_STATE_")
    console.print(f"Forecast {state} by model {found.model}, of {when(found.origin_time)} UTC.")
    console.print(f"  {found.model_reason}")
    for reason in found.reasons:
        console.print(f"  {reason}")
    console.print(found.sentence)
    steps = max(1, round(hours * 3600 / found.step.ToTimedelta().total_seconds()))
    if plot:
        _plot_parts(found, steps)
    else:
        _print_parts(found, steps)


def _part(found: forecast_pb2.ForecastExplanation, name: str) -> Sequence[float]:
    values: Sequence[float] = getattr(found, f"{name}_qps")
    return values


def _print_parts(found: forecast_pb2.ForecastExplanation, steps: int) -> None:
    heads = ["median", *PARTS]
    rows = table("at (UTC)", *heads, right=heads)
    count = min(steps, len(found.median_qps))
    group = max(1, -(-count // ROWS_SHOWN))
    start, step = found.start_time.ToDatetime(UTC), found.step.ToTimedelta()
    for first in range(0, count, group):
        # The highest step of each group, with its own parts: they add up in every row.
        top = max(range(first, min(first + group, count)), key=lambda k: found.median_qps[k])
        cells = [_signed(_part(found, name)[top]) for name in PARTS]
        rows.add_row(f"{start + step * top:%m-%d %H:%M}", qps(found.median_qps[top]), *cells)
    out().print(rows)
    if group > 1:
        out().print(f"QPS; each row is the highest of {group} steps of {step.total_seconds() / 60:g} min.")


def _signed(value: float) -> str:
    return "0" if abs(value) < 0.005 else ("-" if value < 0 else "+") + qps(abs(value))


def _plot_parts(found: forecast_pb2.ForecastExplanation, steps: int) -> None:
    origin = found.origin_time.ToDatetime(UTC)
    start, step = found.start_time.ToDatetime(UTC), found.step.ToTimedelta()
    count = min(steps, len(found.median_qps))
    hours = [((start + step * k) - origin).total_seconds() / 3600 for k in range(count)]
    lines = [
        Line(name, letter, hours, _part(found, name)[:count])
        for name, letter in PLOT_LETTERS.items()
        if name == "median" or any(_part(found, name)[:count])
    ]
    draw("QPS", f"hours from {origin:%Y-%m-%d %H:%M} UTC", lines)


def accuracy(
    workload: Workload,
    window: Annotated[str, typer.Option(help="How far back live scores are read: 1h to 14d.")] = "7d",
    address: Address = None,
    as_json: AsJson = False,
) -> None:
    """Say how good a workload's forecasts are, live and in the latest backtest, and which model makes them.

    A ratio under 1 is better than repeating the day or the week before.

    Example: `forecrest accuracy recommender --window 2d`
    """
    request = forecast_service_pb2.GetAccuracyRequest(
        name=f"{resource('workloads', workload)}/accuracy",
        window=duration(parse_duration(window, "--window")),
    )

    async def call() -> forecast_pb2.Accuracy:
        async with connected(address) as client:
            return await client.forecasts.GetAccuracy(request)

    found = run(call())
    if as_json:
        print_json(to_dict(found))
        return
    console, champion = out(), found.champion
    trust = forecast_pb2.ForecastTrust.Name(found.trust).removeprefix("FORECAST_TRUST_")
    console.print(f"{trust}. {found.trust_sentence}".rstrip())
    since = f" since {when(champion.since_time)} UTC" if champion.HasField("since_time") else ""
    console.print(f"Model {champion.model}{since}. {champion.reason}")
    for switch in champion.switches:
        console.print(f"  {when(switch.switch_time)}: {switch.reason}")
    if found.live:
        console.print()
        console.print(_live(found.live))
    else:
        console.print("Nothing was scored in this window yet.")
    if found.HasField("backtest"):
        console.print()
        console.print(_backtest(found.backtest))


def _live(live: Sequence[forecast_pb2.LiveAccuracy]) -> object:
    heads = ("steps", "pinball", "vs day", "vs week", "bias", "P50", "P95", "P99")
    rows = table("ahead", *heads, right=heads)
    for one in live:
        rows.add_row(
            f"{one.lead.ToTimedelta().total_seconds() / 3600:g} h",
            str(one.step_count),
            qps(one.pinball_qps),
            _ratio(one, "daily_naive_ratio"),
            _ratio(one, "weekly_naive_ratio"),
            _bias(one),
            *(_covered(one.coverage, level) for level in (0.5, 0.95, 0.99)),
        )
    return rows


def _backtest(backtest: forecast_pb2.ForecastBacktest) -> object:
    heads = ("steps", "pinball", "vs naive", "bias", "P50", "P95", "P99")
    rows = table(f"backtest of {when(backtest.create_time)[5:]}", *heads, right=heads)
    for one in backtest.scores:
        rows.add_row(
            f"{one.model}, {one.stretch}",
            str(one.step_count),
            qps(one.pinball_qps),
            _ratio(one, "naive_ratio"),
            _bias(one),
            *(_covered(one.coverage, level) for level in (0.5, 0.95, 0.99)),
        )
    return rows


def _ratio(message: Any, field: str) -> str:  # noqa: ANN401 - two messages have such fields
    return f"{getattr(message, field):.2f}" if message.HasField(field) else "?"


def _bias(message: Any) -> str:  # noqa: ANN401 - as above
    return f"{100 * message.bias:+.1f} %" if message.HasField("bias") else "?"


def _covered(coverage: Sequence[forecast_pb2.QuantileCoverage], level: float) -> str:
    return next((f"{100 * one.share:.0f} %" for one in coverage if abs(one.level - level) < 1e-9), "?")


def what_if(
    workload: Workload,
    window: Annotated[str, typer.Option(help="How much of the past to replay: 1h to 7d.")] = "1d",
    end: Annotated[str, typer.Option(help="Its end.")] = "now",
    learn: Annotated[str, typer.Option(help="History before it to learn from, up to 14d.")] = "7d",
    change: Annotated[
        list[str] | None,
        typer.Option(
            help="NAME:FIELD=VALUE[,FIELD=VALUE…]: a field of the policy, min_replicas, max_replicas."
        ),
    ] = None,
    peer: Annotated[list[str] | None, typer.Option(help="Another autoscaler, such as hpa or kpa.")] = None,
    surge: Annotated[
        list[str] | None, typer.Option(help="START/END*FACTOR: load that did not come; add ! if announced.")
    ] = None,
    cold_start: Annotated[str | None, typer.Option(help="From order to warm; as measured if absent.")] = None,
    address: Address = None,
    as_json: AsJson = False,
) -> None:
    """Replay a workload's own demand with another policy, other bounds, or load that did not come.

    Example: `forecrest what-if recommender --change "calm:cost_under_per_hour=99" --peer hpa --surge "-3h/-2h*3!"`
    """
    now = clock.now()
    request = control_service_pb2.SimulateRequest(
        workload=resource("workloads", workload),
        end_time=stamp(parse_time(end, "--end", now)),
        window=duration(parse_duration(window, "--window")),
        learn=duration(parse_duration(learn, "--learn")),
        changes=[_change(text) for text in change or ()],
        peers=peer or (),
        events=[_surge(text, now) for text in surge or ()],
        timeline_size=WIDTH_MAX - 20,
    )
    if cold_start is not None:
        request.cold_start.CopyFrom(duration(parse_duration(cold_start, "--cold-start")))

    async def call() -> control_service_pb2.SimulateResponse:
        async with connected(address) as client:
            with out().status("Replaying …"):
                return await client.control.Simulate(request, timeout=SIMULATE_DEADLINE_S)

    found = run(call())
    if as_json:
        print_json(to_dict(found))
        return
    _print_simulation(found)


def _change(text: str) -> control_service_pb2.SimulatedChange:
    name, colon, rest = text.partition(":")
    made = control_service_pb2.SimulatedChange(name=name)
    fields: dict[str, object] = {}
    try:
        for field, value in map(_pair, rest.split(",") if colon else [""]):
            if field in {"min_replicas", "max_replicas"}:
                setattr(made, field, int(value))
            else:
                fields[field] = value
        if fields:
            json_format.ParseDict(fields, made.policy)
    except (ValueError, json_format.ParseError) as error:
        raise CliError(
            f"--change: {text!r} cannot be read ({error}); write calm:cost_under_per_hour=99,min_replicas=2. "
            "Durations are seconds: stable_window=60s.",
            EXIT_USAGE,
        ) from None
    return made


def _pair(text: str) -> tuple[str, str]:
    field, equals, value = (part.strip() for part in text.partition("="))
    if not field or not equals:
        raise ValueError("it has no FIELD=VALUE")
    return field, value


def _surge(text: str, now: datetime) -> control_service_pb2.SimulatedEvent:
    span, star, factor = text.partition("*")
    start, slash, end = span.partition("/")
    try:
        multiplier = float(factor.removesuffix("!"))
    except ValueError:
        multiplier = 0.0
    if not star or not slash or multiplier <= 0:
        raise CliError(f"--surge: {text!r} cannot be read; write -3h/-2h*3, with ! if announced.", EXIT_USAGE)
    return control_service_pb2.SimulatedEvent(
        start_time=stamp(parse_time(start, "--surge", now)),
        end_time=stamp(parse_time(end, "--surge", now)),
        multiplier=multiplier,
        announced=factor.endswith("!"),
    )


def _print_simulation(found: control_service_pb2.SimulateResponse) -> None:
    console = out()
    console.print(
        f"{when(found.start_time)} to {when(found.end_time)} UTC; {qps(found.capacity_qps)} QPS per replica, "
        f"{found.cold_start.ToTimedelta().total_seconds():.0f} s from order to warm."
    )
    if found.unknown_share:
        console.print(f"Demand is unknown for {found.unknown_share:.0%} of it, which counts neither way.")
    heads = ("violations", "wait p99", "replica-hours", "changes", "peak")
    rows = table("policy", *heads, right=heads)
    for one in found.results:
        rows.add_row(
            one.name,
            f"{one.violation_share:.3%}",
            f"{one.wait_ms_p99:.0f} ms",
            f"{one.replica_hours:.1f}",
            str(one.scale_changes),
            str(one.peak_replicas),
        )
    console.print(rows)
    top = max([1, *(one.peak_replicas for one in found.results)])
    for one in found.results:
        console.print(f"{one.name[:18]:<18} {_sparkline(one.timeline, top)}")
    console.print(f"Replicas paid for, from 0 to {top}.")


def _sparkline(timeline: control_pb2.SimulationTimeline, top: int) -> str:
    return "".join(
        BARS[min(len(BARS) - 1, count * len(BARS) // (top + 1))] for count in timeline.paid_replicas
    )
