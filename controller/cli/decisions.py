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
from controller.client import pages

app = typer.Typer(no_args_is_help=True, help="What was decided, and why.")

OnlyWorkload = Annotated[str, typer.Option("--workload", "-w", help="Of this workload only.")]
ChangesOnly = Annotated[bool, typer.Option("--changes", help="Only those that changed the count.")]


@app.command("list")
def list_decisions(
    workload: OnlyWorkload = "",
    changes: ChangesOnly = False,
    since: Annotated[str | None, typer.Option(help="From this time on: -1h or an instant.")] = None,
    until: Annotated[str | None, typer.Option(help="Before this time.")] = None,
    limit: Annotated[int, typer.Option(help="At most so many.", min=1, max=100_000)] = 20,
    address: Address = None,
    as_json: AsJson = False,
) -> None:
    """List decisions, newest first.

    Example: `forecrest decisions list -w recommender --changes --since -1h`
    """
    request = control_service_pb2.ListDecisionsRequest(
        page_size=min(limit, 1000),
        workload=resource("workloads", workload) if workload else "",
        changes_only=changes,
    )
    now = clock.now()
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
    decision: Annotated[str, typer.Argument(metavar="DECISION", help="Id of the decision.")],
    address: Address = None,
    as_json: AsJson = False,
) -> None:
    """Explain one decision: what every source recommended, the inputs and their age, what came of it.

    Example: `forecrest decisions show recommender-20261111T000000000000`
    """

    async def call() -> None:
        async with connected(address) as client:
            found = await client.control.GetDecision(
                control_service_pb2.GetDecisionRequest(name=resource("decisions", decision))
            )
        if as_json:
            print_json(to_dict(found))
        else:
            _print_decision(out(), found)

    run(call())


def _print_decision(console: Console, d: control_pb2.Decision) -> None:
    console.print(
        f"[bold]{bare(d.workload)}[/] at {when(d.decide_time, seconds=True)} UTC: {_move(d)} replicas"
    )
    console.print(d.sentence)
    demand = f"{qps(d.demand_qps)} QPS" if d.HasField("demand_qps") else "unknown"
    warm = str(d.warm_replicas) if d.HasField("warm_replicas") else "unknown"
    reason = control_pb2.DecisionReason.Name(d.reason).removeprefix("DECISION_REASON_")
    console.print(f"Reason {reason}; demand {demand}; warm replicas {warm}.\n")
    recommended = table("source", "says", "replicas", "because", right=("replicas",))
    for one in d.recommendations:
        recommended.add_row(
            control_pb2.Source.Name(one.source).removeprefix("SOURCE_"),
            control_pb2.RecommendationKind.Name(one.kind).removeprefix("RECOMMENDATION_KIND_"),
            str(one.replicas) if one.HasField("replicas") else "",
            one.sentence,
        )
    console.print(recommended)
    inputs = table("input", "age", "detail")
    for known in d.inputs:
        age = f"{known.age_s:.1f} s" if known.HasField("age_s") else "missing"
        inputs.add_row(known.input, age, known.detail)
    console.print()
    console.print(inputs)
    if d.HasField("outcome"):
        took = "taken" if d.outcome.applied else f"not taken: {d.outcome.detail}"
        console.print(f"\nThe order was {took}.")
