"""``forecrest workloads``: declare workloads in YAML, look at them, delete them.

Promises: a file is checked in full, here for its fields and by the server for their bounds, before the first
workload is written. Refuses unknown fields by name.
"""

import re
import uuid
from pathlib import Path
from typing import Annotated, Any

import grpc
import typer
import yaml
from forecrest.v1 import control_pb2, control_service_pb2, event_pb2, workload_pb2, workload_service_pb2
from google.protobuf import json_format
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    ValidationInfo,
    field_validator,
)
from pydantic_core import PydanticCustomError

from controller.cli.common import (
    Address,
    AsJson,
    CliError,
    bare,
    connected,
    out,
    parse_duration,
    print_json,
    qps,
    resource,
    run,
    table,
    to_dict,
    typed,
    when,
)
from controller.cli.complete import workload_names
from controller.client import Client, explain, pages

app = typer.Typer(no_args_is_help=True, help="Declare workloads in YAML, look at them, delete them.")

FILE_BYTES_MAX = 1_000_000
DOCUMENTS_MAX = 1_000
_ID = re.compile(r"[a-z][a-z0-9-]{0,62}")


def _seconds(value: object) -> object:
    """Accept 300, 300s or 5m for a duration; hand on what protobuf's JSON form wants."""
    if isinstance(value, bool):
        return value
    if isinstance(value, int | float):
        return f"{value:.9f}".rstrip("0").rstrip(".") + "s"
    if isinstance(value, str):
        try:
            length = parse_duration(value, "duration")
        except CliError:
            raise ValueError(f"{value!r} is no duration; write 90s, 5m or 1h30m") from None
        return f"{length.total_seconds():.9f}".rstrip("0").rstrip(".") + "s"
    return value


def _digits(value: object) -> object:
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


def _known(prefix: str, names: list[str]) -> AfterValidator:
    def check(value: str) -> str:
        full = f"{prefix}_{value.upper()}"
        if full not in names or value.upper() == "UNSPECIFIED":
            known = ", ".join(n.removeprefix(f"{prefix}_") for n in names if not n.endswith("UNSPECIFIED"))
            raise ValueError(f"{value!r} is unknown; choose from {known}")
        return full

    return AfterValidator(check)


Duration = Annotated[str, BeforeValidator(_seconds)]
Mode = Annotated[str, _known("MODE", workload_pb2.Mode.keys())]
Precision = Annotated[str, _known("PRECISION", workload_pb2.Precision.keys())]
PolicyType = Annotated[str, _known("POLICY_TYPE", workload_pb2.PolicyType.keys())]
SelectPolicy = Annotated[str, _known("SELECT_POLICY", workload_pb2.SelectPolicy.keys())]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class ProfileSpec(_Strict):
    """What one warm replica sustains, measured."""

    engine: str
    gpu_type: str = ""
    qps_max: Annotated[float | None, Field(validate_default=True)] = None
    instance_count: int | None = None
    batch_size_max: int | None = None
    service_scv: float | None = None
    queue_delay_max_s: float | None = None
    gpus_per_replica: int | None = None
    precision: Precision | None = None

    @field_validator("qps_max")
    @classmethod
    def _is_known(cls, value: float | None, info: ValidationInfo) -> float | None:
        # A registered engine was measured; whatever else serves must say what it sustains.
        if value is None and not str(info.data.get("engine", "")).startswith("engines/"):
            raise PydanticCustomError("missing", "Field required")
        return value


class SloSpec(_Strict):
    """What users were promised."""

    wait_s: float | None = None
    wait_exceed_share: float | None = None
    latency_ms_p99: float | None = None


class ScalingPolicySpec(_Strict):
    """At most so much change in a period."""

    type: PolicyType
    value: int
    period: Duration


class ScalingRulesSpec(_Strict):
    """One direction of the behavior."""

    stabilization_window: Duration | None = None
    select_policy: SelectPolicy | None = None
    policies: list[ScalingPolicySpec] = []


class BehaviorSpec(_Strict):
    """HPA-style behavior."""

    scale_up: ScalingRulesSpec | None = None
    scale_down: ScalingRulesSpec | None = None
    tolerance: float | None = None


class PolicySpec(_Strict):
    """How cautious to be."""

    cost_under_per_hour: float | None = None
    cost_over_per_hour: float | None = None
    behavior: BehaviorSpec | None = None
    stable_window: Duration | None = None
    panic_window: Duration | None = None
    panic_threshold: float | None = None
    drain_target: Duration | None = None
    signal_age_max: Duration | None = None
    forecast_age_max: Duration | None = None
    quorum: float | None = None
    scale_to_zero_after: Duration | None = None
    break_even: Duration | None = None
    prewarm_margin: Duration | None = None
    order_timeout: Duration | None = None
    fizzle_share: float | None = None
    fizzle_after: Duration | None = None
    fizzle_half_life: Duration | None = None
    hold_max: Duration | None = None
    arrival_scv: float | None = None
    tick_slack: Duration | None = None
    planner_floor_share: float | None = None


class WorkloadSpec(_Strict):
    """One document of a workloads file."""

    name: str
    model_name: str
    model_version: Annotated[str | None, BeforeValidator(_digits)] = None  # 1 and "1" mean the same
    namespace: str | None = None
    profiles: Annotated[list[ProfileSpec], Field(min_length=1)]
    min_replicas: int | None = None
    max_replicas: int | None = None
    slo: SloSpec | None = None
    policy: PolicySpec | None = None
    mode: Mode | None = None
    priority: int | None = None
    quota_pool: str | None = None
    target: dict[str, str] = {}
    labels: dict[str, str] = {}
    engine_digest: str | None = None
    demand_query: str | None = None
    time_zone: str | None = None

    def message(self) -> workload_pb2.Workload:
        """Return the workload as the API has it."""
        made = json_format.ParseDict(self.model_dump(exclude_none=True), workload_pb2.Workload())
        made.name = resource("workloads", self.name)
        return made


def read_workloads(path: Path) -> list[WorkloadSpec]:
    """Read a file of one or more YAML documents; raise CliError naming document, field and remedy."""
    try:
        if path.stat().st_size > FILE_BYTES_MAX:
            raise CliError(f"{path}: is larger than {FILE_BYTES_MAX} bytes; split it.")
        documents = [d for d in yaml.safe_load_all(path.read_text(encoding="utf-8")) if d is not None]
    except OSError as error:
        raise CliError(f"{path}: {error.strerror}; check the path.") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise CliError(f"{path}: is not YAML: {' '.join(str(error).split())}") from None
    if not documents:
        raise CliError(f"{path}: holds no workload; see examples in the documentation.")
    if len(documents) > DOCUMENTS_MAX:
        raise CliError(f"{path}: holds more than {DOCUMENTS_MAX} workloads; split it.")
    specs: list[WorkloadSpec] = []
    problems: list[str] = []
    for number, document in enumerate(documents, 1):
        try:
            specs.append(WorkloadSpec.model_validate(document))
        except ValidationError as error:
            problems += [f"{path}, workload {number}: {_problem(e)}" for e in error.errors()]
    names = [spec.name for spec in specs]
    problems += [
        f"{path}: name: {n!r} occurs twice; keep one." for n in {n for n in names if names.count(n) > 1}
    ]
    problems += [
        f"{path}: name: {n!r} must be 1 to 63 of a-z, 0-9 and '-', starting with a letter."
        for n in names
        if not _ID.fullmatch(n)
    ]
    if problems:
        raise CliError("\n".join(problems))
    return specs


def _problem(error: Any) -> str:  # noqa: ANN401 - pydantic_core's ErrorDetails
    field = ".".join(str(part) for part in error["loc"]) or "document"
    if error["type"] == "extra_forbidden":
        return f"{field}: is no field of a workload; check the spelling or remove it."
    if error["type"] == "missing":
        return f"{field}: is required; add it."
    return f"{field}: {error['msg'].removeprefix('Value error, ')}."


@app.command()
def apply(
    file: Annotated[Path, typer.Option("--file", "-f", help="YAML file, one or more documents.")],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Check everything, store nothing.")] = False,
    address: Address = None,
    as_json: AsJson = False,
) -> None:
    """Create or change workloads so that they are as the file says.

    Example: `forecrest workloads apply -f recommender.yaml`
    """
    specs = read_workloads(file)
    run(_apply(specs, dry_run=dry_run, address=address, as_json=as_json))


async def _apply(specs: list[WorkloadSpec], *, dry_run: bool, address: str | None, as_json: bool) -> None:
    async with connected(address) as client:
        # A first pass that only checks: the second file entry must not fail after the first was written.
        planned = [await _checked(client, spec, validate_only=True) for spec in specs]
        done = planned if dry_run else [await _checked(client, s, validate_only=False) for s in specs]
    if as_json:
        print_json([{"action": action, "workload": to_dict(workload)} for action, workload in done])
        return
    for action, workload in done:
        would = "would be " if dry_run else ""
        out().print(
            f"{bare(workload.name)} {would}{action} (generation {workload.generation}).", soft_wrap=True
        )


async def _checked(
    client: Client, spec: WorkloadSpec, *, validate_only: bool
) -> tuple[str, workload_pb2.Workload]:
    """Apply one entry; a refusal names the entry and its fields as the file has them."""
    try:
        return await _apply_one(client, spec, validate_only=validate_only)
    except grpc.aio.AioRpcError as error:
        refused = explain(error)
        if not refused.violations:
            raise
        lines = (f"{spec.name}: {typed(*one, {'workload.': ''})}" for one in refused.violations)
        raise CliError("\n".join(lines)) from None


async def _apply_one(
    client: Client, spec: WorkloadSpec, *, validate_only: bool
) -> tuple[str, workload_pb2.Workload]:
    wanted = spec.message()
    try:
        present = await client.workloads.GetWorkload(
            workload_service_pb2.GetWorkloadRequest(name=wanted.name)
        )
    except grpc.aio.AioRpcError as error:
        if error.code() is not grpc.StatusCode.NOT_FOUND:
            raise
        return "created", await client.workloads.CreateWorkload(
            workload_service_pb2.CreateWorkloadRequest(
                workload=wanted,
                workload_id=spec.name,
                request_id=str(uuid.uuid4()),
                validate_only=validate_only,
            )
        )
    wanted.etag = present.etag
    would_be = await _update(client, wanted, validate_only=True)
    if _same(would_be, present):
        return "unchanged", present
    return "changed", would_be if validate_only else await _update(client, wanted, validate_only=False)


async def _update(
    client: Client, workload: workload_pb2.Workload, *, validate_only: bool
) -> workload_pb2.Workload:
    return await client.workloads.UpdateWorkload(
        workload_service_pb2.UpdateWorkloadRequest(
            workload=workload, request_id=str(uuid.uuid4()), validate_only=validate_only
        )
    )


def _same(one: workload_pb2.Workload, other: workload_pb2.Workload) -> bool:
    bare_ones = []
    for workload in (one, other):
        spec = workload_pb2.Workload()
        spec.CopyFrom(workload)
        spec.ClearField("generation")
        spec.ClearField("etag")
        bare_ones.append(spec.SerializeToString(deterministic=True))
    return bare_ones[0] == bare_ones[1]


WorkloadId = Annotated[
    str, typer.Argument(metavar="WORKLOAD", help="Id of the workload.", autocompletion=workload_names)
]


@app.command("list")
def list_workloads(
    where: Annotated[
        str,
        typer.Option("--filter", help="Which workloads, such as 'mode = FLOOR AND labels.team = search'."),
    ] = "",
    order_by: Annotated[
        str,
        typer.Option(help='name, namespace, priority or max_replicas, and " desc" for the other direction.'),
    ] = "",
    address: Address = None,
    as_json: AsJson = False,
) -> None:
    """List workloads by name.

    Example: `forecrest workloads list --filter "quota_pool = shared"`
    """

    async def call() -> None:
        request = workload_service_pb2.ListWorkloadsRequest(page_size=1000, filter=where, order_by=order_by)
        async with connected(address) as client:
            found = [w async for w in pages(client.workloads.ListWorkloads, request, "workloads")]
        if as_json:
            print_json([to_dict(workload) for workload in found])
            return
        shown = table(
            "workload", "model", "mode", "min", "max", "QPS/replica", right=("min", "max", "QPS/replica")
        )
        for w in found:
            shown.add_row(
                bare(w.name),
                w.model_name,
                workload_pb2.Mode.Name(w.mode).removeprefix("MODE_"),
                str(w.min_replicas),
                str(w.max_replicas),
                qps(w.profiles[0].qps_max) if w.profiles[0].qps_max else "measured",
            )
        out().print(shown if found else "No workloads. Declare one with `forecrest workloads apply -f FILE`.")

    run(call(), {"filter": "--filter", "order_by": "--order-by"})


@app.command()
def get(workload: WorkloadId, address: Address = None, as_json: AsJson = False) -> None:
    """Show a workload, where it stands and what alarms it has.

    Example: `forecrest workloads get recommender`
    """

    async def call() -> None:
        name = resource("workloads", workload)
        async with connected(address) as client:
            spec = await client.workloads.GetWorkload(workload_service_pb2.GetWorkloadRequest(name=name))
            status = await client.control.GetStatus(
                control_service_pb2.GetStatusRequest(name=f"{name}/status")
            )
        if as_json:
            print_json({"workload": to_dict(spec), "status": to_dict(status)})
        else:
            _print_workload(spec, status)

    run(call())


def _print_workload(spec: workload_pb2.Workload, status: control_pb2.WorkloadStatus) -> None:
    console = out()
    desired = status.desired_replicas if status.HasField("desired_replicas") else "not decided yet"
    console.print(
        f"[bold]{bare(spec.name)}[/] serves {spec.model_name} version {spec.model_version}, generation "
        f"{spec.generation}; {spec.min_replicas} to {spec.max_replicas} replicas, desired: {desired}."
    )
    console.print(f"  time zone: {spec.time_zone or 'not set'}")
    for contract in status.contracts:
        state = event_pb2.ContractState.Name(contract.state).removeprefix("CONTRACT_STATE_")
        console.print(
            f"  event {contract.occurrence_id}: {state}, {contract.verified_count} of {contract.replicas} warm, "
            f"due {when(contract.deadline_time, seconds=True)} UTC"
        )
    for alarm in status.alarms:
        console.print(f"  [bold red]alarm[/]: {alarm.sentence}")


@app.command()
def delete(workload: WorkloadId, address: Address = None, as_json: AsJson = False) -> None:
    """Stop scaling a workload. Its traffic, events and decisions stay; running replicas stay.

    Example: `forecrest workloads delete recommender`
    """

    async def call() -> None:
        async with connected(address) as client:
            await client.workloads.DeleteWorkload(
                workload_service_pb2.DeleteWorkloadRequest(
                    name=resource("workloads", workload), request_id=str(uuid.uuid4())
                )
            )
        if as_json:
            print_json({"deleted": bare(workload)})
        else:
            out().print(f"{bare(workload)} is deleted.")

    run(call())
