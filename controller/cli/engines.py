"""``forecrest engine``: build engines from ONNX models, judge them, and say which one serves.

Promises: works on a machine without a GPU and without TensorRT, and says what is missing where it is
needed; a failed accuracy gate ends with code 1 after its report is stored; every refusal names the
option and the remedy. Talks to a catalogue, never to a controller. Called from ``app``.
"""

import getpass
from collections.abc import Callable, Generator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer
from pydantic import TypeAdapter
from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn

from controller.cli.common import (
    DATA_DIR,
    EXIT_FAILED,
    EXIT_USAGE,
    AsJson,
    CliError,
    clock,
    err,
    out,
    parse_duration,
    print_json,
    table,
)
from engines.errors import EngineError, EngineInputError
from engines.types import BuildOptions, DimRange, HardwareCompatibility, Precision, Profile, RuntimeKind

if TYPE_CHECKING:
    from engines.calibration import Finding
    from engines.catalog import Catalog, Engine
    from engines.compatibility import Node
    from engines.measures import Budget
    from engines.validation import GateReport

T = TypeVar("T")

app = typer.Typer(
    no_args_is_help=True,
    help="Build engines from ONNX models, judge, promote and find them; no controller is needed.",
)

RUNTIMES = {kind.value.lower().replace("_", "-"): kind for kind in RuntimeKind}
PRECISIONS = {precision.value.lower().replace("_", "-"): precision for precision in Precision}
COMPATIBILITIES = {level.value.lower().replace("_", "-"): level for level in HardwareCompatibility}
NOTES_SHOWN = 5

Location = Annotated[
    str,
    typer.Option(
        "--catalog",
        envvar="FORECREST_ENGINE_CATALOG",
        help="Folder, or URL such as s3://bucket/engines.",
    ),
]
CATALOG = str(DATA_DIR / "engines")
Trusted = Annotated[
    list[Path] | None,
    typer.Option(
        "--trusted-key", help="Count only engines signed by this Ed25519 public key (PEM); repeatable."
    ),
]
EngineId = Annotated[str, typer.Argument(metavar="ENGINE", help="Id of the engine, or how it begins.")]
Budgets = Annotated[
    list[str] | None,
    typer.Option(
        "--budget",
        help="measure<=limit or measure>=limit, such as auc_drop<=0.002; repeatable. Default: by precision.",
    ),
]
Nodes = Annotated[
    list[str] | None,
    typer.Option(
        "--node",
        help="A node: cc=8.9,tensorrt=10.13.3.9 or cc=9.0,image=25.08-trtllm-python-py3, also tensorrt-rtx=, "
        "onnx-runtime=, gpu=, host-code; cc=none without a GPU; repeatable.",
    ),
]
Reason = Annotated[str, typer.Option(help="Why; kept in the journal.")]


@contextmanager
def _explained() -> Generator[None]:
    """Turn what the pipeline refuses into an error of this command line."""
    try:
        yield
    except EngineInputError as error:
        raise CliError(str(error), EXIT_USAGE) from error
    except EngineError as error:
        raise CliError(str(error)) from error


def _open(location: str, trusted: list[Path] | None = None) -> "Catalog":
    from engines.catalog import Catalog  # noqa: PLC0415 - numpy and scipy are loaded by who needs them

    return Catalog(location, trusted_keys=trusted or None)


def _chosen(choices: dict[str, T], value: str, option: str) -> T:
    if value not in choices:
        raise CliError(f"{option}: {value!r} is unknown; choose {', '.join(choices)}.", EXIT_USAGE)
    return choices[value]


def parse_profile(text: str) -> Profile:
    """Read ``batch=1:8:64,length=1:32:64``; raise CliError naming the option."""
    made: dict[str, DimRange] = {}
    for part in text.split(","):
        name, found, lengths = part.partition("=")
        numbers = lengths.split(":")
        if not name or not found or len(numbers) != 3 or not all(n.isdecimal() for n in numbers):
            raise CliError(
                f"--profile: {part!r} is none; write dimension=min:opt:max, such as batch=1:8:64.", EXIT_USAGE
            )
        made[name] = DimRange(*map(int, numbers))
    return made


def parse_node(text: str) -> "Node":
    """Read ``cc=8.9,tensorrt=10.13.3.9``; raise CliError naming the option."""
    from engines.compatibility import Node, parse_version  # noqa: PLC0415 - as above

    capability: str | None = None
    runtimes: dict[RuntimeKind, str] = {}
    image: str | None = None
    gpu: str | None = None
    is_complete = allows_host_code = False
    for part in text.split(","):
        name, _, value = part.partition("=")
        if name == "cc":
            is_complete = True
            capability = None if value == "none" else value
            if capability is not None:
                parse_version(capability)
        elif name == "image" and value:
            image = value
        elif name == "gpu" and value:
            gpu = value
        elif name == "host-code" and not value:
            allows_host_code = True
        elif name in RUNTIMES and value:
            parse_version(value)
            runtimes[RUNTIMES[name]] = value
        else:
            known = ", ".join(
                ("cc=", *(f"{runtime}=" for runtime in RUNTIMES), "image=", "gpu=", "host-code")
            )
            raise CliError(f"--node: {part!r} is unknown; use {known}.", EXIT_USAGE)
    if not is_complete:
        raise CliError("--node: the compute capability is missing; add cc=8.9, or cc=none.", EXIT_USAGE)
    return Node(
        compute_capability=capability,
        gpu=gpu,
        runtimes=runtimes,
        triton_image=image,
        allows_host_code=allows_host_code,
    )


def _this_node() -> "Node":
    from engines.compatibility import Node  # noqa: PLC0415 - as above
    from engines.node import detect_machine, installed_runtimes  # noqa: PLC0415 - as above

    gpus = detect_machine().gpus
    return Node(
        compute_capability=gpus[0].compute_capability if gpus else None,
        gpu=gpus[0].name if gpus else None,
        runtimes=installed_runtimes(),
    )


def _budgets(texts: list[str] | None) -> "tuple[Budget, ...]":
    from engines.measures import parse_budget  # noqa: PLC0415 - as above

    return tuple(parse_budget(text) for text in texts or ())


@contextmanager
def _progress(title: str) -> Generator[Callable[[str, int, int], None]]:
    columns = (TextColumn(title), BarColumn(), TextColumn("{task.description}"))
    with Progress(*columns, console=err(), transient=True) as bar:
        task = bar.add_task("", total=None)

        def step(what: str, done: int, total: int) -> None:
            bar.update(task, description=what[:50], completed=done, total=total)

        yield step


def _plain(value: Any) -> Any:  # noqa: ANN401 - any dataclass
    return TypeAdapter(type(value)).dump_python(value, mode="json")


@app.command("example")
def example(
    name: Annotated[str, typer.Argument(metavar="NAME", help="wide-and-deep, cnn or transformer.")],
    folder: Annotated[Path, typer.Option("--out", help="Where to write; made if missing.")],
    seed: Annotated[int, typer.Option(help="Another seed makes another model.", min=1)] = 1,
) -> None:
    """Write an example model with its calibration and validation sets.

    Example: `forecrest engine example cnn --out cnn`
    """
    with _explained():
        from engines.examples import write_example  # noqa: PLC0415 - as above

        for path in write_example(name, folder, seed=seed):
            typer.echo(path)


@app.command("build")
def build(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="ONNX file, FP32.")],
    name: Annotated[str, typer.Option(help="Name of the model in the catalogue and in Triton.")],
    location: Location = CATALOG,
    runtime: Annotated[str, typer.Option(help="tensorrt, tensorrt-rtx or onnx-runtime.")] = "tensorrt",
    precision: Annotated[str, typer.Option(help="fp32, fp16, bf16, int8 or int8-fp16.")] = "fp32",
    profile: Annotated[
        list[str] | None,
        typer.Option(help="batch=1:8:64 for every free dimension, min:opt:max; repeat for several profiles."),
    ] = None,
    compute_capability: Annotated[
        list[str] | None, typer.Option(help="Such as 8.9; repeatable with tensorrt-rtx. Default: this GPU.")
    ] = None,
    hardware_compatibility: Annotated[
        str, typer.Option(help="none, same-compute-capability or ampere-plus.")
    ] = "none",
    version_compatible: Annotated[
        bool, typer.Option("--version-compatible", help="Loadable by later releases of this major version.")
    ] = False,
    calibration: Annotated[
        Path | None, typer.Option(help="Set for INT8 scales, .npz with one array per input.")
    ] = None,
    validation: Annotated[
        Path | None, typer.Option(help="Set to judge on, .npz; without it the engine stays BUILT.")
    ] = None,
    budget: Budgets = None,
    search: Annotated[
        bool, typer.Option("--search", help="Keep the worst layers in FP32 until the budgets hold.")
    ] = False,
    keep_layer: Annotated[list[str] | None, typer.Option(help="Layer to keep in FP32; repeatable.")] = None,
    force_calibration: Annotated[
        bool, typer.Option("--force-calibration", help="Use a calibration set that the checks refuse.")
    ] = False,
    workspace_mib: Annotated[int, typer.Option(help="Memory the builder may use on the GPU.", min=1)] = 1024,
    optimization_level: Annotated[
        int | None, typer.Option(help="0 to 5; higher builds longer. Default: the tool's.")
    ] = None,
    signing_key: Annotated[Path | None, typer.Option(help="Ed25519 private key (PEM) to sign with.")] = None,
    node: Nodes = None,
    as_json: AsJson = False,
) -> None:
    """Build an engine, add it to the catalogue and judge its accuracy.

    Example: `forecrest engine build model.onnx --name ranker --runtime tensorrt-rtx --precision int8
    --calibration calibration.npz --validation validation.npz`
    """
    with _explained():
        from engines import pipeline  # noqa: PLC0415 - as above
        from engines.builder import builder_for  # noqa: PLC0415 - as above
        from engines.datasets import read_dataset  # noqa: PLC0415 - as above

        options = BuildOptions(
            runtime=_chosen(RUNTIMES, runtime, "--runtime"),
            precision=_chosen(PRECISIONS, precision, "--precision"),
            profiles=tuple(parse_profile(text) for text in profile or ()),
            compute_capabilities=tuple(compute_capability or ()),
            hardware_compatibility=_chosen(
                COMPATIBILITIES, hardware_compatibility, "--hardware-compatibility"
            ),
            version_compatible=version_compatible,
            workspace_bytes=workspace_mib << 20,
            optimization_level=optimization_level,
            kept_layers=tuple(sorted(keep_layer or ())),
        )
        request = pipeline.BuildRequest(
            model_path=model,
            model_name=name,
            options=options,
            calibration=read_dataset(calibration, "--calibration") if calibration else None,
            validation=read_dataset(validation, "--validation") if validation else None,
            budgets=_budgets(budget),
            is_searched=search,
            is_calibration_forced=force_calibration,
            signing_key=signing_key,
            nodes=tuple(parse_node(text) for text in node or ()),
        )
        with _progress("build") as progress:
            made = pipeline.build(
                request,
                builder_for(options.runtime),
                _open(location),
                by=getpass.getuser(),
                now=clock.now,
                monotonic=clock.monotonic,
                progress=progress,
            )
    if as_json:
        print_json(
            {
                "engine": _summary(made.engine),
                "is_new": made.is_new,
                "report": None if made.report is None else _plain(made.report),
                "search": None if made.search is None else _plain(made.search),
                "findings": [_plain(finding) for finding in made.findings],
            }
        )
    else:
        _print_engine(made.engine)
        if not made.is_new:
            out().print("It was in the catalogue already; nothing was built.")
        if made.search is not None and made.search.kept:
            out().print(f"Kept in FP32 by the search: {', '.join(made.search.kept)}")
        _print_findings(made.findings)
        if made.report is not None:
            _print_report(made.report)
    _end_by(made.report)


def _end_by(report: "GateReport | None") -> None:
    if report is not None and not report.is_passed:
        raise typer.Exit(EXIT_FAILED)


@app.command("list")
def list_(
    model: Annotated[str | None, typer.Argument(metavar="MODEL", help="Of this model only.")] = None,
    location: Location = CATALOG,
    trusted_key: Trusted = None,
    as_json: AsJson = False,
) -> None:
    """List the engines of the catalogue.

    Example: `forecrest engine list ranker`
    """
    with _explained():
        catalog = _open(location, trusted_key)
        found = [
            engine for name in ([model] if model else catalog.models()) for engine in catalog.engines(name)
        ]
    if as_json:
        print_json([_summary(engine) for engine in found])
        return
    if not found:
        out().print(f"No engines in {location}. Build one with `forecrest engine build`.")
        return
    shown = table("engine", "model", "precision", "target", "state", "MB", right=("MB",))
    for engine in found:
        manifest = engine.manifest
        size = manifest.files[manifest.engine_file].size_bytes / 1e6
        state = f"{engine.record.state}{' (gate failed)' if engine.record.gate_is_passed is False else ''}"
        shown.add_row(
            manifest.engine_id[:10],
            manifest.model,
            manifest.options.precision,
            manifest.target,
            state,
            f"{size:.1f}",
        )
    out().print(shown)


@app.command("inspect")
def inspect(
    engine: EngineId,
    location: Location = CATALOG,
    layers: Annotated[bool, typer.Option("--layers", help="List every fused layer.")] = False,
    trusted_key: Trusted = None,
    as_json: AsJson = False,
) -> None:
    """Show what an engine is, what it was made from, and the layers it was fused into.

    Example: `forecrest engine inspect 3f2a --layers`
    """
    with _explained():
        found = _open(location, trusted_key).find(engine)
    if as_json:
        print_json({"manifest": _plain(found.manifest), "record": _plain(found.record)})
        return
    _print_engine(found)
    if layers:
        shown = table("layer", "kind", "from")
        for layer in found.manifest.layers:
            shown.add_row(escape(layer.name), layer.kind, escape(", ".join(layer.sources)))
        out().print(shown)


@app.command("validate")
def validate(
    engine: EngineId,
    validation: Annotated[Path, typer.Option(help="Set to judge on, .npz.")],
    location: Location = CATALOG,
    budget: Budgets = None,
    report: Annotated[Path | None, typer.Option(help="Write the report here too: .html or .json.")] = None,
    trusted_key: Trusted = None,
    as_json: AsJson = False,
) -> None:
    """Judge an engine of the catalogue again; failing takes its permission to be promoted.

    Example: `forecrest engine validate 3f2a --validation validation.npz --budget "auc_drop<=0.002"`
    """
    if report is not None and report.suffix not in {".html", ".json"}:
        raise CliError(f"--report: {report} is neither .html nor .json.", EXIT_USAGE)
    with _explained():
        from engines import pipeline  # noqa: PLC0415 - as above
        from engines.datasets import read_dataset  # noqa: PLC0415 - as above

        catalog = _open(location, trusted_key)
        judged, verdict = pipeline.validate(
            catalog.find(engine),
            catalog,
            read_dataset(validation, "--validation"),
            _budgets(budget),
            by=getpass.getuser(),
            at=clock.now(),
        )
        if report is not None:
            report.write_bytes(catalog.read_report(judged, report.suffix[1:]))
    if as_json:
        print_json({"engine": _summary(judged), "report": _plain(verdict)})
    else:
        _print_report(verdict)
    _end_by(verdict)


@app.command("verify")
def verify(
    engine: EngineId,
    location: Location = CATALOG,
    digest: Annotated[str | None, typer.Option(help="Digest that was ordered, sha256:….")] = None,
    trusted_key: Trusted = None,
    as_json: AsJson = False,
) -> None:
    """Check an engine as a prewarm does: record, file, load, and answers where this machine can run it.

    Example: `forecrest engine verify 3f2a`
    """
    import tempfile  # noqa: PLC0415 - needed here alone

    with _explained():
        from engines import checks  # noqa: PLC0415 - as above
        from engines.catalog import RejectedError  # noqa: PLC0415 - as above

        catalog = _open(location, trusted_key)
        found = catalog.find(engine)
        with tempfile.TemporaryDirectory(prefix="forecrest-verify-") as folder:
            try:
                path = catalog.fetch(found, Path(folder), expected_digest=digest)
                manifest = found.manifest
                objection, detail = checks.check_load(path, manifest.options.runtime)
                if objection is None:
                    probe = checks.probe_inputs(manifest.inputs, manifest.options.profiles)
                    objection, answered = checks.check_answers(
                        path, manifest.options.runtime, probe, manifest.outputs
                    )
                    detail = f"{detail}; {answered}"
            except RejectedError as error:
                objection, detail = error.objection, "not tried"
    if as_json:
        verdict = (
            None
            if objection is None
            else {"rejection": objection.rejection, "stage": objection.rejection.stage}
        )
        print_json(
            {"engine": _summary(found), "is_fit": objection is None, "objection": verdict, "load": detail}
        )
    elif objection is None:
        out().print(
            f"Engine {found.manifest.engine_id}: record and file are right. Load: {detail}.", markup=False
        )
    if objection is not None:
        raise CliError(
            f"engine: {objection.rejection} at stage {objection.rejection.stage}: {objection.sentence}."
        )


def _whole_numbers(text: str, option: str) -> tuple[int, ...]:
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if not all(part.isdecimal() and part.isascii() and len(part) < 10 for part in parts):
        raise CliError(f"{option}: {text!r} is no list of whole numbers; write 8,64.", EXIT_USAGE)
    return tuple(map(int, parts))


@app.command("repository")
def repository(
    engine: EngineId,
    folder: Annotated[Path, typer.Option("--out", help="Where; FOLDER/MODEL is then Triton's repository.")],
    location: Location = CATALOG,
    batch_size_max: Annotated[
        int | None, typer.Option(help="Largest batch. Default: what the profiles hold without a gap.")
    ] = None,
    preferred_batch: Annotated[
        str, typer.Option(help="Sizes to wait for, 8,64. Default: what each profile is fastest at.")
    ] = "",
    queue_delay_us: Annotated[
        int, typer.Option(help="How long a request may wait for others, in µs.")
    ] = 1000,
    instances: Annotated[int, typer.Option(help="Instances on each GPU.")] = 1,
    gpus: Annotated[str, typer.Option(help="GPUs to use, 0,1. Default: every one of the server.")] = "",
    version: Annotated[int, typer.Option(help="Version, as Triton numbers it.")] = 1,
    node: Nodes = None,
    trusted_key: Trusted = None,
    as_json: AsJson = False,
) -> None:
    """Write the Triton repository of an engine: configuration from its record, file checked, in place in one step.

    Example: `forecrest engine repository 3f2a --out /models --node cc=8.9,tensorrt=10.13.3.9`
    """
    with _explained():
        from engines.triton_plan import PlanOptions, publish  # noqa: PLC0415 - as above

        catalog = _open(location, trusted_key)
        found = catalog.find(engine)
        catalog.require_sound(found.manifest.model, found.record, [parse_node(text) for text in node or ()])
        options = PlanOptions(
            batch_size_max=batch_size_max,
            preferred_batch_sizes=_whole_numbers(preferred_batch, "--preferred-batch"),
            queue_delay_us=queue_delay_us,
            instance_count=instances,
            gpus=_whole_numbers(gpus, "--gpus"),
            version=version,
        )
        made = publish(catalog, found, folder, options)
    notes = list(made.notes)
    if found.record.state != "ACTIVE":
        notes.append(f"the engine is {found.record.state}; promote it before replicas serve it")
    if as_json:
        print_json({"engine": _summary(found), "repository": str(made.repository), "notes": notes})
        return
    typer.echo(folder / found.manifest.model)
    for note in notes:
        err().print(f"Note: {note}.", markup=False)


@app.command("load-time")
def load_time(
    engine: EngineId,
    location: Location = CATALOG,
    runs: Annotated[int, typer.Option(help="Starts of each kind; 1 to 50.")] = 3,
    calibration: Annotated[
        Path | None, typer.Option(help="Set for INT8 scales, to time a cold start's calibration too.")
    ] = None,
    trusted_key: Trusted = None,
    as_json: AsJson = False,
) -> None:
    """Time a start with the prebuilt engine against one that builds it, stage by stage, on this machine.

    What Triton takes to load it is measured by `forecrest engine profile`.

    Example: `forecrest engine load-time 3f2a --runs 5`
    """
    with _explained():
        from engines.load_time import Start, measure  # noqa: PLC0415 - as above

        catalog = _open(location, trusted_key)
        with _progress("start") as progress:
            found = measure(
                catalog, catalog.find(engine), runs=runs, calibration=calibration, on_run=progress
            )
    if as_json:
        print_json({**_plain(found), "total_s": {start.value: found.total_s(start) for start in Start}})
        return
    shown = table("start", "stage", "median s", "slowest s", right=("median s", "slowest s"))
    for stage in found.stages:
        shown.add_row(stage.start.lower(), stage.stage, f"{stage.p50_s:.3f}", f"{stage.max_s:.3f}")
    for start in Start:
        shown.add_row(start.lower(), "all", f"{found.total_s(start):.3f}", "", style="bold")
    out().print(shown)
    for note in found.notes:
        out().print(f"Note: {note}", markup=False)


@app.command("promote")
def promote(
    engine: EngineId,
    location: Location = CATALOG,
    node: Nodes = None,
    reason: Reason = "",
    trusted_key: Trusted = None,
    as_json: AsJson = False,
) -> None:
    """Make a validated engine ACTIVE; the one it replaces becomes RETIRED in the same step.

    Example: `forecrest engine promote 3f2a --node cc=8.9,tensorrt=10.13.3.9`
    """
    with _explained():
        catalog = _open(location, trusted_key)
        found = catalog.find(engine)
        catalog.promote(
            found.manifest.model,
            found.manifest.engine_id,
            at=clock.now(),
            by=getpass.getuser(),
            reason=reason,
            nodes=[parse_node(text) for text in node or ()],
            expected_sequence=catalog.state(found.manifest.model).sequence,
        )
        _print_changed(catalog.find(found.manifest.engine_id), as_json=as_json)


@app.command("rollback")
def rollback(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="Name of the model.")],
    location: Location = CATALOG,
    target: Annotated[
        str | None, typer.Option(help="Such as TENSORRT:8.9, as `list` shows it. Default: the only one.")
    ] = None,
    to: Annotated[
        str | None, typer.Option(help="Retired engine to return to. Default: the last active.")
    ] = None,
    reason: Reason = "",
    trusted_key: Trusted = None,
    as_json: AsJson = False,
) -> None:
    """Return to the engine that was ACTIVE before.

    Example: `forecrest engine rollback ranker --reason "wrong scores"`
    """
    with _explained():
        catalog = _open(location, trusted_key)
        targets = sorted({record.target for record in catalog.state(model).engines.values()})
        if target is None:
            if len(targets) != 1:
                known = ", ".join(targets) or "none"
                raise CliError(f"--target: {model} has the targets {known}; name one.", EXIT_USAGE)
            target = targets[0]
        record = catalog.rollback(
            model,
            target,
            at=clock.now(),
            by=getpass.getuser(),
            reason=reason,
            to=catalog.find(to, model).manifest.engine_id if to else None,
        )
        _print_changed(catalog.find(record.engine_id, model), as_json=as_json)


@app.command("retire")
def retire(
    engine: EngineId,
    location: Location = CATALOG,
    reason: Reason = "",
    trusted_key: Trusted = None,
    as_json: AsJson = False,
) -> None:
    """Take an engine out of service without a successor.

    Example: `forecrest engine retire 3f2a --reason "wrong scores"`
    """
    with _explained():
        catalog = _open(location, trusted_key)
        found = catalog.find(engine)
        manifest = found.manifest
        catalog.retire(
            manifest.model, manifest.engine_id, at=clock.now(), by=getpass.getuser(), reason=reason
        )
        _print_changed(catalog.find(manifest.engine_id), as_json=as_json)


@app.command("gc")
def collect_garbage(
    model: Annotated[str | None, typer.Argument(metavar="MODEL", help="Of this model only.")] = None,
    location: Location = CATALOG,
    min_age: Annotated[str, typer.Option(help="Keep what is younger: 90s, 12h, 7d.")] = "7d",
    keep_previous: Annotated[
        int, typer.Option(help="Engines to keep per target for a rollback.", min=0, max=1000)
    ] = 1,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be removed.")] = False,
    trusted_key: Trusted = None,
    as_json: AsJson = False,
) -> None:
    """Remove engines that nobody needs; never one that serves, is relied on, or that a rollback may want.

    Example: `forecrest engine gc --min-age 30d --dry-run`
    """
    age: timedelta = parse_duration(min_age, "--min-age")
    with _explained():
        catalog = _open(location, trusted_key)
        collected = {
            name: catalog.collect_garbage(
                name,
                at=clock.now(),
                by=getpass.getuser(),
                min_age=age,
                previous_kept=keep_previous,
                is_dry_run=dry_run,
            )
            for name in ([model] if model else catalog.models())
        }
    if as_json:
        print_json({name: _plain(result) for name, result in collected.items()})
        return
    for name, result in collected.items():
        for engine_id in result.removed:
            out().print(f"{name}: {'would remove' if dry_run else 'removed'} {engine_id}")
        for engine_id, why in result.kept.items():
            out().print(f"{name}: kept {engine_id}, {why}")
        for folder in result.orphans:
            out().print(f"{name}: {'would remove' if dry_run else 'removed'} the unfinished upload {folder}")


def parse_shape(text: str) -> tuple[str, tuple[int, ...]]:
    """Read ``tokens=8x32``; raise CliError naming the option."""
    name, _, shape = text.partition("=")
    lengths = shape.split("x")
    if not name or not all(length.isdecimal() for length in lengths):
        raise CliError(f"--shape: {text!r} is none; write input=8x32, batch first.", EXIT_USAGE)
    return name, tuple(map(int, lengths))


@app.command("compat")
def compat(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="Name of the model.")],
    location: Location = CATALOG,
    node: Nodes = None,
    shape: Annotated[
        list[str] | None, typer.Option(help="Input shape that must be served, tokens=8x32; one per input.")
    ] = None,
    trusted_key: Trusted = None,
    as_json: AsJson = False,
) -> None:
    """Say which engine serves a node, and why each of the others does not. Default: this machine.

    Ends with code 1 if a node is left without an engine.

    Example: `forecrest engine compat ranker --node cc=8.9,tensorrt=10.13.3.9`
    """
    with _explained():
        catalog = _open(location, trusted_key)
        nodes = {text: parse_node(text) for text in node or ()} or {"this machine": _this_node()}
        shapes = dict(parse_shape(text) for text in shape) if shape else None
        selections = {text: catalog.select(model, one, shapes=shapes) for text, one in nodes.items()}
    if as_json:
        print_json({text: _plain(selection) for text, selection in selections.items()})
    else:
        for text, selection in selections.items():
            out().print(f"[bold]{text}[/]: {selection.chosen or 'no engine serves it'}")
            for engine_id, objections in selection.objections.items():
                for objection in objections:
                    out().print(
                        f"  not {engine_id[:10]}: {objection.rejection}, {objection.sentence}", markup=False
                    )
            if not selection.objections and selection.chosen is None:
                out().print(f"  the catalogue has no engine of {model}")
    if any(selection.chosen is None for selection in selections.values()):
        raise typer.Exit(EXIT_FAILED)


def _summary(engine: "Engine") -> dict[str, Any]:
    manifest, record = engine.manifest, engine.record
    return {
        "engine_id": manifest.engine_id,
        "model": manifest.model,
        "digest": manifest.digest,
        "state": record.state,
        "target": manifest.target,
        "precision": manifest.options.precision,
        "runtime": manifest.options.runtime,
        "runtime_version": manifest.toolchain.version,
        "compute_capabilities": list(manifest.options.compute_capabilities),
        "size_bytes": manifest.files[manifest.engine_file].size_bytes,
        "build_ms": manifest.build_ms,
        "layer_count": len(manifest.layers),
        "gate_is_passed": record.gate_is_passed,
        "gate_reason": record.gate_reason,
        "kept_layers": list(manifest.options.kept_layers),
        "notes": list(manifest.notes),
    }


def _print_changed(engine: "Engine", *, as_json: bool) -> None:
    if as_json:
        print_json(_summary(engine))
    else:
        out().print(f"{engine.manifest.model}: engine {engine.manifest.engine_id} is {engine.record.state}.")


def _print_engine(engine: "Engine") -> None:
    manifest, record = engine.manifest, engine.record
    shown = table("", "")
    rows = {
        "engine": manifest.engine_id,
        "model": manifest.model,
        "state": record.state,
        "target": manifest.target,
        "precision": manifest.options.precision,
        "built with": f"{manifest.toolchain.runtime} {manifest.toolchain.version}",
        "built in": f"{manifest.build_ms:.0f} ms",
        "digest": manifest.digest,
        "layers": f"{len(manifest.layers)}, from {manifest.layers_from}",
        "kept in FP32": ", ".join(manifest.options.kept_layers) or "none",
        "profiles": "; ".join(
            ", ".join(f"{name} {r.min}:{r.opt}:{r.max}" for name, r in profile.items())
            for profile in manifest.options.profiles
        )
        or "none",
        "gate": record.gate_reason or "not judged",
    }
    for name, value in rows.items():
        shown.add_row(name, escape(value))
    for note in manifest.notes[:NOTES_SHOWN]:
        shown.add_row("note", escape(note[:300]))
    shown.show_header = False
    out().print(shown)


def _print_findings(findings: "tuple[Finding, ...]") -> None:
    for finding in findings:
        out().print(f"calibration {finding.severity.lower()}: {finding.sentence}", markup=False)


def _print_report(report: "GateReport") -> None:
    out().print("[bold green]Gate passed[/]" if report.is_passed else "[bold red]Gate failed[/]", end="")
    out().print(f" on {report.sample_count} samples; ran {report.ran}.", markup=False)
    shown = table("measure", "value", "budget", "detail", right=("value",))
    for result in report.results:
        value = "unknown" if result.value is None else f"{result.value:.4g}"
        budget = str(result.budget)
        shown.add_row(
            result.budget.measure, value, budget if result.is_within else f"[red]{budget}[/]", result.detail
        )
    out().print(shown)
    if not report.is_passed and report.worst_layers:
        worst = ", ".join(f"{layer.layer} ({layer.introduced:.2g})" for layer in report.worst_layers[:3])
        out().print(f"Most error comes from {worst}.", markup=False)
