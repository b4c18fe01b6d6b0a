"""What docs/api.md shows works, and what it lists is what there is."""

import re
from pathlib import Path
from types import ModuleType

import pytest

from controller.adapters.fakes import FakeStore
from controller.api import control, engines, events, forecasts, stale, telemetry, workloads
from controller.api.limits import ApiLimits
from controller.api.server import RunningServer
from controller.usecases import event_rules, filters, icalendar_file
from controller.usecases import forecasts as forecast_rules
from controller.usecases import telemetry as telemetry_rules

PAGE = (Path(__file__).resolve().parents[3] / "docs/api.md").read_text()
SERVICERS = {
    "EngineService": engines.EngineServicer,
    "EventService": events.EventServicer,
    "ForecastService": forecasts.ForecastServicer,
    "WorkloadService": workloads.WorkloadServicer,
    "ControlService": control.ControlServicer,
    "TelemetryService": telemetry.TelemetryServicer,
}


async def test_the_python_example_runs(
    server: RunningServer, store: FakeStore, capsys: pytest.CaptureFixture[str]
) -> None:
    (code,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    module = ModuleType("example")
    exec(compile(code, "docs/api.md", "exec"), module.__dict__)

    await module.main(server.target)

    assert "prewarm begins at" in capsys.readouterr().out
    assert list(store.tables.events) == ["midnight-sale"]


@pytest.mark.parametrize("service", SERVICERS)
def test_the_page_lists_every_method(service: str) -> None:
    (row,) = re.findall(rf"\| `{service}` \| [^|]* \| ([^|]*) \|", PAGE)
    served = [name for name in vars(SERVICERS[service]) if name[0].isupper()]

    assert sorted(served) == sorted(row.strip().split(", "))


def test_every_reason_is_on_the_page() -> None:
    root = Path(__file__).resolve().parents[3] / "controller"
    sources = "".join(p.read_text() for folder in ("api", "usecases") for p in (root / folder).glob("*.py"))
    reasons = set(
        re.findall(
            r'"([A-Z]+(?:_[A-Z]+)*_(?:FIELDS|MESSAGE|FOUND|EXISTS|REUSED|MISMATCH|STREAMS|SLOW|EXCEEDED|UNAVAILABLE|READY|STOPPING'
            r'|STARTED|VALIDATED|IN_USE))"',
            sources,
        )
    )

    assert len(reasons) > 10
    assert [reason for reason in sorted(reasons) if reason not in PAGE] == []


def test_the_limits_on_the_page_are_those_that_hold() -> None:
    limits = ApiLimits()
    numbers = {
        "message received": [limits.message_bytes_max // 2**20],
        "calls at once, streams at once": [limits.concurrent_rpcs_max, limits.streams_max],
        "time of a unary call, of a preview": [limits.unary_deadline_s, limits.preview_deadline_s],
        "decisions waiting for one watcher": [limits.stream_queue_max],
        "traffic samples, backlog samples per call": [
            telemetry_rules.SAMPLES_MAX,
            telemetry_rules.BACKLOGS_MAX,
        ],
        "buckets of history per call": [forecast_rules.BUCKETS_MAX],
        "workloads per event, exceptions, further dates": [
            event_rules.WORKLOADS_MAX,
            event_rules.EXDATES_MAX,
            event_rules.RDATES_MAX,
        ],
        "a filter: length, comparisons, nesting": [
            filters.FILTER_LENGTH_MAX,
            filters.COMPARISONS_MAX,
            filters.DEPTH_MAX,
        ],
        "an iCalendar file: size, VEVENTs, lines": [
            icalendar_file.FILE_BYTES_MAX // 2**20,
            icalendar_file.EVENTS_MAX,
            icalendar_file.LINES_MAX,
        ],
        "answers kept for an outage: number, memory, age": [
            stale.ANSWERS_MAX,
            stale.BYTES_MAX // 2**20,
            stale.AGE_MAX.days,
        ],
    }
    said = {
        what.strip(): [float(n.replace(" ", "")) for n in re.findall(r"\d[\d ]*\d|\d", value)]
        for what, value in re.findall(r"\| ([^|]*) \| ([^|]*) \|\n", PAGE)
    }

    assert numbers == {what: said[what] for what in numbers}
