"""The report page: one HTML file that needs nothing else, light or dark.

Promises: every figure on it is counted from the record; every simulated part is named. Makes no request to
anywhere and runs no script. Called by the demo; ``python -m controller.demo.report FOLDER`` draws the page
again from its record.
"""

import re
import sys
from collections.abc import Callable, Sequence
from datetime import datetime
from html import escape
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from controller.demo import plots
from controller.demo.record import DemoRecord, Figures, figures

RECORD_NAME, PAGE_NAME, PICTURE_NAME = "record.json", "index.html", "timeline.svg"
MOVES_MAX = 60

_CSS = """
:root { color-scheme: light dark; --bg: #fbfbfa; --fg: #1c2430; --dim: #5c6675; --line: #d9dde3;
  --with: #2f81d6; --without: #c9601d; --card: #ffffff; }
@media (prefers-color-scheme: dark) { :root { --bg: #12161c; --fg: #dfe5ee; --dim: #94a0b2;
  --line: #2b3340; --with: #6cb0f5; --without: #f09a62; --card: #181e26; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--bg); color: var(--fg);
  font: 16px/1.55 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", sans-serif; }
main { max-width: 60rem; margin: 0 auto; padding: 2rem 1.25rem 4rem; }
h1 { font-size: 1.7rem; line-height: 1.25; margin: 0 0 .5rem; }
h2 { font-size: 1.15rem; margin: 2.5rem 0 .75rem; }
p, li { max-width: 46rem; }
.lead { font-size: 1.1rem; }
.dim { color: var(--dim); }
.with { color: var(--with); } .without { color: var(--without); }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { padding: .4rem .75rem .4rem 0; border-bottom: 1px solid var(--line); text-align: left;
  vertical-align: top; }
th { font-weight: 600; } td.number, th.number { text-align: right; }
td.number { white-space: nowrap; }
figure { margin: 0; padding: 1rem; background: var(--card); border: 1px solid var(--line);
  border-radius: .5rem; overflow-x: auto; }
figure svg { display: block; width: 100%; min-width: 36rem; height: auto; color: var(--fg); }
figcaption { color: var(--dim); font-size: .9rem; margin-top: .5rem; }
code { font-size: .92em; }
"""


def write_report(record: DemoRecord, folder: Path) -> Path:
    """Write page, picture and record into ``folder``; return the page's path."""
    folder.mkdir(parents=True, exist_ok=True)
    record.write(folder / RECORD_NAME)
    page = folder / PAGE_NAME
    page.write_text(render(record), encoding="utf-8")
    plots.save_picture(record, folder / PICTURE_NAME)
    return page


def render(record: DemoRecord) -> str:
    """Return the page."""
    facts = record.facts
    body = "\n".join(
        (
            f"<h1>{escape(_headline(record))}</h1>",
            f'<p class="lead">{escape(_lead(record))}</p>',
            _table(record),
            "<h2>The run, on one clock</h2>",
            _figure(plots.timeline(record), "Demand, replicas and latency", _caption(record)),
            "<h2>Why the replica count moved</h2>",
            _moves(record),
            "<h2>What the forecaster had seen</h2>",
            _figure(
                plots.history(record), "Imported history", f"{facts['source']}; {facts['source_detail']}"
            ),
            "<h2>What is real and what is simulated</h2>",
            _honesty(facts),
        )
    )
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>Forecrest: {escape(_headline(record))}</title><style>{_CSS}</style></head>"
        f"<body><main>\n{body}\n</main></body></html>\n"
    )


def _figure(figure: Figure, title: str, caption: str) -> str:
    picture = plots.inline_svg(figure, title)
    return f'<figure tabindex="0">{picture}<figcaption>{escape(caption)}</figcaption></figure>'


def grouped(number: float) -> str:
    """Format a whole number with thin spaces between thousands."""
    return f"{number:,.0f}".replace(",", "\u202f")


def percent(share: float) -> str:
    """Format a share so that the last digit still tells 99.98 from 100."""
    return f"{100 * share:.2f}\u202f%"


def _all_figures(record: DemoRecord) -> list[Figures]:
    return [figures(run, float(record.facts["slo_ms"])) for run in record.runs]


def _headline(record: DemoRecord) -> str:
    first, *rest = _all_figures(record)
    slo = f"{float(record.facts['slo_ms']):g} ms"
    if not rest:
        return f"{percent(first.within_slo_share)} of requests within {slo}"
    return (
        f"{percent(first.within_slo_share)} of requests within {slo} with prediction, "
        f"{percent(rest[0].within_slo_share)} without"
    )


def _lead(record: DemoRecord) -> str:
    facts, contract = record.facts, record.with_prediction.contract
    event = facts["event"]
    warm = ""
    if contract.get("met_s") is not None:
        early_s = event["start_s"] - contract["met_s"]
        when = f"{early_s:.1f} s before it began" if early_s >= 0 else f"{-early_s:.1f} s after it began"
        warm = f" With the event known, {contract['replicas']} replicas were verified warm {when}."
    same = "Both runs got the same requests at the same times." if record.without_prediction else ""
    return (
        f"A recommender served by NVIDIA Triton goes from {grouped(event['base_qps'])} to "
        f"{grouped(event['peak_qps'])} QPS when an event begins, and a new replica takes about "
        f"{facts['cold_start_s']:.0f} s to be warm.{warm} {same}"
    )


_ROWS: tuple[tuple[str, Callable[[Figures], str]], ...] = (
    ("requests sent", lambda f: grouped(f.requests)),
    ("within the SLO", lambda f: percent(f.within_slo_share)),
    ("not answered in time", lambda f: grouped(f.unanswered)),
    ("latency, median", lambda f: f"{grouped(f.latency_ms_p50)} ms"),
    ("latency, P99", lambda f: f"{grouped(f.latency_ms_p99)} ms"),
    ("replica-seconds paid", lambda f: grouped(f.replica_seconds)),
    ("most replicas at once", lambda f: str(f.replicas_max)),
    ("scaling decisions", lambda f: str(f.moves)),
)


def rows(record: DemoRecord) -> list[tuple[str, list[str]]]:
    """Label and formatted values of each run, for the page and for the terminal."""
    found = _all_figures(record)
    return [(label, [value(one) for one in found]) for label, value in _ROWS]


def _table(record: DemoRecord) -> str:
    heads = "".join(
        f'<th class="number {"with" if run.name == "with_prediction" else "without"}">'
        f"{plots.RUN_NAMES[run.name]}</th>"
        for run in record.runs
    )
    lines = "".join(
        f"<tr><td>{escape(label)}</td>"
        + "".join(f'<td class="number">{escape(value)}</td>' for value in values)
        + "</tr>"
        for label, values in rows(record)
    )
    return f'<div class="scroll"><table><tr><th></th>{heads}</tr>{lines}</table></div>'


def _caption(record: DemoRecord) -> str:
    contract = record.with_prediction.contract
    text = (
        "Latency counts from the moment a request was meant to be sent, so waiting in the sender shows too."
    )
    if contract.get("sentence"):
        text += f" At registration the API answered: {contract['sentence']}"
    return text


def _moves(record: DemoRecord) -> str:
    parts: list[str] = []
    for run in record.runs:
        kind = "with" if run.name == "with_prediction" else "without"
        lines = "".join(
            f'<tr><td>{datetime.fromisoformat(move.at):%H:%M}</td><td class="number">{move.current} → {move.desired}</td>'
            f"<td>{escape(move.sentence)}</td></tr>"
            for move in run.moves[:MOVES_MAX]
        )
        none = '<tr><td colspan="3" class="dim">none</td></tr>'
        parts.append(
            f'<p class="{kind}">{plots.RUN_NAMES[run.name].capitalize()}</p><div class="scroll"><table>'
            f"{lines or none}</table></div>"
        )
        if len(run.moves) > MOVES_MAX:
            parts.append(f'<p class="dim">… and {len(run.moves) - MOVES_MAX} more in {RECORD_NAME}</p>')
    return "".join(parts)


def _honesty(facts: dict[str, Any]) -> str:
    return (
        "<p>Real:</p>" + _list(facts["real"]) + "<p>Simulated or compressed:</p>" + _list(facts["simulated"])
    )


def _list(sentences: Sequence[str]) -> str:
    said = (re.sub("`([^`]+)`", r"<code>\1</code>", escape(sentence)) for sentence in sentences)
    return f"<ul>{''.join(f'<li>{one}</li>' for one in said)}</ul>"


def main() -> int:
    """Draw the page of a folder again."""
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else "forecrest-report")
    write_report(DemoRecord.read(folder / RECORD_NAME), folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
