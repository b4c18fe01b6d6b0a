"""The catalogue of built engines: what there is, what it was made from, and which one serves.

Promises: files and entries are never changed; whoever appends an entry first wins, and the other one
sees the new state before it tries again, so two writers never both promote; a reader sees an engine
complete or not at all; garbage collection first says in the journal what it removes, so that nothing can
be promoted away under it. Refuses what the state of an engine forbids (`journal`), manifests that are
not the recorded ones, and unsigned engines where signatures are required. Takes `at` from its callers
and reads no clock. Called by the pipeline, the controller and the command line.

    models/<model>/journal/00000001.json     entries, one after the other
    models/<model>/engines/<folder>/         manifest.json, engine file, graph, reports; <folder> is <engine id>-<nonce>
"""

import re
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from pathlib import Path

from engines.checks import check_file
from engines.compatibility import EngineFacts, Node, Objection, Rejection, Selection, check, select
from engines.errors import EngineError, EngineInputError
from engines.journal import (
    Change,
    EngineRecord,
    Entry,
    ForbiddenChangeError,
    ModelState,
    State,
    removable,
    replay,
    require_promotable,
)
from engines.keys import content_digest, file_digest
from engines.signing import is_signed, sign
from engines.storage import Storage, open_storage
from engines.types import BuildOptions, LayerInfo, RuntimeKind, TensorInfo, Toolchain, from_json, to_json
from engines.validation import GateReport

SCHEMA = 1
# An upload becomes an engine with its entry; until then it must not look abandoned, however slow it is.
ORPHAN_AGE_MIN = timedelta(hours=1)
ATTEMPTS = 20  # of appending while others append too
ENTRIES_MAX = 99_999_999
MANIFEST, SIGNATURE, GRAPH = "manifest.json", "manifest.sig", "graph.onnx"
_FILE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}")
_MODEL_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}")


class ConflictError(EngineError):
    """Somebody else changed the model's engines meanwhile; nothing was done."""


class RejectedError(EngineError):
    """The engine itself is not fit; `objection` says why."""

    def __init__(self, objection: Objection) -> None:
        super().__init__(f"engine: {objection}.")
        self.objection = objection


class NoEngineError(EngineError):
    """No engine of the model serves the node; `selection` says why, for each."""

    def __init__(self, model: str, selection: Selection) -> None:
        reasons = "; ".join(
            f"{engine_id[:10]}: {', '.join(o.rejection for o in objections)}"
            for engine_id, objections in selection.objections.items()
        )
        super().__init__(
            f"engine: none of {model} serves this node ({reasons or 'there is none'}); build one for it."
        )
        self.model, self.selection = model, selection

    @property
    def objection(self) -> Objection:
        """What speaks against the engine that comes closest: the newest ACTIVE one, else the newest."""
        found = list(self.selection.objections.items())[::-1]
        if not found:
            return Objection(Rejection.NO_ENGINE, f"the catalogue has no engine of {self.model}")
        active = (o for o in found if all(held.rejection is not Rejection.NOT_ACTIVE for held in o[1]))
        engine_id, objections = next(active, found[0])
        return Objection(objections[0].rejection, f"engine {engine_id[:10]}: {objections[0].sentence}")


@dataclass(frozen=True, slots=True, kw_only=True)
class FileRecord:
    """Digest and size of one file of an engine."""

    digest: str
    size_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """What an engine is and where it comes from; never changed after the build."""

    schema: int = SCHEMA
    engine_id: str
    model: str
    model_digest: str
    options: BuildOptions
    toolchain: Toolchain
    runtime_version_min: str | None
    inputs: tuple[TensorInfo, ...]
    outputs: tuple[TensorInfo, ...]
    files: Mapping[str, FileRecord]
    engine_file: str
    layers: tuple[LayerInfo, ...]
    layers_from: str
    notes: tuple[str, ...] = ()
    build_ms: float
    built_at: datetime
    built_by: str
    provenance: Mapping[str, str] = field(
        default_factory=dict[str, str]
    )  # source file name, package versions

    @property
    def digest(self) -> str:
        """Digest of the engine file: what a serving replica must report."""
        return self.files[self.engine_file].digest

    @property
    def target(self) -> str:
        """What the engine is for; engines of one target replace one another."""
        capabilities = "+".join(self.options.compute_capabilities) or "cpu"
        return f"{self.options.runtime}:{capabilities}"

    def __post_init__(self) -> None:
        for name in (*self.files, self.engine_file):
            # Names become paths on the machine that fetches, and a catalogue may be anybody's.
            if not _FILE_NAME.fullmatch(name):
                raise EngineInputError("manifest.files", f"{name!r} is no plain file name", "build it again")

    def facts(self) -> EngineFacts:
        """What compatibility asks."""
        return EngineFacts(
            engine_id=self.engine_id,
            digest=self.digest,
            runtime=self.options.runtime,
            runtime_version=self.toolchain.version,
            runtime_version_min=self.runtime_version_min,
            compute_capabilities=self.options.compute_capabilities,
            hardware_compatibility=self.options.hardware_compatibility,
            version_compatible=self.options.version_compatible,
            inputs=self.inputs,
            profiles=self.options.profiles,
            gpu=self.toolchain.gpu,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Engine:
    """One engine of the catalogue: its unchanging manifest and its present state."""

    manifest: Manifest
    record: EngineRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class Collected:
    """What garbage collection removed, why it kept the rest, and folders no engine belonged to."""

    removed: tuple[str, ...]
    kept: Mapping[str, str]
    orphans: tuple[str, ...]


class Catalog:
    """Engines below one location. `trusted_keys` not None: only engines signed by one of them count."""

    def __init__(self, storage: Storage | str | Path, *, trusted_keys: Sequence[Path] | None = None) -> None:
        self._storage = open_storage(str(storage)) if isinstance(storage, str | Path) else storage
        self._trusted = trusted_keys
        # Entries and manifests never change, so what was read once is read for good.
        self._states: dict[str, ModelState] = {}
        self._manifests: dict[str, Manifest] = {}

    @property
    def location(self) -> str:
        """Where it is, as the user wrote it."""
        return self._storage.location

    def models(self) -> list[str]:
        """Names of all models, sorted."""
        return self._storage.names("models")

    def state(self, model: str) -> ModelState:
        """The engines of a model as of now; none where the model is unknown."""
        state = self._states.get(_named(model), ModelState())
        entries: list[Entry] = []
        while len(entries) <= ENTRIES_MAX:
            number = state.sequence + len(entries) + 1
            try:
                content = self._storage.read(f"{_journal(model)}/{number:08}.json")
            except FileNotFoundError:
                break
            entries.append(from_json(Entry, content, f"journal.{number}"))
        self._states[model] = replay(entries, state)
        return self._states[model]

    def find(self, engine_id: str, model: str | None = None) -> Engine:
        """The engine with this id, or the only one whose id begins so.

        Raises:
            EngineInputError: none, or several.
        """
        matches = [
            (name, record)
            for name in ([model] if model else self.models())
            for record in self.state(name).engines.values()
            if record.engine_id.startswith(engine_id)
        ]
        if len(matches) != 1 or not engine_id:
            problem = (
                f"{engine_id!r} is no engine" if not matches else f"{engine_id!r} is {len(matches)} engines"
            )
            raise EngineInputError("engine", f"{problem} of {self.location}", "see `forecrest engine list`")
        return Engine(manifest=self._manifest(*matches[0]), record=matches[0][1])

    def engines(self, model: str) -> list[Engine]:
        """All engines of a model, oldest first."""
        records = self.state(model).engines.values()
        return [Engine(manifest=self._manifest(model, record), record=record) for record in records]

    def _manifest(self, model: str, record: EngineRecord) -> Manifest:
        if record.manifest_digest not in self._manifests:
            path = f"{_folder(model, record.folder)}/{MANIFEST}"
            try:
                content = self._storage.read(path)
            except FileNotFoundError as error:
                raise RejectedError(Objection(Rejection.FILE_MISSING, f"{path} is gone")) from error
            found = content_digest(content)
            if found != record.manifest_digest:
                sentence = f"{path} is {found}, recorded is {record.manifest_digest}"
                raise RejectedError(Objection(Rejection.CORRUPTED, sentence))
            if self._trusted is not None:
                self._check_signature(model, record, content, self._trusted)
            self._manifests[record.manifest_digest] = from_json(Manifest, content, "manifest")
        return self._manifests[record.manifest_digest]

    def _check_signature(
        self, model: str, record: EngineRecord, content: bytes, trusted: Sequence[Path]
    ) -> None:
        try:
            signature = self._storage.read(f"{_folder(model, record.folder)}/{SIGNATURE}")
        except FileNotFoundError:
            sentence = f"engine {record.engine_id} has no signature, and one is required"
            raise RejectedError(Objection(Rejection.UNSIGNED, sentence)) from None
        if not is_signed(content, signature, trusted):
            sentence = f"engine {record.engine_id} is signed by no trusted key, or was changed since"
            raise RejectedError(Objection(Rejection.BAD_SIGNATURE, sentence))

    def publish(
        self,
        manifest: Manifest,
        files: Mapping[str, Path],
        *,
        by: str,
        signing_key: Path | None = None,
    ) -> tuple[Engine, bool]:
        """Add an engine; the flag is False where an engine of this id was there before, which then stays.

        Raises:
            EngineInputError: the manifest does not describe these files.
        """
        _check_described(manifest, files)
        existing = self.state(manifest.model).engines.get(manifest.engine_id)
        if existing is not None:
            return Engine(manifest=self._manifest(manifest.model, existing), record=existing), False
        # A folder of its own per attempt: whatever happens to another one cannot touch this.
        folder = f"{manifest.engine_id}-{secrets.token_hex(4)}"
        place = _folder(manifest.model, folder)
        content = to_json(manifest).encode()
        for name, path in files.items():
            self._storage.create(f"{place}/{name}", path)
        if signing_key is not None:
            self._storage.create(f"{place}/{SIGNATURE}", sign(content, signing_key))
        self._storage.create(f"{place}/{MANIFEST}", content)

        def entry(state: ModelState) -> Entry | None:
            if manifest.engine_id in state.engines:
                return None
            return Entry(
                sequence=state.sequence + 1,
                at=manifest.built_at,
                by=by,
                change=Change.BUILT,
                engine_id=manifest.engine_id,
                folder=folder,
                manifest_digest=content_digest(content),
                target=manifest.target,
            )

        state = self._append(manifest.model, entry)
        record = state.engines[manifest.engine_id]
        is_ours = record.folder == folder
        if not is_ours:  # another writer built the same and was faster
            self._storage.remove(place)
        return Engine(manifest=self._manifest(manifest.model, record), record=record), is_ours

    def record_gate(
        self, model: str, engine_id: str, report: GateReport, *, page: str, at: datetime, by: str
    ) -> EngineRecord:
        """Store an accuracy verdict and its page: passed makes VALIDATED, failed makes BUILT again.

        An engine that serves keeps serving; its failed verdict forbids returning to it later.
        """
        content = to_json(report).encode()
        name = f"gate-{content_digest(content)[7:19]}"
        place = _folder(model, self.state(model).get(engine_id).folder)
        for suffix, text in (("json", content), ("html", page.encode())):
            # The same verdict twice is one report.
            try:
                self._storage.create(f"{place}/{name}.{suffix}", text)
            except FileExistsError:
                continue
        change = Change.GATE_PASSED if report.is_passed else Change.GATE_FAILED
        reason = "; ".join(report.reasons) or f"every budget holds, {report.ran}"
        made = _entry(change, engine_id, at, by, reason=reason, report=name)

        def entry(state: ModelState) -> Entry:
            state.get(engine_id)  # raises where garbage collection was faster
            return made(state)

        return self._append(model, entry).get(engine_id)

    def promote(
        self,
        model: str,
        engine_id: str,
        *,
        at: datetime,
        by: str,
        reason: str = "",
        nodes: Sequence[Node] = (),
        expected_sequence: int | None = None,
    ) -> EngineRecord:
        """Make a validated engine ACTIVE and retire the one it replaces, in one step.

        `nodes` are those it is meant for: it must serve each of them. `expected_sequence` is the state the
        caller decided on.

        Raises:
            ForbiddenChangeError: its state does not allow it.
            RejectedError: it does not serve a node, or its files are not what was built.
            ConflictError: the state is no longer the expected one.
        """
        record = self.state(model).get(engine_id)
        require_promotable(record)
        self.require_sound(model, record, nodes)

        def entry(state: ModelState) -> Entry | None:
            require_promotable(state.get(engine_id))
            return _entry(Change.PROMOTED, engine_id, at, by, reason=reason)(state)

        return self._append(model, entry, expected_sequence).get(engine_id)

    def rollback(
        self, model: str, target: str, *, at: datetime, by: str, reason: str = "", to: str | None = None
    ) -> EngineRecord:
        """Return to the engine that was active before in this target, or to the retired engine `to`.

        Raises:
            ForbiddenChangeError: there is none to return to.
            RejectedError: its files are not what was built.
        """

        def chosen(state: ModelState) -> EngineRecord:
            if to is None:
                record = state.previous(target)
                if record is None:
                    raise ForbiddenChangeError(
                        f"target: {target} has no earlier engine to return to; promote one instead."
                    )
                return record
            record = state.get(to)
            if record.target != target or record.state is not State.RETIRED or not record.gate_is_passed:
                raise ForbiddenChangeError(
                    f"engine: {to} is {record.state} in {record.target}; choose a retired one of {target} "
                    "that passed its gate."
                )
            return record

        self.require_sound(model, chosen(self.state(model)))

        def entry(state: ModelState) -> Entry:
            return _entry(Change.ROLLED_BACK, chosen(state).engine_id, at, by, reason=reason)(state)

        state = self._append(model, entry)
        active = state.active(target)
        assert active is not None
        return active

    def retire(self, model: str, engine_id: str, *, at: datetime, by: str, reason: str = "") -> EngineRecord:
        """Take an engine out of service without a successor.

        Raises:
            ForbiddenChangeError: it is retired already.
        """

        def entry(state: ModelState) -> Entry:
            if state.get(engine_id).state is State.RETIRED:
                raise ForbiddenChangeError(f"engine: {engine_id} is RETIRED already; there is nothing to do.")
            return _entry(Change.RETIRED, engine_id, at, by, reason=reason)(state)

        return self._append(model, entry).get(engine_id)

    def reference(self, model: str, engine_id: str, owner: str, *, at: datetime, by: str) -> None:
        """Say that `owner` relies on the engine's files, until `release`; twice is once."""

        def entry(state: ModelState) -> Entry | None:
            if owner in state.get(engine_id).owners:
                return None
            return _entry(Change.REFERENCED, engine_id, at, by, owner=owner)(state)

        self._append(model, entry)

    def release(self, model: str, engine_id: str, owner: str, *, at: datetime, by: str) -> None:
        """Say that `owner` relies on it no longer; harmless where it did not."""

        def entry(state: ModelState) -> Entry | None:
            record = state.engines.get(engine_id)
            if record is None or owner not in record.owners:
                return None
            return _entry(Change.RELEASED, engine_id, at, by, owner=owner)(state)

        self._append(model, entry)

    def fetch(self, engine: Engine, folder: Path, *, expected_digest: str | None = None) -> Path:
        """Copy the engine file into `folder`, checked; a copy is complete and right, or not made at all.

        A file of that name which was there before stays as it is when the engine is refused.

        Raises:
            RejectedError: it is not the expected engine, or not the file that was built.
        """
        manifest = engine.manifest
        if expected_digest is not None and manifest.digest != expected_digest:
            sentence = f"the engine is {manifest.digest}, ordered was {expected_digest}"
            raise RejectedError(Objection(Rejection.WRONG_DIGEST, sentence))
        return self.fetch_file(engine, manifest.engine_file, folder)

    def fetch_file(self, engine: Engine, name: str, folder: Path) -> Path:
        """Copy one of the engine's files, such as `GRAPH`, into `folder`, checked as `fetch` does."""
        manifest = engine.manifest
        folder.mkdir(parents=True, exist_ok=True)
        fresh = folder / f".{secrets.token_hex(8)}"
        path = f"{_folder(manifest.model, engine.record.folder)}/{name}"
        try:
            try:
                self._storage.fetch(path, fresh)
            except FileNotFoundError as error:
                raise RejectedError(Objection(Rejection.FILE_MISSING, f"{path} is gone")) from error
            expected = manifest.files[name]
            objection = check_file(fresh, digest=expected.digest, size_bytes=expected.size_bytes)
            if objection is not None:
                sentence = objection.sentence.replace(str(fresh), path)
                raise RejectedError(Objection(objection.rejection, sentence))
            return fresh.replace(folder / name)
        finally:
            fresh.unlink(missing_ok=True)

    def read_report(self, engine: Engine, suffix: str = "json") -> bytes:
        """The newest gate report, as `json` or `html`.

        Raises:
            EngineInputError: the engine was never judged.
        """
        if engine.record.gate_report is None:
            raise EngineInputError(
                "engine", f"{engine.record.engine_id} was never judged", "validate it first"
            )
        place = _folder(engine.manifest.model, engine.record.folder)
        return self._storage.read(f"{place}/{engine.record.gate_report}.{suffix}")

    def select(
        self, model: str, node: Node, *, shapes: Mapping[str, tuple[int, ...]] | None = None
    ) -> Selection:
        """Which ACTIVE engine of the model serves a node, and what speaks against every other engine."""
        return select(
            [(e.manifest.facts(), _state_objections(e.record)) for e in self.engines(model)],
            node,
            shapes=shapes,
        )

    def engine_for(
        self,
        model: str,
        node: Node,
        *,
        expected_digest: str | None = None,
        shapes: Mapping[str, tuple[int, ...]] | None = None,
    ) -> Engine:
        """The engine to prewarm a node with: ACTIVE, compatible, and the ordered one. No file is read.

        Raises:
            RejectedError: the ordered engine does not serve the node, or is unknown.
            NoEngineError: none was ordered, and none serves the node; it holds the reasons.
        """
        selection = self.select(model, node, shapes=shapes)
        if expected_digest is None:
            if selection.chosen is None:
                raise NoEngineError(model, selection)
            return self.find(selection.chosen, model)
        chosen = "none" if selection.chosen is None else self.find(selection.chosen, model).manifest.digest
        ordered = [e for e in self.engines(model) if e.manifest.digest == expected_digest]
        for engine in ordered[::-1]:
            objections = selection.objections.get(engine.record.engine_id)
            if objections is None:
                return engine
            # That another one was promoted meanwhile is no fault of the ordered engine.
            if selection.chosen is None or objections[0].rejection is not Rejection.NOT_ACTIVE:
                raise RejectedError(objections[0])
        sentence = f"the engine for this node is {chosen}, ordered was {expected_digest}"
        raise RejectedError(Objection(Rejection.WRONG_DIGEST, sentence))

    def require_sound(self, model: str, record: EngineRecord, nodes: Sequence[Node] = ()) -> None:
        """Read the whole file and compare it with the record; compare the record with the nodes.

        Raises:
            RejectedError: it is not what was built, or does not serve a node.
        """
        manifest = self._manifest(model, record)
        for node in nodes:
            for objection in check(manifest.facts(), node):
                raise RejectedError(objection)
        import tempfile  # noqa: PLC0415 - needed here alone

        with tempfile.TemporaryDirectory(prefix="forecrest-engine-") as folder:
            self.fetch(Engine(manifest=manifest, record=record), Path(folder))

    def collect_garbage(
        self,
        model: str,
        *,
        at: datetime,
        by: str,
        min_age: timedelta,
        previous_kept: int = 1,
        is_dry_run: bool = False,
    ) -> Collected:
        """Remove engines that nobody needs, and what broken uploads left.

        Kept are: ACTIVE and referenced engines, the `previous_kept` that a rollback could return to in each
        target, and whatever is younger than `min_age`. An upload without an entry is an orphan once its
        manifest is older than `min_age` and `ORPHAN_AGE_MIN`.
        """
        before = at - min_age
        state = self.state(model)
        candidates, kept = removable(state, built_before=before, previous_kept=previous_kept)
        removed: list[str] = []
        for candidate in candidates:
            if is_dry_run:
                removed.append(candidate.engine_id)
                continue

            def entry(now: ModelState, record: EngineRecord = candidate) -> Entry | None:
                still, _ = removable(now, built_before=before, previous_kept=previous_kept)
                if record.engine_id not in {e.engine_id for e in still}:
                    return None
                return _entry(Change.REMOVED, record.engine_id, at, by, reason="not needed")(now)

            after = self._append(model, entry)
            if candidate.engine_id not in after.engines:
                self._storage.remove(_folder(model, candidate.folder))
                removed.append(candidate.engine_id)
        orphans = self._orphans(model, min(before, at - ORPHAN_AGE_MIN))
        for folder in () if is_dry_run else orphans:
            self._storage.remove(_folder(model, folder))
        return Collected(removed=tuple(removed), kept=kept, orphans=orphans)

    def _orphans(self, model: str, before: datetime) -> tuple[str, ...]:
        """Folders of no engine whose manifest is older than `before`; unfinished uploads have none and stay."""
        known = {record.folder for record in self.state(model).engines.values()}
        found: list[str] = []
        for folder in self._storage.names(f"models/{model}/engines"):
            if folder in known:
                continue
            try:
                content = self._storage.read(f"{_folder(model, folder)}/{MANIFEST}")
                built_at = from_json(Manifest, content, "manifest").built_at
            except (FileNotFoundError, EngineInputError):
                continue
            if built_at < before:
                found.append(folder)
        return tuple(found)

    def _append(
        self,
        model: str,
        make: Callable[[ModelState], Entry | None],
        expected_sequence: int | None = None,
    ) -> ModelState:
        """Append what `make` decides on the present state; None leaves it as it is."""
        for _ in range(ATTEMPTS):
            state = self.state(model)
            if expected_sequence is not None and state.sequence != expected_sequence:
                raise ConflictError(
                    f"catalog: {model} is at entry {state.sequence}, not {expected_sequence}; look again and decide."
                )
            entry = make(state)
            if entry is None:
                return state
            try:
                self._storage.create(f"{_journal(model)}/{entry.sequence:08}.json", to_json(entry).encode())
            except FileExistsError:
                continue
            return self.state(model)
        raise ConflictError(f"catalog: {model} changed {ATTEMPTS} times meanwhile; try again.")


def _named(model: str) -> str:
    if not _MODEL_NAME.fullmatch(model):
        raise EngineInputError(
            "model name",
            f"{model!r}",
            "use letters, digits, '_', '.' and '-', at most 100, not led by a sign",
        )
    return model


def _journal(model: str) -> str:
    return f"models/{_named(model)}/journal"


def _folder(model: str, folder: str) -> str:
    return f"models/{_named(model)}/engines/{folder}"


def _entry(
    change: Change,
    engine_id: str,
    at: datetime,
    by: str,
    *,
    reason: str = "",
    report: str | None = None,
    owner: str | None = None,
) -> Callable[[ModelState], Entry]:
    draft = Entry(
        sequence=0,
        at=at,
        by=by,
        change=change,
        engine_id=engine_id,
        reason=reason,
        report=report,
        owner=owner,
    )
    return lambda state: replace(draft, sequence=state.sequence + 1)


def _check_described(manifest: Manifest, files: Mapping[str, Path]) -> None:
    if set(files) != set(manifest.files) or manifest.engine_file not in files:
        raise EngineInputError(
            "manifest.files",
            f"names {sorted(manifest.files)}, given are {sorted(files)}",
            "describe every file",
        )
    for name, path in files.items():
        if (file_digest(path), path.stat().st_size) != (
            manifest.files[name].digest,
            manifest.files[name].size_bytes,
        ):
            raise EngineInputError(
                f"manifest.files.{name}", "is not the file that is given", "describe it anew"
            )


def _state_objections(record: EngineRecord) -> tuple[Objection, ...]:
    found: list[Objection] = []
    if record.state is not State.ACTIVE:
        found.append(Objection(Rejection.NOT_ACTIVE, f"the engine is {record.state}"))
    if record.gate_is_passed is False:
        found.append(
            Objection(Rejection.GATE_NOT_PASSED, f"it failed its accuracy gate: {record.gate_reason}")
        )
    return tuple(found)


def describe_file(path: Path) -> FileRecord:
    """Digest and size of a file that is about to be published."""
    return FileRecord(digest=file_digest(path), size_bytes=path.stat().st_size)


def runtime_version_min(runtime: RuntimeKind, opset: int) -> str | None:
    """Oldest ONNX Runtime that serves a graph of this operator set; None: the one that built it.

    ONNX Runtime 1.13 and 1.18 are the first whose operators cover the sets 17 and 21.
    """
    if runtime is not RuntimeKind.ONNX_RUNTIME:
        return None
    return "1.13" if opset <= 17 else "1.18" if opset <= 21 else None
