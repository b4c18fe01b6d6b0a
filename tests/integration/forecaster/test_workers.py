"""Real processes: they start when needed, are replaced when they die, and leave with their parent."""

import asyncio
import math
import os
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Generator
from pathlib import Path

import pytest

from forecaster.workers import NICENESS, TaskError, Workers, worker_count


class Unreadable:
    """Can be written in a process, and not be read where it arrives."""

    def __reduce__(self) -> tuple[type[int], tuple[str]]:
        return int, ("no number",)


class Unsaid:
    """Ends who reads it."""

    def __reduce__(self) -> tuple[Callable[[int], None], tuple[int]]:
        return _exit, (3,)


class Wordless(Exception):  # noqa: N818 - it is no error of anything
    """Says nothing about itself, with an error."""

    def __str__(self) -> str:
        raise ValueError("no words")


def _exit(code: int) -> None:
    raise SystemExit(code)


def fail(kind: type[BaseException]) -> None:
    raise kind


@pytest.fixture
def workers() -> Generator[Workers]:
    with Workers(2) as pool:
        yield pool


def test_processes_start_when_needed_and_give_way_to_others(workers: Workers) -> None:
    assert () == workers.pids()
    assert 120 == workers.call(math.factorial, 5)
    assert 720 == workers.call(math.factorial, 6)

    (pid,) = workers.pids()
    assert min(19, os.getpriority(os.PRIO_PROCESS, 0) + NICENESS) == os.getpriority(os.PRIO_PROCESS, pid)
    assert "1" == workers.call(os.getenv, "OMP_NUM_THREADS")


def test_settings_and_secrets_stay_here(workers: Workers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORECREST_DATABASE_URL", "postgresql://user:secret@host/db")

    assert workers.call(os.getenv, "FORECREST_DATABASE_URL") is None


def test_what_a_task_raises_is_told_with_its_place(workers: Workers) -> None:
    with pytest.raises(TaskError, match="ValueError: math domain error") as raised:
        workers.call(math.sqrt, -1.0)

    assert "Traceback" in raised.value.__notes__[0]


def test_what_cannot_travel_is_an_error_of_its_task_alone(workers: Workers) -> None:
    for function, arguments, reason in (
        (len, (iter, lambda: 0), "cannot be sent to a process"),
        (threading.Lock, (), "TypeError: cannot pickle"),
        (Unreadable, (), "result cannot be read: ValueError"),
        (Unsaid, (), "result cannot be read: SystemExit: 3"),
        (sys.exit, (3,), "SystemExit: 3"),
        (fail, (asyncio.CancelledError,), "CancelledError: "),
        (fail, (KeyboardInterrupt,), "KeyboardInterrupt: "),
        (fail, (Wordless,), "Wordless, whose message cannot be read"),
    ):
        with pytest.raises(TaskError, match=reason):
            workers.call(function, *arguments)

    pids = workers.pids()
    assert 120 == workers.call(math.factorial, 5)
    assert (1, pids) == (len(pids), workers.pids())


def test_a_lower_bound_of_memory_that_is_set_already_is_kept() -> None:
    code = """
import resource
from forecaster.workers import MEMORY_BYTES_MAX, Workers
lower = MEMORY_BYTES_MAX - (256 << 20)
resource.setrlimit(resource.RLIMIT_DATA, (lower, lower))
with Workers(1) as workers:
    assert (lower, lower) == workers.call(resource.getrlimit, resource.RLIMIT_DATA)
"""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False
    )
    assert (0, "") == (done.returncode, done.stderr)


def test_a_process_that_was_killed_is_replaced(workers: Workers) -> None:
    first = workers.call(os.getpid)
    os.kill(first, signal.SIGKILL)

    assert first != workers.call(os.getpid)


def test_a_task_that_is_too_large_costs_its_process_and_no_other(workers: Workers) -> None:
    with pytest.raises(TaskError, match="may need too much memory"):
        workers.call(bytearray, 3 << 30)

    assert 120 == workers.call(math.factorial, 5)


def test_closing_ends_tasks_under_way() -> None:
    workers, reasons = Workers(1), list[str]()
    pid = workers.call(os.getpid)

    def wait() -> None:
        with pytest.raises(TaskError) as raised:
            workers.call(signal.pause)
        reasons.append(str(raised.value))

    thread = threading.Thread(target=wait)
    thread.start()
    workers.close()
    thread.join()

    assert ["The workers are closed."] == reasons
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_a_busy_process_ends_when_its_parent_was_killed() -> None:
    parent = """
import os, signal
from forecaster.workers import Workers
workers = Workers(1)
print(workers.call(os.getpid), flush=True)
workers.call(signal.pause)
"""
    with subprocess.Popen(
        [sys.executable, "-c", parent],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    ) as process:
        assert process.stdout is not None
        pid = int(process.stdout.readline())
        watched = os.pidfd_open(pid)
        process.kill()
    try:
        # Readable once the process is gone; the test's own timeout bounds the wait.
        assert [watched] == select.select([watched], [], [])[0]
    finally:
        os.close(watched)


def test_a_container_gets_no_more_processes_than_its_quota_of_cores(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for text, cores, expected in (
        ("150000 100000", 64, 2),
        ("max 100000", 64, 4),
        ("50000 100000", 2, 1),
        ("", 3, 3),
    ):
        quota = tmp_path / "cpu.max"
        quota.write_text(text)
        monkeypatch.setattr("forecaster.workers.CPU_QUOTA", quota)
        monkeypatch.setattr(os, "sched_getaffinity", lambda _, cores=cores: set(range(cores)))
        assert expected == worker_count()


def test_no_workers_are_refused() -> None:
    with pytest.raises(ValueError, match="workers is 0"):
        Workers(0)
