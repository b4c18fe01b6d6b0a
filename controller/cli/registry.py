"""``forecrest registry``: the engines that a controller knows of, and what they were measured to sustain.

``forecrest engine`` builds and judges engines in a catalogue, without a controller; ``push`` tells a controller of one,
with its validation, and ``promote`` makes it the one that workloads are sized by.
"""

import json
import re
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import grpc
import typer
from forecrest.v1 import engine_pb2, engine_service_pb2, workload_pb2

from controller.cli.common import (
    DATA_DIR,
    EXIT_USAGE,
    Address,
    AsJson,
    CliError,
    bare,
    connected,
    fields_table,
    out,
    print_json,
    qps,
    resource,
    run,
    table,
    to_dict,
    when,
)
from controller.cli.complete import engine_names
from controller.client import Client, pages

if TYPE_CHECKING:
    from engines.catalog import Engine

app = typer.Typer(
    no_args_is_help=True, help="Tell a controller of engines, promote them, and see their measured capacity."
)
EngineId = Annotated[
    str,
    typer.Argument(metavar="ENGINE", help="Id of the engine in the registry.", autocompletion=engine_names),
]
Reason = Annotated[str, typer.Option(help="Why, for the record.")]
TrustedKeys = Annotated[
    list[Path] | None,
    typer.Option(
        "--trusted-key", help="Count only engines signed by this Ed25519 public key (PEM); repeatable."
    ),
]
NAMES = {"engine.": "", "validation.": "validation of the catalogue: ", "filter": "--filter"}
_ID_MAX = 63


@app.command()
def push(
    engine_id: Annotated[
        str, typer.Argument(metavar="ENGINE", help="Id in the catalogue, or how it begins.")
    ],
    catalog: Annotated[
        str,
        typer.Option(envvar="FORECREST_ENGINE_CATALOG", help="Folder, or URL such as s3://bucket/engines."),
    ] = str(DATA_DIR / "engines"),
    trusted_key: TrustedKeys = None,
    address: Address = None,
    as_json: AsJson = False,
) -> None:
    """Register an engine of the catalogue with a controller, and its validation if it passed one.

    Example: `forecrest registry push 3f2a --catalog s3://models/engines`
    """
    from engines.catalog import Catalog  # noqa: PLC0415 -- the other commands start without it
    from engines.errors import EngineError  # noqa: PLC0415 -- as above

    try:
        known = Catalog(catalog, trusted_keys=trusted_key)
        found = known.find(engine_id)
        known.require_sound(found.manifest.model, found.record)  # nobody learns of an engine that is damaged
        measures = _measures(known.read_report(found)) if found.record.gate_report else []
    except EngineError as error:
        raise CliError(str(error), EXIT_USAGE) from None
    name = record_id(found)

    async def call() -> None:
        async with connected(address) as client:
            made = await _registered(client, name, found)
            if measures and made.state in {engine_pb2.ENGINE_STATE_BUILT, engine_pb2.ENGINE_STATE_VALIDATED}:
                made = await client.engines.ValidateEngine(
                    engine_service_pb2.ValidateEngineRequest(
                        name=made.name,
                        validation=engine_pb2.EngineValidation(
                            measures=measures,
                            report_uri=f"{known.location}#{found.manifest.engine_id}"[:1000],
                        ),
                        request_id=str(uuid.uuid4()),
                    )
                )
        _show(made, as_json=as_json)

    run(call(), NAMES)


def record_id(found: "Engine") -> str:
    """The id of a catalogue's engine in the registry: its model and the beginning of its own id."""
    model = re.sub(r"[^a-z0-9]+", "-", found.manifest.model.lower()).strip("-")
    if not re.match(r"[a-z]", model):
        model = f"m-{model}".strip("-")
    return f"{model[: _ID_MAX - 13].rstrip('-')}-{found.manifest.engine_id[:12]}"


async def _registered(client: Client, name: str, found: "Engine") -> engine_pb2.Engine:
    """The record of this very artifact: a new one, or the one that was pushed before."""
    try:
        return await client.engines.RegisterEngine(
            engine_service_pb2.RegisterEngineRequest(
                engine=record_of(found), engine_id=name, request_id=str(uuid.uuid4())
            )
        )
    except grpc.aio.AioRpcError as error:
        if error.code() is not grpc.StatusCode.ALREADY_EXISTS:
            raise
        present = await client.engines.GetEngine(engine_service_pb2.GetEngineRequest(name=f"engines/{name}"))
        if present.digest != digest_of(found):
            raise
        return present


def digest_of(found: "Engine") -> str:
    """The digest of the artifact in the form of the API."""
    return f"sha256:{found.manifest.digest.removeprefix('sha256:')}"


def record_of(found: "Engine") -> engine_pb2.Engine:
    """What the registry keeps of a catalogue's engine."""
    manifest, options, tools = found.manifest, found.manifest.options, found.manifest.toolchain
    return engine_pb2.Engine(
        model_name=manifest.model,
        digest=digest_of(found),
        model_digest=f"sha256:{manifest.model_digest.removeprefix('sha256:')}",
        kind=engine_pb2.EngineKind.Value(f"ENGINE_KIND_{options.runtime}"),
        precision=workload_pb2.Precision.Value(f"PRECISION_{options.precision}"),
        runtime_version=tools.version,
        runtime_version_min=manifest.runtime_version_min or "",
        cuda_version=tools.cuda or "",
        driver_version=tools.driver or "",
        gpu_type=tools.gpu or "",
        compute_capabilities=options.compute_capabilities,
        hardware_compatibility=engine_pb2.HardwareCompatibility.Value(
            f"HARDWARE_COMPATIBILITY_{options.hardware_compatibility}"
        ),
        version_compatible=options.version_compatible,
        size_bytes=sum(file.size_bytes for file in manifest.files.values()),
        build_options={"workspace_bytes": str(options.workspace_bytes)},
        labels={"catalogue-id": manifest.engine_id},
    )


def _measures(report: bytes) -> list[engine_pb2.EngineMeasure]:
    """The measures of a gate's report; one that has no value failed, and must not count as kept."""
    found: list[engine_pb2.EngineMeasure] = []
    for result in json.loads(report)["results"]:
        budget, value = result["budget"], result["value"]
        if value is None:
            raise CliError(
                f"{budget['measure']}: has no value in the report; validate the engine again.", EXIT_USAGE
            )
        bound = {"max": budget["limit"]} if budget["is_upper"] else {"min": budget["limit"]}
        found.append(engine_pb2.EngineMeasure(measure=budget["measure"], value=value, **bound))
    return found


def _show(engine: engine_pb2.Engine, *, as_json: bool) -> None:
    if as_json:
        print_json(to_dict(engine))
    else:
        state = engine_pb2.EngineState.Name(engine.state).removeprefix("ENGINE_STATE_")
        out().print(f"Engine {bare(engine.name)} of {engine.model_name} is {state}.", soft_wrap=True)


@app.command("list")
def list_engines(
    where: Annotated[
        str, typer.Option("--filter", help="Which engines, such as 'state = ACTIVE AND model_name = rec'.")
    ] = "",
    address: Address = None,
    as_json: AsJson = False,
) -> None:
    """List engines with what they were measured to sustain.

    Example: `forecrest registry list --filter "state = ACTIVE"`
    """

    async def call() -> None:
        async with connected(address) as client:
            asked = engine_service_pb2.ListEnginesRequest(page_size=1000, filter=where)
            found = [e async for e in pages(client.engines.ListEngines, asked, "engines")]
            profiled = engine_service_pb2.ListEngineProfilesRequest(page_size=1000)
            profiles = [p async for p in pages(client.engines.ListEngineProfiles, profiled, "profiles")]
        measured: dict[str, list[str]] = {}
        for profile in profiles:
            text = f"{profile.capacity.gpu_type or 'cpu'} {qps(profile.capacity.qps_max)}"
            measured.setdefault(profile.name.rpartition("/profiles/")[0], []).append(text)
        if as_json:
            print_json([to_dict(engine) for engine in found])
            return
        shown = table("engine", "model", "state", "precision", "for", "QPS per replica")
        for engine in found:
            shown.add_row(
                bare(engine.name),
                engine.model_name,
                engine_pb2.EngineState.Name(engine.state).removeprefix("ENGINE_STATE_"),
                workload_pb2.Precision.Name(engine.precision).removeprefix("PRECISION_"),
                ", ".join(engine.compute_capabilities) or "cpu",
                ", ".join(measured.get(engine.name, ["not measured"])),
            )
        out().print(shown if found else "No engines. Tell of one with `forecrest registry push`.")

    run(call(), NAMES)


@app.command()
def get(engine_id: EngineId, address: Address = None, as_json: AsJson = False) -> None:
    """Show all that is known of an engine, and what it was measured to sustain.

    Example: `forecrest registry get recommender-3f2a91c0d4e5`
    """

    async def call() -> None:
        name = resource("engines", engine_id)
        async with connected(address) as client:
            engine = await client.engines.GetEngine(engine_service_pb2.GetEngineRequest(name=name))
            profiles = await client.engines.ListEngineProfiles(
                engine_service_pb2.ListEngineProfilesRequest(parent=name)
            )
        if as_json:
            print_json({"engine": to_dict(engine), "profiles": [to_dict(p) for p in profiles.profiles]})
            return
        out().print(fields_table(engine))
        for profile in profiles.profiles:
            measured = profile.capacity
            out().print(
                f"{measured.gpu_type or 'cpu'}: {qps(measured.qps_max)} QPS per replica, measured "
                f"{when(profile.measure_time)} UTC by {profile.tool}"
            )

    run(call())


@app.command()
def promote(
    engine_id: EngineId,
    catalog: Annotated[
        str,
        typer.Option(
            envvar="FORECREST_ENGINE_CATALOG",
            help="Check the engine's record and file here first. Default: not.",
        ),
    ] = "",
    trusted_key: TrustedKeys = None,
    address: Address = None,
    as_json: AsJson = False,
) -> None:
    """Make a validated engine the one to serve; the one before it is retired. Undo by promoting that one.

    Example: `forecrest registry promote recommender-3f2a91c0d4e5 --catalog s3://models/engines`
    """

    async def call() -> None:
        async with connected(address) as client:
            if catalog:
                name = resource("engines", engine_id)
                asked = await client.engines.GetEngine(engine_service_pb2.GetEngineRequest(name=name))
                _check_artifact(catalog, trusted_key, asked)
            engine = await client.engines.PromoteEngine(
                engine_service_pb2.PromoteEngineRequest(
                    name=resource("engines", engine_id), request_id=str(uuid.uuid4())
                )
            )
        _show(engine, as_json=as_json)

    run(call())


def _check_artifact(location: str, trusted: list[Path] | None, asked: engine_pb2.Engine) -> None:
    """Refuse an engine whose newest verdict failed, or whose file is not what was built."""
    from engines.catalog import Catalog  # noqa: PLC0415 -- the other commands start without it
    from engines.errors import EngineError  # noqa: PLC0415 -- as above

    try:
        known = Catalog(location, trusted_keys=trusted)
        found = known.find(asked.labels["catalogue-id"] or bare(asked.name), asked.model_name)
        if found.record.gate_is_passed is False:
            raise CliError(f"engine: GATE_NOT_PASSED: {found.record.gate_reason}; validate it again.")
        if digest_of(found) != asked.digest:
            raise CliError(
                f"engine: WRONG_DIGEST: the catalogue has {digest_of(found)}, the registry {asked.digest}; push it again."
            )
        known.require_sound(found.manifest.model, found.record)
    except EngineError as error:
        raise CliError(str(error)) from None


@app.command()
def retire(
    engine_id: EngineId, reason: Reason = "", address: Address = None, as_json: AsJson = False
) -> None:
    """Take an engine out of service.

    Example: `forecrest registry retire recommender-3f2a91c0d4e5 --reason "drifts on new items"`
    """

    async def call() -> None:
        async with connected(address) as client:
            engine = await client.engines.RetireEngine(
                engine_service_pb2.RetireEngineRequest(
                    name=resource("engines", engine_id), reason=reason, request_id=str(uuid.uuid4())
                )
            )
        _show(engine, as_json=as_json)

    run(call())
