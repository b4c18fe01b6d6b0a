"""Read forecasts and history of demand."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from controller.core.resources import ForecastRun
from controller.core.types import ForecastBand
from controller.ports import Store, UnitOfWork
from controller.usecases.errors import Findings, MissingError
from controller.usecases.workload_rules import DAY, MINUTE
from controller.usecases.workloads import find_workload

BUCKETS_MAX = 20_160
BATCH_MAX = 100


@dataclass(frozen=True, slots=True)
class History:
    """Demand per bucket, QPS, None where unknown; and what is stored at all."""

    step: timedelta
    points: Sequence[tuple[datetime, float | None]]
    span: tuple[datetime, datetime] | None


async def get_forecast(
    store: Store, workload: str, as_of: datetime | None = None
) -> tuple[ForecastRun, ForecastBand]:
    """Read the newest forecast, or the newest at ``as_of``; raise MissingError."""
    async with store.unit_of_work() as uow:
        return await find_forecast(uow, workload, as_of)


async def find_forecast(
    uow: UnitOfWork, workload: str, as_of: datetime | None
) -> tuple[ForecastRun, ForecastBand]:
    """Read a forecast inside a transaction, as ``get_forecast`` does."""
    found = await (uow.forecasts.latest(workload) if as_of is None else uow.forecasts.as_of(workload, as_of))
    if found is None:
        await find_workload(uow, workload)
        raise MissingError(
            f"workloads/{workload}/forecast",
            "none was made yet; import traffic (forecrest history import) or let some be recorded, and ask again "
            "after the next refit, which comes within half a minute"
            if as_of is None
            else "none had been made by then; ask for a later time, or without one for the newest",
            "FORECAST_NOT_FOUND",
        )
    return found


async def newest_forecast_id(store: Store, workload: str) -> str | None:
    """Id of the newest forecast, for whoever holds it already; None if there is none to see."""
    async with store.unit_of_work() as uow:
        return (await uow.forecasts.newest([workload])).get(workload)


def check_batch(count: int) -> None:
    """Raise InvalidError unless so many forecasts may be read at once."""
    findings = Findings()
    findings.require(1 <= count <= BATCH_MAX, "names", f"must have 1 to {BATCH_MAX} entries; got {count}")
    findings.raise_if_any()


async def batch_get_forecasts(
    store: Store, workloads: Sequence[str]
) -> list[tuple[ForecastRun, ForecastBand]]:
    """Read the newest forecasts, without those that do not exist; raise InvalidError."""
    check_batch(len(workloads))
    async with store.unit_of_work() as uow:
        found = [await uow.forecasts.latest(workload) for workload in workloads]
    return [forecast for forecast in found if forecast is not None]


async def get_history(
    store: Store,
    workload: str,
    now: datetime,
    *,
    start_at: datetime | None = None,
    end_at: datetime | None = None,
    step: timedelta | None = None,
) -> History:
    """Read demand of a window, one day up to now unless said otherwise; raise InvalidError or MissingError."""
    step = MINUTE if step is None else step
    end_at = now if end_at is None else end_at
    findings = Findings()
    findings.duration("step", step, MINUTE, DAY)
    findings.require(step % MINUTE == timedelta(0), "step", "must be whole minutes")
    try:
        start_at = end_at - DAY if start_at is None else start_at
    except OverflowError:
        start_at = end_at
    findings.window(start_at, end_at)
    findings.raise_if_any()
    findings.require(
        (end_at - start_at) / step <= BUCKETS_MAX,
        "step",
        f"would give more than {BUCKETS_MAX} buckets; ask for a longer step or a shorter window",
    )
    findings.raise_if_any()
    async with store.unit_of_work() as uow:
        span = await uow.traffic.span(workload)
        if span is None:
            await find_workload(uow, workload)
        return History(step, await uow.traffic.read(workload, start_at, end_at, step=step), span)
