"""The dashboards: sound as Grafana reads them, as the generator writes them, over documented metrics only."""

import json
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from controller.http.metrics import METRICS

FOLDER = Path(__file__).resolve().parents[3] / "deploy" / "grafana"
PATHS = sorted((FOLDER / "dashboards").glob("*.json"))
# Grafana's names of the units in use; another one would show as its own text beside every number.
UNITS = {"none", "reqps", "s", "percentunit"}


def panels(dashboard: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield from (panel for panel in dashboard["panels"] if panel["type"] != "row")


@pytest.fixture(params=PATHS, ids=lambda path: path.stem)
def dashboard(request: pytest.FixtureRequest) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(request.param.read_text())
    return found


def test_files_are_what_the_generator_writes() -> None:
    done = subprocess.run(
        [sys.executable, str(FOLDER / "generate.py"), "--check"], capture_output=True, text=True, check=False
    )

    assert (0, "") == (done.returncode, done.stderr)
    assert 5 == len(PATHS)


def test_dashboards_have_identities_of_their_own() -> None:
    read = [json.loads(path.read_text()) for path in PATHS]

    assert len(PATHS) == len({one["uid"] for one in read}) == len({one["title"] for one in read})
    assert all("forecrest" in one["tags"] and one["links"] for one in read)


def test_ids_are_unique_and_no_two_panels_share_a_place(dashboard: dict[str, Any]) -> None:
    everything = dashboard["panels"]
    cells = Counter(
        (x, y)
        for place in (panel["gridPos"] for panel in everything)
        for x in range(place["x"], place["x"] + place["w"])
        for y in range(place["y"], place["y"] + place["h"])
    )

    assert len(everything) == len({panel["id"] for panel in everything})
    assert 1 == max(cells.values())
    assert 24 > max(x for x, _ in cells)


def test_every_panel_says_what_it_shows_in_a_known_unit_from_a_chosen_source(
    dashboard: dict[str, Any],
) -> None:
    variables = {one["name"] for one in dashboard["templating"]["list"]}
    assert {"prometheus", "postgres"} <= variables
    for panel in panels(dashboard):
        asked = json.dumps(panel["targets"])
        sources = {target["datasource"]["uid"] for target in panel["targets"]}
        used = set(re.findall(r"\$\{?(\w+)", asked)) - {"__timeFilter"}

        assert len(panel["description"]) > 20, panel["title"]
        assert panel["fieldConfig"]["defaults"]["unit"] in UNITS, panel["title"]
        assert panel["fieldConfig"]["defaults"]["thresholds"]["steps"][0]["value"] is None
        assert sources <= {"${prometheus}", "${postgres}"}
        assert used <= variables, panel["title"]


def test_panels_ask_for_documented_metrics_with_their_labels(dashboard: dict[str, Any]) -> None:
    for panel in panels(dashboard):
        for target in panel["targets"]:
            expr = target.get("expr", "")
            for name, matchers in re.findall(r"(forecrest_\w+)(?:\{([^}]*)\})?", expr):
                metric = METRICS[re.sub(r"_bucket$", "", name)]
                assert set(re.findall(r"(\w+)[!=]=?~?", matchers)) <= set(metric.labels), panel["title"]


def test_data_sources_and_the_provider_are_provisioned() -> None:
    sources = yaml.safe_load((FOLDER / "provisioning/datasources/forecrest.yaml").read_text())["datasources"]
    provider = yaml.safe_load((FOLDER / "provisioning/dashboards/forecrest.yaml").read_text())["providers"][0]
    offered = {
        one["query"]
        for one in json.loads(PATHS[0].read_text())["templating"]["list"]
        if one["type"] == "datasource"
    }

    assert offered == {source["type"] for source in sources}
    assert "forecrest_grafana" == sources[1]["user"]
    assert "password" not in sources[1]
    assert provider["options"]["path"].startswith("/")
