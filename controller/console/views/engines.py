"""The engine catalogue as pages show it. Pure: messages in, values out; absent is None. Called by `pages.engines`."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from forecrest.v1 import engine_pb2, workload_pb2

from controller.console.live import instant
from controller.console.views.events import short, word

_DIGEST_SHOWN = 12


@dataclass(frozen=True, slots=True)
class Measure:
    """One measure of a validation beside its budget."""

    name: str
    value: float
    low: float | None
    high: float | None

    @property
    def kept(self) -> bool:
        """Whether the budget was kept."""
        return not (
            (self.low is not None and self.value < self.low)
            or (self.high is not None and self.value > self.high)
        )


@dataclass(frozen=True, slots=True)
class Capacity:
    """What one warm replica sustains on one GPU type, and by when and what that was measured."""

    gpu_type: str
    qps: float
    instances: int
    latency_ms_p99: float | None
    measured_at: datetime | None
    tool: str


@dataclass(frozen=True, slots=True)
class EngineRow:
    """One engine. ``action`` is "promote", "rollback" or "" where its state allows neither."""

    id: str
    model: str
    state: str
    kind: str
    precision: str
    runtime: str
    hardware: tuple[str, ...]
    digest: str
    digest_short: str
    size_bytes: int | None
    used_by: tuple[str, ...]
    capacities: tuple[Capacity, ...]
    validated: bool | None
    measures: tuple[Measure, ...]
    report_link: str
    report_text: str
    created_at: datetime | None
    created_by: str
    promoted_at: datetime | None
    promoted_by: str
    retire_reason: str
    action: str
    etag: str


def engine_rows(
    engines: Sequence[engine_pb2.Engine],
    profiles: Sequence[engine_pb2.EngineProfile],
    workloads: Sequence[workload_pb2.Workload],
) -> tuple[EngineRow, ...]:
    """Return the catalogue by model, those that serve first."""
    rank = {"active": 0, "validated": 1, "built": 2, "retired": 3}
    rows = [_row(engine, profiles, workloads) for engine in engines]
    return tuple(sorted(rows, key=lambda row: (row.model, rank.get(row.state, 4), row.id)))


def _row(
    engine: engine_pb2.Engine,
    profiles: Sequence[engine_pb2.EngineProfile],
    workloads: Sequence[workload_pb2.Workload],
) -> EngineRow:
    state = word(engine.state, engine_pb2.EngineState.DESCRIPTOR, "ENGINE_STATE_")
    checked = engine.HasField("validation")
    report = engine.validation.report_uri
    return EngineRow(
        id=short(engine.name),
        model=engine.model_name,
        state=state,
        kind=word(engine.kind, engine_pb2.EngineKind.DESCRIPTOR, "ENGINE_KIND_"),
        precision=word(engine.precision, workload_pb2.Precision.DESCRIPTOR, "PRECISION_"),
        runtime=engine.runtime_version,
        hardware=tuple(engine.compute_capabilities),
        digest=engine.digest,
        digest_short=engine.digest.removeprefix("sha256:")[:_DIGEST_SHOWN],
        size_bytes=engine.size_bytes or None,
        used_by=tuple(
            short(w.name)
            for w in workloads
            if w.engine_digest == engine.digest or any(p.engine == engine.name for p in w.profiles)
        ),
        capacities=tuple(_capacity(p) for p in profiles if p.name.startswith(f"{engine.name}/profiles/")),
        validated=engine.validation.passed if checked else None,
        measures=tuple(_measure(m) for m in engine.validation.measures),
        # Other schemes (file:, javascript:) are shown as text only.
        report_link=report if re.match(r"https?://", report) else "",
        report_text=report,
        created_at=instant(engine, "create_time"),
        created_by=engine.created_by,
        promoted_at=instant(engine, "promote_time"),
        promoted_by=engine.promoted_by,
        retire_reason=engine.retire_reason,
        action=_action(state, passed=checked and engine.validation.passed),
        etag=engine.etag,
    )


def _action(state: str, *, passed: bool) -> str:
    if not passed:
        return ""
    return {"validated": "promote", "retired": "rollback"}.get(state, "")


def _measure(one: engine_pb2.EngineMeasure) -> Measure:
    return Measure(
        name=one.measure,
        value=one.value,
        low=one.min if one.HasField("min") else None,
        high=one.max if one.HasField("max") else None,
    )


def _capacity(one: engine_pb2.EngineProfile) -> Capacity:
    within = [p.latency_ms_p99 for p in one.points if p.within_slo]
    return Capacity(
        gpu_type=one.capacity.gpu_type,
        qps=one.capacity.qps_max,
        instances=one.capacity.instance_count if one.capacity.HasField("instance_count") else 1,
        latency_ms_p99=within[-1] if within else None,
        measured_at=instant(one, "measure_time"),
        tool=one.tool,
    )
