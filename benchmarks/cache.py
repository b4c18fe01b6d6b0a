"""Results of methods on disk, so that measuring ours again does not run the peers again.

Promises: a result is found only for the same data, origin, method, settings and library versions; a file
that cannot be read is a miss, and an interrupted write leaves none.
Refuses: nothing. Deleting the folder is always safe.
Called by: the accuracy benchmark.
"""

import hashlib
import json
import os
import zipfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a method returned: `values` `[h, levels]`, or None and the reason of its failure."""

    values: Floats | None
    seconds: float
    reason: str = ""


class Cache:
    """Outcomes under `folder`, one file each."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def _path(self, method: str, key: tuple[str, ...]) -> Path:
        digest = hashlib.sha256(json.dumps(key).encode()).hexdigest()
        return self._folder / method / f"{digest[:32]}.npz"

    def get(self, method: str, key: tuple[str, ...]) -> Outcome | None:
        """Return the outcome stored for `key`, or None."""
        try:
            with self._path(method, key).open("rb") as file, np.load(file, allow_pickle=False) as stored:
                reason = str(stored["reason"])
                values = None if reason else stored["values"].astype(np.float64)
                return Outcome(values, float(stored["seconds"]), reason)
        except (OSError, KeyError, ValueError, zipfile.BadZipFile):
            return None

    def put(self, method: str, key: tuple[str, ...], outcome: Outcome) -> None:
        """Store `outcome` for `key`."""
        path = self._path(method, key)
        path.parent.mkdir(parents=True, exist_ok=True)
        scratch = path.with_suffix(f".{os.getpid()}.tmp")
        with scratch.open("wb") as file:
            np.savez_compressed(
                file,
                values=np.zeros(0) if outcome.values is None else outcome.values,
                seconds=np.float64(outcome.seconds),
                reason=np.array(outcome.reason),
            )
        scratch.replace(path)
