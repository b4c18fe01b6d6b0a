"""Every SQL query of the dashboards, on a real database with real records, as the role that reader.sql makes."""

import json
import os
import re
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg import sql
from sqlalchemy.engine import URL, make_url

from controller.accuracy import HourScore, LeadScore, Standing
from controller.adapters.clock import SystemClock
from controller.adapters.embedded.stack import EmbeddedStack
from controller.adapters.postgres import PostgresLeaseStore, PostgresStore
from controller.core.leadtime import LeadSample
from controller.core.resources import ForecastRun, TrafficSample
from controller.core.types import (
    CapacityPlan,
    CapacityProfile,
    Contract,
    ContractState,
    Decision,
    Floor,
    ForecastBand,
    ForecastState,
    Mode,
    Reason,
    Workload,
)
from controller.ports import LEADER_LEASE, Store

FOLDER = Path(__file__).resolve().parents[3] / "deploy" / "grafana"
ROLE = "forecrest_grafana"
HOUR = timedelta(hours=1)
TABLES = re.compile(r"\b(?:FROM|JOIN) ([a-z_]+)\b(?!\()")


def queries() -> Iterator[tuple[str, dict[str, Any]]]:
    for path in sorted((FOLDER / "dashboards").glob("*.json")):
        read = json.loads(path.read_text())
        for annotation in read["annotations"]["list"]:
            yield f"{path.stem}: {annotation['name']}", annotation["target"]
        for panel in read["panels"]:
            for target in panel.get("targets", ()):
                if "rawSql" in target:
                    yield f"{path.stem}: {panel['title']}", target


def expanded(query: str, start: datetime, end: datetime) -> str:
    """As Grafana sends it: `$__timeFilter(x)` and the workload variable are text."""
    while (at := query.find("$__timeFilter(")) >= 0:
        close, depth = at + len("$__timeFilter("), 1
        while depth:
            depth += {"(": 1, ")": -1}.get(query[close], 0)
            close += 1
        column = query[at + len("$__timeFilter(") : close - 1]
        window = f"({column}) BETWEEN '{start.isoformat()}' AND '{end.isoformat()}'"
        query = query[:at] + window + query[close:]
    return query.replace("${workload:sqlstring}", "'recommender','cart'")


async def fill(store: Store, database_url: str, now: datetime) -> None:
    """One of each record that a panel shows, through the store that writes them in production."""
    profile = CapacityProfile("int8", "L4", 2500.0)
    decision = Decision(
        *(
            "d1",
            "recommender",
            now,
            Mode.SCALE,
            4,
            16,
            4,
            0,
            Reason.EVENT_FLOOR,
            None,
            "Scale 4 to 16: the sale.",
        ),
        *((), (), (), 8_000.0, 4, 1, "f1", ("sale",)),
    )
    floor = Floor(16, now + HOUR, now + 2 * HOUR, now + 3 * HOUR, "sale", event_id="sale")
    plan = CapacityPlan("recommender", 1, now, (floor,), "f1", now, 5 * timedelta(minutes=1), (4,), 0.99, "d")
    band = ForecastBand(
        *("f1", now, now, timedelta(minutes=5), (0.5, 0.9), ((10.0, 20.0), (30.0, 40.0)), ForecastState.READY)
    )
    contract = Contract(
        *("sale", 1, ContractState.PLANNED, 16, now + HOUR, now + 2 * HOUR, now + 2 * HOUR, now + 3 * HOUR)
    )
    score = HourScore(now - HOUR, HOUR, (0.5, 0.9), (LeadScore(HOUR, 12, 5.0, (6, 11), 12.0, 120.0),))
    lease = await (leases := PostgresLeaseStore(database_url)).acquire(LEADER_LEASE, "a", HOUR)
    await leases.close()
    assert lease is not None
    async with store.unit_of_work() as uow:
        await uow.require_leader(lease.token)
        await uow.workloads.create(Workload("recommender", "m", (profile,)))
        await uow.traffic.upsert([TrafficSample("recommender", now - HOUR, 6000.0)])
        await uow.decisions.append([decision])
        await uow.decisions.save_plan(plan)
        await uow.forecasts.save(ForecastRun("f1", "recommender", now, now, 2), band)
        await uow.states.keep_contracts([("recommender", contract)])
        await uow.warmups.append_all(
            [("recommender", "r1", now, LeadSample({"load": 17.0, "warmup": 2.0}, 1))]
        )
        await uow.accuracy.put_scores("recommender", [score])
        await uow.accuracy.put_standing(Standing("recommender"))
        await uow.commit()


@pytest.fixture
def superuser(stack: EmbeddedStack, database_url: str) -> Iterator[URL]:
    """The superuser, whom the embedded server lets nobody be, and the role to come: both let in for this test."""
    rules = stack.data_dir / "postgres" / "pg_hba.conf"
    before = rules.read_text()
    pid = stack.servers["postgres"].pid
    assert pid is not None
    rules.write_text(f"{before}host all postgres,{ROLE} 127.0.0.1/32 trust\n")
    os.kill(pid, signal.SIGHUP)
    url = make_url(database_url).set(drivername="postgresql", username="postgres", password=None)
    yield url
    with connected(url) as connection:
        connection.execute(sql.SQL("DROP OWNED BY {0}; DROP ROLE {0}").format(sql.Identifier(ROLE)))
    rules.write_text(before)
    os.kill(pid, signal.SIGHUP)


@contextmanager
def connected(url: URL) -> Iterator[psycopg.Connection]:
    """Connect as soon as the server has read its rules anew."""
    for _ in range(600):
        try:
            connection = psycopg.connect(url.render_as_string(hide_password=False), autocommit=True)
            break
        except psycopg.OperationalError as error:
            if "pg_hba" not in str(error):
                raise
            threading.Event().wait(0.1)  # it says so in no other way
    else:
        pytest.fail("the server did not read its rules")
    with connection:
        yield connection


async def test_the_role_reads_what_every_panel_asks_for_and_nothing_else(
    postgres_store: PostgresStore, database_url: str, superuser: URL
) -> None:
    now = SystemClock().now().replace(second=0, microsecond=0)
    await fill(postgres_store, database_url, now)
    asked = list(queries())
    used = {name for _, target in asked for name in TABLES.findall(target["rawSql"])}
    script = (FOLDER / "reader.sql").read_text()
    with connected(superuser) as connection:
        for _ in range(2):  # again does no harm
            connection.execute(script.encode())
        rights = connection.execute(
            """SELECT tablename, r FROM pg_tables, unnest(ARRAY['SELECT','INSERT','UPDATE','DELETE','TRUNCATE']) r
               WHERE schemaname = 'public' AND has_table_privilege(%s, format('public.%%I', tablename), r)""",
            (ROLE,),
        ).fetchall()
    empty = []
    with connected(superuser.set(username=ROLE)) as connection:
        for title, target in asked:
            cursor = connection.execute(expanded(target["rawSql"], now - 2 * HOUR, now + 2 * HOUR).encode())
            columns = [column.name for column in cursor.description or ()]
            empty += [] if cursor.fetchall() else [title]
            if target["refId"] == "Events":
                assert ["time", "timeend", "text", "tags"] == columns, title
            if target["format"] == "time_series":
                assert ["time", "metric", "value"] == columns, title
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            connection.execute("SELECT * FROM audit_log")
        with pytest.raises(psycopg.errors.ReadOnlySqlTransaction):
            connection.execute("CREATE TABLE mine (x int)")

    assert 8 <= len(asked)
    assert [] == empty
    assert {(name, "SELECT") for name in used} == set(rights)


def test_the_clock_filter_is_expanded_around_nested_parentheses() -> None:
    start = datetime(2026, 11, 11, tzinfo=SystemClock().now().tzinfo)

    found = expanded("WHERE $__timeFilter((a)::timestamptz + (i - 1) * b) AND c", start, start)

    assert found.startswith("WHERE ((a)::timestamptz + (i - 1) * b) BETWEEN '2026-11-11")
    assert found.endswith("AND c")
