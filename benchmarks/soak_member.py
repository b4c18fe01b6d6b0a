"""One controller of a soak: production's own parts, on a fleet elsewhere and on a clock that can be set wrong.

Promises: it serves as `forecrest serve` does; its folder's `clock` file says by how many seconds its wall clock is
wrong, which it sees within a quarter of a second, and its `vitals.json` what only the process itself can count.
Called by the soak: `python -m benchmarks.soak_member`.
"""

import asyncio
import contextlib
import json
import os
from datetime import timedelta
from pathlib import Path

from benchmarks.fleet import FLEET_VARIABLE, FleetActuator
from benchmarks.scale import SkippingClock
from controller.bootstrap import Runtime, World, open_runtime
from controller.cli.common import run
from controller.cli.servers import configure_logging, read_settings
from controller.ports import Clock

CLOCK_FILE = "clock"
VITALS_FILE = "vitals.json"
_LOOK_S = 0.25


def _write_vitals(path: Path, runtime: Runtime) -> None:
    found = {
        "tasks": len(asyncio.all_tasks()),
        "led": {
            shard: {
                "ticked_s": _ticked_s(world, runtime.clock),
                "tick_s": world.runner.durations_s.get("tick"),
            }
            for shard, world in enumerate(runtime.worlds)
            if world.leadership.token is not None
        },
    }
    fresh = path.with_suffix(".new")
    fresh.write_text(json.dumps(found))
    fresh.replace(path)


def _ticked_s(world: World, clock: Clock) -> float | None:
    """When its newest tick ended, by the machine's own seconds, which all its processes share."""
    ticked_at = world.runner.last_tick_at
    return None if ticked_at is None else clock.monotonic() - (clock.now() - ticked_at).total_seconds()


async def _keep(folder: Path, runtime: Runtime, clock: SkippingClock) -> None:
    while True:
        with contextlib.suppress(OSError, ValueError):
            clock.ahead = timedelta(seconds=float((folder / CLOCK_FILE).read_text()))
        _write_vitals(folder / VITALS_FILE, runtime)
        await asyncio.sleep(_LOOK_S)


async def _member() -> None:
    settings = read_settings()
    configure_logging(settings.log_level)
    clock = SkippingClock(timedelta(0))
    actuator = FleetActuator(os.environ[FLEET_VARIABLE])
    async with open_runtime(settings, clock=clock, actuator=actuator) as runtime:
        print(f"serves gRPC on {runtime.api.target}", flush=True)
        assert runtime.loop is not None
        server = asyncio.create_task(runtime.api.wait())
        keeping = asyncio.create_task(_keep(settings.data_dir, runtime, clock))
        done, _ = await asyncio.wait({server, runtime.loop, keeping}, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()


if __name__ == "__main__":
    run(_member())
