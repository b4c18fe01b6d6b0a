"""Demand from a Prometheus server: an instant query for the present, range queries for the past.

Promises: what Prometheus does not know stays unknown (no series, NaN, a gap), never 0; every call is bounded in
time, size and attempts; an outage is ``UnavailableError`` and is retried, a query that can never work is
``QueryError`` and is not; both name the query and the remedy, and never a credential. Refuses queries with more
than one result, and values that are no rate. Reads the token file at each call, so a renewed token needs no
restart. Called by the loop's observer and by ``forecrest traffic backfill``.
"""

import asyncio
import base64
import json
import logging
import math
import random
import ssl
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from http import HTTPStatus
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import aiohttp

from controller.core.resources import TrafficSample
from controller.core.types import DemandObservation, Workload
from controller.ports import Clock, PortError, UnavailableError

log = logging.getLogger(__name__)

MINUTE = timedelta(minutes=1)
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
# Prometheus refuses more points of one series in one answer.
POINTS_MAX = 11_000
_BODY_BYTES_MAX = 32 * 1024 * 1024
_QPS_MAX = 1e10  # of a whole minute, still within what the store takes
_SHOWN = 120  # characters of a query or an answer in messages
_RETRIED = frozenset(
    {
        HTTPStatus.TOO_MANY_REQUESTS,
        HTTPStatus.INTERNAL_SERVER_ERROR,
        HTTPStatus.BAD_GATEWAY,
        HTTPStatus.SERVICE_UNAVAILABLE,
        HTTPStatus.GATEWAY_TIMEOUT,
    }
)


class QueryError(PortError):
    """The query, the address or the credentials are wrong: asking again will not help."""


@dataclass(frozen=True, slots=True)
class PrometheusAccess:
    """Where the server is and how to be let in. Secrets stay out of its repr.

    ``headers`` go with every call, for example the tenant of a shared server.
    """

    url: str
    token_file: Path | None = None
    username: str | None = None
    password: str | None = field(default=None, repr=False)
    ca_file: Path | None = None
    headers: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)
    timeout_s: float = 10.0
    attempts_max: int = 4
    points_max: int = POINTS_MAX

    def __post_init__(self) -> None:
        """Refuse what can never work.

        Raises:
            ValueError: names the field and the remedy.
        """
        try:
            parts = urlsplit(self.url)
            fits = parts.scheme in {"http", "https"} and bool(parts.hostname) and (parts.port or 1) > 0
        except ValueError:
            fits = False
        if not fits or "@" in self.url:
            # A password in a URL would end up in logs; it is not repeated here either.
            raise ValueError("prometheus url: write http://host:9090 or https://…, without user and password")
        if self.token_file is not None and self.username is not None:
            raise ValueError("prometheus: give a token file or a user name, not both")
        if not 1 <= self.points_max <= POINTS_MAX:
            raise ValueError(f"prometheus points_max: must be 1 to {POINTS_MAX}; got {self.points_max}")


class Prometheus:
    """A client of one server's query API; close it to release its connections."""

    def __init__(self, access: PrometheusAccess, clock: Clock) -> None:
        self._access, self._clock = access, clock
        self._session: aiohttp.ClientSession | None = None

    async def rate(self, query: str, at: datetime) -> float | None:
        """The query's one value at an instant, per second; None where Prometheus knows none.

        Raises:
            QueryError: the query can never work, or has several results.
            UnavailableError: no answer after all attempts.
        """
        found = await self._ask("query", query, {"query": query, "time": f"{at.timestamp():.3f}"})
        kind, result = found.get("resultType"), found.get("result")
        if kind == "scalar":
            return _value(query, result)
        if kind != "vector" or not isinstance(result, list):
            raise QueryError(
                f"{_shown(query)}: gives a {kind}, not an instant vector; leave the outer range away"
            )
        series = _only(query, result)
        return None if series is None else _value(query, series.get("value"))

    async def rates(
        self, query: str, start_at: datetime, end_at: datetime, step: timedelta
    ) -> AsyncIterator[list[tuple[datetime, float]]]:
        """Values at ``start_at``, then every ``step`` up to and with ``end_at``, in chunks of one call each.

        Points that Prometheus does not know are left out. A chunk may be empty. Raises as ``rate`` does.
        """
        at, chunk = start_at, step * (self._access.points_max - 1)
        while at <= end_at:
            until = min(end_at, at + chunk)
            yield await self._chunk(query, at, until, step)
            at = until + step

    async def _chunk(
        self, query: str, start_at: datetime, end_at: datetime, step: timedelta
    ) -> list[tuple[datetime, float]]:
        form = {
            "query": query,
            "start": f"{start_at.timestamp():.3f}",
            "end": f"{end_at.timestamp():.3f}",
            "step": f"{step.total_seconds():g}",
        }
        found = await self._ask("query_range", query, form)
        result = found.get("result")
        if found.get("resultType") != "matrix" or not isinstance(result, list):
            raise QueryError(f"{_shown(query)}: the answer is no matrix; is this a Prometheus server?")
        series = _only(query, result)
        points: list[tuple[datetime, float]] = []
        for pair in series.get("values", ()) if series is not None else ():
            value = _value(query, pair)
            if value is not None:
                points.append((EPOCH + timedelta(seconds=round(float(pair[0]), 3)), value))
        return points

    async def _ask(self, method: str, query: str, form: Mapping[str, str]) -> Mapping[str, Any]:
        """Post, and again after growing pauses while the server is away."""
        for attempt in range(1, self._access.attempts_max + 1):
            try:
                return await self._post(method, query, form)
            except UnavailableError:
                if attempt == self._access.attempts_max:
                    raise
                await self._clock.sleep(0.25 * 2**attempt * random.uniform(0.8, 1.2))
        raise AssertionError("unreachable: the last attempt returns or raises")

    async def _post(self, method: str, query: str, form: Mapping[str, str]) -> Mapping[str, Any]:
        url = f"{self._access.url.rstrip('/')}/api/v1/{method}"
        try:
            session = self._opened()
            headers = {**self._access.headers, **self._authorization()}
            # By POST, because a long query does not fit into an address.
            async with session.post(url, data=form, headers=headers, allow_redirects=False) as response:
                body = bytearray()
                async for chunk in response.content.iter_chunked(256 * 1024):
                    body += chunk
                    if len(body) > _BODY_BYTES_MAX:
                        raise QueryError(
                            f"{_shown(query)}: the answer has over {_BODY_BYTES_MAX} bytes; ask for less"
                        )
                return _data(query, url, response.status, bytes(body))
        except TimeoutError as error:
            limit = f"{self._access.timeout_s:g} s"
            raise UnavailableError(
                f"{_shown(query)}: Prometheus did not answer within {limit}; a recording rule makes it cheaper"
            ) from error
        except aiohttp.ClientSSLError as error:
            raise QueryError(f"{url}: TLS failed ({error}); name the server's CA file") from error
        except (aiohttp.ClientError, OSError) as error:
            raise UnavailableError(
                f"{url}: Prometheus cannot be reached ({error}); check the address"
            ) from error

    def _authorization(self) -> dict[str, str]:
        access = self._access
        if access.token_file is not None:
            try:
                token = access.token_file.read_text(encoding="utf-8").strip()
            except (OSError, UnicodeError) as error:
                raise QueryError(
                    f"prometheus token file {access.token_file}: cannot be read; correct it"
                ) from error
            return {"Authorization": f"Bearer {token}"}
        if access.username is not None:
            pair = f"{access.username}:{access.password or ''}"
            return {"Authorization": f"Basic {base64.b64encode(pair.encode()).decode()}"}
        return {}

    def _opened(self) -> aiohttp.ClientSession:
        if self._session is None:
            secure: ssl.SSLContext | bool = True
            if self._access.ca_file is not None:
                try:
                    secure = ssl.create_default_context(cafile=str(self._access.ca_file))
                except (OSError, ssl.SSLError) as error:
                    raise QueryError(
                        f"prometheus CA file {self._access.ca_file}: cannot be used; {error}"
                    ) from error
            self._session = aiohttp.ClientSession(
                timeout=aiohttp.ClientTimeout(total=self._access.timeout_s),
                connector=aiohttp.TCPConnector(ssl=secure, limit=16),
            )
        return self._session

    async def close(self) -> None:
        """Release connections."""
        if self._session is not None:
            await self._session.close()
            self._session = None


def _data(query: str, url: str, status: int, body: bytes) -> Mapping[str, Any]:
    """The answer's data, or what is wrong with it."""
    try:
        answer = json.loads(body)
    except ValueError:
        answer = None
    said = str(answer.get("error", "")) if isinstance(answer, dict) else ""
    if status in _RETRIED or (
        isinstance(answer, dict) and answer.get("errorType") in {"timeout", "canceled"}
    ):
        raise UnavailableError(f"{_shown(query)}: Prometheus answered {status} {said[:_SHOWN]}".rstrip())
    if status in {HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN}:
        raise QueryError(f"{url}: refused us with {status}; check the token, or user and password")
    if status != HTTPStatus.OK and said:
        raise QueryError(f"{_shown(query)}: {said[: 3 * _SHOWN]}; correct the query")
    if status != HTTPStatus.OK or not isinstance(answer, dict) or not isinstance(answer.get("data"), dict):
        raise QueryError(f"{url}: answered {status}, not as Prometheus does; check the address")
    for warning in answer.get("warnings") or ():
        log.warning("%s: Prometheus warns: %s", _shown(query), str(warning)[:_SHOWN])
    return dict(answer["data"])


def _only(query: str, result: Sequence[Any]) -> Mapping[str, Any] | None:
    if len(result) > 1:
        raise QueryError(f"{_shown(query)}: gives {len(result)} series; put sum(…) around it")
    return dict(result[0]) if result else None


def _value(query: str, pair: Any) -> float | None:  # noqa: ANN401 -- parsed JSON
    """The value of a [time, "value"] pair; None for NaN, which is how PromQL says that it does not know."""
    try:
        value = float(pair[1])
    except (TypeError, ValueError, IndexError) as error:
        raise QueryError(f"{_shown(query)}: the answer is no number; ask for a rate") from error
    if math.isnan(value):
        return None
    if not 0 <= value <= _QPS_MAX:
        raise QueryError(f"{_shown(query)}: gives {value:g}, which is no rate; use rate() on a counter")
    return value


def _shown(query: str) -> str:
    return f"query {query[:_SHOWN]!r}"


@dataclass(slots=True)
class _Followed:
    """One workload's query and how far its minutes are read."""

    query: str
    next_minute_at: datetime
    asked_at: datetime | None = None


class PrometheusTraffic:
    """Implements `controller.ports.DemandSource`: live demand and minutes of workloads that name a query.

    Asks in the background, so a slow server delays nobody: ``observe`` returns what is known and sees to it that
    newer answers are on their way. A minute is read ``settle`` after its end, when it has been scraped, as the
    query's value at its end; minutes missed in an outage of up to ``catch_up``, of the server or of this process, are
    read later.
    """

    def __init__(
        self,
        prometheus: Prometheus,
        clock: Clock,
        *,
        period: timedelta = timedelta(seconds=10),
        settle: timedelta = timedelta(seconds=30),
        catch_up: timedelta = timedelta(hours=2),
        concurrency: int = 8,
    ) -> None:
        self._prometheus, self._clock = prometheus, clock
        self._period, self._settle, self._catch_up = period, settle, catch_up
        self._slots = asyncio.Semaphore(concurrency)
        self._followed: dict[str, _Followed] = {}
        self._observed: dict[str, DemandObservation] = {}
        self._samples: list[TrafficSample] = []
        self._refreshing: asyncio.Task[None] | None = None
        self.failures: dict[str, str] = {}  # newest, by workload

    async def observe(self, workloads: Sequence[Workload]) -> Mapping[str, DemandObservation]:
        """Newest known demand of workloads with a query; those without an answer are missing."""
        asked = [workload for workload in workloads if workload.demand_query]
        self._forget(asked)
        if asked and (self._refreshing is None or self._refreshing.done()):
            self._refreshing = asyncio.create_task(self.refresh(asked), name="prometheus")
        return dict(self._observed)

    async def refresh(self, workloads: Sequence[Workload]) -> None:
        """Ask for every workload that is due, and return when all have answered or failed."""
        self._forget(workloads)
        now = self._clock.now()
        due = [w for w in workloads if w.demand_query and self._due(w.name, now)]
        await asyncio.gather(*(self._follow(workload, now) for workload in due))

    def drain_samples(self) -> Sequence[TrafficSample]:
        """Minutes read since the last call, for the traffic store."""
        drained, self._samples = self._samples, []
        return drained

    async def close(self) -> None:
        """Stop asking and release connections."""
        if self._refreshing is not None:
            self._refreshing.cancel()
            await asyncio.gather(self._refreshing, return_exceptions=True)
        await self._prometheus.close()

    def _forget(self, workloads: Sequence[Workload]) -> None:
        """Drop what belongs to another query or to nobody."""
        queries = {workload.name: workload.demand_query for workload in workloads}
        for name in [n for n, followed in self._followed.items() if queries.get(n) != followed.query]:
            del self._followed[name]
            self._observed.pop(name, None)
            self.failures.pop(name, None)

    def _due(self, name: str, now: datetime) -> bool:
        followed = self._followed.get(name)
        asked_at = None if followed is None else followed.asked_at
        return asked_at is None or not timedelta(0) <= now - asked_at < self._period

    async def _follow(self, workload: Workload, now: datetime) -> None:
        assert workload.demand_query is not None
        # From as far back as is caught up with: while no controller ran, nobody read. What is stored stays the same.
        first_at = (now - self._catch_up).replace(second=0, microsecond=0)
        followed = self._followed.setdefault(workload.name, _Followed(workload.demand_query, first_at))
        followed.asked_at = now
        try:
            async with self._slots:
                qps = await self._prometheus.rate(followed.query, now)
                await self._read_minutes(workload.name, followed, now)
        except PortError as error:
            if self.failures.get(workload.name) != str(error):
                log.warning("demand of %s is not known: %s", workload.name, error)
            self.failures[workload.name] = str(error)
            return
        self.failures.pop(workload.name, None)
        if qps is None:
            self._observed.pop(workload.name, None)
            return
        self._observed[workload.name] = DemandObservation(
            at=now,
            stable_qps=qps,
            panic_qps=None,
            backlog_count=0.0,
            reporting_count=1,
            expected_count=1,
            # The query looks back itself; what it averages over is its author's word.
            window=workload.policy.stable_window,
        )

    async def _read_minutes(self, name: str, followed: _Followed, now: datetime) -> None:
        end_at = (now - self._settle).replace(second=0, microsecond=0)
        start_at = max(followed.next_minute_at, end_at - self._catch_up)
        if start_at >= end_at:
            return
        async for points in self._prometheus.rates(followed.query, start_at + MINUTE, end_at, MINUTE):
            self._samples += minutes_of(name, points)
        followed.next_minute_at = end_at


def minutes_of(workload: str, points: Sequence[tuple[datetime, float]]) -> list[TrafficSample]:
    """Minutes of demand from rates at their ends: the value at 12:01 is that of the minute from 12:00 on."""
    return [TrafficSample(workload, at - MINUTE, qps * 60.0, source="prometheus") for at, qps in points]
