"""Register, validate, promote and retire engines; keep what they were measured to sustain.

Promises: an engine serves only after its newest validation passed; of a model and compute capability at most one is
ACTIVE, and promoting one retires the other in the same transaction; an engine that a workload names is not retired;
an older measurement never replaces a newer one. Called by the API and, for capacity, by the loop.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime

from controller.core.engines import (
    Engine,
    EngineKind,
    EngineMeasure,
    EngineProfile,
    EngineState,
    EngineValidation,
    OptimizationProfile,
)
from controller.core.leadtime import StagePrior, with_load
from controller.core.resources import Page
from controller.core.types import CapacityProfile, Replica, Workload
from controller.ports import ConflictError, NotFoundError, Store, UnitOfWork
from controller.usecases.calls import Call, perform
from controller.usecases.errors import (
    EtagMismatchError,
    ExistsError,
    Findings,
    MissingError,
    PreconditionError,
)
from controller.usecases.filters import Field, Kind, filter_of, order_of
from controller.usecases.listing import every, listing, sorted_page
from controller.usecases.names import check_id
from controller.usecases.workload_rules import check_pairs, check_profile, check_slo

PREFIX = "engines/"
# More engines than this are a garbage collector that does not run; listings look at the first so many.
ENGINES_MAX = 10_000
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_VERSION = re.compile(r"[0-9A-Za-z][0-9A-Za-z.+-]{0,39}")
_CAPABILITY = re.compile(r"[1-9]\d?\.\d")

ENGINE_FIELDS: Mapping[str, Field[Engine]] = {
    "name": Field(lambda e: e.id, prefix=PREFIX),
    "model_name": Field(lambda e: e.model_name),
    "model_version": Field(lambda e: e.model_version),
    "digest": Field(lambda e: e.digest),
    "kind": Field(lambda e: e.kind.value, choices=tuple(EngineKind), prefix="ENGINE_KIND_"),
    "precision": Field(lambda e: e.precision.value),
    "runtime_version": Field(lambda e: e.runtime_version),
    "compute_capability": Field(lambda e: e.compute_capabilities),
    "gpu_type": Field(lambda e: e.gpu_type),
    "state": Field(lambda e: e.state.value, choices=tuple(EngineState), prefix="ENGINE_STATE_"),
    "created_by": Field(lambda e: e.created_by),
    "create_time": Field(lambda e: e.created_at, Kind.TIME),
    "update_time": Field(lambda e: e.updated_at, Kind.TIME),
    "labels": Field(lambda e: dict(e.labels), Kind.MAP),
}
_ORDERS = {"name", "create_time", "update_time"}


def check_engine(engine: Engine, findings: Findings) -> None:
    """Record everything wrong with ``engine``; field paths are relative to it."""
    check_id(findings, "name", engine.id)
    findings.text("model_name", engine.model_name, 1, 200)
    findings.require(
        engine.model_version.isdecimal()
        and engine.model_version.isascii()
        and len(engine.model_version) <= 18,
        "model_version",
        f'must be a whole number in decimal, for example "1"; got {engine.model_version[:40]!r}',
    )
    for name in ("digest", "model_digest"):
        findings.require(
            _DIGEST.fullmatch(getattr(engine, name)) is not None,
            name,
            f'must be "sha256:" and 64 hexadecimal digits in lower case; got {getattr(engine, name)[:80]!r}',
        )
    findings.require(
        _VERSION.fullmatch(engine.runtime_version) is not None,
        "runtime_version",
        'must be a version such as "10.8.0", up to 40 characters',
    )
    for name in ("cuda_version", "driver_version", "runtime_version_min"):
        findings.require(
            not getattr(engine, name) or _VERSION.fullmatch(getattr(engine, name)) is not None,
            name,
            'must be a version such as "12.8", up to 40 characters, or empty',
        )
    findings.text("gpu_type", engine.gpu_type, 0, 63)
    _check_capabilities(engine, findings)
    findings.text("uri", engine.uri, 0, 1000)
    findings.require(
        "@" not in engine.uri.partition("://")[2].partition("/")[0],
        "uri",
        "must not hold credentials; whoever loads it has their own",
    )
    findings.number("size_bytes", engine.size_bytes, 0, 1e12, unit="bytes")
    check_pairs(dict(engine.build_options), "build_options", findings, count_max=64, value_max=500)
    check_pairs(dict(engine.labels), "labels", findings, count_max=64, value_max=200)
    findings.require(
        len(engine.optimization_profiles) <= 16, "optimization_profiles", "must have at most 16 entries"
    )
    for index, profile in enumerate(engine.optimization_profiles[:16]):
        _check_shapes(profile, f"optimization_profiles[{index}]", findings)


def _check_capabilities(engine: Engine, findings: Findings) -> None:
    found = engine.compute_capabilities
    low = 0 if engine.kind is EngineKind.ONNX_RUNTIME else 1
    findings.require(
        low <= len(found) <= 16 and len(set(found)) == len(found),
        "compute_capabilities",
        f'must have {low} to 16 different entries, for example "9.0"',
    )
    for index, capability in enumerate(found[:16]):
        findings.require(
            _CAPABILITY.fullmatch(capability) is not None,
            f"compute_capabilities[{index}]",
            f'must look like "9.0"; got {capability[:20]!r}',
        )


def _check_shapes(profile: OptimizationProfile, at: str, findings: Findings) -> None:
    findings.text(f"{at}.input", profile.input, 1, 200)
    shapes = (profile.min, profile.opt, profile.max)
    if not findings.require(
        1 <= len(profile.min) <= 8 and len({len(shape) for shape in shapes}) == 1,
        f"{at}.min",
        "must have 1 to 8 dimensions, as many as opt and max",
    ):
        return
    findings.require(
        all(1 <= low <= best <= high for low, best, high in zip(*shapes, strict=True)),
        f"{at}.opt",
        "must lie between min and max in every dimension, and min must be at least 1",
    )


def _check_validation(validation: EngineValidation, findings: Findings) -> None:
    findings.require(1 <= len(validation.measures) <= 50, "validation.measures", "must have 1 to 50 entries")
    for index, measure in enumerate(validation.measures[:50]):
        _check_measure(measure, f"validation.measures[{index}]", findings)
    findings.text("validation.report_uri", validation.report_uri, 0, 1000)


def _check_measure(measure: EngineMeasure, at: str, findings: Findings) -> None:
    findings.text(f"{at}.measure", measure.measure, 1, 63)
    # A NaN is a finding, not a value: an engine that puts out NaN must not pass by having it compared.
    for name in ("value", "min", "max"):
        findings.number(f"{at}.{name}", getattr(measure, name), -1e300, 1e300)
    findings.require(
        measure.min is not None or measure.max is not None,
        f"{at}.min",
        "give min, max or both: a measure without a budget validates nothing",
    )


async def find_engine(uow: UnitOfWork, engine_id: str) -> Engine:
    """Read an engine inside a transaction; raise MissingError."""
    try:
        return await uow.engines.get(engine_id)
    except NotFoundError as error:
        raise MissingError(f"{PREFIX}{engine_id}", "list the engines, or register it first") from error


async def get_engine(store: Store, engine_id: str) -> Engine:
    """Read an engine; raise MissingError."""
    async with store.unit_of_work() as uow:
        return await find_engine(uow, engine_id)


async def list_engines(
    store: Store, page: Page, *, where: str = "", order_by: str = ""
) -> tuple[Sequence[Engine], str]:
    """One page, in the order asked for, and the token of the next; raise InvalidError."""
    wanted = filter_of(where, ENGINE_FIELDS)
    column, descending = order_of(order_by, _ORDERS, "name")
    async with store.unit_of_work() as uow:
        found = [e for e in await _all_engines(uow) if wanted.matches(e)]
    field = ENGINE_FIELDS[column]

    def key(engine: Engine) -> tuple[str, str]:
        value = field.read(engine)
        return (value.isoformat() if isinstance(value, datetime) else str(value or ""), engine.id)

    return sorted_page(found, page, key, descending=descending)


async def _all_engines(uow: UnitOfWork) -> Sequence[Engine]:
    return await every(uow.engines.list, ENGINES_MAX)


async def register_engine(store: Store, call: Call[Engine], draft: Engine) -> Engine:
    """Register an engine, BUILT; raise InvalidError or ExistsError."""
    findings = Findings("engine.")
    check_engine(draft, findings)
    findings.raise_if_any()
    engine = replace(
        draft,
        state=EngineState.BUILT,
        validation=None,
        created_by=call.principal,
        created_at=call.now,
        updated_at=call.now,
        promoted_by="",
        promoted_at=None,
        retired_reason="",
        generation=1,
    )

    async def action(uow: UnitOfWork) -> Engine:
        try:
            return await uow.engines.create(engine)
        except ConflictError as error:
            raise ExistsError(
                f"{PREFIX}{engine.id}, or one of digest {engine.digest},", "engine_id"
            ) from error

    return await perform(store, call, action)


async def validate_engine(
    store: Store, call: Call[Engine], engine_id: str, expected: int | None, validation: EngineValidation
) -> Engine:
    """Store what a validation found; raise MissingError, InvalidError, EtagMismatchError or PreconditionError."""
    findings = Findings()
    _check_validation(validation, findings)
    findings.raise_if_any()

    async def action(uow: UnitOfWork) -> Engine:
        stored = await _expect(uow, engine_id, expected)
        if stored.state in {EngineState.ACTIVE, EngineState.RETIRED}:
            raise _wrong_state(stored, "what serves or served keeps the validation it was promoted with")
        passed = all(measure.kept for measure in validation.measures)
        return await _store(
            uow,
            replace(
                stored,
                state=EngineState.VALIDATED if passed else EngineState.BUILT,
                validation=replace(
                    validation, passed=passed, validated_at=call.now, validated_by=call.principal
                ),
                updated_at=call.now,
            ),
        )

    return await perform(store, call, action)


async def promote_engine(store: Store, call: Call[Engine], engine_id: str, expected: int | None) -> Engine:
    """Make an engine the one to serve, and retire the one before; promoting it again changes nothing.

    Raise MissingError, EtagMismatchError or PreconditionError.
    """

    async def action(uow: UnitOfWork) -> Engine:
        stored = await _expect(uow, engine_id, expected)
        if stored.state is EngineState.ACTIVE:
            return stored
        if stored.validation is None or not stored.validation.passed:
            raise PreconditionError(
                "ENGINE_NOT_VALIDATED",
                f"{PREFIX}{engine_id} is {stored.state} and its newest validation has not passed; validate it first",
                {"resource": f"{PREFIX}{engine_id}"},
            )
        for other in await _all_engines(uow):
            if other.slot == stored.slot and other.state is EngineState.ACTIVE:
                reason = f"replaced by {PREFIX}{engine_id}"
                retired = replace(
                    other, state=EngineState.RETIRED, retired_reason=reason, updated_at=call.now
                )
                await _store(uow, retired)
        return await _store(
            uow,
            replace(
                stored,
                state=EngineState.ACTIVE,
                promoted_by=call.principal,
                promoted_at=call.now,
                updated_at=call.now,
                retired_reason="",
            ),
        )

    return await perform(store, call, action)


async def retire_engine(
    store: Store, call: Call[Engine], engine_id: str, expected: int | None, reason: str
) -> Engine:
    """Take an engine out of service; retiring it again changes nothing. Raise as ``promote_engine``."""
    findings = Findings()
    findings.text("reason", reason, 0, 500)
    findings.raise_if_any()

    async def action(uow: UnitOfWork) -> Engine:
        stored = await _expect(uow, engine_id, expected)
        if stored.state is EngineState.RETIRED:
            return stored
        users = sorted(
            w.name
            for w in await every(uow.workloads.list)
            if w.engine_digest == stored.digest or engine_id in named_engines(w)
        )
        if users:
            raise PreconditionError(
                "ENGINE_IN_USE",
                f"{PREFIX}{engine_id} is named by {len(users)} workload(s), {', '.join(users[:5])} among them; "
                "point them at another engine first",
                {"resource": f"{PREFIX}{engine_id}"},
            )
        return await _store(
            uow, replace(stored, state=EngineState.RETIRED, retired_reason=reason, updated_at=call.now)
        )

    return await perform(store, call, action)


async def record_profile(
    store: Store, call: Call[EngineProfile], engine_id: str, draft: EngineProfile
) -> EngineProfile:
    """Keep a measurement unless a newer one is there; return what is kept. Raise MissingError or InvalidError."""
    findings = Findings("profile.")
    check_profile(draft.capacity, "capacity", findings)
    check_slo(draft.slo, findings)
    findings.require(
        draft.measured_at <= call.now,
        "measure_time",
        f"must not be in the future; it is {call.now:%Y-%m-%dT%H:%M:%SZ}",
    )
    findings.text("tool", draft.tool, 0, 200)
    findings.require(len(draft.points) <= 200, "points", "must have at most 200 entries")
    _check_load(draft.load_s_p50, draft.load_s_p95, findings)
    for index, point in enumerate(draft.points[:200]):
        findings.number(f"points[{index}].offered_qps", point.offered_qps, 0, 1e7, above=True)
        findings.number(f"points[{index}].latency_ms_p99", point.latency_ms_p99, 0, 3_600_000)
    findings.raise_if_any()

    async def action(uow: UnitOfWork) -> EngineProfile:
        engine = await find_engine(uow, engine_id)
        capacity = replace(draft.capacity, engine=f"{PREFIX}{engine_id}", precision=engine.precision)
        return await uow.engines.put_profile(replace(draft, engine=engine_id, capacity=capacity))

    return await perform(store, call, action)


def _check_load(p50_s: float | None, p95_s: float | None, findings: Findings) -> None:
    for name, value in (("load_s_p50", p50_s), ("load_s_p95", p95_s)):
        if value is not None:
            findings.number(name, value, 0, 86_400, unit="seconds")
    both = p50_s is not None and p95_s is not None
    findings.require(
        (p50_s is None and p95_s is None) or (both and p50_s <= p95_s),  # type: ignore[operator]  # both are given
        "load_s_p95",
        "must be given with load_s_p50, and not be below it",
    )


async def list_profiles(
    store: Store, page: Page, engine_id: str | None
) -> tuple[Sequence[EngineProfile], str]:
    """One page, by engine and GPU type, and the token of the next; raise MissingError."""
    async with store.unit_of_work() as uow, listing(page):
        if engine_id is not None:
            await find_engine(uow, engine_id)
        found = await uow.engines.profiles(None if engine_id is None else [engine_id])
    return sorted_page(found, page, lambda p: (p.engine, p.capacity.gpu_type), descending=False)


async def _expect(uow: UnitOfWork, engine_id: str, expected: int | None) -> Engine:
    stored = await find_engine(uow, engine_id)
    if expected not in {None, stored.generation}:
        raise EtagMismatchError(f"{PREFIX}{engine_id}", "etag")
    return stored


async def _store(uow: UnitOfWork, engine: Engine) -> Engine:
    try:
        return await uow.engines.update(engine, expected_generation=engine.generation)
    except ConflictError as error:
        raise EtagMismatchError(f"{PREFIX}{engine.id}", "etag") from error


def _wrong_state(engine: Engine, why: str) -> PreconditionError:
    return PreconditionError(
        "ENGINE_STATE",
        f"{PREFIX}{engine.id} is {engine.state}: {why}",
        {"resource": f"{PREFIX}{engine.id}", "state": engine.state.value},
    )


# ---------------------------------------------------------------- capacity of workloads


def named_engines(workload: Workload) -> frozenset[str]:
    """Ids of the registered engines that a workload's profiles name."""
    return frozenset(p.engine.removeprefix(PREFIX) for p in workload.profiles if p.engine.startswith(PREFIX))


async def measured_profiles(
    uow: UnitOfWork, workloads: Sequence[Workload]
) -> Mapping[tuple[str, str], EngineProfile]:
    """Measurements of ACTIVE engines that these workloads name, by (engine id, GPU type); reads nothing if none does."""
    named = sorted(frozenset[str]().union(*(named_engines(w) for w in workloads)))
    if not named:
        return {}
    active = [e.id for e in await _all_engines(uow) if e.state is EngineState.ACTIVE and e.id in named]
    return {
        (profile.engine, profile.capacity.gpu_type): profile for profile in await uow.engines.profiles(active)
    }


def with_measured(workload: Workload, measured: Mapping[tuple[str, str], EngineProfile]) -> Workload:
    """The workload with the measured figures of the engines it names; where there are none, its own stand."""
    if not named_engines(workload):
        return workload
    found = [(p, _measured_of(p, measured)) for p in workload.profiles]
    profiles = tuple(own if known is None else known.capacity for own, known in found)
    return workload if profiles == workload.profiles else replace(workload, profiles=profiles)


def replicas_as_measured(workload: Workload, replicas: Sequence[Replica]) -> tuple[Replica, ...]:
    """The replicas with the workload's present figures of their engine and GPU: what was measured since they started.

    One whose engine the workload no longer names keeps the figures it was ordered with.
    """
    if not named_engines(workload):
        return tuple(replicas)
    figures = {(p.engine, p.gpu_type): p for p in workload.profiles}

    def present(replica: Replica) -> Replica:
        own = replica.profile
        known = None if own is None else figures.get((own.engine, own.gpu_type), own)
        return replica if known == own else replace(replica, profile=known)

    return tuple(map(present, replicas))


def _measured_of(
    profile: CapacityProfile, measured: Mapping[tuple[str, str], EngineProfile]
) -> EngineProfile | None:
    return measured.get((profile.engine.removeprefix(PREFIX), profile.gpu_type))


def measured_loads(
    workloads: Sequence[Workload], measured: Mapping[tuple[str, str], EngineProfile]
) -> Mapping[str, tuple[float, float]]:
    """P50 and P95 seconds to load the engine that a workload's new replicas get, by workload, where measured."""
    loads: dict[str, tuple[float, float]] = {}
    for workload in workloads if measured else ():
        known = _measured_of(workload.profile, measured) if workload.profiles else None
        if known is not None and known.load_s_p50 is not None and known.load_s_p95 is not None:
            loads[workload.name] = known.load_s_p50, known.load_s_p95
    return loads


async def lead_priors(
    uow: UnitOfWork, workload: Workload, priors: Sequence[StagePrior]
) -> Sequence[StagePrior]:
    """What to assume of a workload's starts before any: the priors, with the measured load of its engine."""
    load = measured_loads([workload], await measured_profiles(uow, [workload])).get(workload.name)
    return priors if load is None else with_load(priors, *load)


async def resolved_workload(uow: UnitOfWork, name: str) -> Workload:
    """Read a workload as the loop sees it, with measured figures; raise NotFoundError."""
    workload = await uow.workloads.get(name)
    return with_measured(workload, await measured_profiles(uow, [workload]))
