"""The catalogue with real engines: publishing, promotion, rollback, garbage, signatures, and many writers."""

import multiprocessing
import uuid
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from engines.builder import Progress
from engines.catalog import MANIFEST, SIGNATURE, Catalog, ConflictError, NoEngineError, RejectedError
from engines.compatibility import Node, Rejection
from engines.errors import EngineError, EngineInputError
from engines.examples import Example
from engines.journal import ForbiddenChangeError, State
from engines.onnx_artifact import OnnxArtifactBuilder
from engines.pipeline import BuildRequest
from engines.triton_repository import build_repository
from engines.types import BuildOptions, BuiltEngine, Precision, RuntimeKind, TensorInfo
from tests.integration.engines.workshop import NOW, Workshop

CPU = "ONNX_RUNTIME:cpu"
AT = {"at": NOW, "by": "a test"}


def build_two(workshop: Workshop, catalog: Catalog | None = None) -> tuple[str, str]:
    """Two engines of one model and target: FP32 and FP16, both validated."""
    return workshop.admit("cnn", catalog=catalog), workshop.admit("cnn", Precision.FP16, catalog=catalog)


def states(catalog: Catalog) -> dict[str, State]:
    return {name: record.state for name, record in catalog.state("cnn").engines.items()}


@pytest.fixture(params=["folder", "memory"])
def catalog(request: pytest.FixtureRequest, tmp_path: Path) -> Catalog:
    if request.param == "memory":
        pytest.importorskip("fsspec", reason="fsspec is not installed")
        return Catalog(f"memory://{uuid.uuid4().hex}")
    return Catalog(tmp_path / "kept")


def test_promotion_and_rollback(workshop: Workshop, catalog: Catalog, tmp_path: Path) -> None:
    first, second = build_two(workshop, catalog)

    catalog.promote("cnn", first, **AT, reason="first")
    assert {first: State.ACTIVE, second: State.VALIDATED} == states(catalog)
    catalog.promote("cnn", second, **AT)
    assert {first: State.RETIRED, second: State.ACTIVE} == states(catalog)
    assert first == catalog.rollback("cnn", CPU, **AT, reason="wrong scores").engine_id
    assert {first: State.ACTIVE, second: State.RETIRED} == states(catalog)
    # Another reader of the same place sees the same.
    assert catalog.state("cnn").engines == Catalog(catalog._storage).state("cnn").engines
    found = catalog.find(first[:8])
    assert catalog.fetch(found, tmp_path / "served", expected_digest=found.manifest.digest).exists()


def test_a_rollback_to_a_named_engine(workshop: Workshop) -> None:
    first, second = build_two(workshop)
    catalog = workshop.catalog
    catalog.promote("cnn", first, **AT)
    catalog.promote("cnn", second, **AT)

    assert first == catalog.rollback("cnn", CPU, **AT, to=first).engine_id
    with pytest.raises(ForbiddenChangeError, match="is ACTIVE in ONNX_RUNTIME:cpu; choose a retired one"):
        catalog.rollback("cnn", CPU, **AT, to=first)
    catalog.retire("cnn", first, **AT)
    with pytest.raises(ForbiddenChangeError, match="RETIRED already"):
        catalog.retire("cnn", first, **AT)


def test_a_rollback_without_a_past_is_refused(workshop: Workshop) -> None:
    first, _ = build_two(workshop)
    workshop.catalog.promote("cnn", first, **AT)

    with pytest.raises(ForbiddenChangeError, match="no earlier engine to return to"):
        workshop.catalog.rollback("cnn", CPU, **AT)


def test_a_decision_on_an_old_state_is_refused(workshop: Workshop) -> None:
    first, second = build_two(workshop)
    seen = workshop.catalog.state("cnn").sequence
    workshop.catalog.promote("cnn", first, **AT, expected_sequence=seen)

    with pytest.raises(ConflictError, match="look again and decide"):
        workshop.catalog.promote("cnn", second, **AT, expected_sequence=seen)
    assert {first: State.ACTIVE, second: State.VALIDATED} == states(workshop.catalog)


def _promote(location: str, engine_id: str, gate: object) -> None:
    gate.wait()  # type: ignore[attr-defined]  # a Barrier of the context that started us
    try:
        Catalog(location).promote("cnn", engine_id, at=NOW, by=engine_id)
    except ForbiddenChangeError:
        raise SystemExit(3) from None


def test_writers_in_different_processes_leave_one_active_engine(workshop: Workshop, tmp_path: Path) -> None:
    first, second = build_two(workshop)
    context = multiprocessing.get_context("spawn")
    gate = context.Barrier(4)
    jobs = [
        context.Process(target=_promote, args=(str(tmp_path / "catalog"), engine_id, gate))
        for engine_id in (first, second, first, second)
    ]
    for job in jobs:
        job.start()
    for job in jobs:
        job.join()

    # Each engine was promoted once, and whoever came second found it ACTIVE or RETIRED.
    assert [0, 0, 3, 3] == sorted(job.exitcode or 0 for job in jobs)
    assert {State.ACTIVE, State.RETIRED} == set(states(workshop.catalog).values())


def test_the_same_engine_published_twice_is_one(workshop: Workshop, tmp_path: Path) -> None:
    made = workshop.build("cnn", request=lambda r: replace(r, validation=None)).engine
    names = made.manifest.files
    files = {name: workshop.catalog.fetch_file(made, name, tmp_path / "again") for name in names}

    again, is_new = workshop.catalog.publish(made.manifest, files, by="another")

    assert not is_new
    assert made == again
    assert 1 == len(list((tmp_path / "catalog/models/cnn/engines").iterdir()))
    with pytest.raises(EngineInputError, match="describe every file"):
        workshop.catalog.publish(made.manifest, {}, by="another")
    files["model.onnx"].write_bytes(b"other")
    with pytest.raises(EngineInputError, match="is not the file that is given"):
        workshop.catalog.publish(made.manifest, files, by="another")


LATER = NOW + timedelta(days=30)


def test_garbage_collection_keeps_what_is_needed(workshop: Workshop, catalog: Catalog) -> None:
    first, second = build_two(workshop, catalog)
    third = workshop.admit("cnn", Precision.INT8, catalog=catalog)
    fourth = workshop.admit("cnn", kept_layers=("logits",), catalog=catalog)
    catalog.promote("cnn", first, **AT)
    catalog.promote("cnn", second, **AT)
    catalog.reference("cnn", third, "workloads/recommender", **AT)

    def collect(**options: object) -> tuple[str, ...]:
        return catalog.collect_garbage("cnn", at=LATER, by="gc", min_age=timedelta(days=7), **options).removed

    assert () == catalog.collect_garbage("cnn", at=NOW, by="gc", min_age=timedelta(days=7)).removed
    assert (fourth,) == collect(is_dry_run=True)
    assert (fourth,) == collect()
    assert () == collect()
    assert [first, second, third] == list(catalog.state("cnn").engines)
    catalog.release("cnn", third, "workloads/recommender", **AT)
    catalog.release("cnn", third, "workloads/recommender", **AT)
    assert (third,) == collect()
    # What was removed can be built again.
    again = workshop.build("cnn", Precision.INT8, catalog=catalog)
    assert again.is_new
    assert third == again.engine.manifest.engine_id


def test_a_reference_taken_while_garbage_is_collected_saves_the_engine(workshop: Workshop) -> None:
    first, _ = build_two(workshop)
    catalog = workshop.catalog
    stale = Catalog(workshop.catalog._storage)
    before = stale.state("cnn").sequence
    # Between reading and removing, somebody comes to rely on the engine.
    catalog.reference("cnn", first, "workloads/new", **AT)
    assert before < catalog.state("cnn").sequence

    removed = stale.collect_garbage("cnn", at=LATER, by="gc", min_age=timedelta(0)).removed

    assert first not in removed
    assert first in catalog.state("cnn").engines


def test_uploads_that_nobody_finished_are_removed_when_old(workshop: Workshop, tmp_path: Path) -> None:
    made = workshop.build("cnn").engine
    engines = tmp_path / "catalog/models/cnn/engines"
    orphan = engines / "abandoned-1"
    orphan.mkdir()
    (orphan / MANIFEST).write_bytes((engines / made.record.folder / MANIFEST).read_bytes())
    (engines / "unfinished-1").mkdir()

    collected = workshop.catalog.collect_garbage("cnn", at=LATER, by="gc", min_age=timedelta(days=7))

    assert ("abandoned-1",) == collected.orphans
    assert not orphan.exists()
    assert (engines / "unfinished-1").exists()


@pytest.fixture(scope="session")
def keys(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, Path]]:
    pytest.importorskip("cryptography", reason="cryptography is not installed")
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    folder = tmp_path_factory.mktemp("keys")
    made: dict[str, tuple[Path, Path]] = {}
    for name in ("ours", "theirs"):
        key = Ed25519PrivateKey.generate()
        made[name] = folder / f"{name}.pem", folder / f"{name}.pub"
        pem = serialization.Encoding.PEM
        made[name][0].write_bytes(
            key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
        )
        made[name][1].write_bytes(
            key.public_key().public_bytes(pem, serialization.PublicFormat.SubjectPublicKeyInfo)
        )
    return made


def test_only_engines_signed_by_a_trusted_key_count(
    workshop: Workshop, keys: dict[str, tuple[Path, Path]], tmp_path: Path
) -> None:
    def signed(request: BuildRequest) -> BuildRequest:
        return replace(request, signing_key=keys["ours"][0], validation=None)

    workshop.build("cnn", request=signed)
    workshop.build("wide-and-deep", request=lambda r: replace(r, validation=None))

    def rejection(model: str, trusted: str) -> Rejection | None:
        try:
            Catalog(tmp_path / "catalog", trusted_keys=[keys[trusted][1]]).engines(model)
        except RejectedError as error:
            return error.objection.rejection
        return None

    assert None is rejection("cnn", "ours")
    assert Rejection.BAD_SIGNATURE is rejection("cnn", "theirs")
    assert Rejection.UNSIGNED is rejection("wide-and-deep", "ours")
    signature = next((tmp_path / "catalog/models/cnn/engines").glob(f"*/{SIGNATURE}"))
    signature.write_bytes(bytes(64))
    assert Rejection.BAD_SIGNATURE is rejection("cnn", "ours")


def test_keys_of_other_kinds_are_refused_without_showing_them(
    workshop: Workshop, keys: dict[str, tuple[Path, Path]], tmp_path: Path
) -> None:
    secret = tmp_path / "secret.pem"
    secret.write_text("-----BEGIN PRIVATE KEY-----\nsecret\n-----END PRIVATE KEY-----\n")

    with pytest.raises(EngineInputError, match="signing_key") as caught:
        workshop.build("cnn", request=lambda r: replace(r, signing_key=secret, validation=None))
    assert "BEGIN" not in str(caught.value)
    # A public key cannot sign.
    with pytest.raises(EngineInputError, match="signing_key"):
        workshop.build("cnn", request=lambda r: replace(r, signing_key=keys["ours"][1], validation=None))


def test_an_engine_is_promoted_only_for_nodes_it_serves(workshop: Workshop) -> None:
    first, _ = build_two(workshop)
    old = Node(compute_capability=None, runtimes={RuntimeKind.ONNX_RUNTIME: "1.10.0"})
    new = Node(compute_capability=None, runtimes={RuntimeKind.ONNX_RUNTIME: "1.20.0"})

    with pytest.raises(RejectedError, match=r"WRONG_RUNTIME_VERSION: the graph needs ONNX Runtime 1\.13"):
        workshop.catalog.promote("cnn", first, **AT, nodes=[new, old])
    workshop.catalog.promote("cnn", first, **AT, nodes=[new])
    selection = workshop.catalog.select("cnn", new)
    assert first == selection.chosen
    assert [[Rejection.NOT_ACTIVE]] == [[o.rejection for o in held] for held in selection.objections.values()]


@pytest.mark.parametrize("name", ["", "../up", "a/b", "-a", "x" * 101])
def test_a_name_triton_would_refuse_is_refused(
    examples: dict[str, Example], tmp_path: Path, name: str
) -> None:
    with pytest.raises(EngineError, match="model name"):
        Catalog(tmp_path).state(name)


def test_an_id_that_is_none_or_several_is_refused(workshop: Workshop) -> None:
    build_two(workshop)

    for wrong in ("zzz", ""):
        with pytest.raises(EngineInputError, match="engine list"):
            workshop.catalog.find(wrong)


def test_a_reader_never_sees_half_an_engine(workshop: Workshop, tmp_path: Path) -> None:
    """The entry comes last: whatever it names was there before it."""
    made = workshop.build("cnn").engine
    journal = tmp_path / "catalog/models/cnn/journal"

    assert ["00000001.json", "00000002.json"] == sorted(p.name for p in journal.iterdir())
    entry = journal / "00000001.json"
    folder = tmp_path / "catalog/models/cnn/engines" / made.record.folder
    for name in (MANIFEST, *made.manifest.files):
        assert (folder / name).stat().st_mtime_ns <= entry.stat().st_mtime_ns


def test_an_engine_that_would_not_serve_is_not_even_built(workshop: Workshop) -> None:
    old = Node(compute_capability=None, runtimes={RuntimeKind.ONNX_RUNTIME: "1.10.0"})

    with pytest.raises(RejectedError, match="WRONG_RUNTIME_VERSION"):
        workshop.build("cnn", request=lambda r: replace(r, nodes=(old,)))
    assert [] == workshop.catalog.models()


def test_file_names_of_a_record_never_leave_their_folder(workshop: Workshop) -> None:
    manifest = workshop.catalog.find(workshop.admit("cnn")).manifest

    for name in ("/etc/passwd", "../up", "a/b", ".hidden"):
        with pytest.raises(EngineInputError, match="no plain file name"):
            replace(manifest, engine_file=name)


def test_an_upload_in_progress_is_never_taken_for_garbage(workshop: Workshop, tmp_path: Path) -> None:
    workshop.admit("cnn")
    record = next(iter(workshop.catalog.state("cnn").engines.values()))
    engines = tmp_path / "catalog/models/cnn/engines"
    (engines / "arriving-1").mkdir()
    (engines / "arriving-1" / MANIFEST).write_bytes((engines / record.folder / MANIFEST).read_bytes())

    soon = NOW + timedelta(minutes=5)

    collected = workshop.catalog.collect_garbage("cnn", at=soon, by="gc", min_age=timedelta(0))
    assert () == collected.orphans


class _Learner(OnnxArtifactBuilder):
    """A builder with a timing cache, as TensorRT's is; remembers what it was given."""

    def __init__(self) -> None:
        self.given: list[bytes | None] = []

    def build(
        self,
        graph: bytes,
        inputs: tuple[TensorInfo, ...],
        options: BuildOptions,
        *,
        timing_cache: bytes | None,
        progress: Progress,
    ) -> BuiltEngine:
        self.given.append(timing_cache)
        made = super().build(graph, inputs, options, timing_cache=None, progress=progress)
        return replace(made, timing_cache=(timing_cache or b"") + b"learned.")


def test_what_a_build_learned_serves_the_next_one(workshop: Workshop) -> None:
    builder = _Learner()

    for precision in (Precision.FP32, Precision.FP16):
        workshop.build("cnn", precision, builder=builder, request=lambda r: replace(r, validation=None))

    assert [None, b"learned."] == builder.given


def test_a_prewarm_gets_the_ordered_engine_or_every_reason(workshop: Workshop) -> None:
    first = workshop.admit("cnn")
    second = workshop.admit("cnn", Precision.INT8)
    catalog = workshop.catalog
    node = Node(compute_capability=None, runtimes={RuntimeKind.ONNX_RUNTIME: "1.32.0"})

    with pytest.raises(NoEngineError, match=f"{first[:10]}: NOT_ACTIVE; {second[:10]}: NOT_ACTIVE"):
        catalog.engine_for("cnn", node)
    catalog.promote("cnn", first, **AT)
    engine = catalog.engine_for("cnn", node, shapes={"image": (8, 3, 16, 16)})
    assert first == engine.manifest.engine_id
    assert engine == catalog.engine_for("cnn", node, expected_digest=engine.manifest.digest)
    catalog.promote("cnn", second, **AT)
    with pytest.raises(RejectedError, match="WRONG_DIGEST"):
        catalog.engine_for("cnn", node, expected_digest=engine.manifest.digest)
    with pytest.raises(NoEngineError, match="MISSING_PROFILE_SHAPE"):
        catalog.engine_for("cnn", node, shapes={"image": (65, 3, 16, 16)})
    with pytest.raises(NoEngineError, match="there is none"):
        catalog.engine_for("nothing", node)


def test_scales_are_part_of_the_identity_through_the_tool_that_chose_them(workshop: Workshop) -> None:
    workshop.admit("cnn", Precision.INT8)
    workshop.admit("cnn", Precision.FP16)

    tools = [engine.manifest.toolchain.quantizer for engine in workshop.catalog.engines("cnn")]
    assert tools[0] is not None
    assert tools[0].startswith("onnxruntime ")
    assert tools[1] is None


@pytest.mark.parametrize("precision", [Precision.FP16, Precision.INT8])
def test_a_cpu_artifact_is_what_a_triton_repository_is_made_of(
    workshop: Workshop, precision: Precision, tmp_path: Path
) -> None:
    engine = workshop.catalog.find(workshop.admit("wide-and-deep", precision))

    served = build_repository(
        tmp_path / "repositories", workshop.catalog.fetch(engine, tmp_path / "here"), name="ranker"
    )

    # What a replica reports is what the catalogue expects.
    assert engine.manifest.digest == served.digest
    assert ["user_id", "context", "candidate_ids"] == [spec.name for spec in served.inputs]
