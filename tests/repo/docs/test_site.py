"""The documentation site: builds without a warning, asks no other host, holds every page, and says what the code says."""

import os
import re
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from controller.core.capacity import required_replicas
from controller.core.leadtime import LeadTime
from controller.core.planner import build_plan
from controller.core.types import CapacityProfile, Event, Slo, Trust, Workload

ROOT = Path(__file__).resolve().parents[3]
DOCS = ROOT / "docs"
# Attributes by which a page loads something; a link that is followed by hand is none.
LOADS = re.compile(
    r"""<(?:script|img|iframe|source|link[^>]*rel="?(?:stylesheet|icon|preload))[^>]*?(?:src|href)=["']?((?:https?:)?//[^"' >]+)"""
)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "-f", str(ROOT / "mkdocs.yml"), "-d", str(out)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        timeout=240,
    )
    assert 0 == done.returncode, done.stderr[-3000:]
    assert "WARNING" not in done.stderr
    return out


def test_every_page_is_on_the_site_and_in_its_navigation(site: Path) -> None:
    written = {path.relative_to(site).with_suffix(".md").as_posix() for path in site.rglob("*.html")}
    sources = {path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md")}

    assert sources == written - {"404.md"}  # strict: one that the navigation omits is a warning


def test_no_page_asks_another_host(site: Path) -> None:
    loads = {
        f"{path.relative_to(site)}: {found}"
        for path in site.rglob("*.html")
        for found in LOADS.findall(path.read_text())
    }
    styles = {
        f"{path.relative_to(site)}: {found}"
        for path in site.rglob("*.css")
        for found in re.findall(r"(?:url\(|@import )[\"']?((?:https?:)?//[^\"')]+)", path.read_text())
    }

    assert set() == loads | styles


def test_a_script_of_another_host_would_be_noticed() -> None:
    assert ["https://cdn.example/x.js"] == LOADS.findall('<script defer src="https://cdn.example/x.js">')
    assert [] == LOADS.findall('<a href="https://example.com"> <script src="../x.js">')


def test_pages_of_the_repository_that_the_site_lacks_are_told_by_their_path(site: Path) -> None:
    text = (site / "runbooks.html").read_text()

    assert "deploy/prometheus/forecrest.rules.yml" in text
    assert 'href="../deploy' not in text


def test_the_api_reference_is_what_the_protos_say() -> None:
    done = subprocess.run(
        [sys.executable, str(DOCS / "generate_api.py"), "--check"],
        capture_output=True,
        text=True,
        check=False,
    )

    assert (0, "") == (done.returncode, done.stderr)


def test_the_numbers_of_the_concepts_are_the_codes() -> None:
    page = (DOCS / "concepts.md").read_text()
    fp32 = CapacityProfile("recommender-fp32", "T4", qps_max=2_200, instance_count=2, batch_size_max=8)
    int8 = CapacityProfile("recommender-int8", "A10", qps_max=5_600, instance_count=2, batch_size_max=8)
    rows = [
        f"| {name} | {one.qps_max:,} QPS | {required_replicas(8_000, one, Slo())} | {required_replicas(35_000, one, Slo())} |"
        for name, one in (("FP32 on a T4", fp32), ("prebuilt INT8 on an A10", int8))
    ]
    midnight = datetime(2026, 11, 11, tzinfo=UTC)
    sale = Event("sale", midnight, midnight + timedelta(hours=1), expected_peak_qps=35_000)
    shop = Workload("recommender", "recommender", (fp32,), min_replicas=4, max_replicas=24)
    plan = build_plan(
        shop,
        now=midnight - timedelta(hours=1),
        band=None,
        trust=Trust.UNPROVEN,
        events=[sale],
        lead=LeadTime(60, per_extra_replica_s=2),
    )

    assert [row for row in rows if row.replace(",", " ") not in page] == []
    assert f"| {plan.floors[0].needed_at:%H:%M:%S} |" in page
    assert f"| {plan.floors[0].order_at:%H:%M:%S} |" in page
    assert f"\n{plan.floors[0].replicas} replicas are wanted and 4 run" in page
