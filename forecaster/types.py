"""The words of forecasting: events in, a forecast out, and the error for input that cannot be used.

Promises: immutable values; `Forecast.values` is finite, >= 0 and monotone in the quantile level.
Refuses: naive datetimes, empty windows and impossible expectations, naming the field and the remedy.
Called by: everything in this package and by every caller of `forecast`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from numbers import Real
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:  # a second and 70 MiB for the name of a type
    import pandas as pd

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]

# Demand and expectations beyond are no measurements, and sums of them no numbers.
VALUE_MAX: Final = 1e100
# Events of this category are days off: until past ones show what they do, they are taken for Sundays.
HOLIDAY: Final = "holiday"


class ForecastInputError(ValueError):
    """Input that cannot be forecast; `field` names the argument, the message says what to do."""

    def __init__(self, field: str, message: str) -> None:
        super().__init__(f"{field}: {message}")
        self.field = field


def check_kind(field: str, value: object, kind: type, wanted: str) -> None:
    """Raise ForecastInputError unless the value is of the kind: callers from outside are not held to annotations."""
    if not isinstance(value, kind):
        raise ForecastInputError(field, f"is {value!r}; give {wanted}.")


class ForecastState(StrEnum):
    """How far a forecast may be trusted."""

    READY = "READY"
    """Every season the model uses was seen and the newest data is whole."""
    DEGRADED = "DEGRADED"
    """A forecast with a named weakness: one season unseen, large gaps, or no fresh observations."""
    INSUFFICIENT_HISTORY = "INSUFFICIENT_HISTORY"
    """Less than two days: a level with wide bounds, no season. Not a reason to scale down."""


@dataclass(frozen=True, slots=True)
class Event:
    """A known window of unusual demand, in history (to learn from) or in the horizon (to plan for).

    Attributes:
        start: First moment of the window, aware.
        end: First moment after the window, aware; later than `start`.
        category: Events of one category share what is learnt of their effect.
        expected_multiplier: The planner's expectation as a multiple of usual demand.
        expected_peak: The planner's expectation as demand at the peak, in units of the history.
    """

    start: datetime
    end: datetime
    category: str = ""
    expected_multiplier: float | None = None
    expected_peak: float | None = None

    def __post_init__(self) -> None:
        """Refuse windows and expectations that mean nothing.

        Raises:
            ForecastInputError: A naive datetime, an empty window, a non-positive expectation, or values of other kinds.
        """
        check_kind("event.category", self.category, str, "a string")
        for name, moment in (("start", self.start), ("end", self.end)):
            check_kind(f"event.{name}", moment, datetime, "a datetime with a time zone")
            if moment.tzinfo is None or moment.utcoffset() is None:
                raise ForecastInputError(f"event.{name}", "is naive; give it a time zone, such as UTC.")
        # Not as clocks of one zone show them: there, a quarter past two may come after half past.
        if self.end.timestamp() <= self.start.timestamp():
            raise ForecastInputError("event.end", f"{self.end} is not after start {self.start}.")
        for name, value in (
            ("expected_multiplier", self.expected_multiplier),
            ("expected_peak", self.expected_peak),
        ):
            if value is not None and not (isinstance(value, Real) and 0 < value <= VALUE_MAX):
                raise ForecastInputError(
                    f"event.{name}", f"is {value}; give a positive number up to {VALUE_MAX:g}, or None."
                )


@dataclass(frozen=True, slots=True)
class Components:
    """What the median is made of; the five arrays `[horizon_steps]` add up to it.

    Attributes:
        baseline: Level of recent demand, the same for every step.
        trend: Change of level over the horizon.
        season: Shape of day and week around the level.
        event: Effect of the events whose windows touch the step.
        correction: Pull of the newest observations away from the usual shape.
    """

    baseline: Floats
    trend: Floats
    season: Floats
    event: Floats
    correction: Floats

    def total(self) -> Floats:
        """Return the median the components explain, `[horizon_steps]`."""
        return self.baseline + self.trend + self.season + self.event + self.correction


@dataclass(frozen=True, slots=True)
class Forecast:
    """Demand over a horizon as quantiles, with a state.

    Attributes:
        state: How far to trust it; `reasons` says why in sentences.
        values: `[horizon_steps, len(quantile_levels)]`, units of the history, >= 0, monotone along levels.
        index: Start of each horizon bucket, UTC; the first is the last observation + `step`.
        quantile_levels: Ascending, in (0, 1).
        origin: Time of the last row of the history.
        step: Width of a bucket.
        median: `[horizon_steps]`, also when 0.5 is not among the levels.
        model_weights: Model name -> share of the forecast, adding up to 1.
        reasons: Sentences an operator can read; empty when there is nothing to say.
        components: What the median is made of.
        correction_gain: Share of a fresh level error that `nowcast` should believe, in [0, 1].
        correction_half_life: Time after which half of such an error is gone.
    """

    state: ForecastState
    values: Floats
    index: "pd.DatetimeIndex"
    quantile_levels: tuple[float, ...]
    origin: datetime
    step: timedelta
    median: Floats
    model_weights: Mapping[str, float]
    reasons: tuple[str, ...]
    components: Components
    correction_gain: float
    correction_half_life: timedelta

    def __post_init__(self) -> None:
        """Assert what every caller relies on; a failure here is a defect of this package."""
        values = self.values
        assert values.shape == (len(self.index), len(self.quantile_levels)), values.shape
        assert bool(np.isfinite(values).all()), "a forecast value is not finite"
        assert bool((values >= 0).all()), "a forecast value is negative"
        assert bool((np.diff(values, axis=1) >= 0).all()), "quantiles cross"
        values.setflags(write=False)
