"""The alert rules: promtool finds them sound and their tests pass; each leads to a runbook; each is tested."""

import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from controller.core.types import AlarmKind
from controller.http.metrics import METRICS
from controller.notify.types import ALARM_SEVERITY
from tests.e2e.cluster.binary import cached

ROOT = Path(__file__).resolve().parents[3]
FOLDER = ROOT / "deploy" / "prometheus"
RULES = FOLDER / "forecrest.rules.yml"
TESTS = sorted((FOLDER / "tests").glob("*.yml"))
RUNBOOKS = (ROOT / "docs" / "runbooks.md").read_text()


def alerts() -> list[dict[str, Any]]:
    return [rule for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]]


def promtool(*arguments: object) -> subprocess.CompletedProcess[str]:
    found = shutil.which("promtool")
    if found is None:
        pytest.skip("promtool is not installed; on Debian: apt-get install prometheus")
    return subprocess.run(
        [found, *map(str, arguments)], capture_output=True, text=True, check=False, timeout=120
    )


def test_prometheus_takes_the_rules() -> None:
    done = promtool("check", "rules", RULES)

    assert 0 == done.returncode, done.stdout + done.stderr
    assert f"{len(alerts())} rules found" in done.stdout


@pytest.mark.parametrize("path", TESTS, ids=lambda path: path.stem)
def test_the_rules_fire_when_they_should_and_then_only(path: Path) -> None:
    done = promtool("test", "rules", path)

    assert 0 == done.returncode, done.stdout + done.stderr


def test_a_rule_that_no_longer_fires_is_noticed(tmp_path: Path) -> None:
    (tmp_path / "tests").mkdir()
    (tmp_path / RULES.name).write_text(
        RULES.read_text().replace('kind="PREWARM_LATE"', 'kind="PREWARM_LAST"')
    )
    path = tmp_path / "tests" / TESTS[-1].name
    path.write_text(TESTS[-1].read_text())

    done = promtool("test", "rules", path)

    assert "ForecrestPrewarmLate" in TESTS[-1].read_text()
    assert 1 == done.returncode


@pytest.mark.parametrize("rule", alerts(), ids=lambda rule: str(rule["alert"]))
def test_an_alert_says_how_urgent_it_is_what_it_means_and_what_to_do(rule: dict[str, Any]) -> None:
    name = rule["alert"]
    told = rule["annotations"]

    assert rule["labels"]["severity"] in {"critical", "warning", "info"}
    assert {"summary", "description", "runbook_url"} == set(told)
    assert f"https://forecrest.example/runbooks/#{name.lower()}" == told["runbook_url"]
    assert f"\n### {name}\n" in RUNBOOKS
    assert any(re.search(rf"\b{name}\b", path.read_text()) for path in TESTS), "no promtool test names it"


def test_an_alarm_is_equally_severe_as_a_notification_an_alert_and_in_the_documentation() -> None:
    rules: dict[str, tuple[str, str]] = {}
    for rule in alerts():
        for kinds in re.findall(r'forecrest_alarms\{kind=~?"([A-Z_|]+)"\}', rule["expr"]):
            rules |= {kind: (rule["labels"]["severity"].upper(), rule["alert"]) for kind in kinds.split("|")}
    page = (ROOT / "docs" / "notifications.md").read_text()
    table = re.findall(r"^\| `([A-Z_]+)`: .* \| ([A-Z]+) \| (\w+) \|$", page, re.MULTILINE)

    assert set(AlarmKind) == set(ALARM_SEVERITY)
    assert {kind.value: severity.value for kind, severity in ALARM_SEVERITY.items()} == {
        kind: severity for kind, (severity, _) in rules.items()
    }
    assert rules == {kind: (severity, alert) for kind, severity, alert in table}


def test_every_runbook_is_of_an_alert_and_has_its_five_parts() -> None:
    sections = re.split(r"\n### ", RUNBOOKS)[1:]
    parts = ("**Means**", "**Impact**", "**Look**", "**Do**", "**Escalate**")

    assert {section.split("\n")[0] for section in sections} == {rule["alert"] for rule in alerts()}
    for section in sections:
        assert [part for part in parts if part not in section] == [], section.split("\n")[0]


def test_rules_ask_for_documented_metrics_only() -> None:
    asked = {name for rule in alerts() for name in re.findall(r"forecrest_\w+", rule["expr"])}

    assert asked - set(METRICS) == set()


def test_helm_and_kustomize_carry_the_same_rules() -> None:
    done = subprocess.run(
        [sys.executable, str(FOLDER / "copies.py"), "--check"], capture_output=True, text=True, check=False
    )
    manifest = yaml.safe_load((ROOT / "deploy/kustomize/components/alerts/prometheusrule.yaml").read_text())

    assert (0, "") == (done.returncode, done.stderr)
    assert yaml.safe_load(RULES.read_text()) == manifest["spec"]


def test_an_overlay_takes_them_as_a_component(tmp_path: Path) -> None:
    if not cached().exists():
        pytest.skip("no kustomize was built (`make cluster`, needs Go)")
    overlay = tmp_path / "overlay"
    overlay.mkdir()
    shutil.copytree(ROOT / "deploy/kustomize/components", tmp_path / "components")
    (overlay / "kustomization.yaml").write_text("namespace: monitoring\ncomponents: [../components/alerts]\n")
    done = subprocess.run(
        [cached(), "kustomize-build", str(overlay)], capture_output=True, text=True, check=False, timeout=60
    )

    assert 0 == done.returncode, done.stderr
    (built,) = yaml.safe_load_all(done.stdout)
    assert ("PrometheusRule", "monitoring") == (built["kind"], built["metadata"]["namespace"])


def test_the_chart_renders_them_with_the_address_of_your_runbooks(tmp_path: Path) -> None:
    if not cached().exists():
        pytest.skip("no Helm was built (`make cluster`, needs Go)")
    values = tmp_path / "values.yaml"
    values.write_text("prometheusRule: {enabled: true, runbooks: 'https://docs.example.com/runbooks/'}\n")
    done = subprocess.run(
        [cached(), "helm-template", str(ROOT / "deploy/helm/forecrest"), "forecrest", str(values)],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    rendered = [item for item in yaml.safe_load_all(done.stdout) if item and item["kind"] == "PrometheusRule"]
    expected = RULES.read_text().replace("https://forecrest.example/", "https://docs.example.com/")

    assert [yaml.safe_load(expected)] == [item["spec"] for item in rendered]
