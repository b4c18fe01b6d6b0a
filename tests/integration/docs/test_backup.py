"""The operator guide's backup brings everything back, with PostgreSQL's own tools as it shows them."""

import os
import re
import subprocess
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from sqlalchemy.engine import make_url

from controller.adapters.clock import SystemClock
from controller.adapters.embedded.postgres import find_binaries
from controller.adapters.postgres import Limits, PostgresStore
from controller.core.resources import Page, TrafficSample
from controller.core.types import CapacityProfile, Decision, Mode, Reason, Workload

GUIDE = Path(__file__).resolve().parents[3] / "docs" / "operator.md"


def documented() -> tuple[str, str]:
    """(dump, restore) as the guide has them."""
    (block,) = (b for b in re.findall(r"```sh\n(.*?)```", GUIDE.read_text(), re.DOTALL) if "pg_dump" in b)
    dump, restore = block.strip().splitlines()
    return dump, restore


async def test_what_was_dumped_is_there_again_and_can_be_gone_on_with(
    postgres_store: PostgresStore, database_url: str, empty_database_url: str, tmp_path: Path
) -> None:
    tools = find_binaries()
    if not (tools / "pg_dump").exists():
        pytest.skip("this build of the embedded PostgreSQL has no pg_dump")
    urls = {"FORECREST_DATABASE_URL": database_url, "EMPTY_DATABASE_URL": empty_database_url}
    environment = {
        name: make_url(url).set(drivername="postgresql").render_as_string(hide_password=False)
        for name, url in urls.items()
    } | {"PATH": f"{tools}{os.pathsep}{os.environ['PATH']}"}

    def typed(command: str) -> None:
        done = subprocess.run(
            ["bash", "-c", command],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=120,
        )
        assert 0 == done.returncode, done.stderr

    now = SystemClock().now().replace(second=0, microsecond=0)
    shop = Workload("recommender", "m", (CapacityProfile("int8", "L4", 2500.0),))
    decision = Decision(
        *("d1", "recommender", now, Mode.SCALE, 4, 5, 4, 0, Reason.REACTIVE_UP, None, "Scale 4 to 5: load."),
        *((), (), (), 8_000.0, 5, None, None, ()),
    )
    samples = [TrafficSample("recommender", now - timedelta(minutes=n), 6000.0) for n in (1, 2)]
    async with postgres_store.unit_of_work() as uow:
        await uow.workloads.create(shop)
        await uow.traffic.upsert(samples)
        await uow.decisions.append([decision])
        await uow.commit()
    dump, restore = documented()
    typed(dump)
    async with postgres_store.unit_of_work() as uow:
        await uow.workloads.delete("recommender", expected_generation=None)
        await uow.traffic.upsert([replace(samples[0], demand_count=1.0)])
        await uow.commit()
    typed(restore)

    restored = PostgresStore(empty_database_url, Limits(connection_count=2))
    await restored.check_revision()
    async with restored.unit_of_work() as uow:
        workloads, _ = await uow.workloads.list(Page(10))
        known = await uow.traffic.read("recommender", now - timedelta(minutes=5), now)
        kept, _ = await uow.decisions.get("d1")
        # Partitions of days to come are made as before.
        await uow.decisions.append([replace(decision, id="d2", at=now + timedelta(days=40))])
        await uow.commit()
    await restored.close()
    assert ["recommender"] == [workload.name for workload in workloads]
    assert {100.0} == {qps for _, qps in known if qps is not None}
    assert decision == kept
