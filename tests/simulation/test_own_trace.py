"""``forecrest simulate`` answers, on a trace of one's own, whether forecasting is worth it."""

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from controller.simulation.__main__ import main


def test_forecasts_are_compared_with_the_last_value_in_violations_and_replica_hours(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # Users of a peer asked in vain whether its predictor beats the last value, in GPU-hours at the same SLO.
    path = tmp_path / "own.csv"
    start = datetime(2026, 1, 5, tzinfo=UTC)
    rows = [
        f"{(start + timedelta(minutes=m)).isoformat()},{300 if 9 <= m // 60 % 24 < 17 else 60}"
        for m in range(5 * 1440)
    ]
    path.write_text("timestamp,value\n" + "\n".join(rows) + "\n", encoding="utf-8")
    policies = ("forecrest", "last-value", "static-peak")

    code = main(
        ["--trace", str(path), "--capacity-qps", "10", "--json"]
        + [word for name in policies for word in ("--policy", name)]
    )

    found = {row["policy"]: row for row in json.loads(capsys.readouterr().out)}
    ours, naive, fixed = (found[name] for name in policies)
    assert code == 0
    # The jump at nine finds replicas warm where it was forecast, and not where the last minute counts.
    assert ours["violation_share"] < 0.5 * naive["violation_share"]
    assert ours["replica_hours"] < 0.8 * fixed["replica_hours"]
