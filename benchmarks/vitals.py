"""What the processes of a soak use, and whether it grows.

Promises: growth is measured within terms, in which a process leads the same shards throughout: a change of role is a step
of its memory, and half an hour holds too few of them to average out. Roles are pooled over terms and processes.
Called by the soak.
"""

import contextlib
import itertools
import json
import math
import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.table import Table

from benchmarks.drill import Member
from benchmarks.soak_member import VITALS_FILE

WARM_UP_S = 300.0
TERM_S, SETTLING_S = 300.0, 120.0
BUCKET_S = 30.0
ROLES = ("leads", "follows")
USED = ("rss_mib", "fds", "threads", "tasks")
Points = Sequence[tuple[float, float]]


@dataclass(slots=True)
class Vitals:
    """What one look at one controller process found."""

    at_s: float
    member: str
    shards: tuple[int, ...]  # those it leads; a single leader leads shard 0
    rss_mib: float
    fds: int
    threads: int
    tasks: int
    tick_ms: float | None  # the longest of the newest ticks of its shards


@dataclass(slots=True)
class Spell:
    """One fault: when it began and ended, and how long until the fleet was as decided again."""

    name: str
    began_s: float
    ended_s: float = math.nan
    settled_s: float = math.nan


@dataclass(slots=True)
class Record:
    """What a run leaves behind."""

    vitals: list[Vitals] = field(default_factory=list[Vitals])
    connections: list[tuple[float, int | None]] = field(default_factory=list[tuple[float, int | None]])
    spells: list[Spell] = field(default_factory=list[Spell])
    calls: Counter[str] = field(default_factory=Counter[str])
    errors: Counter[str] = field(default_factory=Counter[str])
    began_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Term:
    """Looks at one process, in order, while it led the same shards."""

    vitals: Sequence[Vitals]

    @property
    def role(self) -> str:
        """One of ROLES."""
        return "leads" if self.vitals[0].shards else "follows"

    @property
    def lasted_s(self) -> float:
        """From the first look to the last."""
        return self.vitals[-1].at_s - self.vitals[0].at_s

    def points(self, key: str) -> Points:
        """Seconds and values once it has settled, as medians of half a minute; none of a short term."""
        if self.lasted_s < TERM_S:
            return []
        settled_s = self.vitals[0].at_s + SETTLING_S
        return medians((v.at_s, float(getattr(v, key))) for v in self.vitals if v.at_s >= settled_s)


def look_at(member: Member, now_s: float) -> Vitals | None:
    """Read what the kernel and the process itself tell; None where it is just ending."""
    process = Path(f"/proc/{member.process.pid}")
    try:
        status = dict(
            line.split(":", 1)
            for line in (process / "status").read_text(encoding="ascii").splitlines()
            if ":" in line
        )
        own = json.loads((member.folder / VITALS_FILE).read_text())
        ticks_s = [led["tick_s"] for led in own["led"].values() if led["tick_s"] is not None]
        return Vitals(
            now_s,
            member.name,
            tuple(sorted(map(int, own["led"]))),
            int(status["VmRSS"].split()[0]) / 1024,
            len(list((process / "fd").iterdir())),
            int(status["Threads"]),
            int(own["tasks"]),
            1000 * max(ticks_s) if ticks_s else None,
        )
    except (OSError, ValueError, KeyError):
        return None


def ticked_s(member: Member) -> dict[int, float]:
    """When the newest tick of each shard that it leads ended, by the monotonic clock."""
    with contextlib.suppress(OSError, ValueError):
        led = json.loads((member.folder / VITALS_FILE).read_text())["led"]
        return {int(shard): one["ticked_s"] for shard, one in led.items() if one["ticked_s"] is not None}
    return {}


def terms(vitals: Sequence[Vitals]) -> list[Term]:
    """Split looks into terms, by process."""
    found: list[Term] = []
    for name in dict.fromkeys(v.member for v in vitals):
        own = (v for v in vitals if v.member == name)
        found += [Term(list(looks)) for _, looks in itertools.groupby(own, key=lambda v: v.shards)]
    return found


def medians(looks: Iterable[tuple[float, float]]) -> Points:
    """Seconds and medians of half a minute each: a tick's own rise and fall is no growth."""
    buckets: dict[int, list[float]] = {}
    for at_s, value in looks:
        buckets.setdefault(int(at_s // BUCKET_S), []).append(value)
    return [(BUCKET_S * bucket, statistics.median(found)) for bucket, found in sorted(buckets.items())]


def slope_per_hour(series: Sequence[Points]) -> tuple[float, float, float] | None:
    """Theil and Sen's slope with its 95 % interval by Kendall's test, of pairs within each series; None: too short.

    The median of the slopes of all pairs: single jumps, such as a fault's, do not move it. Pairs of different series are
    not compared, so steps between them do not count, and the variances of the series add up, as in the seasonal
    Kendall test. It takes values for independent: of memory, which stays where it is, the interval is too narrow.
    """
    slopes = sorted(
        3600.0 * (b[1] - a[1]) / (b[0] - a[0])
        for points in series
        for a, b in itertools.combinations(points, 2)
    )
    variance = sum(n * (n - 1) * (2 * n + 5) / 18 for n in map(len, series))
    half = 1.96 * math.sqrt(variance)
    if len(slopes) <= half:
        return None
    low, high = max(0, int((len(slopes) - half) / 2)), min(len(slopes) - 1, int((len(slopes) + half) / 2))
    return statistics.median(slopes), slopes[low], slopes[high]


def growth(vitals: Sequence[Vitals]) -> dict[str, dict[str, Any]]:
    """By role: how many terms were long enough, their minutes, and how what is used grew within them, an hour."""
    found: dict[str, dict[str, Any]] = {}
    for role in ROLES:
        own = [term for term in terms(vitals) if term.role == role and term.lasted_s >= TERM_S]
        found[role] = {
            "terms": len(own),
            "minutes": round(sum(term.lasted_s - SETTLING_S for term in own) / 60, 1),
            **{key: rounded(slope_per_hour([term.points(key) for term in own])) for key in USED},
        }
    return found


def rounded(slope: tuple[float, float, float] | None) -> list[float] | None:
    """For a report."""
    return None if slope is None else [round(part, 2) for part in slope]


def growth_table(found: dict[str, dict[str, Any]]) -> Table:
    """The same for people."""
    table = Table("role", "terms", "minutes", "MiB", "files", "threads", "tasks")
    table.title = "growth per hour within terms, and its 95 % interval"
    for role, one in found.items():
        cells = [
            "too short" if (slope := one[key]) is None else "{:+.1f} ({:+.1f} to {:+.1f})".format(*slope)
            for key in USED
        ]
        table.add_row(role, str(one["terms"]), str(one["minutes"]), *cells)
    return table


def processes(record: Record) -> list[dict[str, Any]]:
    """What each process used at its start, after its warm-up and at its end, at most, and in each longer term."""
    found: list[dict[str, Any]] = []
    for name in dict.fromkeys(v.member for v in record.vitals):
        own = [v for v in record.vitals if v.member == name]
        lived_s = own[-1].at_s - own[0].at_s
        warm_s = min(WARM_UP_S, lived_s / 3)
        after = [v for v in own if v.at_s >= own[0].at_s + warm_s]
        entry: dict[str, Any] = {
            "name": name,
            "minutes": round(lived_s / 60, 1),
            "led_share": round(sum(bool(v.shards) for v in own) / len(own), 2),
        }
        for key in USED:
            values = [float(getattr(v, key)) for v in after]
            entry[key] = {
                "start": round(float(getattr(own[0], key)), 1),
                "warm": round(values[0], 1),
                "end": round(values[-1], 1),
                "max": round(max(values), 1),
            }
        entry["terms"] = [
            {
                "shards": term.vitals[0].shards,
                "minutes": round(term.lasted_s / 60, 1),
                "rss_mib_max": round(max(v.rss_mib for v in term.vitals), 1),
                "rss_mib_per_hour": rounded(slope_per_hour([term.points("rss_mib")])),
            }
            for term in terms(own)
            if term.lasted_s >= TERM_S
        ]
        found.append(entry)
    return found


_PANELS: Sequence[tuple[str, Callable[[Vitals], float]]] = (
    ("memory, MiB", lambda v: v.rss_mib),
    ("shards led", lambda v: len(v.shards)),
    ("file descriptors", lambda v: v.fds),
    ("asyncio tasks", lambda v: v.tasks),
    ("newest tick, longest of shards, ms", lambda v: math.nan if v.tick_ms is None else v.tick_ms),
)


def plot(record: Record, path: Path) -> None:
    """Draw what each process used and led, slopes within terms dashed, with the faults behind them."""
    from matplotlib.figure import Figure  # noqa: PLC0415 - only where asked for

    figure = Figure(figsize=(16, 13), layout="constrained")
    panels = figure.subplots(len(_PANELS), 1, sharex=True)
    names = list(dict.fromkeys(v.member for v in record.vitals))
    lines = {name: f"C{n % 10}" for n, name in enumerate(names)}
    shades = {spell: f"C{n % 10}" for n, spell in enumerate(sorted({s.name for s in record.spells}))}
    for axes, (title, value) in zip(panels, _PANELS, strict=True):
        for name in names:
            own = [v for v in record.vitals if v.member == name]
            minutes = [(v.at_s - record.began_s) / 60 for v in own]
            axes.plot(minutes, [value(v) for v in own], lw=1.1, color=lines[name], label=name)
        for spell in record.spells:
            span = [
                (spell.began_s - record.began_s) / 60,
                (max(spell.ended_s, spell.began_s + 3) - record.began_s) / 60,
            ]
            axes.axvspan(*span, color=shades[spell.name], alpha=0.15, lw=0)
        axes.set_ylabel(title)
        axes.grid(visible=True, alpha=0.3)
    for term in terms(record.vitals):
        points = term.points("rss_mib")
        if (slope := slope_per_hour([points])) is not None:
            level = statistics.median(value - slope[0] * at_s / 3600 for at_s, value in points)
            ends = (points[0][0], points[-1][0])
            panels[0].plot(
                [(at_s - record.began_s) / 60 for at_s in ends],
                [level + slope[0] * at_s / 3600 for at_s in ends],
                "--", lw=2.5, color=lines[term.vitals[0].member],
            )  # fmt: skip
    panels[-1].set_yscale("log")
    for spell in record.spells:
        at = (spell.began_s - record.began_s) / 60
        panels[0].annotate(
            spell.name, (at, 1.0), xycoords=("data", "axes fraction"), rotation=60, fontsize=7, va="bottom"
        )
    panels[0].legend(loc="lower right", ncols=6, fontsize=8)
    panels[-1].set_xlabel(
        "minutes; " + "; ".join(_said(role, one) for role, one in growth(record.vitals).items())
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)


def _said(role: str, one: dict[str, Any]) -> str:
    slope = one["rss_mib"]
    told = (
        "too short for a slope"
        if slope is None
        else "{:+.1f} MiB an hour ({:+.1f} to {:+.1f})".format(*slope)
    )
    return f"{role}, {one['terms']} terms: {told}"
