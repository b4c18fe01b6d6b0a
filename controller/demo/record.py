"""What a demo run measured, and the figures made from it.

Promises: figures come from the requests really sent and the replicas really seen, nothing is modelled; a
record survives a trip through JSON, so a report can be drawn again from its data. Called by the demo, its
report and its tests.
"""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np


@dataclass(frozen=True, slots=True)
class Frame:
    """Replicas at one moment; ``at_s`` is wall seconds since the first request was due."""

    at_s: float
    desired: int | None
    warm: int
    in_flight: int
    draining: int

    @property
    def paid(self) -> int:
        """Replicas that cost money: from their order until they are gone."""
        return self.warm + self.in_flight + self.draining


@dataclass(frozen=True, slots=True)
class Band:
    """A forecast as it stood at ``made_s``; ``qps[level]`` per step, from ``start_s`` on. Wall seconds."""

    made_s: float
    start_s: float
    step_s: float
    state: str
    qps: Mapping[str, Sequence[float]]


@dataclass(frozen=True, slots=True)
class Move:
    """A decision that changed the count, in the controller's own words."""

    at_s: float
    at: str  # demo time, ISO 8601
    current: int
    desired: int
    reason: str
    sentence: str


@dataclass(slots=True)
class RunRecord:
    """One run of the load. Times are wall seconds since the first request was due, rates are story QPS."""

    name: str
    seconds: float
    sent_s: list[float] = field(default_factory=list)
    latency_ms: list[float] = field(default_factory=list)
    answered: list[bool] = field(default_factory=list)
    frames: list[Frame] = field(default_factory=list)
    bands: list[Band] = field(default_factory=list)
    moves: list[Move] = field(default_factory=list)
    contract: dict[str, Any] = field(default_factory=dict)
    alarms: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Figures:
    """The comparison's row for one run."""

    requests: int
    within_slo_share: float
    replica_seconds: float
    latency_ms_p50: float
    latency_ms_p99: float
    unanswered: int
    replicas_max: int
    moves: int


def figures(record: RunRecord, slo_ms: float) -> Figures:
    """Count a run. Unanswered requests missed the SLO, and count with the time waited for them."""
    latency = np.asarray(record.latency_ms, float)
    answered = np.asarray(record.answered, bool)
    count = len(latency)
    within = int((answered & (latency <= slo_ms)).sum())
    return Figures(
        requests=count,
        within_slo_share=within / count if count else math.nan,
        replica_seconds=replica_seconds(record.frames, record.seconds),
        latency_ms_p50=float(np.quantile(latency, 0.5)) if count else math.nan,
        latency_ms_p99=float(np.quantile(latency, 0.99)) if count else math.nan,
        unanswered=int((~answered).sum()),
        replicas_max=max((frame.paid for frame in record.frames), default=0),
        moves=len(record.moves),
    )


def replica_seconds(frames: Sequence[Frame], seconds: float) -> float:
    """Integrate paid replicas over the load, [0, seconds); a frame holds until the next."""
    total = 0.0
    for frame, later in pairwise((*frames, Frame(seconds, None, 0, 0, 0))):
        start_s, end_s = max(0.0, frame.at_s), min(seconds, later.at_s)
        total += frame.paid * max(0.0, end_s - start_s)
    return total


@dataclass(slots=True)
class DemoRecord:
    """Both runs and everything the report has to state about how they were made."""

    facts: dict[str, Any]  # see run.py: speed, weight, slo_ms, source, event …
    demand_s: list[float]
    demand_qps: list[float]
    history_s: list[float]
    history_qps: list[float]
    with_prediction: RunRecord
    without_prediction: RunRecord | None = None

    @property
    def runs(self) -> list[RunRecord]:
        """The runs there are."""
        return [self.with_prediction, *([self.without_prediction] if self.without_prediction else [])]

    def summary(self) -> dict[str, Any]:
        """What ``--json`` writes."""
        slo_ms = float(self.facts["slo_ms"])
        result: dict[str, Any] = {"with_prediction": asdict(figures(self.with_prediction, slo_ms))}
        if self.without_prediction is not None:
            result["without_prediction"] = asdict(figures(self.without_prediction, slo_ms))
        return result | {"facts": self.facts}

    def write(self, path: Path) -> None:
        """Keep the record as JSON."""
        path.write_text(json.dumps(asdict(self), allow_nan=False))

    @classmethod
    def read(cls, path: Path) -> "DemoRecord":
        """Read what ``write`` wrote."""
        raw = json.loads(path.read_text())
        without = raw.pop("without_prediction")
        with_prediction = _run(raw.pop("with_prediction"))
        return cls(
            **raw,
            with_prediction=with_prediction,
            without_prediction=None if without is None else _run(without),
        )


def _run(raw: dict[str, Any]) -> RunRecord:
    frames = [Frame(**frame) for frame in raw.pop("frames")]
    bands = [Band(**band) for band in raw.pop("bands")]
    moves = [Move(**move) for move in raw.pop("moves")]
    return RunRecord(**raw, frames=frames, bands=bands, moves=moves)
