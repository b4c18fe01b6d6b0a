"""Read and write the sets a model is calibrated with and judged on.

Promises: a set is one `.npz` file: every model input under its own name, first axis the sample, and
optionally `labels`, first axis the sample too (clicks, relevance or classes, for the business
measures). Nothing in the file is executed. Refuses files that are no such thing, sets whose arrays
disagree about the number of samples, and values that are not finite. Called by the quantiser, the
accuracy gate, the examples and the command line.
"""

import hashlib
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from engines.errors import EngineInputError

Array = NDArray[Any]
LABELS = "labels"
SIZE_MAX_BYTES = 4 * 1024**3


@dataclass(frozen=True, slots=True)
class Dataset:
    """Model inputs by name, shape [samples, ...], and labels [samples, ...] or None when there are none."""

    inputs: Mapping[str, Array]
    labels: Array | None = None

    def __post_init__(self) -> None:
        if not self.inputs:
            raise EngineInputError("dataset", "holds no model input", "store each input under its name")
        counts = {name: len(array) if array.ndim else -1 for name, array in self._named()}
        if len(set(counts.values())) != 1 or min(counts.values()) < 1:
            raise EngineInputError(
                "dataset",
                f"arrays disagree about the number of samples: {counts}",
                "give every array the sample as its first axis",
            )
        for name, array in self._named():
            if array.dtype.kind not in "biuf":
                raise EngineInputError(f"dataset.{name}", f"has type {array.dtype}", "store numbers")
            if array.dtype.kind == "f" and not np.isfinite(array).all():
                raise EngineInputError(
                    f"dataset.{name}", "holds values that are not finite", "remove or repair those samples"
                )

    def _named(self) -> Iterator[tuple[str, Array]]:
        yield from self.inputs.items()
        if self.labels is not None:
            yield LABELS, self.labels

    @property
    def sample_count(self) -> int:
        """How many samples the set holds; at least 1."""
        return len(next(iter(self.inputs.values())))

    def head(self, count: int) -> "Dataset":
        """The first `count` samples, or all where there are fewer."""
        labels = None if self.labels is None else self.labels[:count]
        return Dataset({name: array[:count] for name, array in self.inputs.items()}, labels)

    def batches(self, size: int) -> Iterator[dict[str, Array]]:
        """Inputs in batches of `size`, the last one maybe smaller, in order."""
        for start in range(0, self.sample_count, size):
            yield {name: array[start : start + size] for name, array in self.inputs.items()}

    def digest(self) -> str:
        """`sha256:…` of names, types, shapes and values; the same set has the same digest in any file."""
        total = hashlib.sha256()
        for name, array in sorted(self._named()):
            total.update(f"{name}|{array.dtype.str}|{array.shape}|".encode())
            total.update(np.ascontiguousarray(array).tobytes())
        return f"sha256:{total.hexdigest()}"


def write_dataset(path: Path, dataset: Dataset) -> None:
    """Write the set as a compressed `.npz`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    arrays = dict(dataset.inputs) | ({} if dataset.labels is None else {LABELS: dataset.labels})
    with path.open("wb") as file:
        np.savez_compressed(file, **arrays)  # type: ignore[arg-type]  # numpy types its own flag among the names


def read_dataset(path: Path, field: str = "dataset") -> Dataset:
    """Read a set; `field` is how error messages name it.

    Raises:
        EngineInputError: missing, unreadable, too large unpacked, or not such a set.
    """
    try:
        # Looked up before anything is unpacked: a small file can unpack to more than memory holds.
        with zipfile.ZipFile(path) as archive:
            size = sum(entry.file_size for entry in archive.infolist())
        if size > SIZE_MAX_BYTES:
            raise EngineInputError(
                field, f"{path} unpacks to {size} bytes", f"keep it under {SIZE_MAX_BYTES} bytes"
            )
        with np.load(path, allow_pickle=False) as stored:
            arrays = {name: stored[name] for name in stored.files}
    except (OSError, ValueError, zipfile.BadZipFile) as error:
        raise EngineInputError(
            field, f"{path} cannot be read: {error}", "make it with numpy.savez, one array per model input"
        ) from error
    return Dataset({name: array for name, array in arrays.items() if name != LABELS}, arrays.get(LABELS))
