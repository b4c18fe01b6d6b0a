"""Keep a copy of one kind of object up to date: list, then watch, for ever.

Promises: ``objects`` is what the server had at ``synced_at`` or later; a version the server forgot (410) and every
broken watch lead to a fresh list with growing pauses; objects shrink to what the caller keeps of them, so memory is
bounded by what is needed. ``is_fresh`` says whether the copy may be believed: silence is not freshness. One thread
per kind, however many objects there are. Called by the actuator.
"""

import asyncio
import contextlib
import logging
import random
import threading
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Final, Generic, TypeAlias, TypeVar

from controller.actuators.kubernetes.api import ForbiddenError, GoneError, KubeApi, Object
from controller.adapters.clock import SystemClock
from controller.ports import NotFoundError, PortError

log = logging.getLogger(__name__)

T = TypeVar("T")

LIST_LIMIT: Final = 500  # objects per page
PAUSE_FIRST_S: Final = 0.5
PAUSE_MAX_S: Final = 30.0

Key: TypeAlias = tuple[str, str]  # namespace ("" for cluster-wide kinds) and name


class Reflector:
    """A copy of one kind in one namespace ("" for all)."""

    def __init__(
        self,
        api: KubeApi,
        path: str,
        *,
        keep: Callable[[Object], Object] = lambda o: o,
        query: Mapping[str, str] | None = None,
        optional: bool = False,
        on_change: Callable[[], None] = lambda: None,
    ) -> None:
        """``keep`` drops what is not needed of an object; ``optional`` kinds may be forbidden or unknown."""
        self._api, self._path, self._keep, self._query = api, path, keep, dict(query or {})
        self._optional, self._on_change = optional, on_change
        self._clock = SystemClock()
        self._random = random.Random()
        self._objects: dict[Key, Object] = {}
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._broken_s: float | None = None  # monotonic time since when the copy may be stale
        self._listed = threading.Event()
        self._task: asyncio.Task[None] | None = None
        self.list_count = 0
        self.change_count = (
            0  # grows with every change of the copy, so that what is made of it need not be made anew
        )

    def start(self) -> None:
        """Begin; returns at once."""
        self._task = asyncio.create_task(self._run(), name=f"watch {self._path}")

    @property
    def objects(self) -> Mapping[Key, Object]:
        """A consistent view of the newest copy; do not change the objects in it."""
        with self._lock:
            return dict(self._objects)

    def is_fresh(self, tolerance: timedelta) -> bool:
        """Whether the copy was complete once and has not been cut off for longer than ``tolerance``."""
        broken_s = self._broken_s
        if not self._listed.is_set():
            return False
        return broken_s is None or self._clock.monotonic() - broken_s <= tolerance.total_seconds()

    def put(self, item: Object) -> None:
        """Take over an answer to a call of ours, which the watch has yet to tell, unless the copy is newer.

        What the copy does not hold stays out of it: it may have been deleted since the call.
        """
        with self._lock:
            if _key(item) in self._objects:
                self._put(item)

    def _put(self, item: Object) -> None:
        known = self._objects.get(_key(item))
        if known is None or _version(item) >= _version(known):
            self._objects[_key(item)] = self._keep(item)
            self.change_count += 1

    async def close(self) -> None:
        """Stop watching."""
        self._stop.set()
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        pause_s = PAUSE_FIRST_S
        version: str | None = None
        while True:
            try:
                if version is None:
                    version = await self._list()
                version = await self._follow(version)
                pause_s = PAUSE_FIRST_S
                continue
            except GoneError:
                version = None  # what it missed is only in a fresh list
            except PortError as error:
                first = self._broken_s is None
                self._mark_broken()
                if self._optional and isinstance(error, (ForbiddenError, NotFoundError)):
                    log.info("%s", error)
                    version, pause_s = None, PAUSE_MAX_S
                    self._clear()
                else:
                    # Once per interruption: the tries that follow say the same.
                    log.log(logging.WARNING if first else logging.DEBUG, "%s", error)
            await self._clock.sleep(pause_s * (0.5 + self._random.random()))
            pause_s = min(2 * pause_s, PAUSE_MAX_S)

    def _clear(self) -> None:
        with self._lock:
            self._objects = {}
            self.change_count += 1

    def _mark_broken(self) -> None:
        if self._broken_s is None:
            self._broken_s = self._clock.monotonic()

    async def _list(self) -> str:
        found: dict[Key, Object] = {}
        token = ""
        while True:
            more = {"continue": token} if token else {}
            page = await self._api.get(self._path, limit=str(LIST_LIMIT), **self._query, **more)
            for item in page.get("items", ()):
                found[_key(item)] = self._keep(item)
            token = page["metadata"].get("continue", "")
            if not token:
                break
        with self._lock:
            # A page read before an answer that was put since must not take it back.
            for key in found.keys() & self._objects.keys():
                if _version(self._objects[key]) > _version(found[key]):
                    found[key] = self._objects[key]
            self._objects = found
            self.change_count += 1
        self.list_count += 1
        self._broken_s = None
        self._listed.set()
        self._on_change()
        return str(page["metadata"]["resourceVersion"])

    async def _follow(self, version: str) -> str:
        """Watch until the server ends it; return the newest version seen. The thread ends with the stream."""
        loop = asyncio.get_running_loop()
        queue: asyncio.Queue[tuple[str, Object] | BaseException | None] = asyncio.Queue()

        def put(item: tuple[str, Object] | BaseException | None) -> None:
            # After the loop has closed nobody is left to be told.
            with contextlib.suppress(RuntimeError):
                loop.call_soon_threadsafe(queue.put_nowait, item)

        def read() -> None:
            try:
                for change in self._api.watch(self._path, version, self._query):
                    if self._stop.is_set():
                        return
                    put(change)
                put(None)
            except BaseException as error:  # noqa: BLE001 - handed to the loop, which raises it
                put(error)

        # Daemon: a stream that is silent for minutes must not keep the process from ending.
        threading.Thread(target=read, name=f"watch {self._path}", daemon=True).start()
        while True:
            item = await queue.get()
            if item is None:
                return version
            if isinstance(item, BaseException):
                raise item
            kind, thing = item
            self._broken_s = None
            version = thing["metadata"]["resourceVersion"]
            if kind in {"ADDED", "MODIFIED", "DELETED"}:
                self._apply(kind, thing)
                self._on_change()

    def _apply(self, kind: str, thing: Object) -> None:
        with self._lock:
            if kind == "DELETED":
                self._objects.pop(_key(thing), None)
                self.change_count += 1
            else:
                self._put(thing)


class Snapshot(Generic[T]):
    """What is made of all objects of some reflectors, made anew only after one of them changed. Do not change it."""

    def __init__(self, reflectors: Sequence[Reflector], make: Callable[[Mapping[Key, Object]], T]) -> None:
        self._reflectors, self._make = tuple(reflectors), make
        self._counts: tuple[int, ...] | None = None
        self._made: T

    def __call__(self) -> T:
        """The newest."""
        counts = tuple(r.change_count for r in self._reflectors)
        if counts != self._counts:
            merged: dict[Key, Object] = {}
            for reflector in self._reflectors:
                merged |= reflector.objects
            self._made, self._counts = self._make(merged), counts
        return self._made


def _key(item: Object) -> Key:
    metadata = item["metadata"]
    return metadata.get("namespace", ""), metadata["name"]


def _version(item: Object) -> int:
    """Resource versions grow (Kubernetes says so since 1.35); what is no number is the oldest."""
    text = str(item["metadata"].get("resourceVersion", ""))
    return int(text) if text.isdecimal() else 0
