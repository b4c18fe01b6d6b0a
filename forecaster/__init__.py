"""Probabilistic demand forecasts: a pandas Series in, quantiles with a state out.

Promises: pure functions - same input, same output; no clock, no I/O, no threads; quantiles are finite,
>= 0 and never cross; the first forecast time is the last observation + one step.
Refuses: input whose meaning would have to be guessed (`ForecastInputError` names field and remedy).
Called by: the controller's forecaster adapter, the command line and the benchmarks.
"""

from forecaster.explain import Explanation, explain
from forecaster.nowcast import nowcast
from forecaster.service import forecast
from forecaster.types import Components, Event, Forecast, ForecastInputError, ForecastState

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
