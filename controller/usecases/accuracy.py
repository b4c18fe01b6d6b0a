"""Read how good a workload's forecasts are, and what one is made of. Called by the API."""

from dataclasses import dataclass
from datetime import datetime, timedelta

from controller.accuracy import LiveAccuracy, Parts, Standing, add_up
from controller.core.resources import ForecastRun
from controller.core.types import ForecastBand
from controller.ports import Store
from controller.usecases.errors import Findings, MissingError
from controller.usecases.forecasts import find_forecast
from controller.usecases.workload_rules import DAY
from controller.usecases.workloads import find_workload

WINDOW_DEFAULT, WINDOW_MIN, WINDOW_MAX = 7 * DAY, timedelta(hours=1), 14 * DAY


@dataclass(frozen=True, slots=True)
class Accuracy:
    """The live record by lead, and who makes the forecasts."""

    live: tuple[LiveAccuracy, ...]
    standing: Standing


async def get_accuracy(store: Store, workload: str, now: datetime, window: timedelta | None) -> Accuracy:
    """Add up the scored hours of the window up to now; raise InvalidError or MissingError."""
    findings = Findings()
    findings.duration("window", window, WINDOW_MIN, WINDOW_MAX)
    findings.raise_if_any()
    async with store.unit_of_work() as uow:
        await find_workload(uow, workload)
        hours = await uow.accuracy.scores(workload, now - (window or WINDOW_DEFAULT), now)
        standing = await uow.accuracy.standing(workload)
    return Accuracy(add_up(hours), standing or Standing(workload))


async def explain_forecast(
    store: Store, workload: str, as_of: datetime | None
) -> tuple[ForecastRun, ForecastBand, Parts]:
    """Read a forecast, chosen as in ``get_forecast``, and what it is made of; raise MissingError."""
    async with store.unit_of_work() as uow:
        run, band = await find_forecast(uow, workload, as_of)
        parts = await uow.accuracy.parts(run.id)
    if parts is None:
        raise MissingError(
            f"the explanation of forecast {run.id}",
            "they are kept for two days, and there is none for a forecast without numbers; ask for a newer one",
            "EXPLANATION_NOT_FOUND",
        )
    return run, band, parts
