"""Calibration and validation sets: what a file must be, and what is refused."""

import zipfile
from pathlib import Path

import numpy as np
import pytest

from engines import datasets
from engines.datasets import Dataset, read_dataset, write_dataset
from engines.errors import EngineInputError

X = np.arange(12, dtype=np.float32).reshape(4, 3)


def test_a_set_survives_its_file(tmp_path: Path) -> None:
    made = Dataset({"x": X, "id": np.arange(4).reshape(4, 1)}, np.array([0, 1, 1, 0]))
    write_dataset(tmp_path / "folder" / "set.npz", made)

    again = read_dataset(tmp_path / "folder" / "set.npz")

    assert made.digest() == again.digest()
    assert {"x", "id"} == set(again.inputs)
    assert again.labels is not None
    assert [0, 1, 1, 0] == again.labels.tolist()
    assert 4 == again.sample_count


def test_the_digest_is_of_the_content() -> None:
    other = X.copy()
    other[0, 0] = 9

    assert Dataset({"x": X}).digest() == Dataset({"x": X.copy()}).digest()
    assert Dataset({"x": X}).digest() != Dataset({"x": other}).digest()
    assert Dataset({"x": X}).digest() != Dataset({"y": X}).digest()
    assert Dataset({"x": X}).digest() != Dataset({"x": X}, np.zeros(4)).digest()


def test_batches_hold_every_sample_once() -> None:
    sizes = [len(batch["x"]) for batch in Dataset({"x": X}).batches(3)]

    assert [3, 1] == sizes
    assert 2 == Dataset({"x": X}, np.zeros(4)).head(2).sample_count
    assert 4 == Dataset({"x": X}).head(9).sample_count


@pytest.mark.parametrize(
    ("inputs", "labels", "sentence"),
    [
        ({}, None, "holds no model input"),
        ({"x": X, "y": X[:2]}, None, "disagree about the number of samples"),
        ({"x": X}, np.zeros(3), "disagree about the number of samples"),
        ({"x": X[:0]}, None, "disagree about the number of samples"),
        ({"x": np.float32(1)}, None, "disagree about the number of samples"),
        ({"x": np.array(["a", "b"])}, None, r"dataset\.x: has type"),
        ({"x": np.array([[np.nan]])}, None, r"dataset\.x: holds values that are not finite"),
        ({"x": X}, np.array([1, 1, 1, np.inf]), r"dataset\.labels"),
    ],
)
def test_what_is_no_set_is_refused(
    inputs: dict[str, np.ndarray], labels: np.ndarray | None, sentence: str
) -> None:
    with pytest.raises(EngineInputError, match=sentence):
        Dataset(inputs, labels)


def test_a_file_that_is_no_set_is_refused_by_the_option_that_named_it(tmp_path: Path) -> None:
    text = tmp_path / "text.npz"
    text.write_text("hello")

    for path in (text, tmp_path / "missing.npz"):
        with pytest.raises(EngineInputError, match=rf"--calibration: .*{path.name} cannot be read"):
            read_dataset(path, "--calibration")


def test_nothing_in_a_file_is_executed(tmp_path: Path) -> None:
    path = tmp_path / "objects.npz"
    np.savez(path, x=np.array([{"a": 1}], object))

    with pytest.raises(EngineInputError, match="allow_pickle"):
        read_dataset(path)


def test_a_small_file_that_unpacks_to_too_much_is_not_unpacked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(datasets, "SIZE_MAX_BYTES", 10_000)
    path = tmp_path / "bomb.npz"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("x.npy", bytes(1_000_000))
    assert path.stat().st_size < 10_000

    with pytest.raises(EngineInputError, match="unpacks to 1000000 bytes"):
        read_dataset(path)
