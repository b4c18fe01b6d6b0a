"""Write a gate report for people: one HTML file that needs nothing else, with plots.

Promises: every text of the model or the user is escaped; no script, no network; the same report gives
the same numbers as its JSON. Refuses nothing. Called by the pipeline.
"""

import html
import io
from collections.abc import Iterable

import numpy as np

from engines.measures import Outputs
from engines.validation import GateReport

_POINTS_MAX = 2000
_STYLE = """
body{font:15px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem;color:#1c2330}
table{border-collapse:collapse;margin:.5rem 0 1.5rem}td,th{padding:.25rem .8rem;text-align:left;border-bottom:1px solid #dde}
td.n,th.n{text-align:right;font-variant-numeric:tabular-nums}.ok{color:#0a7d38}.bad{color:#b3261e;font-weight:600}
body{overflow-wrap:anywhere}.verdict{font-size:1.15rem;border-left:4px solid;padding-left:.8rem}
svg{max-width:100%;height:auto}p.note{color:#4a5568;max-width:45rem}
"""
_META = '<meta charset="utf-8"><meta name="viewport" content="width=device-width">'
_REMEDY = (
    "What helps, in this order: a calibration set taken from the traffic to be served; <code>--search</code>, which keeps "
    "the worst layers in FP32 until the budgets hold; a higher precision; a wider budget, if the measure promises more "
    "than users notice."
)
_ANSWERS = (
    "Left, each value against that of the FP32 model: on the line they are equal. Right, how far apart they are; the "
    "count is logarithmic, so that rare large differences show."
)
_LAYERS = "Red is the error that a layer adds itself; grey is what has added up in its output."


def write_html(title: str, report: GateReport, reference: Outputs, candidate: Outputs) -> str:
    """The report as one HTML page; outputs are the two sides' answers, for the plots."""
    verdict = '<p class="ok verdict">Passed: every budget holds.</p>'
    if not report.is_passed:
        listed = "".join(f"<li>{html.escape(reason)}</li>" for reason in report.reasons)
        verdict = (
            f'<p class="bad verdict">Failed. This engine cannot be promoted.</p><ul class="bad">{listed}</ul>'
        )
        verdict += f'<p class="note">{_REMEDY}</p>'
    budgets = _table(
        ("measure", "value", "budget", "", "detail"),
        (
            (
                r.budget.measure,
                "unknown" if r.value is None else f"{r.value:.6g}",
                str(r.budget),
                "within" if r.is_within else "MISSED",
                r.detail,
            )
            for r in report.results
        ),
        numbers=(1,),
    )
    layers = _table(
        ("layer", "operator", "error introduced", "error so far"),
        ((e.layer, e.kind, f"{e.introduced:.3g}", f"{e.relative_error:.3g}") for e in report.worst_layers),
        numbers=(2, 3),
    )
    findings = _table(("severity", "finding"), ((f.severity, f.sentence) for f in report.findings))
    parts = [
        f"<h1>{html.escape(title)}</h1>{verdict}",
        (
            f"<p>Ran: {html.escape(report.ran)}. Reference: {html.escape(report.reference)}. "
            f"{report.sample_count} samples, {html.escape(report.validation_digest)}.</p>"
        ),
        f"<h2>Budgets</h2>{budgets}",
        f'<h2>Answers</h2><p class="note">{_ANSWERS}</p>' + _plot_answers(reference, candidate),
    ]
    if report.worst_layers:
        parts.append(
            f'<h2>Worst layers</h2><p class="note">{_LAYERS} From {html.escape(report.layers_note)}.</p>'
            f"{_plot_layers(report)}{layers}"
        )
    if report.findings:
        parts.append(f"<h2>Calibration set</h2>{findings}")
    head = f"{_META}<title>{html.escape(title)}</title><style>{_STYLE}</style>"
    return f'<!doctype html><html lang="en"><head>{head}</head><body>{"".join(parts)}</body></html>\n'


def _table(columns: tuple[str, ...], rows: Iterable[tuple[str, ...]], numbers: tuple[int, ...] = ()) -> str:
    """`numbers` are the columns that are set to the right."""
    right = [' class="n"' if index in numbers else "" for index in range(len(columns))]
    head = "".join(f"<th{n}>{html.escape(column)}</th>" for column, n in zip(columns, right, strict=True))
    body = "".join(f"<tr>{''.join(map(_cell, row, right))}</tr>" for row in rows)
    return f"<table><tr>{head}</tr>{body}</table>"


def _cell(text: str, right: str) -> str:
    kind = {"within": ' class="ok"', "MISSED": ' class="bad"', "ERROR": ' class="bad"'}.get(text, right)
    return f"<td{kind}>{html.escape(text)}</td>"


def _plot_answers(reference: Outputs, candidate: Outputs) -> str:
    """Candidate over reference, and how the differences are distributed; a sample of large sets."""
    from matplotlib.figure import Figure  # noqa: PLC0415 - slow to import

    name, expected = next(iter(reference.items()))
    x, y = expected.ravel(), candidate[name].ravel()
    step = max(1, x.size // _POINTS_MAX)
    finite = np.isfinite(y)
    figure = Figure(figsize=(9, 3.6), layout="constrained")
    left, right = figure.subplots(1, 2)
    left.scatter(x[finite][::step], y[finite][::step], s=6, alpha=0.5)
    left.axline((float(x.mean()), float(x.mean())), slope=1, color="0.6", linewidth=1)
    left.set(xlabel=f"{name}, FP32", ylabel=f"{name}, candidate")
    right.hist(np.asarray(y[finite] - x[finite], np.float64), bins=60)
    right.set(xlabel="candidate less FP32", ylabel="values", yscale="log" if finite.any() else "linear")
    return _svg(figure)


def _plot_layers(report: GateReport) -> str:
    from matplotlib.figure import Figure  # noqa: PLC0415 - as above

    worst = report.worst_layers[::-1]
    figure = Figure(figsize=(9, 0.8 + 0.32 * len(worst)), layout="constrained")
    axes = figure.subplots()
    axes.barh(range(len(worst)), [e.relative_error for e in worst], color="#c9d3e6", label="so far")
    axes.barh(range(len(worst)), [e.introduced for e in worst], color="#b3261e", label="introduced here")
    # Labels are data: a dollar sign in a layer's name must not start a formula.
    axes.set_yticks(range(len(worst)), [e.layer.replace("$", r"\$") for e in worst])
    axes.set_xlabel("relative error")
    axes.legend()
    return _svg(figure)


def _svg(figure: object) -> str:
    text = io.StringIO()
    figure.savefig(text, format="svg", metadata={"Date": None, "Creator": None})  # type: ignore[attr-defined]
    return text.getvalue().partition("<svg")[1] + text.getvalue().partition("<svg")[2]
