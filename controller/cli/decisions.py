"""``forecrest decisions``: what was decided, and why."""

from datetime import UTC
from typing import Annotated

import typer
from forecrest.v1 import control_pb2, control_service_pb2
from rich.console import Console

from controller.cli.common import (
    Address,
    AsJson,
    bare,
    clock,
    connected,
    out,
    parse_time,
    print_json,
    print_json_line,
    qps,
    resource,
    run,
    stamp,
    table,
    to_dict,
    when,
)
from controller.cli.complete import workload_names
from controller.client import pages

app = typer.Typer(no_args_is_help=True, help="What was decided, and why.")

NAME_WIDTH_MAX = 20
OnlyWorkload = Annotated[
    str, typer.Option("--workload", "-w", help="Of this workload only.", autocompletion=workload_names)
]
ChangesOnly = Annotated[bool, typer.Option("--changes", help="Only those that changed the count.")]


@app.command("list")
def list_decisions(
    workload: OnlyWorkload = "",
    changes: ChangesOnly = False,
    since: Annotated[str | None, typer.Option(help="From this time on: -1h or an instant.")] = None,
    until: Annotated[str | None, typer.Option(help="Before this time.")] = None,
    where: Annotated[
        str, typer.Option("--filter", help='Such as "reason = EVENT_FLOOR AND desired_replicas > 9".')
    ] = "",
    oldest_first: Annotated[bool, typer.Option("--oldest-first", help="In the order of time.")] = False,
    at: Annotated[
        str | None, typer.Option(help="Those in force at a time, one per workload: -1h or an instant.")
    ] = None,
    limit: Annotated[int, typer.Option(help="At most so many.", min=1, max=100_000)] = 20,
    address: Address = None,
    as_json: AsJson = False,
) -> None:
    """List decisions, newest first, or those in force at some time.

    Example: `forecrest decisions list -w recommender --changes --since -1h`
    """
    request = control_service_pb2.ListDecisionsRequest(
        page_size=min(limit, 1000),
        workload=resource("workloads", workload) if workload else "",
        changes_only=changes,
        filter=where,
        order_by="decide_time" if oldest_first else "",
    )
    now = clock.now()
    if at is not None:
        request.as_of_time.CopyFrom(stamp(parse_time(at, "--at", now)))
    if since is not None:
        request.start_time.CopyFrom(stamp(parse_time(since, "--since", now)))
    if until is not None:
        request.end_time.CopyFrom(stamp(parse_time(until, "--until", now)))

    async def call() -> None:
        async with connected(address) as client:
            found = [d async for d in pages(client.control.ListDecisions, request, "decisions", limit)]
        if as_json:
            print_json([to_dict(decision) for decision in found])
            return
        shown = table("time (UTC)", "workload", "replicas", "why", right=("replicas",))
        shown.columns[1].max_width = NAME_WIDTH_MAX  # what it says is why people look
        for d in found:
            shown.add_row(
                f"{d.decide_time.ToDatetime(UTC):%m-%d %H:%M:%S}", bare(d.workload), _move(d), d.sentence
            )
        out().print(shown if found else "No decisions yet.")

    run(call())


def _move(decision: control_pb2.Decision) -> str:
    current, desired = decision.current_replicas, decision.desired_replicas
    return f"{desired}" if current == desired else f"{current} → {desired}"


@app.command()
def watch(
    workload: OnlyWorkload = "",
    changes: ChangesOnly = False,
    address: Address = None,
    as_json: AsJson = False,
) -> None:
    """Follow decisions as they are made, until Ctrl-C.

    Example: `forecrest decisions watch --changes`
    """

    async def call() -> None:
        console = out()
        name = resource("workloads", workload) if workload else ""
        async with connected(address) as client:
            async for response in client.watch_decisions(name, changes_only=changes):
                if as_json:
                    print_json_line(to_dict(response.decision))
                    continue
                d = response.decision
                console.print(
                    f"{d.decide_time.ToDatetime(UTC):%H:%M:%S} {bare(d.workload)} [bold]{_move(d)}[/] {d.sentence}"
                )

    run(call())


@app.command()
def show(
    decision: Annotated[
        str, typer.Argument(metavar="[DECISION]", help="Id of the decision; or name a workload.")
    ] = "",
    workload: Annotated[
        str, typer.Option("--workload", "-w", help="The one in force for it.", autocompletion=workload_names)
    ] = "",
    at: Annotated[str | None, typer.Option(help="With -w: in force at this time, -1h or an instant.")] = None,
    address: Address = None,
    as_json: AsJson = False,
) -> None:
    """Explain one decision: every opinion and its fate, the inputs and their age, what came of it.

    Example: `forecrest decisions show -w recommender --at 2026-11-11T00:00:00Z`
    """
    request = control_service_pb2.ExplainDecisionRequest(
        name=resource("decisions", decision) if decision else "",
        workload=resource("workloads", workload) if workload else "",
    )
    if at is not None:
        request.as_of_time.CopyFrom(stamp(parse_time(at, "--at", clock.now())))

    async def call() -> None:
        async with connected(address) as client:
            found = await client.control.ExplainDecision(request)
        if as_json:
            print_json(to_dict(found))
        else:
            _print_explanation(out(), found)

    run(call())


def _print_explanation(console: Console, why: control_pb2.DecisionExplanation) -> None:
    d = why.decision
    until = f" until {when(why.until_time, seconds=True)}" if why.HasField("until_time") else ""
    replicas = "replica" if d.desired_replicas == 1 else "replicas"
    console.print(
        f"[bold]{bare(d.workload)}[/] at {when(d.decide_time, seconds=True)} UTC{until}: {_move(d)} {replicas}"
    )
    console.print(d.sentence)
    demand = f"{qps(d.demand_qps)} QPS" if d.HasField("demand_qps") else "unknown"
    warm = str(d.warm_replicas) if d.HasField("warm_replicas") else "unknown"
    reason = control_pb2.DecisionReason.Name(d.reason).removeprefix("DECISION_REASON_")
    console.print(f"Reason {reason}; demand {demand}; warm replicas {warm}.")
    held = f", held back: {why.clamp}" if why.clamp else ""
    console.print(f"Decided by {why.rule}{held}.\n")
    recommended = table("source", "says", "replicas", "fate", "because", right=("replicas",))
    for weighed in why.recommendations:
        one = weighed.recommendation
        recommended.add_row(
            control_pb2.Source.Name(one.source).removeprefix("SOURCE_"),
            control_pb2.RecommendationKind.Name(one.kind).removeprefix("RECOMMENDATION_KIND_"),
            str(one.replicas) if one.HasField("replicas") else "",
            control_pb2.RecommendationFate.Name(weighed.fate).removeprefix("RECOMMENDATION_FATE_").lower(),
            one.sentence,
        )
    if why.recommendations:
        console.print(recommended)
    inputs = table("input", "age", "detail")
    for known in d.inputs:
        age = f"{known.age_s:.1f} s" if known.HasField("age_s") else "missing"
        inputs.add_row(known.input, age, known.detail)
    if d.inputs:
        console.print()
        console.print(inputs)
    _print_context(console, why)
    if d.HasField("outcome"):
        took = "taken" if d.outcome.applied else f"not taken: {d.outcome.detail}"
        console.print(f"\nThe order was {took}.")


def _print_context(console: Console, why: control_pb2.DecisionExplanation) -> None:
    console.print()
    if why.HasField("forecast"):
        seen = why.forecast
        median = f", median {qps(seen.median_qps)} QPS then" if seen.HasField("median_qps") else ""
        console.print(
            f"Forecast {seen.state}, observed until {when(seen.origin_time, seconds=True)} UTC{median}."
        )
    for event in why.events:
        window = ""
        if event.HasField("start_time"):
            window = f", {when(event.start_time)} to {when(event.end_time)} UTC"
        console.print(f"Event {event.display_name or event.occurrence_id}{window}.")
    for floor in why.floors:
        console.print(
            f"Floor {floor.replicas} until {when(floor.until_time)} UTC: {floor.reason.rstrip('.')}."
        )
