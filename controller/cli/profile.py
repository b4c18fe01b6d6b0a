"""``forecrest engine profile``: measure what one replica sustains within the SLO, and tell a controller."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from controller.cli.common import (
    EXIT_FAILED,
    EXIT_USAGE,
    Address,
    AsJson,
    CliError,
    clock,
    connected,
    err,
    out,
    print_json,
    run,
    table,
)

if TYPE_CHECKING:
    from engines.profile import LoadPoint, Objective, ProfileRow

_TOOL = "forecrest engine profile"
_SENDERS = ("auto", "perf_analyzer", "own")
_POINTS_MAX = 200


def _numbers(text: str, option: str, low: int, high: int) -> list[int]:
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() and low <= int(part) <= high for part in parts):
        raise CliError(
            f"{option}: give numbers from {low} to {high}, separated by commas, got {text!r}.", EXIT_USAGE
        )
    return [int(part) for part in parts]


def profile(
    endpoint: Annotated[
        str, typer.Option(help="host:port of a Triton's gRPC. It gets full load: no live replica.")
    ],
    model: Annotated[str, typer.Option(help="Model, as its repository names it.")],
    slo_ms: Annotated[float, typer.Option(min=0.1, max=600_000, help="P99 latency that must hold, in ms.")],
    batch: Annotated[str, typer.Option(help="Largest batches to try; 1: no batching.")] = "1,4,8,16",
    queue_delay_us: Annotated[
        str, typer.Option(help="How long a request may wait for others, in µs.")
    ] = "0,1000",
    instances: Annotated[str, typer.Option(help="Model instances per replica to try.")] = "1",
    seconds: Annotated[float, typer.Option(min=1, max=300, help="Load per rate; longer below 40 QPS.")] = 5.0,
    start_qps: Annotated[float, typer.Option(min=1, max=100_000, help="The first rate.")] = 20.0,
    sender: Annotated[
        str, typer.Option(help="perf_analyzer, own, or auto: perf_analyzer where it is installed.")
    ] = "auto",
    record: Annotated[
        str | None, typer.Option(metavar="ENGINE", help="Record the best in the registry, under this engine.")
    ] = None,
    gpu_type: Annotated[
        str, typer.Option(help="With --record: the GPU it was measured on, such as A10.")
    ] = "",
    address: Address = None,
    as_json: AsJson = False,
) -> None:
    """Find the highest request rate within the SLO for each way of batching, by open-loop Poisson load.

    The model is loaded anew with each combination, and left as it was. Latency counts from when a request was due, so
    a slow server cannot slow its own test down.

    Example: `forecrest engine profile --endpoint 127.0.0.1:8001 --model recommender --slo-ms 50`
    """
    from engines.profile import Objective, best, grid, load_quantiles  # noqa: PLC0415 - numpy, which most commands do without

    if record is not None and not gpu_type:
        raise CliError("--gpu-type: is needed with --record; say which GPU this was measured on.", EXIT_USAGE)
    if sender not in _SENDERS:
        raise CliError(f"--sender: {sender!r} is unknown; choose {', '.join(_SENDERS)}.", EXIT_USAGE)
    rows = grid(
        _numbers(batch, "--batch", 1, 4096),
        _numbers(queue_delay_us, "--queue-delay-us", 0, 1_000_000),
        _numbers(instances, "--instances", 1, 64),
    )
    objective = Objective(latency_ms_p99=slo_ms)
    used, measured = run(_measure(endpoint, model, rows, objective, seconds, start_qps, sender))
    found = best(measured)
    if as_json:
        print_json(
            {"model": model, "slo_ms": slo_ms, "sender": used, "rows": [_plain(row) for row in measured]}
        )
    else:
        _show(measured, found, objective)
    if found is None:
        problem = next((p.first_error for row in measured for p in row.sustained.points if p.first_error), "")
        raise CliError(
            f"No way of batching sustains {start_qps:g} QPS within {slo_ms:g} ms; lower --start-qps."
            + (f" First error: {problem}" if problem else ""),
            EXIT_FAILED,
        )
    if record is not None:
        run(_record(record, gpu_type, found, load_quantiles(measured), objective, used, address))


async def _measure(
    endpoint: str,
    model: str,
    rows: Sequence[Any],
    objective: "Objective",
    seconds: float,
    start_qps: float,
    sender: str,
) -> "tuple[str, list[ProfileRow]]":
    """Who sent, and what each row sustains."""
    from tritonclient.utils import InferenceServerException  # noqa: PLC0415 - as above

    from engines.perf_analyzer import PerfAnalyzer  # noqa: PLC0415
    from engines.profile import measure_here, open_model, sweep  # noqa: PLC0415

    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    with Progress(*columns, console=err(), transient=True) as progress:
        task = progress.add_task(f"loading {model}", total=None)

        def tell(batching: Any, point: "LoadPoint") -> None:  # noqa: ANN401 - engines is imported late
            progress.update(
                task,
                description=f"batch {batching.batch_size_max}, delay {batching.queue_delay_us} µs: "
                f"{point.offered_qps:.0f} QPS, P99 {point.latency_ms_p99:.1f} ms",
            )

        try:
            async with open_model(endpoint, model) as opened:
                analyzer = None if sender == "own" else PerfAnalyzer.find(endpoint, opened)
                if analyzer is None and sender == "perf_analyzer":
                    raise CliError(
                        "--sender: perf_analyzer is not on the PATH; install it (pip install perf-analyzer, or "
                        "NVIDIA's image with the Triton SDK), or use own.",
                        EXIT_USAGE,
                    )
                found = await sweep(
                    opened,
                    rows,
                    objective,
                    duration_s=seconds,
                    qps_from=start_qps,
                    on_point=tell,
                    measure=measure_here if analyzer is None else analyzer.measure,
                )
                return "own" if analyzer is None else "perf_analyzer", found
        except InferenceServerException as error:
            raise CliError(f"--endpoint: {endpoint} does not serve {model}: {error.message()}") from error


def _show(rows: "Sequence[ProfileRow]", found: "ProfileRow | None", objective: "Objective") -> None:
    shown = table("batch", "delay µs", "instances", "QPS", "P99 ms", "load s")
    for row in rows:
        held = [p for p in row.sustained.points if p.meets(objective)]
        at = max(held, key=lambda p: p.offered_qps, default=None)
        shown.add_row(
            str(row.batching.batch_size_max),
            str(row.batching.queue_delay_us),
            str(row.batching.instance_count),
            "none" if at is None else f"{at.offered_qps:.0f}",
            "" if at is None else f"{at.latency_ms_p99:.1f}",
            "" if row.load_s is None else f"{row.load_s:.1f}",
            style="bold" if row is found else "",
        )
    out().print(shown)


def _plain(row: "ProfileRow") -> dict[str, Any]:
    from dataclasses import asdict  # noqa: PLC0415

    return {
        **asdict(row.batching),
        "qps_max": row.sustained.qps_max,
        "load_s": row.load_s,
        "points": [asdict(p) for p in row.sustained.points],
    }


async def _record(
    engine: str,
    gpu_type: str,
    found: "ProfileRow",
    loads_s: tuple[float, float] | None,
    objective: "Objective",
    sender: str,
    address: str | None,
) -> None:
    import uuid  # noqa: PLC0415

    from forecrest.v1 import engine_pb2, engine_service_pb2  # noqa: PLC0415

    measured = engine_pb2.EngineProfile(tool=_TOOL if sender == "own" else f"{_TOOL}, {sender}")
    measured.capacity.gpu_type = gpu_type
    measured.capacity.qps_max = found.sustained.qps_max or 0.0
    measured.capacity.batch_size_max = max(1, found.batching.batch_size_max)
    measured.capacity.instance_count = found.batching.instance_count
    measured.capacity.queue_delay_max_s = found.batching.queue_delay_us / 1e6
    measured.slo.latency_ms_p99 = objective.latency_ms_p99
    measured.measure_time.FromDatetime(clock.now())
    if loads_s is not None:
        measured.load_s_p50, measured.load_s_p95 = loads_s
    for point in found.sustained.points[:_POINTS_MAX]:
        if point.latency_ms_p99 >= 0:  # NaN where nothing was answered
            measured.points.add(
                offered_qps=point.offered_qps,
                latency_ms_p99=point.latency_ms_p99,
                within_slo=point.meets(objective),
            )
    async with connected(address) as client:
        kept = await client.engines.RecordEngineProfile(
            engine_service_pb2.RecordEngineProfileRequest(
                parent=f"engines/{engine.removeprefix('engines/')}",
                profile=measured,
                request_id=str(uuid.uuid4()),
            )
        )
    err().print(f"Recorded {kept.name}: {kept.capacity.qps_max:.0f} QPS.")
