"""What a forecasting method is to the benchmark, and how one is run.

Promises: a failure is a `MethodError` with a reason, whatever a library raised; quantiles that come back
are finite, at least 0 and in order; a run is quiet and stops at its limit of CPU time.
Refuses: NaN and infinities from a library, by name and count.
Called by: the accuracy benchmark and its peers.
"""

import importlib
import signal
import warnings
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from types import FrameType, ModuleType

import numpy as np
from numpy.typing import NDArray

from benchmarks.scoring import LEVELS
from benchmarks.series import Task

Floats = NDArray[np.float64]

TIME_LIMIT_CPU_S = 60


class MethodError(RuntimeError):
    """A method gave no usable forecast; the message says why."""


@dataclass(frozen=True, slots=True)
class Method:
    """A forecasting method: `run(task)` returns `[horizon, len(LEVELS)]`.

    Attributes:
        name: What the tables call it.
        note: How it is used here, and what was cut.
        packages: Distributions whose version decides its results; none for code of this repository.
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
        return (self.name, str(self.revision), *(f"{name}=={_version(name)}" for name in self.packages))

    @property
    def is_cached(self) -> bool:
        """Whether results are kept on disk: those of libraries are; what costs milliseconds is run again."""
        return bool(self.packages)


def _version(distribution: str) -> str:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return "absent"


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
    """Raise MethodError in the main thread once it has used `seconds` of CPU time."""

    def stop(_signal: int, _frame: FrameType | None) -> None:
        raise MethodError(f"took longer than {seconds} s of CPU time.")

    previous = signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, previous)


def run_method(method: Method, task: Task) -> Floats:
    """Run `method`, quietly and within the time limit.

    Raises:
        MethodError: It failed; the message is the reason.
    """
    with warnings.catch_warnings(), np.errstate(all="ignore"), time_limit(TIME_LIMIT_CPU_S):
        warnings.simplefilter("ignore")
        try:
            return checked(method.run(task), task.horizon)
        except MethodError:
            raise
        except Exception as error:
            # A peer's library may raise anything; whatever it is becomes that peer's recorded failure.
            raise MethodError(f"{type(error).__name__}: {error}".splitlines()[0][:200]) from error


def import_library(name: str) -> ModuleType:
    """Import a module that only some environments have.

    Raises:
        MethodError: It is not installed; the message names the remedy.
    """
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise MethodError(f"cannot import {name}: install the `bench` dependency group ({error}).") from error
