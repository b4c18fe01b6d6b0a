"""Fakes of the ports, written for tests and simulation: same contract, no server.

The contract suites run against each fake and the real adapter. `available = False` on a fake makes every
call fail the way an outage does.
"""

from controller.adapters.fakes.cache import FakeSignalCache
from controller.adapters.fakes.fleet import FakeActuator, FakeDemandMeter, FakeForecaster
from controller.adapters.fakes.leases import FakeLeaseStore
from controller.adapters.fakes.sink import FakeNotificationSink
from controller.adapters.fakes.store import FakeStore, FakeUnitOfWork

__all__ = [
    "FakeActuator",
    "FakeDemandMeter",
    "FakeForecaster",
    "FakeLeaseStore",
    "FakeNotificationSink",
    "FakeSignalCache",
    "FakeStore",
    "FakeUnitOfWork",
]
