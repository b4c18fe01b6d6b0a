"""The frontier benchmark runs end to end on a made trace and prints what it measured."""

import json
from datetime import UTC, datetime, timedelta
from math import pi, sin
from pathlib import Path

import pytest

from benchmarks import frontier


def test_a_small_comparison_is_measured_and_printed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    start = datetime(2026, 1, 5, tzinfo=UTC)
    rows = [
        f"{(start + timedelta(minutes=5 * i)).isoformat()},{100 + 80 * sin(2 * pi * i / 288):.2f}"
        for i in range(2 * 288)
    ]
    (tmp_path / "made.csv").write_text("timestamp,value\n" + "\n".join(rows) + "\n", encoding="utf-8")
    out = tmp_path / "figures.json"
    asked = ["--policy", "forecrest", "--policy", "hpa", "--learn-days", "1", "--score-days", "1"]

    code = frontier.main(
        ["--data", str(tmp_path), "--trace", "made", "--json", str(out), "--plots", str(tmp_path), *asked]
    )

    assert code == 0
    figures = json.loads(out.read_text(encoding="utf-8"))
    ratios = figures[0]["ratio_to_oracle"]
    assert ratios["oracle"]["0.001"] == 1.0
    assert ratios["forecrest"]["0.001"] >= 0.97
    assert figures[0]["peers_below"]["0.001"] == []
    assert (tmp_path / "made.png").stat().st_size > 0
    assert "of the best reactive or scheduled peer" in capsys.readouterr().out


def test_a_peer_that_is_cheaper_or_reached_a_share_we_did_not_lies_below() -> None:
    made = frontier.peers_below(
        {
            "oracle": {1e-3: 1.0},
            "forecrest-reactive": {1e-3: 1.5},
            "forecrest": {1e-3: 2.0},
            "hpa": {1e-3: 1.9},
            "kpa": {1e-3: None},
            "phpa": {1e-3: 2.1},
        },
        1e-3,
    )

    assert made == ["hpa"]
    assert frontier.peers_below({"forecrest": {1e-3: None}, "hpa": {1e-3: 9.0}}, 1e-3) == ["hpa"]
