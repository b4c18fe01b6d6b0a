"""Files that say who may do what, read again when they change, so that nothing needs a restart.

Promises: a file that turns unreadable or wrong leaves the last good one in force, is said once per change in the
log, and counts as a failure that a metric shows. Refuses files that everybody may write. Called by the security
settings, which look at every file every few seconds.
"""

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Generic, TypeVar

T = TypeVar("T")
log = logging.getLogger(__name__)

FILE_BYTES_MAX = 1024 * 1024


class SecurityError(ValueError):
    """The security settings cannot be used; the message names the file or setting and the remedy."""


def read_bounded(path: Path, what: str) -> bytes:
    """Return a small file that only its owner's group may write; raise SecurityError."""
    try:
        status = path.stat()
        if status.st_mode & 0o002:
            raise SecurityError(f"{what}: everybody may write {path}; chmod o-w it")
        if status.st_size > FILE_BYTES_MAX:
            raise SecurityError(
                f"{what}: {path} is larger than {FILE_BYTES_MAX} bytes, the most that is read"
            )
        return path.read_bytes()
    except OSError as error:
        raise SecurityError(f"{what}: {path} cannot be read: {error.strerror}") from error


class WatchedFiles(Generic[T]):
    """What one or several files say together. ``value`` is always whole: all of the new, or all of the old."""

    def __init__(self, what: str, paths: tuple[Path, ...], read: Callable[[], T]) -> None:
        """Read at once; raise SecurityError if that is not possible."""
        self._what, self._paths, self._read = what, paths, read
        self._seen = self._signature()
        self.value = read()
        self.failed = False

    def _signature(self) -> tuple[object, ...]:
        found: list[object] = []
        for path in self._paths:
            try:
                status = path.stat()
                found.append((status.st_mtime_ns, status.st_size, status.st_ino))
            except OSError:
                found.append(None)
        return tuple(found)

    def refresh(self) -> bool:
        """Look again; return whether something new is in force."""
        seen = self._signature()
        # What failed is tried again: of a pair, the second file may have been half-written the first time.
        if seen == self._seen and not self.failed:
            return False
        try:
            self.value = self._read()
        except SecurityError as error:
            if seen != self._seen or not self.failed:
                log.error("%s stays as it was: %s", self._what, error)  # noqa: TRY400 -- said, not traced
            self._seen, self.failed = seen, True
            return False
        self._seen, self.failed = seen, False
        log.info("%s was read again", self._what)
        return True
