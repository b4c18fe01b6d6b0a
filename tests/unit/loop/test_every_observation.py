"""How often forecasts are made has no say in what they are made from: no minute between two refits is dropped."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

import pytest

from controller.accuracy import Standing
from controller.adapters.fakes import FakeForecaster
from controller.core.resources import TrafficSample
from controller.core.types import Event, Workload
from controller.loop.forecasting import Forecasting
from controller.ports import Refit
from controller.settings import Settings
from tests.unit.loop.conftest import START, Fleet

MINUTE = timedelta(minutes=1)


@dataclass
class Reading(FakeForecaster):
    """Keeps the histories that it is given."""

    histories: list[list[tuple[datetime, float | None]]] = field(
        default_factory=list[list[tuple[datetime, float | None]]]
    )

    async def refit(
        self,
        history: Sequence[tuple[datetime, float | None]],
        *,
        step: timedelta,
        horizon_steps: int,
        events: Sequence[Event],
        now: datetime,
        standing: Standing,
        time_zone: str | None = None,
    ) -> Refit:
        self.histories.append(list(history))
        return await super().refit(
            history,
            step=step,
            horizon_steps=horizon_steps,
            events=events,
            now=now,
            standing=standing,
            time_zone=time_zone,
        )


@pytest.mark.parametrize("period_s", [60, 300, 3600])
async def test_observations_between_refits_are_all_in_the_next_one(
    fleet: Fleet, recommender: Workload, period_s: int
) -> None:
    settings = Settings(forecast_step_s=60, forecast_period_s=period_s)
    reading = Reading()
    forecasting = Forecasting(fleet.store, reading, fleet.clock, settings)
    sent: dict[datetime, float] = {}
    for minute in range(150):
        at = START + MINUTE * minute
        sent[at] = 10.0 + minute
        fleet.store.tables.samples[recommender.name, at] = TrafficSample(
            recommender.name, at, 60.0 * sent[at]
        )
        await fleet.clock.advance(60.0)
        await forecasting.refresh([recommender], {})

    last = reading.histories[-1]
    assert last == list(sent.items())[: len(last)]
    assert len(last) > 150 - period_s // 60
    assert len(reading.histories) >= 150 * 60 // period_s
