"""Production's loop on written fakes and a virtual clock: what controllers share, and one of them.

Promises: a process is wired as the composition root wires one, without servers. Called by the endurance run and by the
loop's tests.
"""

from datetime import datetime, timedelta

from controller.adapters.clock import VirtualClock
from controller.adapters.fakes import (
    FakeActuator,
    FakeDemandMeter,
    FakeForecaster,
    FakeLeaseStore,
    FakeSignalCache,
    FakeStore,
)
from controller.loop.control import Control
from controller.loop.forecasting import Forecasting
from controller.loop.leader import Leadership
from controller.loop.observe import Observer
from controller.loop.runner import Runner
from controller.ports import LEADER_LEASE
from controller.settings import Settings


class FakeWorld:
    """What several controller processes share: clock, store, leases, cache and the replicas."""

    def __init__(self, start_at: datetime) -> None:
        self.clock = VirtualClock(start_at)
        self.leases = FakeLeaseStore(self.clock)
        self.store = FakeStore(self.leases)
        self.cache = FakeSignalCache(self.clock)
        self.actuator = FakeActuator(self.clock)
        self.meter = FakeDemandMeter()


class FakeProcess:
    """One controller of such a world; it does nothing by itself."""

    def __init__(self, world: FakeWorld, name: str, settings: Settings, *, ttl: timedelta) -> None:
        """``ttl``: how long what it observed of demand is good for."""
        clock = world.clock
        self.leadership = Leadership(
            world.leases, clock, name=LEADER_LEASE, holder=name, duration=settings.lease_duration
        )
        self.observer = Observer(world.actuator, world.meter, world.cache, world.store, ttl=ttl)
        self.forecasting = Forecasting(world.store, FakeForecaster(), clock, settings)
        self.control = Control(
            world.store, world.cache, world.actuator, self.observer, self.forecasting, clock, settings
        )
        self.runner = Runner(self.leadership, self.control, self.observer, self.forecasting, clock, settings)
