"""Probabilistic demand forecasts: a pandas Series in, quantiles with a state out.

Promises: pure functions - same input, same output; no clock, no I/O, no threads; quantiles are finite,
>= 0 and never cross; the first forecast time is the last observation + one step.
Refuses: input whose meaning would have to be guessed (`ForecastInputError` names field and remedy).
Called by: the controller's forecaster adapter, the command line and the benchmarks.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from forecaster.nowcast import nowcast
from forecaster.types import Components, Event, Forecast, ForecastInputError, ForecastState

if TYPE_CHECKING:
    from forecaster.explanation import Explanation, explain
    from forecaster.service import forecast

__all__ = [
    "Components",
    "Event",
    "Explanation",
    "Forecast",
    "ForecastInputError",
    "ForecastState",
    "explain",
    "forecast",
    "nowcast",
]

# Loaded at their first use: they bring pandas and SciPy, seconds that a process which only asks others to fit, as the
# controller does, need not wait for.
_MODULES = {"Explanation": "explanation", "explain": "explanation", "forecast": "service"}


def __getattr__(name: str) -> object:
    """Load what is not loaded yet."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    """Name also what is not loaded yet, for whoever looks around."""
    return sorted({*globals(), *_MODULES})
