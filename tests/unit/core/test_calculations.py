"""docs/calculations.md, run as it stands: one test a section, so the document and the code cannot drift apart."""

import doctest
import re
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from math import ceil
from pathlib import Path

import pytest

from controller.core import behavior, capacity, leadtime, planner, prewarm, quota, types
from controller.core.types import FleetState, Mode, WorkloadState
from tests.unit.core import worlds

DOCUMENT = Path(__file__).parents[3] / "docs" / "calculations.md"
PREAMBLE, *SECTIONS = re.split(r"^## ", DOCUMENT.read_text(), flags=re.MULTILINE)


def ours(count: int) -> FleetState:
    """State in which ``count`` is our own last decision."""
    return FleetState({"toy": WorkloadState(desired_replicas=count, mode=Mode.SCALE)})


def names() -> dict[str, object]:
    """What an example may use: the core, the test world, and a little of the standard library."""
    known: dict[str, object] = {}
    for module in (types, leadtime, capacity, planner, prewarm, behavior, quota, worlds):
        known.update(vars(module))
    return {
        **known,
        "ceil": ceil,
        "replace": replace,
        "datetime": datetime,
        "timedelta": timedelta,
        "UTC": UTC,
        "ours": ours,
    }


def run(title: str, text: str, known: dict[str, object]) -> None:
    fences = "\n".join(re.findall(r"^```python\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL))
    example = doctest.DocTestParser().get_doctest(fences, known, title, str(DOCUMENT), 0)
    assert example.examples, f"the section {title!r} has no worked example"
    report: list[str] = []
    failed, _ = doctest.DocTestRunner(verbose=False).run(example, out=report.append, clear_globs=False)

    assert failed == 0, "".join(report)
    known.update(example.globs)


@pytest.mark.parametrize("section", SECTIONS, ids=lambda section: section.splitlines()[0])
def test_worked_examples_come_out_as_written(section: str) -> None:
    known = names()
    run("preamble", PREAMBLE, known)
    # The event of one section is the setting of later ones.
    if "midnight" in section and "midnight = " not in section:
        known["midnight"] = worlds.MIDNIGHT

    run(section.splitlines()[0], section, known)


def test_every_number_of_the_reference_case_is_in_the_document() -> None:
    text = DOCUMENT.read_text()

    assert all(figure in text for figure in ("8 000 QPS", "35 000", "(4, 16)", "(2, 7)"))
