"""The methods that are compared: ours, and what a user would pick instead.

Promises: every method sees the same history; quantiles are native where the library has them, else
in-sample residual quantiles. What is cut short to keep a method under a minute is said in its `note`.
Refuses: nothing itself; a method that cannot forecast raises `MethodError`.
Called by: the accuracy benchmark. Libraries are imported when their method first runs.
"""

import logging
from datetime import timedelta
from functools import partial

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from benchmarks.methods import Method, MethodError, import_library
from benchmarks.scoring import LEVELS
from benchmarks.series import DAY, EVENT_TAIL, HOUR, WEEK, Task

Floats = NDArray[np.float64]

STATSFORECAST_LEVELS = [80, 90, 98]

# ----- ours ---------------------------------------------------------------------------------------------


def ours(task: Task) -> Floats:
    """Forecrest, through its public facade, with the event windows a planner would have registered."""
    facade = import_library("forecaster")
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
    models = import_library("statsforecast.models")
    seasons = _seasons(task)
    if not seasons:
        raise MethodError("history is shorter than two days.")
    step = max(1, seasons[0] // 10)
    options = {"trend_jump": step, "low_pass_jump": step} if jump else {}
    model = models.MSTL(season_length=seasons, stl_kwargs=options)
    return _from_levels(model.forecast(y=task.filled, h=task.horizon, level=STATSFORECAST_LEVELS))


# Seasonal ETS and ARIMA are defined up to a season of 24 in statsforecast and take minutes beyond it; their
# users aggregate. So do these: hourly means counted back from the origin, four weeks of them.
HOURLY_WINDOW = 4 * WEEK
ARIMA_WINDOW = 2 * WEEK


def _hourly(task: Task, window: timedelta) -> tuple[Floats, int, int]:
    """Return means per hour (per bucket when longer), the season of a day or week, buckets per mean."""
    width = max(1, task.buckets(HOUR))
    filled = task.filled[-task.buckets(window) :] if task.step < DAY else task.filled
    means = filled[len(filled) % width :].reshape(-1, width).mean(axis=1)
    season = 7 if task.step >= DAY else DAY // max(task.step, HOUR)
    if len(means) < 2 * season + 10:
        raise MethodError(f"{len(means)} hourly means are fewer than two seasons of {season} and 10.")
    return means, season, width


def _spread_hours(task: Task, means: Floats, forecast: Floats, width: int) -> Floats:
    """Turn hourly quantiles into bucket quantiles, with the scatter of buckets inside an hour added.

    Without that scatter the peers would be blamed for the aggregation that this benchmark chose.
    """
    if width == 1:
        return forecast[: task.horizon]
    count = len(means)
    past_at = (np.arange(count * width) + 0.5) / width - 0.5
    inside = task.filled[-count * width :] - np.interp(past_at, np.arange(count), means)
    scatter = np.quantile(inside, LEVELS)
    knots = np.vstack([np.full((1, len(LEVELS)), means[-1]), forecast])
    at = (np.arange(task.horizon) + 0.5) / width + 0.5
    quantiles = np.column_stack([np.interp(at, np.arange(len(knots)), column) for column in knots.T])
    median = quantiles[:, [1]]
    offset = quantiles - median
    sign = np.sign(np.asarray(LEVELS) - 0.5)
    return np.asarray(median + sign * np.hypot(offset, scatter), dtype=np.float64)


def _hours_ahead(task: Task, width: int) -> int:
    return -(-task.horizon // width)


def autoets(task: Task) -> Floats:
    """Forecast with seasonal AutoETS on hourly means."""
    models = import_library("statsforecast.models")
    means, season, width = _hourly(task, HOURLY_WINDOW)
    model = models.AutoETS(season_length=season)
    result = model.forecast(y=means, h=_hours_ahead(task, width), level=STATSFORECAST_LEVELS)
    return _spread_hours(task, means, _from_levels(result), width)


def autoarima(task: Task) -> Floats:
    """Forecast with seasonal AutoARIMA on hourly means."""
    models = import_library("statsforecast.models")
    means, season, width = _hourly(task, ARIMA_WINDOW)
    model = models.AutoARIMA(season_length=season, approximation=True)
    result = model.forecast(y=means, h=_hours_ahead(task, width), level=STATSFORECAST_LEVELS)
    return _spread_hours(task, means, _from_levels(result), width)


def autoets_native(task: Task) -> Floats:
    """Forecast with AutoETS without season at the native step, two weeks."""
    models = import_library("statsforecast.models")
    history = task.filled[-max(100, task.buckets(2 * WEEK)) :]
    result = models.AutoETS(season_length=1).forecast(y=history, h=task.horizon, level=STATSFORECAST_LEVELS)
    return _from_levels(result)


# ----- Prophet ------------------------------------------------------------------------------------------

PROPHET_WINDOW = 4 * WEEK
PROPHET_SAMPLES = 1000
PROPHET_SEED = 20260101


def _event_columns(task: Task, index: pd.DatetimeIndex) -> dict[str, Floats]:
    tail = EVENT_TAIL if task.step < DAY else timedelta(0)
    columns: dict[str, Floats] = {}
    for window in task.events:
        begin, end = pd.Timestamp(window.start) - task.step, pd.Timestamp(window.end) + tail
        touches = (index > begin) & (index < end)
        column = columns.setdefault(f"event_{window.category}", np.zeros(len(index)))
        columns[f"event_{window.category}"] = np.maximum(column, np.asarray(touches, dtype=np.float64))
    return columns


def _prophet(task: Task, size: int, *, with_events: bool) -> Floats:
    prophet = import_library("prophet").Prophet(uncertainty_samples=PROPHET_SAMPLES)
    # They set their own level when they first speak, so only this keeps them off the progress bar.
    for name in ("prophet", "cmdstanpy"):
        logging.getLogger(name).disabled = True
    index, future = task.index[-size:], task.future_index
    past = pd.DataFrame({"ds": index.tz_localize(None), "y": task.observed[-size:]})
    ahead = pd.DataFrame({"ds": future.tz_localize(None)})
    if with_events:
        known = {name: column for name, column in _event_columns(task, index).items() if column.any()}
        upcoming = _event_columns(task, future)
        for name, column in known.items():
            prophet.add_regressor(name, standardize=False)
            past[name], ahead[name] = column, upcoming[name]
    # Prophet draws its sample paths from numpy's global state.
    np.random.seed(PROPHET_SEED)  # noqa: NPY002
    prophet.fit(past.dropna(), seed=PROPHET_SEED)
    samples = prophet.predictive_samples(ahead)["yhat"]
    return np.asarray(np.quantile(samples, LEVELS, axis=1).T, dtype=np.float64)


def _prophet_size(task: Task) -> int:
    return len(task.observed) if task.step >= HOUR / 2 else task.buckets(PROPHET_WINDOW)


def prophet(task: Task) -> Floats:
    """Forecast with Prophet as it comes; gaps stay gaps."""
    return _prophet(task, _prophet_size(task), with_events=False)


def prophet_events(task: Task) -> Floats:
    """Forecast with Prophet and one regressor per event category, 1 inside known windows."""
    return _prophet(task, _prophet_size(task), with_events=True)


# ----- autoscalers --------------------------------------------------------------------------------------


# The planner keeps all it saw since it started; its own traces are of hours.
DYNAMO_ARIMA_WINDOW = 3 * DAY


def dynamo_arima(task: Task) -> Floats:
    """Forecast with an automatic non-seasonal ARIMA, in log1p when the order collapses to (0, d, 0)."""
    models = import_library("statsforecast.models")
    history = task.filled[-max(100, task.buckets(DYNAMO_ARIMA_WINDOW)) :]
    model = models.AutoARIMA(season_length=1).fit(y=history)
    p, q = model.model_["arma"][:2]
    if p or q:
        return _from_levels(model.predict(h=task.horizon, level=STATSFORECAST_LEVELS))
    model = models.AutoARIMA(season_length=1).fit(y=np.log1p(history))
    return np.expm1(_from_levels(model.predict(h=task.horizon, level=STATSFORECAST_LEVELS)))


DYNAMO_PROPHET_WINDOW = 50


def dynamo_prophet(task: Task) -> Floats:
    """Forecast with Prophet on the last 50 buckets, the planner's default window."""
    return _prophet(task, DYNAMO_PROPHET_WINDOW, with_events=False)


def holt_winters(task: Task) -> Floats:
    """Forecast with additive Holt-Winters from statsmodels on two weeks of hourly means."""
    holtwinters = import_library("statsmodels.tsa.holtwinters")
    means, season, width = _hourly(task, 2 * WEEK)
    model = holtwinters.ExponentialSmoothing(
        means, trend="add", seasonal="add", seasonal_periods=season, initialization_method="estimated"
    )
    fitted = model.fit()
    median = np.asarray(fitted.forecast(_hours_ahead(task, width)), dtype=np.float64)
    if not np.isfinite(median).all():
        raise MethodError("returned NaN.")
    return _spread_hours(task, means, _around(median, np.asarray(fitted.resid)), width)


CRANE_WINDOW = timedelta(days=15)
CRANE_MAX_ITEMS = 100
# (fewest spectrum items, lowest amplitude, margin): its eight default estimators.
CRANE_ESTIMATORS = tuple(
    (items, amplitude, margin)
    for items, amplitude in ((3, 1.0), (50, 0.05))
    for margin in (0.01, 0.10, 0.15, 0.20)
)


def _crane_cycle(task: Task, signal_: Floats) -> int:
    """Return a day or a week of buckets when autocorrelation rises to it and falls after it, else 0."""
    centred = signal_ - signal_.mean()
    spectrum = np.abs(np.fft.fft(centred)) ** 2
    correlation = np.fft.ifft(spectrum).real
    best = 0
    for cycle in (task.buckets(DAY), task.buckets(WEEK)):
        reach = min(task.buckets(timedelta(hours=4)), cycle // 2)
        if reach < 1 or len(signal_) < 2 * cycle:
            continue
        before = np.polyfit(np.arange(reach + 1), correlation[cycle - reach : cycle + 1], 1)[0]
        after = np.polyfit(np.arange(reach + 1), correlation[cycle : cycle + reach + 1], 1)[0]
        higher = best == 0 or correlation[cycle] > correlation[best]
        if before > 0 > after and correlation[cycle] > 0 and higher:
            best = cycle
    return best


def _crane_estimate(
    signal_: Floats, cycle: int, step_s: float, items: int, amplitude: float, margin: float
) -> Floats:
    spectrum = np.fft.fft(signal_)
    sizes = np.abs(spectrum) / len(signal_)
    ranked = np.sort(sizes[1 : len(sizes) // 2])[::-1]
    least = max(ranked[min(CRANE_MAX_ITEMS, len(ranked)) - 1], amplitude)
    if len(ranked) >= items:
        least = min(least, ranked[items - 1])
    frequency = np.arange(len(signal_)) / (len(signal_) * step_s)
    spectrum[(sizes < least) & (frequency > 1 / 3600)] = 0
    kept = np.fft.ifft(spectrum).real[-cycle:]
    return np.asarray(np.where(kept <= 0, 0.01, kept) * (1 + margin), dtype=np.float64)


def _crane_error(actual: Floats, estimated: Floats) -> float:
    if (actual < 1e-3).any():
        return float(np.abs(actual - estimated).mean())
    short = (actual - estimated) / actual
    return float(np.where(short > 0, -np.log(np.clip(1 - short, 1e-12, None)) / np.log(1.25), -short).mean())


def crane_fft(task: Task) -> Floats:
    """Forecast with crane's DSP: the last cycle of a denoised spectrum, margin chosen on the last cycle."""
    if task.step > HOUR:
        raise MethodError("abstains: its resolution may not be coarser than an hour.")
    signal_ = task.filled[-task.buckets(CRANE_WINDOW) :]
    cycle = _crane_cycle(task, signal_)
    if not cycle:
        raise MethodError("abstains: the history is not periodic by its own test.")
    signal_ = signal_[len(signal_) % cycle :]
    earlier, last = signal_[:-cycle], signal_[-cycle:]
    step_s = task.step.total_seconds()
    tried = [_crane_estimate(earlier, cycle, step_s, *one) for one in CRANE_ESTIMATORS]
    best = int(np.argmin([_crane_error(last, one) for one in tried]))
    estimate = _crane_estimate(signal_, cycle, step_s, *CRANE_ESTIMATORS[best])
    # The cycle it chose its margin on is the only honest residual this method has.
    return _around(np.resize(estimate, task.horizon), last - tried[best])


STATSFORECAST = ("statsforecast",)
METHODS: tuple[Method, ...] = (
    Method("ours", "`forecaster.forecast` with the known event windows", (), ours),
    Method("snaive-week", "value of a week before; residual quantiles", (), snaive_week),
    Method("snaive-day", "value of a day before; residual quantiles", (), snaive_day),
    Method(
        "mstl",
        "statsforecast MSTL (day, week; AutoETS on the rest), native intervals; LOESS at every tenth of a day "
        "and interpolated between, as R does by default (about 15 times faster, errors and widths within 0.4 %)",
        ("statsforecast", "statsmodels"),
        mstl,
    ),
    Method(
        "autoets",
        "statsforecast AutoETS, season 24, hourly means of 4 weeks (daily series: season 7), native intervals "
        "plus the scatter of buckets inside an hour",
        STATSFORECAST,
        autoets,
    ),
    Method(
        "autoets-native",
        "statsforecast AutoETS without season at the native step, last 2 weeks, native intervals",
        STATSFORECAST,
        autoets_native,
    ),
    Method(
        "autoarima",
        "statsforecast AutoARIMA (approximation=True), season 24, hourly means of 2 weeks (daily: season 7), "
        "native intervals plus the scatter inside an hour",
        STATSFORECAST,
        autoarima,
    ),
    Method(
        "prophet",
        "Prophet as it comes, native intervals; steps under 30 min: last 4 weeks",
        ("prophet",),
        prophet,
    ),
    Method(
        "prophet-events",
        "Prophet with a 0/1 regressor per event category (window and the hour after it)",
        ("prophet",),
        prophet_events,
        needs_events=True,
    ),
    Method(
        "dynamo-arima",
        "as NVIDIA Dynamo's planner: automatic ARIMA without season, log1p when it collapses; last 3 days. The "
        "planner asks one step at each interval; here the model of the origin gives all steps",
        STATSFORECAST,
        dynamo_arima,
    ),
    Method(
        "dynamo-prophet",
        "as NVIDIA Dynamo's planner: default Prophet on its last 50 points; all steps from the origin",
        ("prophet",),
        dynamo_prophet,
    ),
    Method(
        "holt-winters",
        "as predictive-horizontal-pod-autoscaler: statsmodels, additive trend and season of 24 h, smoothing "
        "optimised, hourly means of 2 weeks; residual quantiles",
        ("statsmodels",),
        holt_winters,
    ),
    Method(
        "crane-fft",
        "as crane's DSP: day or week cycle by autocorrelation, its eight default estimators, 15 days; "
        "residual quantiles of the cycle it chose among them on",
        (),
        crane_fft,
    ),
)
# Timed, never scored: what MSTL costs as the library comes.
MSTL_DEFAULT = Method(
    "mstl-default",
    "statsforecast MSTL with its defaults: LOESS at every bucket",
    ("statsforecast", "statsmodels"),
    partial(mstl, jump=False),
)
