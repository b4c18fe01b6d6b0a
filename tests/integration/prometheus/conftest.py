"""A real Prometheus server on loopback, with history made by its own tool, in a folder that the test forgets."""

import asyncio
import shutil
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import pytest

from controller.adapters.embedded.folder import choose_port

# Counter name -> its total at instants; what lies between two far instants is a gap.
Counters = Mapping[str, list[tuple[datetime, float]]]


@dataclass(frozen=True)
class RunningPrometheus:
    url: str
    process: asyncio.subprocess.Process

    async def stop(self) -> None:
        with suppress(ProcessLookupError):
            self.process.terminate()
        await self.process.wait()


StartPrometheus = Callable[..., Awaitable[RunningPrometheus]]


def program(name: str) -> str:
    found = shutil.which(name)
    if found is None:
        pytest.skip(f"{name} is not installed; on Debian: apt-get install prometheus")
    return found


async def write_blocks(folder: Path, counters: Counters) -> None:
    """Make history as if it had been scraped then."""
    source = folder.with_suffix(".om")
    lines = []
    for name, points in counters.items():
        lines.append(f"# TYPE {name} counter\n")
        lines += [f"{name}_total {total} {at.timestamp():.0f}\n" for at, total in points]
    source.write_text("".join(lines) + "# EOF\n")
    tool = await asyncio.create_subprocess_exec(
        program("promtool"),
        *("tsdb", "create-blocks-from", "openmetrics", str(source), str(folder)),
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
    )
    _, complaint = await tool.communicate()
    assert tool.returncode == 0, complaint.decode()


@pytest.fixture
async def start_prometheus(tmp_path: Path) -> AsyncIterator[StartPrometheus]:
    """Start a server that scrapes ``target`` (host:port) every second and has the given history."""
    running: list[RunningPrometheus] = []

    async def start(
        target: str = "", counters: Counters | None = None, *options: str, port: int | None = None
    ) -> RunningPrometheus:
        folder = tmp_path / f"prometheus-{len(running)}"
        folder.mkdir()
        if counters:
            await write_blocks(folder / "data", counters)
        jobs = f"scrape_configs: [{{job_name: triton, static_configs: [{{targets: ['{target}']}}]}}]\n"
        config = folder / "prometheus.yml"
        config.write_text("global: {scrape_interval: 1s}\n" + (jobs if target else ""))
        port = choose_port(port)
        process = await asyncio.create_subprocess_exec(
            program("prometheus"),
            f"--config.file={config}",
            f"--storage.tsdb.path={folder / 'data'}",
            "--storage.tsdb.retention.time=10y",
            f"--web.listen-address=127.0.0.1:{port}",
            *options,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
        )
        assert process.stderr is not None
        said: list[str] = []
        async with asyncio.timeout(60):
            while "ready to receive web requests" not in (said or [""])[-1]:
                line = (await process.stderr.readline()).decode()
                assert line, "".join(said)
                said.append(line)
        # Nobody reads further; a full pipe must not stop the server.
        drain = asyncio.create_task(process.stderr.read())
        drain.add_done_callback(lambda task: task.cancelled() or task.exception())
        running.append(RunningPrometheus(f"http://127.0.0.1:{port}", process))
        return running[-1]

    yield start
    for server in running:
        await server.stop()
