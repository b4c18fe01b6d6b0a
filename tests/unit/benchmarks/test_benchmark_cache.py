"""The cache: a result comes back only for its own key, and damage is a miss."""

from pathlib import Path

import numpy as np

from benchmarks.cache import Cache, Outcome


def test_a_forecast_and_a_failure_come_back_as_they_were(tmp_path: Path) -> None:
    cache = Cache(tmp_path)
    values = np.arange(10.0).reshape(2, 5)
    cache.put("mstl", ("a",), Outcome(values, 1.5))
    cache.put("mstl", ("b",), Outcome(None, 0.25, "returned NaN"))

    stored = Cache(tmp_path).get("mstl", ("a",))

    assert stored is not None
    assert stored.values is not None
    np.testing.assert_array_equal(values, stored.values)
    assert (stored.seconds, stored.reason) == (1.5, "")
    assert Outcome(None, 0.25, "returned NaN") == cache.get("mstl", ("b",))


def test_another_key_or_method_is_a_miss(tmp_path: Path) -> None:
    cache = Cache(tmp_path)
    cache.put("mstl", ("a", "b"), Outcome(np.zeros((1, 5)), 1.0))

    assert cache.get("mstl", ("ab",)) is None
    assert cache.get("prophet", ("a", "b")) is None


def test_a_damaged_file_is_a_miss_and_no_scratch_file_stays(tmp_path: Path) -> None:
    cache = Cache(tmp_path)
    cache.put("mstl", ("a",), Outcome(np.zeros((1, 5)), 1.0))
    (path,) = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert path.suffix == ".npz"
    path.write_bytes(path.read_bytes()[:40])

    assert cache.get("mstl", ("a",)) is None
