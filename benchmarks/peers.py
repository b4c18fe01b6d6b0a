"""The methods that are compared: ours, and what a user would pick instead.

Promises: every method sees the same history; a failure is an exception with a reason, never a made-up
value; quantiles are native where the library has them, else in-sample residual quantiles. What is cut
short to keep a method under a minute is said in its `note`.
Refuses: NaN and infinities from a library, by name.
Called by: the accuracy benchmark. Libraries are imported when their method first runs.
"""

import importlib
import logging
import signal
import warnings
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from types import FrameType, ModuleType

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from benchmarks.scoring import LEVELS
from benchmarks.series import DAY, WEEK, Task

Floats = NDArray[np.float64]

TIME_LIMIT_S = 120
STATSFORECAST_LEVELS = [80, 90, 98]


class MethodError(RuntimeError):
    """A method gave no usable forecast; the message says why."""


@dataclass(frozen=True, slots=True)
class Method:
    """A forecasting method: `run(task)` returns `[horizon, len(LEVELS)]`.

    Attributes:
        name: What the tables call it.
        note: How it is used here, and what was cut.
        packages: Distributions whose version decides its results.
        run: The forecast.
        needs_events: Skipped, not failed, where no event is known.
        revision: Raised when the code here changes results, so that cached ones are not used.
    """

    name: str
    note: str
    packages: tuple[str, ...]
    run: Callable[[Task], Floats]
    needs_events: bool = False
    revision: int = 1

    @property
    def settings(self) -> tuple[str, ...]:
        """What a cached result depends on besides the data."""
        return (self.name, str(self.revision), *(f"{name}=={version(name)}" for name in self.packages))


def checked(values: Floats, horizon: int) -> Floats:
    """Return `values` clipped at 0 and sorted along levels, as any user of demand forecasts would.

    Raises:
        MethodError: The shape is wrong or a value is not finite.
    """
    if values.shape != (horizon, len(LEVELS)):
        raise MethodError(f"returned shape {values.shape}, not {(horizon, len(LEVELS))}.")
    if bad := int((~np.isfinite(values)).sum()):
        raise MethodError(f"returned NaN or infinity in {bad} of {values.size} values.")
    return np.sort(np.maximum(values, 0.0), axis=1)


@contextmanager
def time_limit(seconds: int) -> Generator[None]:
    """Raise MethodError in the main thread once `seconds` have passed."""

    def stop(_signal: int, _frame: FrameType | None) -> None:
        raise MethodError(f"took longer than {seconds} s.")

    previous = signal.signal(signal.SIGALRM, stop)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, previous)


def run_method(method: Method, task: Task) -> Floats:
    """Run `method`, quietly and within the time limit.

    Raises:
        MethodError: It failed; the message is the reason.
    """
    with warnings.catch_warnings(), np.errstate(all="ignore"), time_limit(TIME_LIMIT_S):
        warnings.simplefilter("ignore")
        try:
            return checked(method.run(task), task.horizon)
        except MethodError:
            raise
        except Exception as error:
            # A peer's library may raise anything; whatever it is becomes that peer's recorded failure.
            raise MethodError(f"{type(error).__name__}: {error}".splitlines()[0][:200]) from error


def _import(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise MethodError(f"cannot import {name}: install the `bench` dependency group ({error}).") from error


# ----- ours ---------------------------------------------------------------------------------------------


def ours(task: Task) -> Floats:
    """Forecrest, through its public facade, with the event windows a planner would have registered."""
    facade = _import("forecaster")
    history = pd.Series(task.observed, index=task.index).dropna()
    events = [facade.Event(w.start, w.end, category=w.category) for w in task.events]
    result = facade.forecast(history, task.horizon, quantile_levels=LEVELS, events=events)
    return np.asarray(result.values, dtype=np.float64)


# ----- seasonal naive -----------------------------------------------------------------------------------


def _around(median: Floats, residuals: Floats) -> Floats:
    known = residuals[~np.isnan(residuals)]
    if len(known) < 10:
        raise MethodError("fewer than 10 in-sample residuals.")
    return np.asarray(median[:, None] + np.quantile(known, LEVELS)[None, :], dtype=np.float64)


def _seasonal_naive(task: Task, lag: int) -> Floats:
    filled = task.filled
    if len(filled) <= lag:
        raise MethodError(f"history of {len(filled)} buckets is not longer than one season of {lag}.")
    median = np.resize(filled[-lag:], task.horizon)
    return _around(median, task.observed[lag:] - task.observed[:-lag])


def snaive_week(task: Task) -> Floats:
    """Repeat the value of a week before."""
    return _seasonal_naive(task, task.buckets(WEEK))


def snaive_day(task: Task) -> Floats:
    """Repeat the value of a day before."""
    return _seasonal_naive(task, task.buckets(DAY))


# ----- statsforecast ------------------------------------------------------------------------------------


def _from_levels(result: dict[str, Floats]) -> Floats:
    columns = [result[name] for name in ("lo-80", "mean", "hi-80", "hi-90", "hi-98")]
    return np.column_stack(columns).astype(np.float64)


def _seasons(task: Task) -> list[int]:
    size = len(task.filled)
    seasons = [task.buckets(DAY), task.buckets(WEEK)]
    return [season for season in seasons if season > 1 and 2 * season <= size]


def mstl(task: Task, *, jump: bool = True) -> Floats:
    """Forecast with statsforecast's MSTL on day and week, AutoETS on the rest, native intervals."""
    models = _import("statsforecast.models")
    seasons = _seasons(task)
    if not seasons:
        raise MethodError("history is shorter than two days.")
    step = max(1, seasons[0] // 10)
    options = {"trend_jump": step, "low_pass_jump": step} if jump else {}
    model = models.MSTL(season_length=seasons, stl_kwargs=options)
    return _from_levels(model.forecast(y=task.filled, h=task.horizon, level=STATSFORECAST_LEVELS))


METHODS: tuple[Method, ...] = (
    Method("ours", "forecaster.forecast with the known event windows", (), ours),
    Method("snaive-week", "value of a week before; residual quantiles", (), snaive_week),
    Method("snaive-day", "value of a day before; residual quantiles", (), snaive_day),
    Method(
        "mstl",
        "statsforecast MSTL (day, week), AutoETS trend, native intervals; LOESS evaluated at every tenth of "
        "a day and interpolated, as R does by default",
        ("statsforecast", "statsmodels"),
        mstl,
    ),
)


def quiet_libraries() -> None:
    """Stop the peers' libraries from logging over the progress bar."""
    for name in ("prophet", "cmdstanpy", "prophet.plot"):
        logger = logging.getLogger(name)
        logger.setLevel(logging.CRITICAL)
        logger.propagate = False
