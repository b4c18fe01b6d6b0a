"""KEDA's ExternalScaler: read the trigger's metadata, ask the use case, answer in KEDA's words.

Promises what KEDA's client needs: ``GetMetricSpec`` follows from the metadata alone, so every controller answers
it also while PostgreSQL and Redis are away (without it KEDA's fallback would never begin); a metric is never NaN
or negative; an unknown is an error, which fails the poll; streams send the present state when they open. Refuses
metadata that it does not know. Called by KEDA's operator and metrics server.
"""
# ruff: noqa: N802 -- the protocol names the methods

import logging
import math
import re
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from datetime import timedelta
from typing import Final

from forecrest.keda import externalscaler_pb2, externalscaler_pb2_grpc

from controller.api.calls import ApiDependencies
from controller.api.feed import Feed
from controller.api.streams import Streams
from controller.core.types import Workload
from controller.ports import PortError
from controller.usecases.errors import Findings
from controller.usecases.keda import Answers, metric_for
from controller.usecases.names import check_id

log = logging.getLogger(__name__)

WORKLOAD, TOLERANCE, AGE_MAX = "workload", "hpaTolerance", "decisionAgeMaxSeconds"
OURS: Final = (WORKLOAD, TOLERANCE, AGE_MAX)
# What KEDA itself reads of the same metadata, and passes on.
KEDAS: Final = frozenset(
    {"scalerAddress", "enableTLS", "unsafeSsl", "caCert", "tlsClientCert", "tlsClientKey", "tlsCertFile"}
)
DEFAULT_TOLERANCE = 0.1  # what HPAs have unless told otherwise
DEFAULT_AGE_MAX_S = 900.0  # three times as long as a running loop lets pass between two records
TARGET = 1.0
# A poll asks for the metric and for activity: one look at the replicas serves both, and the next poll's.
_COUNT_KEPT_S = 2.0
_COUNTS_MAX = 20_000


@dataclass(frozen=True, slots=True)
class Trigger:
    """The metadata of one trigger, checked."""

    workload: str
    tolerance: float
    age_max: timedelta

    @property
    def metric_name(self) -> str:
        """The metric's name, without the index that KEDA puts before it."""
        return f"forecrest-{self.workload}"


def trigger_of(metadata: Mapping[str, str]) -> Trigger:
    """Read a trigger's metadata; raise InvalidError naming every bad key."""
    findings = Findings("scalerMetadata.")
    for key in sorted(metadata.keys() - KEDAS - set(OURS)):
        findings.add(
            key[:63], f"is not known; there are {', '.join(OURS)}, and KEDA's own {', '.join(sorted(KEDAS))}"
        )
    workload = metadata.get(WORKLOAD, "").removeprefix("workloads/")
    check_id(findings, WORKLOAD, workload)
    tolerance = _number(findings, metadata, TOLERANCE, DEFAULT_TOLERANCE, 0.0, 0.5)
    age_max_s = _number(findings, metadata, AGE_MAX, DEFAULT_AGE_MAX_S, 330.0, 86_400.0)
    findings.raise_if_any()
    return Trigger(workload, tolerance, timedelta(seconds=age_max_s))


def _number(
    findings: Findings, metadata: Mapping[str, str], key: str, default: float, low: float, high: float
) -> float:
    given = metadata.get(key)
    if given is None:
        return default
    if not re.fullmatch(r"\d{1,9}(\.\d{1,9})?", given.strip()):
        findings.add(
            key, f'must be a number in decimal, in quotes, for example "{default:g}"; got {given[:40]!r}'
        )
        return default
    findings.number(key, float(given), low, high)
    return float(given)


class KedaServicer(externalscaler_pb2_grpc.ExternalScalerServicer):
    """The scaler of every workload whose ScaledObject names it."""

    def __init__(self, deps: ApiDependencies, feed: Feed, streams: Streams) -> None:
        self._deps, self._feed, self._streams = deps, feed, streams
        self._answers = Answers(deps.store)
        self._counts: dict[str, tuple[float, int | None]] = {}

    async def IsActive(
        self, request: externalscaler_pb2.ScaledObjectRef, context: object
    ) -> externalscaler_pb2.IsActiveResponse:
        """Whether there should be any replica."""
        del context
        trigger = trigger_of(request.scalerMetadata)
        _, decision = await self._answers.decision(trigger.workload, self._deps.clock.now(), trigger.age_max)
        return externalscaler_pb2.IsActiveResponse(result=decision.desired_replicas > 0)

    async def StreamIsActive(
        self, request: externalscaler_pb2.ScaledObjectRef, context: object
    ) -> AsyncGenerator[externalscaler_pb2.IsActiveResponse]:
        """The present state, then every change."""
        del context
        trigger = trigger_of(request.scalerMetadata)
        _, decision = await self._answers.decision(trigger.workload, self._deps.clock.now(), trigger.age_max)
        active = decision.desired_replicas > 0
        yield externalscaler_pb2.IsActiveResponse(result=active)
        async with aclosing(self._feed.decisions(trigger.workload)) as entries:
            async for (decided, _), *_ in entries:
                if (decided.desired_replicas > 0) != active:
                    active = not active
                    yield externalscaler_pb2.IsActiveResponse(result=active)

    async def GetMetricSpec(
        self, request: externalscaler_pb2.ScaledObjectRef, context: object
    ) -> externalscaler_pb2.GetMetricSpecResponse:
        """One metric with a target of one per replica."""
        del context
        return _spec(trigger_of(request.scalerMetadata))

    async def StreamMetricSpec(
        self, request: externalscaler_pb2.ScaledObjectRef, context: object
    ) -> AsyncIterator[externalscaler_pb2.GetMetricSpecResponse]:
        """The present spec; it never changes, so nothing follows."""
        del context
        spec = _spec(trigger_of(request.scalerMetadata))
        with self._streams.admitted():
            yield spec
            await self._streams.hold()

    async def GetMetrics(
        self, request: externalscaler_pb2.GetMetricsRequest, context: object
    ) -> externalscaler_pb2.GetMetricsResponse:
        """How many replicas there should be, as the HPA must hear it."""
        del context
        trigger = trigger_of(request.scaledObjectRef.scalerMetadata)
        findings = Findings()
        findings.require(
            request.metricName in {"", trigger.metric_name},
            "metricName",
            f"must be {trigger.metric_name}; got {request.metricName[:80]!r}",
        )
        findings.raise_if_any()
        workload, decision = await self._answers.decision(
            trigger.workload, self._deps.clock.now(), trigger.age_max
        )
        value = metric_for(decision.desired_replicas, await self._count(workload), trigger.tolerance)
        return externalscaler_pb2.GetMetricsResponse(
            metricValues=[
                externalscaler_pb2.MetricValue(
                    metricName=trigger.metric_name, metricValue=math.ceil(value), metricValueFloat=value
                )
            ]
        )

    async def _count(self, workload: Workload) -> int | None:
        """Replicas that the target asks for now, at most some seconds old; None: not known."""
        if self._deps.actuator is None:
            return None
        now_s = self._deps.pace.monotonic()
        at_s, count = self._counts.get(workload.name, (-math.inf, None))
        if now_s - at_s <= _COUNT_KEPT_S:
            return count
        try:
            view = (await self._deps.actuator.observe([workload])).get(workload.name)
        except PortError as error:
            log.warning(
                "replicas of %s are not known, so the HPA's tolerance is not left: %s", workload.name, error
            )
            return None
        if len(self._counts) >= _COUNTS_MAX:
            self._counts.clear()
        self._counts[workload.name] = now_s, None if view is None else view.desired_replicas
        return self._counts[workload.name][1]


def _spec(trigger: Trigger) -> externalscaler_pb2.GetMetricSpecResponse:
    return externalscaler_pb2.GetMetricSpecResponse(
        metricSpecs=[
            externalscaler_pb2.MetricSpec(
                metricName=trigger.metric_name, targetSize=int(TARGET), targetSizeFloat=TARGET
            )
        ]
    )
