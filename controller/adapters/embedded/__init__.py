"""Real servers from Python packages, for one machine and for tests; see `stack.py`."""

from controller.adapters.embedded.folder import AlreadyRunningError
from controller.adapters.embedded.process import EmbeddedError, ServerStartError
from controller.adapters.embedded.stack import (
    DEFAULT_DATA_DIR,
    EmbeddedStack,
    StackUrls,
    embedded_stack,
    running_urls,
)

__all__ = [
    "DEFAULT_DATA_DIR",
    "AlreadyRunningError",
    "EmbeddedError",
    "EmbeddedStack",
    "ServerStartError",
    "StackUrls",
    "embedded_stack",
    "running_urls",
]
