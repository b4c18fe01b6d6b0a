"""What happened to the engines of one model, as a list of entries, and the state that follows. Pure.

Promises: the same entries give the same states; the four states and every way between them are here
and nowhere else; a rule that forbids a change says which state it found and what to do. Refuses
changes to engines that are not there. Called by the catalogue, which stores the entries.

    BUILT -- gate passed --> VALIDATED -- promote --> ACTIVE -- another promoted, retire --> RETIRED
      ^______ gate failed ______|                        ^____________ rollback ______________|
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import StrEnum

from engines.errors import EngineError


class State(StrEnum):
    """Where an engine is in its life."""

    BUILT = "BUILT"
    VALIDATED = "VALIDATED"
    ACTIVE = "ACTIVE"
    RETIRED = "RETIRED"


class Change(StrEnum):
    """What one entry says."""

    BUILT = "BUILT"
    GATE_PASSED = "GATE_PASSED"
    GATE_FAILED = "GATE_FAILED"
    PROMOTED = "PROMOTED"
    ROLLED_BACK = "ROLLED_BACK"
    RETIRED = "RETIRED"
    REFERENCED = "REFERENCED"  # somebody relies on the files
    RELEASED = "RELEASED"
    REMOVED = "REMOVED"  # by garbage collection


class ForbiddenChangeError(EngineError):
    """The state of the engine does not allow this; the message says what it is and what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One change, never altered. `at` is aware UTC; `by` is who asked; fields that do not apply are None."""

    sequence: int
    at: datetime
    by: str
    change: Change
    engine_id: str
    reason: str = ""
    folder: str | None = None  # BUILT: where the files are
    manifest_digest: str | None = None  # BUILT
    target: str | None = None  # BUILT: engines of one target replace one another
    report: str | None = None  # GATE_*: name of the report in the engine's folder
    owner: str | None = None  # REFERENCED, RELEASED


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineRecord:
    """What the entries say about one engine. `gate_is_passed` is None until it was judged."""

    engine_id: str
    folder: str
    manifest_digest: str
    target: str
    state: State
    built_at: datetime
    changed_at: datetime
    gate_is_passed: bool | None = None
    gate_reason: str = ""
    gate_report: str | None = None
    active_sequences: tuple[int, ...] = ()  # when it became ACTIVE, as entries
    owners: frozenset[str] = field(default=frozenset[str]())


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelState:
    """All engines of a model after `sequence` entries, oldest first, removed ones left out."""

    sequence: int = 0
    engines: Mapping[str, EngineRecord] = field(default_factory=dict[str, EngineRecord])

    def active(self, target: str) -> EngineRecord | None:
        """The engine that serves a target; at most one does."""
        return next(
            (e for e in self.engines.values() if e.target == target and e.state is State.ACTIVE), None
        )

    def previous(self, target: str) -> EngineRecord | None:
        """What a rollback would return to: the retired engine of this target that was active last and may be."""
        retired = [
            e
            for e in self.engines.values()
            if e.target == target and e.state is State.RETIRED and e.active_sequences and e.gate_is_passed
        ]
        return max(retired, key=lambda e: e.active_sequences[-1], default=None)

    def get(self, engine_id: str) -> EngineRecord:
        """The record of an engine.

        Raises:
            ForbiddenChangeError: this model has no such engine.
        """
        if engine_id not in self.engines:
            raise ForbiddenChangeError(
                f"engine: {engine_id} is not in the catalogue; list them to see which are."
            )
        return self.engines[engine_id]


def replay(entries: Iterable[Entry], start: ModelState | None = None) -> ModelState:
    """Apply entries in order."""
    state = start or ModelState()
    for entry in entries:
        state = _apply(state, entry)
    return state


def _apply(state: ModelState, entry: Entry) -> ModelState:
    assert entry.sequence == state.sequence + 1, "entries are applied in order, without gaps"
    engines = dict(state.engines)
    if entry.change is Change.BUILT:
        assert entry.folder is not None
        assert entry.manifest_digest is not None
        assert entry.target is not None
        engines[entry.engine_id] = EngineRecord(
            engine_id=entry.engine_id,
            folder=entry.folder,
            manifest_digest=entry.manifest_digest,
            target=entry.target,
            state=State.BUILT,
            built_at=entry.at,
            changed_at=entry.at,
        )
    elif entry.change is Change.REMOVED:
        del engines[entry.engine_id]
    else:
        if entry.change in {Change.PROMOTED, Change.ROLLED_BACK}:
            target = engines[entry.engine_id].target
            for other in engines.values():
                if other.target == target and other.state is State.ACTIVE:
                    engines[other.engine_id] = replace(other, state=State.RETIRED, changed_at=entry.at)
        engines[entry.engine_id] = _changed(engines[entry.engine_id], entry)
    return ModelState(sequence=entry.sequence, engines=engines)


def _changed(record: EngineRecord, entry: Entry) -> EngineRecord:
    match entry.change:
        case Change.GATE_PASSED | Change.GATE_FAILED:
            is_passed = entry.change is Change.GATE_PASSED
            # A verdict on an engine that serves is a fact to act on, not the act itself.
            state = record.state
            if state in {State.BUILT, State.VALIDATED}:
                state = State.VALIDATED if is_passed else State.BUILT
            return replace(
                record,
                state=state,
                changed_at=entry.at,
                gate_is_passed=is_passed,
                gate_reason=entry.reason,
                gate_report=entry.report,
            )
        case Change.PROMOTED | Change.ROLLED_BACK:
            sequences = (*record.active_sequences, entry.sequence)
            return replace(record, state=State.ACTIVE, changed_at=entry.at, active_sequences=sequences)
        case Change.RETIRED:
            return replace(record, state=State.RETIRED, changed_at=entry.at)
        case Change.REFERENCED:
            return replace(record, owners=record.owners | {entry.owner or ""})
        case _:
            return replace(record, owners=record.owners - {entry.owner or ""})


def require_promotable(record: EngineRecord) -> None:
    """Raise unless the engine may become ACTIVE.

    Raises:
        ForbiddenChangeError: not validated, failed, active already, or retired.
    """
    name = f"engine: {record.engine_id}"
    if record.gate_is_passed is False:
        raise ForbiddenChangeError(
            f"{name} failed its accuracy gate ({record.gate_reason}); build a better one."
        )
    if record.state is State.BUILT:
        raise ForbiddenChangeError(f"{name} is BUILT and was never validated; validate it first.")
    if record.state is State.ACTIVE:
        raise ForbiddenChangeError(f"{name} is ACTIVE already; there is nothing to do.")
    if record.state is State.RETIRED:
        raise ForbiddenChangeError(f"{name} is RETIRED; roll back to it instead.")


def removable(
    state: ModelState, *, built_before: datetime, previous_kept: int
) -> tuple[tuple[EngineRecord, ...], Mapping[str, str]]:
    """What garbage collection may remove, and why it keeps each of the others.

    Kept are: engines that serve, engines somebody relies on, the `previous_kept` newest that a rollback
    could return to in each target, and everything built at or after `built_before`.
    """
    kept: dict[str, str] = {}
    returnable: dict[str, list[EngineRecord]] = {}
    for record in state.engines.values():
        if record.state is State.ACTIVE:
            kept[record.engine_id] = "it is ACTIVE"
        elif record.owners:
            kept[record.engine_id] = f"{', '.join(sorted(record.owners))} relies on it"
        elif record.built_at >= built_before:
            kept[record.engine_id] = "it is too young"
        elif record.active_sequences and record.gate_is_passed:
            returnable.setdefault(record.target, []).append(record)
    for records in returnable.values():
        newest = sorted(records, key=lambda e: -e.active_sequences[-1])
        kept |= {record.engine_id: "a rollback may return to it" for record in newest[:previous_kept]}
    return tuple(e for e in state.engines.values() if e.engine_id not in kept), kept
