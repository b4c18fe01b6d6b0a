"""A receiver in memory, which keeps what it is told and refuses what a test wants refused."""

from controller.notify.types import Notification
from controller.ports import SinkBusyError, SinkRefusedError


class FakeNotificationSink:
    """Implements `controller.ports.NotificationSink`. `received` holds (notification, attempt), as they came."""

    def __init__(self) -> None:
        self.received: list[tuple[Notification, int]] = []
        self.busy: SinkBusyError | None = None  # raised while it is set
        self.refuses = False
        self.attempt_count = 0

    async def send(self, notification: Notification, attempt: int) -> None:
        """Keep it; raise what the test has set."""
        self.attempt_count += 1
        if self.busy is not None:
            raise self.busy
        if self.refuses:
            raise SinkRefusedError("answered 404")
        self.received.append((notification, attempt))

    async def close(self) -> None:
        """Nothing to release."""
