# ruff: noqa: ASYNC240 - small local files, read between awaits
"""The stack ends with its parent in every way a parent can end, and comes back with its data."""

import asyncio
import contextlib
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import psycopg
import pytest
import redis.asyncio as redis

from controller.adapters.embedded import (
    AlreadyRunningError,
    EmbeddedError,
    EmbeddedStack,
    embedded_stack,
    running_urls,
)

Start = Callable[..., Awaitable[Any]]
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")


async def connect(database_url: str) -> psycopg.AsyncConnection[Any]:
    return await psycopg.AsyncConnection.connect(database_url.replace("+psycopg", ""), autocommit=True)


async def add_row(database_url: str) -> int:
    async with await connect(database_url) as connection:
        await connection.execute("CREATE TABLE IF NOT EXISTS marks (n serial)")
        await connection.execute("INSERT INTO marks DEFAULT VALUES")
        row = await (await connection.execute("SELECT count(*) FROM marks")).fetchone()
    assert row is not None
    return int(row[0])


async def test_data_ports_and_passwords_survive_an_orderly_restart(tmp_path: Path) -> None:
    async with EmbeddedStack(tmp_path) as stack:
        first = (stack.database_url, stack.redis_url)
        assert await add_row(stack.database_url) == 1
        async with redis.from_url(stack.redis_url) as cache:
            await cache.set("forecast", "kept")

    async with EmbeddedStack(tmp_path) as stack:
        assert first == (stack.database_url, stack.redis_url)
        assert await add_row(stack.database_url) == 2
        async with redis.from_url(stack.redis_url) as cache:
            assert await cache.get("forecast") == b"kept"


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
async def test_a_signal_to_the_parent_ends_every_server(
    tmp_path: Path, start_holder: Start, number: signal.Signals
) -> None:
    holder = await start_holder(tmp_path)
    await add_row(holder.database_url)

    holder.process.send_signal(number)

    await holder.everything_ended()
    assert running_urls(tmp_path) is None


async def test_killing_everything_at_once_loses_no_committed_row(tmp_path: Path, start_holder: Start) -> None:
    holder = await start_holder(tmp_path)
    assert await add_row(holder.database_url) == 1
    for pid in (*holder.descendants, holder.process.pid):
        with contextlib.suppress(ProcessLookupError):  # a guard's death took it along
            os.kill(pid, signal.SIGKILL)

    # At once: the new start itself waits until the kernel has cleared the old servers away.
    async with EmbeddedStack(tmp_path) as stack:
        assert (tmp_path / "postgres" / "postmaster.pid").exists()
        assert await add_row(stack.database_url) == 2


async def test_a_killed_guard_takes_its_server_along(tmp_path: Path) -> None:
    async with EmbeddedStack(tmp_path) as stack:
        server = stack.servers["postgres"]
        os.kill(server._guard.pid, signal.SIGKILL)
        async with asyncio.timeout(60):
            ended = await server.wait()

        assert ended.code == -signal.SIGKILL
        assert not server.is_running


async def test_a_crash_of_a_server_is_seen_with_its_last_output(tmp_path: Path) -> None:
    async with EmbeddedStack(tmp_path) as stack:
        server = stack.servers["valkey"]
        assert server.pid is not None
        os.kill(server.pid, signal.SIGKILL)
        async with asyncio.timeout(60):
            ended = await server.wait()

        assert ended.code == -signal.SIGKILL
        assert any("Ready to accept connections" in line for line in ended.tail)


async def test_a_server_that_ends_by_itself_is_reported_by_name(tmp_path: Path) -> None:
    async with EmbeddedStack(tmp_path) as stack:
        watch = asyncio.create_task(stack.watch())
        server = stack.servers["valkey"]
        assert server.pid is not None
        os.kill(server.pid, signal.SIGKILL)

        with pytest.raises(EmbeddedError, match=r"Valkey ended by itself with code -9; see .*valkey\.log"):
            await watch


async def test_a_second_start_names_the_running_process(tmp_path: Path, start_holder: Start) -> None:
    holder = await start_holder(tmp_path)

    with pytest.raises(AlreadyRunningError, match=f"in use by the running process {holder.process.pid};"):
        async with EmbeddedStack(tmp_path):
            pass

    found = running_urls(tmp_path)
    assert found is not None
    assert holder.database_url == found.database_url
    assert await add_row(holder.database_url) == 1  # the first one was not disturbed


async def test_a_second_start_in_the_same_process_is_refused_too(tmp_path: Path) -> None:
    async with EmbeddedStack(tmp_path):
        with pytest.raises(AlreadyRunningError, match=f"process {os.getpid()}"):
            async with EmbeddedStack(tmp_path):
                pass


async def test_a_lock_of_a_dead_process_whose_pid_was_reused_is_recovered(tmp_path: Path) -> None:
    (tmp_path / "lock").write_text('{"pid": 1, "start_ticks": -1}')

    async with EmbeddedStack(tmp_path) as stack:
        assert await add_row(stack.database_url) == 1


async def test_a_postmaster_pid_that_now_belongs_to_another_program_does_not_hinder(tmp_path: Path) -> None:
    async with EmbeddedStack(tmp_path) as stack:
        account_pid = stack.servers["valkey"].pid
    async with EmbeddedStack(tmp_path / "other") as other:
        # A live process of the same user, as a recycled pid would be.
        pid_file = tmp_path / "postgres" / "postmaster.pid"
        pid_file.write_text(f"{other.servers['postgres'].pid}\n{tmp_path / 'postgres'}\n0\n0\n\n\n")
        os.chown(pid_file, (tmp_path / "postgres").stat().st_uid, -1)

        async with EmbeddedStack(tmp_path) as stack:
            assert await add_row(stack.database_url) == 1
            assert account_pid != stack.servers["valkey"].pid


async def test_a_port_taken_by_another_program_is_replaced(tmp_path: Path) -> None:
    async with EmbeddedStack(tmp_path) as stack:
        old = stack.database_url
    port = int(old.rpartition(":")[2].partition("/")[0])
    listener = await asyncio.start_server(lambda *_: None, "127.0.0.1", port)
    async with listener, EmbeddedStack(tmp_path) as stack:
        assert old != stack.database_url
        assert await add_row(stack.database_url) == 1


async def test_an_interrupted_initialisation_starts_over(tmp_path: Path) -> None:
    (tmp_path / "postgres.new").mkdir()
    (tmp_path / "postgres.new" / "PG_VERSION").write_text("18\n")

    async with EmbeddedStack(tmp_path) as stack:
        assert await add_row(stack.database_url) == 1
    assert not (tmp_path / "postgres.new").exists()


async def test_a_server_that_cannot_start_says_why_and_frees_the_folder(tmp_path: Path) -> None:
    async with EmbeddedStack(tmp_path):
        pass
    bad = tmp_path / "postgres" / "user.conf"
    bad.write_text("no_such_setting = 1\n")
    os.chown(bad, (tmp_path / "postgres").stat().st_uid, -1)

    with pytest.raises(RuntimeError, match=r"PostgreSQL ended with code 1(.|\n)*no_such_setting"):
        async with EmbeddedStack(tmp_path):
            pass

    bad.unlink()
    async with EmbeddedStack(tmp_path) as stack:
        assert await add_row(stack.database_url) == 1


async def test_only_the_application_role_with_its_password_gets_in(tmp_path: Path) -> None:
    async with EmbeddedStack(tmp_path) as stack:
        wrong = stack.database_url.replace("forecrest:", "forecrest:x", 1)
        superuser = stack.database_url.replace("forecrest:", "postgres:", 1)
        with pytest.raises(psycopg.OperationalError, match="password authentication failed"):
            await connect(wrong)
        with pytest.raises(psycopg.OperationalError, match=r"no pg_hba\.conf entry"):
            await connect(superuser)
        async with await connect(stack.database_url) as connection:
            row = await (await connection.execute("SHOW is_superuser")).fetchone()
        async with redis.from_url(stack.redis_url.replace(":", ":x", 2).replace("x//", "//")) as cache:
            with pytest.raises(redis.AuthenticationError):
                await cache.ping()

    assert row == ("off",)


async def test_secrets_stay_out_of_logs_reprs_and_command_lines(tmp_path: Path) -> None:
    async with EmbeddedStack(tmp_path) as stack:
        urls = running_urls(tmp_path)
        secrets = [url.rpartition("@")[0].rpartition(":")[2] for url in (stack.database_url, stack.redis_url)]
        shown = [repr(urls), repr(stack)]
        for server in stack.servers.values():
            shown.append(repr(server.spec))
            shown.append(Path(f"/proc/{server.pid}/cmdline").read_text())
    shown += [log.read_text() for log in (tmp_path / "logs").iterdir()]

    assert all(len(secret) >= 32 for secret in secrets)
    assert [] == [text for text in shown for secret in secrets if secret in text]
    assert (tmp_path / "secrets.json").stat().st_mode & 0o077 == 0


def test_synchronous_entry_serves_plain_code(tmp_path: Path) -> None:
    with (
        embedded_stack(tmp_path) as stack,
        psycopg.connect(stack.database_url.replace("+psycopg", "")) as connection,
    ):
        assert connection.execute("SELECT 1").fetchone() == (1,)
    assert running_urls(tmp_path) is None


def test_synchronous_entry_passes_the_error_on(tmp_path: Path) -> None:
    with embedded_stack(tmp_path), pytest.raises(AlreadyRunningError), embedded_stack(tmp_path):
        pass


@as_root
async def test_servers_of_root_run_unprivileged_and_reach_a_closed_folder(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    async with EmbeddedStack(tmp_path / "data") as stack:
        status = Path(f"/proc/{stack.servers['postgres'].pid}/status").read_text()
        assert await add_row(stack.database_url) == 1

    fields = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
    assert "0" not in fields["Uid"].split()
    assert int(fields["CapEff"], 16) == 1 << 1  # CAP_DAC_OVERRIDE and nothing else
    assert tmp_path.stat().st_mode & 0o777 == 0o700


@as_root
async def test_an_ordinary_user_runs_the_same_stack(start_holder: Start) -> None:
    # The interpreter of our own environment may lie in a home that is closed to others.
    version = f"python3.{sys.version_info.minor}"
    python = shutil.which(version, path="/usr/local/bin:/usr/bin")
    if python is None:
        pytest.skip(f"no {version} that another user can run")
    with tempfile.TemporaryDirectory() as folder:
        os.chown(folder, 65534, 65534)
        holder = await start_holder(Path(folder) / "data", user=65534, python=python)
        assert await add_row(holder.database_url) == 1
        holder.process.send_signal(signal.SIGKILL)
        await holder.everything_ended()
