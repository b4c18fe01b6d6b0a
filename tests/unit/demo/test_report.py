"""The report page stands alone and says what is simulated."""

import re
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
from records import made_up_record

from controller.demo import plots
from controller.demo.report import main, render, write_report


@pytest.fixture(scope="module")
def page() -> str:
    return render(made_up_record())


def test_the_page_asks_nothing_of_anybody(page: str) -> None:
    assert [] == re.findall(r"<(?:script|link|img|iframe)\b", page)
    assert [] == re.findall(r'(?:src|href)="(?!#)[^"]*"', page)
    assert "@import" not in page


def test_every_reference_inside_the_page_has_its_target_once(page: str) -> None:
    ids = re.findall(r' id="([^"]+)"', page)

    assert len(set(ids)) == len(ids)
    assert set(re.findall(r'(?:url\(#|href="#)([^)"]+)', page)) <= set(ids)


def test_plots_take_the_colours_of_the_page(page: str) -> None:
    assert plots.INK not in page
    assert "currentColor" in page
    assert "prefers-color-scheme: dark" in page


def test_text_from_the_run_cannot_become_markup(page: str) -> None:
    assert "event demo &lt;b&gt;" in page
    assert "&lt;per batch&gt;" in page


def test_the_page_states_every_simulated_part_and_both_shares(page: str) -> None:
    assert all(text in page for text in ("The device&#x27;s time", "PostgreSQL", "100.00", "80.00"))


def test_names_of_commands_are_set_as_such(page: str) -> None:
    assert "The code that <code>forecrest up</code> runs" in page
    assert "`" not in re.sub(r"<style>.*?</style>", "", page, flags=re.DOTALL)


def test_a_run_alone_makes_a_page_without_a_comparison() -> None:
    assert "without prediction" not in render(made_up_record(baseline=False))


def test_the_page_can_be_drawn_again_from_its_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = write_report(made_up_record(), tmp_path)
    first = page.read_text()
    page.unlink()
    monkeypatch.setattr("sys.argv", ["report", str(tmp_path)])

    assert 0 == main()
    assert first == page.read_text()


def test_the_picture_is_sound_svg_on_a_light_ground(tmp_path: Path) -> None:
    write_report(made_up_record(), tmp_path)
    text = (tmp_path / "timeline.svg").read_text()

    assert ET.fromstring(text).tag.endswith("svg")
    assert plots.INK not in text
