"""One picture per series: two days of history, what followed, our band and the best peer's median.

Promises: pictures are files; no window is opened.
Refuses: nothing.
Called by: the accuracy benchmark with `--plots`.
"""

from collections.abc import Sequence
from itertools import groupby
from pathlib import Path

import matplotlib as mpl
from matplotlib.figure import Figure

from benchmarks.summary import BASE, OURS, Row, score_series

PANELS = 4


def write(folder: Path, rows: Sequence[Row]) -> None:
    """Write `NAME.png` for the series of `rows` into `folder`."""
    folder.mkdir(parents=True, exist_ok=True)
    with mpl.rc_context({"font.size": 8}):
        for name, group in groupby(rows, key=lambda row: row.series.name):
            own = list(group)
            best = score_series(own).best_peer("day")[0] or BASE
            regular = [row for row in own if not row.origin.is_event]
            events = [row for row in own if row.origin.is_event]
            chosen = (events[: PANELS // 2] + regular[-PANELS:])[:PANELS]
            figure = Figure(figsize=(12, 2.6 * len(chosen)), layout="constrained")
            for axes, row in zip(figure.subplots(len(chosen), squeeze=False)[:, 0], chosen, strict=True):
                past = 2 * row.series.per_day
                axes.plot(row.task.index[-past:], row.task.observed[-past:], color="grey", lw=0.8)
                future = row.task.future_index
                axes.plot(future, row.actual, color="black", lw=1.0, label="actual")
                values = row.outcomes[OURS].values if OURS in row.outcomes else None
                if values is not None:
                    axes.fill_between(future, values[:, 0], values[:, 3], alpha=0.25, label="ours 10-95 %")
                    axes.plot(future, values[:, 1], lw=1.0, label="ours median")
                peer = row.outcomes[best].values if best in row.outcomes else None
                if peer is not None:
                    axes.plot(future, peer[:, 1], lw=0.8, ls="--", label=f"{best} median")
                axes.set_title(f"{name} from {row.task.origin:%Y-%m-%d %H:%M}Z")
                axes.legend(loc="upper left", ncols=4)
            figure.savefig(folder / f"{name}.png", dpi=110)
