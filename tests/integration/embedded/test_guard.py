"""The guard on programs of our own: what it bounds, what it kills, what it tells."""

# ruff: noqa: ASYNC240 - small local files, read between awaits

import asyncio
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from controller.adapters.embedded.process import ServerProcess, ServerSpec, ServerStartError, run_to_end

Started = Callable[[], list[int]]


def spec(tmp_path: Path, program: str, **changes: Any) -> ServerSpec:  # noqa: ANN401 - fields of any kind
    values: dict[str, Any] = {
        "name": "program",
        "argv": (sys.executable, "-u", "-c", program),
        "cwd": tmp_path,
        "env": {"PATH": os.defpath},
        "log_path": tmp_path / "program.log",
        "ready_lines": ("ready",),
        "start_timeout_s": 30,
        "stop_grace_s": 1,
    }
    return ServerSpec(**(values | changes))


async def test_log_stays_within_its_bound_and_keeps_the_end(tmp_path: Path) -> None:
    program = "print('first'); [print('x' * 99) for _ in range(20_000)]; print('last')"
    await run_to_end(spec(tmp_path, program, ready_lines=(), log_limit_bytes=100_000))

    sizes = [path.stat().st_size for path in sorted(tmp_path.iterdir())]
    assert len(sizes) == 2  # the log and the one before it
    assert max(sizes) <= 100_000 + 65_536  # one read may pass the bound
    assert (tmp_path / "program.log").read_text().endswith("last\n")


async def test_ready_means_every_line_in_order(tmp_path: Path) -> None:
    program = "print('two'); print('one'); print('two'); import time; time.sleep(60)"
    server = await ServerProcess.start(spec(tmp_path, program, ready_lines=("one", "two")))
    ended = await server.stop()

    assert ended.code == -signal.SIGTERM
    assert ended.tail == ("two", "one", "two")


async def test_a_silent_program_is_ended_at_its_deadline(tmp_path: Path, started_processes: Started) -> None:
    # A shell, and time enough for it to speak on a machine that is busy.
    program = ("/bin/sh", "-c", "echo warming up; exec sleep 60")

    with pytest.raises(ServerStartError, match=r"was not ready within 3 s(.|\n)*warming up"):
        await ServerProcess.start(spec(tmp_path, "", argv=program, start_timeout_s=3))

    assert [] == started_processes()


async def test_a_program_that_ends_early_tells_its_last_words(tmp_path: Path) -> None:
    with pytest.raises(ServerStartError, match=r"ended with code 3 before it was ready(.|\n)*no room"):
        await ServerProcess.start(spec(tmp_path, "print('no room'); raise SystemExit(3)"))


async def test_last_words_of_any_length_and_bytes_arrive(tmp_path: Path) -> None:
    program = r"import os; [os.write(1, b'\xff\x00' * 5000 + b'\n') for _ in range(100)]; raise SystemExit(4)"

    with pytest.raises(ServerStartError) as caught:
        await ServerProcess.start(spec(tmp_path, program))

    assert len(caught.value.tail) == 40
    assert all(len(line) <= 500 for line in caught.value.tail)


async def test_a_program_that_ignores_the_signal_is_killed_after_its_grace(tmp_path: Path) -> None:
    program = (
        "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('ready'); time.sleep(60)"
    )
    server = await ServerProcess.start(spec(tmp_path, program))

    ended = await server.stop()

    assert ended.code == -signal.SIGKILL


async def test_descendants_in_sessions_of_their_own_go_too(
    tmp_path: Path, started_processes: Started
) -> None:
    program = (
        "import subprocess, sys, time\n"
        "subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'], start_new_session=True)\n"
        "print('ready'); time.sleep(60)"
    )
    server = await ServerProcess.start(spec(tmp_path, program))
    assert len(started_processes()) == 3

    await server.stop()

    assert [] == started_processes()


async def test_a_forked_copy_of_the_parent_does_not_keep_the_server_alive(tmp_path: Path) -> None:
    """A worker pool's children hold the parent's pipes; the guard watches the parent itself."""
    parent_program = f"""
import asyncio, os, signal, sys, time
sys.path.insert(0, {str(Path(__file__).parents[3])!r})
from pathlib import Path
from controller.adapters.embedded.process import ServerProcess, ServerSpec
async def main():
    server = await ServerProcess.start(ServerSpec(
        name="program", argv=(sys.executable, "-u", "-c", "print('ready'); import time; time.sleep(60)"),
        cwd=Path({str(tmp_path)!r}), env={{}}, log_path=Path({str(tmp_path)!r}) / "log",
        ready_lines=("ready",), start_timeout_s=30, stop_grace_s=1))
    if os.fork() == 0:
        time.sleep(60)
        os._exit(0)
    print(server.pid, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
asyncio.run(main())
"""
    parent = await asyncio.create_subprocess_exec(
        *(sys.executable, "-W", "ignore", "-c", parent_program),
        stdout=asyncio.subprocess.PIPE,
        start_new_session=True,
    )
    try:
        assert parent.stdout is not None
        server_pid = int(await parent.stdout.readline())
        try:
            fd = os.pidfd_open(server_pid)
        except ProcessLookupError:
            return
        ended = asyncio.Event()
        asyncio.get_running_loop().add_reader(fd, ended.set)
        async with asyncio.timeout(60):
            await ended.wait()
        asyncio.get_running_loop().remove_reader(fd)
        os.close(fd)
    finally:
        os.killpg(parent.pid, signal.SIGKILL)  # the forked copy
        await parent.communicate()


async def test_a_missing_program_is_a_start_error(tmp_path: Path) -> None:
    with pytest.raises(ServerStartError, match=r"no-such-program.*No such file or directory"):
        await ServerProcess.start(spec(tmp_path, "", argv=(str(tmp_path / "no-such-program"),)))


async def test_a_program_that_fails_is_an_error_and_one_that_does_not_is_none(tmp_path: Path) -> None:
    await run_to_end(spec(tmp_path, "print('done')", ready_lines=()))
    with pytest.raises(ServerStartError, match="ended with code 2"):
        await run_to_end(spec(tmp_path, "raise SystemExit(2)", ready_lines=()))
