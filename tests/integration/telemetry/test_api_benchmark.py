"""The API benchmark runs to its end on small sizes, and its figures are what their names say."""

import asyncio
import json
import sys

KEYS = {"get_forecast_ratio_to_echo", "ingest_ratio_to_copy", "watch_streams", "get_forecast_p99_ms"}


async def test_every_figure_is_there_and_every_watcher_is_reached() -> None:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "benchmarks", "api", "--json"),
        *("--seconds", "0.05", "--streams", "20", "--minutes", "20", "--rounds", "1"),
        stdout=asyncio.subprocess.PIPE,
    )
    out, _ = await process.communicate()
    found = json.loads(out)

    assert process.returncode == 0
    assert found.keys() >= KEYS
    assert (found["watch_streams"], found["ingest_rows"], found["callers"]) == (20, 2000, 64)
    assert all(value > 0 for value in found.values())
