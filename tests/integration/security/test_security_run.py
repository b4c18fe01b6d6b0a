"""A whole run of a protected server on real PostgreSQL and Redis: the documented commands, and no secret in any log."""

import asyncio
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import grpc
import pytest
from forecrest.v1 import audit_service_pb2, workload_pb2, workload_service_pb2
from sqlalchemy.engine import make_url

from controller.adapters.clock import SystemClock
from controller.adapters.postgres import PostgresStore
from controller.adapters.redis import RedisSignalCache
from controller.api.auth.roles import Grant
from controller.api.auth.security import Security, SecurityFiles
from controller.api.auth.tokens import TokenFile, make_token, save_tokens
from controller.api.server import ApiDependencies, serve
from controller.client import Client
from controller.core.resources import Page
from controller.credentials import Credentials
from tests.unit.auth.authority import Authority

ROOT = Path(__file__).resolve().parents[3]
DOCS = ROOT / "docs" / "security.md"
WORKLOAD = """
name: cart
model_name: cart
namespace: shop
profiles: [{engine: e, gpu_type: cpu, qps_max: 60}]
"""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture
def environment(database_url: str, redis_url: str, tmp_path: Path) -> dict[str, str]:
    """What the documented commands find: our own commands first on the path, and servers to run on."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("FORECREST_")}
    return kept | {
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "FORECREST_DATABASE_URL": database_url,
        "FORECREST_REDIS_URL": redis_url,
        "FORECREST_DATA_DIR": str(tmp_path / "data"),
        "FORECREST_BIND": f"127.0.0.1:{free_port()}",
        "FORECREST_HTTP_BIND": "127.0.0.1:0",
        "FORECREST_ACTUATOR": "dry_run",
        "FORECREST_LOG_LEVEL": "DEBUG",
        "COLUMNS": "200",
    }


@pytest.mark.skipif(shutil.which("openssl") is None, reason="the documented commands use openssl")
def test_the_documented_commands_do_what_they_say(environment: dict[str, str], tmp_path: Path) -> None:
    blocks = re.findall(r"<!-- run -->\n```sh\n(.*?)```", DOCS.read_text(), re.DOTALL)
    assert 6 == len(blocks)
    (tmp_path / "cart.yaml").write_text(WORKLOAD)
    wait = "until forecrest --token-file root.token workloads list >/dev/null 2>&1; do kill -0 $! || exit 1; sleep 0.2; done\n"
    # A person would see the server start; a script asks until it answers.
    script = "set -euo pipefail\n" + "\n".join(
        block if number != 2 else f"server=$!\nexport FORECREST_CA=$PWD/ca.crt\n{wait}{block}"
        for number, block in enumerate(blocks)
    )
    done = subprocess.run(
        ["bash", "-c", f'trap \'kill -INT "$server" && wait "$server" || true\' EXIT\n{script}'],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )

    assert 0 == done.returncode, done.stderr[-3000:]
    assert '"principal": "token/ops"' in done.stdout
    assert '"method": "CreateWorkload"' in done.stdout
    assert 3 <= done.stdout.count("cart")
    texts = {p.name: p.read_text().strip() for p in tmp_path.glob("*.token")}
    assert {"root.token", "ops.token", "ada.token"} == set(texts)
    for text in texts.values():
        assert text[21:] not in done.stdout + done.stderr


Spoken = Callable[[], str]


@contextmanager
def serving(environment: dict[str, str], folder: Path) -> Iterator[Spoken]:
    """`forecrest serve` for the time of a block; returns all it has said so far."""
    log = folder / "server.log"
    with log.open("w") as file:
        process = subprocess.Popen(
            [sys.executable, "-m", "controller", "serve"],
            cwd=folder,
            env=environment,
            stdout=file,
            stderr=subprocess.STDOUT,
        )
        try:
            yield log.read_text
        finally:
            process.send_signal(signal.SIGINT)
            process.wait(60)


async def test_no_secret_is_said_in_a_whole_run_at_the_lowest_level(
    environment: dict[str, str], tmp_path: Path
) -> None:
    authority = Authority(tmp_path / "pki")
    cert, key = authority.server()
    now = SystemClock().now()
    made = [make_token(n, (Grant.parse("admin:*"),), now, None) for n in ("one", "two")]
    save_tokens(tmp_path / "tokens.json", TokenFile(tokens=(made[0].kept,)))
    password = make_url(environment["FORECREST_DATABASE_URL"]).password
    redis_password = re.search(r":([^:/@]+)@", environment["FORECREST_REDIS_URL"])
    assert password
    secrets = {
        "the database's password": str(password),
        "redis' password": redis_password[1] if redis_password else "no password is set",
        "a good token": made[0].text[21:],
        "a wrong token": made[1].text[21:],
        "a JWT": "eyJhbGciOiJSUzI1NiIsImtpZCI6IngifQ.eyJzdWIiOiJhZGEifQ.c2lnbmF0dXJl",
        "a password in a header": "dXNlcjpodW50ZXIy",
        "the key": key.read_text().splitlines()[2],
    }
    files = {"TLS_CERT": cert, "TLS_KEY": key, "TOKENS_FILE": tmp_path / "tokens.json"}
    with serving(environment | {f"FORECREST_{n}": str(p) for n, p in files.items()}, tmp_path) as spoken:
        target = environment["FORECREST_BIND"]
        good = Credentials(ca=authority.ca, token=made[0].text)
        get = workload_service_pb2.GetWorkloadRequest(name="workloads/none")
        async with Client(target, credentials=good) as client:
            # Retried by the client until the server answers.
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await client.workloads.GetWorkload(get, timeout=120, wait_for_ready=True)
            assert caught.value.code() is grpc.StatusCode.NOT_FOUND
        async with Client(target, credentials=Credentials(ca=authority.ca)) as client:
            call = client.channel.unary_unary("/forecrest.v1.WorkloadService/DeleteWorkload")
            for header in (
                f"Bearer {made[1].text}",
                f"Bearer {secrets['a JWT']}",
                f"Basic {secrets['a password in a header']}",
                made[0].text,
            ):
                with pytest.raises(grpc.aio.AioRpcError) as caught:
                    await call(b"", metadata=(("authorization", header),))
                assert caught.value.code() is grpc.StatusCode.UNAUTHENTICATED
                assert not [what for what, text in secrets.items() if text in repr(caught.value)]
        # What somebody puts in the wrong place must not come back either.
        (tmp_path / "tokens.json").write_text(f'{{"tokens": ["{made[1].text}"]}}')
        async with Client(target, credentials=good) as client, asyncio.timeout(60):
            while "stays as it was" not in spoken():
                await client.audit.ListAuditEntries(audit_service_pb2.ListAuditEntriesRequest())
    said = spoken()

    assert "DEBUG" in said
    assert "Forecrest serves gRPC" in said
    assert [] == [what for what, text in secrets.items() if text in said]


async def test_changes_and_refusals_are_in_the_database_with_the_same_words(
    postgres_store: PostgresStore, redis_url: str, tmp_path: Path
) -> None:
    now = SystemClock().now()
    made = {
        g: make_token(g.partition(":")[0], (Grant.parse(g),), now, None)
        for g in ("operator:shop", "viewer:*")
    }
    save_tokens(tmp_path / "t.json", TokenFile(tokens=tuple(t.kept for t in made.values())))
    cache = RedisSignalCache(redis_url, clock=SystemClock(), prefix=f"{tmp_path.name}:")
    server = await serve(
        ApiDependencies(postgres_store, cache, SystemClock()),
        "127.0.0.1:0",
        Security(SecurityFiles(tokens=tmp_path / "t.json")),
    )
    creation = workload_service_pb2.CreateWorkloadRequest(
        workload_id="cart",
        workload=workload_pb2.Workload(
            model_name="m",
            namespace="shop",
            profiles=[workload_pb2.CapacityProfile(engine="e", qps_max=1)],
        ),
        request_id="first",
    )
    update = workload_service_pb2.UpdateWorkloadRequest(
        workload=workload_pb2.Workload(name="workloads/cart", max_replicas=3), request_id="second"
    )
    async with (
        Client(server.target, credentials=Credentials(token=made["operator:shop"].text)) as operator,
        Client(server.target, credentials=Credentials(token=made["viewer:*"].text)) as viewer,
    ):
        await operator.workloads.CreateWorkload(creation)
        await operator.workloads.UpdateWorkload(update)
        with pytest.raises(grpc.aio.AioRpcError):
            await viewer.workloads.UpdateWorkload(update)
    await server.stop(grace_s=0)
    await cache.close()

    async with postgres_store.unit_of_work() as uow:
        entries, end = await uow.records.entries(page=Page(10))
        refused, _ = await uow.records.entries(outcome="PERMISSION_DENIED")
        mine, token = await uow.records.entries(principal="token/operator", page=Page(1))
        older, _ = await uow.records.entries(principal="token/operator", page=Page(1, token))
    assert [
        ("token/viewer", "UpdateWorkload", "workloads/cart", "PERMISSION_DENIED", "second", None, None),
        ("token/operator", "UpdateWorkload", "workloads/cart", "OK", "second", 1, 2),
        ("token/operator", "CreateWorkload", "workloads/cart", "OK", "first", None, 1),
    ] == [
        (e.principal, e.method, e.resource, e.outcome, e.request_id, e.version_before, e.version_after)
        for e in entries
    ]
    assert "" == end
    assert [entries[0]] == list(refused)
    assert [entries[1], entries[2]] == [*mine, *older]
