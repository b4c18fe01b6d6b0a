from pathlib import Path

import pytest

from engines.onnx_examples import TwoTowerSizes, two_tower_weights, write_two_tower
from engines.triton_repository import ServingOptions, TensorSpec, build_repository, engine_digest

SMALL = TwoTowerSizes(user_count=16, item_count=16)


@pytest.fixture
def engine(tmp_path: Path) -> Path:
    path = tmp_path / "engine.onnx"
    write_two_tower(path, seed=1, sizes=SMALL)
    return path


def test_the_same_seed_writes_the_same_engine_and_another_seed_another(engine: Path, tmp_path: Path) -> None:
    same, other = tmp_path / "same.onnx", tmp_path / "other.onnx"
    write_two_tower(same, seed=1, sizes=SMALL)
    write_two_tower(other, seed=2, sizes=SMALL)

    assert engine_digest(engine) == engine_digest(same)
    assert engine_digest(engine) != engine_digest(other)


def test_weights_are_pinned_so_that_no_library_release_changes_the_engine() -> None:
    weights = two_tower_weights(1, SMALL)

    assert [-0.63513982, -0.37062395, -0.49466074] == pytest.approx(weights["user_table"][0, :3].tolist())
    assert all(abs(tensor).max() <= 1 for tensor in weights.values())


def test_signature_is_read_from_the_engine(engine: Path, tmp_path: Path) -> None:
    model = build_repository(tmp_path / "r", engine, name="recommender")

    assert (
        TensorSpec("user_id", "INT64", (1,)),
        TensorSpec("context", "FP32", (8,)),
        TensorSpec("candidate_ids", "INT64", (16,)),
    ) == model.inputs
    assert (TensorSpec("scores", "FP32", (16,)),) == model.outputs


def test_building_twice_gives_one_repository_and_other_options_another(engine: Path, tmp_path: Path) -> None:
    first = build_repository(tmp_path / "r", engine, name="recommender")
    again = build_repository(tmp_path / "r", engine, name="recommender")
    slower = build_repository(
        tmp_path / "r", engine, name="recommender", options=ServingOptions(simulated_device_time_ms=1)
    )

    assert first == again
    assert first.repository != slower.repository
    assert 2 == len(list((tmp_path / "r").iterdir()))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("batch_size_max", 0),
        ("queue_delay_us", -1),
        ("simulated_device_time_ms", float("nan")),
        ("simulated_device_time_ms_per_request", float("inf")),
    ],
)
def test_options_out_of_bounds_are_refused_by_name(field: str, value: float) -> None:
    with pytest.raises(ValueError, match=f"{field}: must be from"):
        ServingOptions(**{field: value})  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["", "../escape", 'a"b', "-x", "x" * 101])
def test_names_that_are_no_names_are_refused(engine: Path, tmp_path: Path, name: str) -> None:
    with pytest.raises(ValueError, match="name: "):
        build_repository(tmp_path / "r", engine, name=name)


def test_a_file_that_is_no_engine_is_refused_and_leaves_nothing(tmp_path: Path) -> None:
    path = tmp_path / "engine.onnx"
    path.write_bytes(b"not a model")

    with pytest.raises(ValueError, match="not a readable ONNX model"):
        build_repository(tmp_path / "r", path, name="recommender")
    assert not (tmp_path / "r").exists()


def test_sizes_below_one_are_refused_by_name() -> None:
    with pytest.raises(ValueError, match="hidden: must be at least 1"):
        TwoTowerSizes(hidden=0)
