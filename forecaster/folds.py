"""Rolling origins as indices only: which rows a forecast may see, and which it is judged on.

Promises: pure; no fold's test rows lie before its origin, and no training row after it; the newest fold
ends with the last row.
Refuses: a plan that cannot yield one fold, saying how many rows it needs.
Called by: `forecaster.backtest`. Knows no values, so it cannot leak any.
"""

from dataclasses import dataclass

from forecaster.types import ForecastInputError

FOLD_COUNT_MAX = 10_000


@dataclass(frozen=True, slots=True)
class Fold:
    """Rows `[train_first, origin]` are known; rows `[origin + 1, test_last]` are forecast. All inclusive."""

    train_first: int
    origin: int
    test_last: int

    @property
    def horizon(self) -> int:
        """Rows to forecast."""
        return self.test_last - self.origin


def rolling(
    row_count: int,
    horizon: int,
    fold_count: int,
    *,
    train_min: int,
    stride: int | None = None,
    train_max: int | None = None,
) -> tuple[Fold, ...]:
    """Return up to `fold_count` folds, oldest first, `stride` rows apart (the horizon, when None).

    Args:
        row_count: Rows of the history.
        horizon: Rows to forecast from each origin.
        fold_count: Folds wanted; fewer come back when the history is short.
        train_min: Rows that must lie at or before an origin.
        stride: Rows between origins.
        train_max: Rows a fold may train on; all when None.

    Raises:
        ForecastInputError: Not even one fold fits, or an argument is out of range.
    """
    step = horizon if stride is None else stride
    for name, value in (
        ("horizon", horizon),
        ("fold_count", fold_count),
        ("train_min", train_min),
        ("stride", step),
    ):
        if value < 1:
            raise ForecastInputError(name, f"is {value}; give at least 1.")
    if fold_count > FOLD_COUNT_MAX:
        raise ForecastInputError("fold_count", f"is {fold_count}; give at most {FOLD_COUNT_MAX}.")
    if train_max is not None and train_max < train_min:
        raise ForecastInputError("train_max", f"is {train_max}, less than train_min {train_min}.")
    newest = row_count - 1 - horizon
    if newest < train_min - 1:
        raise ForecastInputError(
            "history", f"has {row_count} rows; one fold needs {train_min} to learn and {horizon} to judge."
        )
    count = min(fold_count, (newest - (train_min - 1)) // step + 1)
    origins = [newest - step * k for k in reversed(range(count))]
    return tuple(
        Fold(0 if train_max is None else max(0, origin + 1 - train_max), origin, origin + horizon)
        for origin in origins
    )
