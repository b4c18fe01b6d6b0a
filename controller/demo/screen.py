"""What a person sees while the demo runs: a live view of 80 columns, or lines where there is no terminal."""

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from types import TracebackType
from typing import Self

from rich.console import Console, Group
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from controller.core.types import STAGE_ORDER, Replica, Stage

WIDTH = 80
BARS = "▁▂▃▄▅▆▇█"
SPARK_WIDTH = 56
MOVES_SHOWN = 3
REPLICAS_SHOWN = 8
LINE_PERIOD_S = 5.0


@dataclass(slots=True)
class View:
    """The state that is shown. Rates are story QPS, ``at_s`` is wall seconds since the load began."""

    title: str
    seconds: float
    at_s: float = 0.0
    at: datetime | None = None
    demand: deque[float] = field(default_factory=lambda: deque[float](maxlen=SPARK_WIDTH))
    peak_qps: float = 1.0
    forecast: str = "waiting for the first"
    replicas: Sequence[Replica] = ()
    desired: int | None = None
    requests: int = 0
    within: int = 0
    p99_ms: float | None = None
    slo_ms: float = 0.0
    event: str = ""
    moves: deque[tuple[str, str]] = field(default_factory=lambda: deque[tuple[str, str]](maxlen=MOVES_SHOWN))


def sparkline(values: Iterable[float], top: float) -> str:
    """Draw values as bars between 0 and ``top``."""
    return "".join(BARS[min(len(BARS) - 1, max(0, int(v / top * len(BARS))))] for v in values)


def grouped(number: float) -> str:
    """Format a whole number with spaces between thousands."""
    return f"{number:,.0f}".replace(",", " ")


def slo_line(view: View) -> str:
    """Say how the requests so far did."""
    if not view.requests:
        return "no request yet"
    p99 = "" if view.p99_ms is None else f", P99 now {grouped(view.p99_ms)} ms"
    share = 100 * view.within / view.requests
    return f"{share:.2f} % of {grouped(view.requests)} within {view.slo_ms:g} ms{p99}"


def replica_line(view: View) -> str:
    """Say how many replicas there are, in words."""
    warm = sum(r.warm for r in view.replicas)
    coming = sum(r.in_flight for r in view.replicas)
    leaving = sum(r.stage is Stage.DRAINING for r in view.replicas)
    parts = [f"{warm} warm"]
    parts += [f"{coming} starting"] if coming else []
    parts += [f"{leaving} draining"] if leaving else []
    desired = "?" if view.desired is None else str(view.desired)
    return f"{', '.join(parts)}; desired {desired}"


def render(view: View) -> Panel:
    """Draw the whole view."""
    rows = Table.grid(padding=(0, 2, 0, 0))
    rows.add_column(style="dim", no_wrap=True)
    rows.add_column(overflow="fold")
    now_qps = grouped(view.demand[-1]) if view.demand else "0"
    rows.add_row("demand", Text(f"{sparkline(view.demand, view.peak_qps)} {now_qps} QPS", style="cyan"))
    rows.add_row("forecast", view.forecast)
    good = not view.requests or view.within / view.requests >= 0.995
    rows.add_row("requests", Text(slo_line(view), style="green" if good else "bold red"))
    rows.add_row("replicas", replica_line(view))
    for replica in sorted(view.replicas, key=lambda r: r.ordered_at)[:REPLICAS_SHOWN]:
        rows.add_row("", _replica(replica))
    if view.event:
        rows.add_row("event", view.event)
    for at, sentence in view.moves:
        rows.add_row(at, sentence)
    clock = f"{view.at:%H:%M}" if view.at else "--:--"
    left = max(0.0, view.seconds - max(0.0, view.at_s))
    title = f"[bold]Forecrest[/] · {view.title} · {clock} demo time · {left:.0f} s to go"
    return Panel(Group(rows), title=title, title_align="left", width=WIDTH, border_style="dim")


def _replica(replica: Replica) -> Text:
    if replica.stage in STAGE_ORDER:
        reached = STAGE_ORDER.index(replica.stage) + 1
        bar = "■" * reached + "·" * (len(STAGE_ORDER) - reached)
    else:
        bar = "-" * len(STAGE_ORDER)
    style = {Stage.VERIFIED: "green", Stage.FAILED: "bold red", Stage.DRAINING: "dim"}.get(
        replica.stage, "yellow"
    )
    label = "VERIFIED warm" if replica.warm else str(replica.stage)
    return Text(
        f"{bar} {label:<14} {replica.id}{f' {replica.failure}' if replica.failure else ''}", style=style
    )


class Screen:
    """Shows views as they change; used as a context manager."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self._live: Live | None = None
        self._last_line_s = float("-inf")
        self._said: set[tuple[str, str]] = set()

    def __enter__(self) -> Self:
        """Begin."""
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None
    ) -> None:
        """Leave the last view on the screen."""
        self.end_view()

    def say(self, text: str) -> None:
        """Print a line above the view."""
        self.console.print(text, soft_wrap=not self.console.is_terminal)

    def show(self, view: View) -> None:
        """Show the view, or every few seconds a line of it where nobody watches."""
        if self.console.is_terminal:
            if self._live is None:
                self._live = Live(console=self.console, auto_refresh=False)
                self._live.start()
            self._live.update(render(view), refresh=True)
            return
        for move in view.moves:
            if move not in self._said:
                self._said.add(move)
                self.say(f"  {move[0]} {move[1]}")
        if view.at_s - self._last_line_s >= LINE_PERIOD_S:
            self._last_line_s = view.at_s
            qps = grouped(view.demand[-1]) if view.demand else "0"
            clock = f"{view.at:%H:%M}" if view.at else ""
            self.say(f"  {clock} {qps} QPS · {replica_line(view)} · {slo_line(view)}")

    def end_view(self) -> None:
        """Stop updating; what was shown stays."""
        if self._live is not None:
            self._live.stop()
            self._live = None
        self._last_line_s = float("-inf")
        self._said.clear()
