"""What docs/telemetry.md shows works, and the settings and limits it names are those there are."""

import re
from pathlib import Path
from types import ModuleType

import pytest

from controller.adapters.fakes import FakeStore
from controller.adapters.prometheus import POINTS_MAX
from controller.api.limits import ApiLimits
from controller.client import Client
from controller.history import PARQUET
from controller.settings import Settings
from controller.usecases import telemetry
from tests.unit.api.conftest import NOW

PAGE = (Path(__file__).resolve().parents[3] / "docs/telemetry.md").read_text()


def spoken(number: int) -> str:
    return f"{number:,}".replace(",", " ")


async def test_the_python_example_sends_what_it_says(
    client: Client, store: FakeStore, capsys: pytest.CaptureFixture[str]
) -> None:
    (code,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    module = ModuleType("example")
    exec(
        compile(code.replace("workloads/recommender", "workloads/rec"), "docs/telemetry.md", "exec"),
        module.__dict__,
    )

    await module.send(client)

    assert capsys.readouterr().out == "batch 1 is stored: 2 minutes\n"
    assert [s.demand_count for s in store.tables.samples.values()] == [480_000, 485_000]
    assert max(at for _, at in store.tables.samples) < NOW


def test_every_setting_on_the_page_exists() -> None:
    named = {name.lower() for name in re.findall(r"FORECREST_([A-Z_]+)", PAGE)}

    assert len(named) >= 7
    assert named <= Settings.model_fields.keys()


@pytest.mark.parametrize(
    "text",
    [
        f"up to {spoken(telemetry.SAMPLES_MAX)} samples at once",
        f"{spoken(telemetry.SERIES_MAX)} series and {spoken(telemetry.BLOCK_SAMPLES_MAX)} samples a batch",
        f"{ApiLimits().ingest_streams_max} such streams",
        f"{ApiLimits().message_bytes_max >> 20} MiB a message",
        f"Prometheus's {spoken(POINTS_MAX)}",
        f"`FORECREST_HISTORY_RETENTION_DAYS` ({Settings.model_fields['history_retention_days'].default})",
    ],
)
def test_every_limit_on_the_page_is_the_limit(text: str) -> None:
    assert text in " ".join(PAGE.split())


def test_the_page_names_a_file_that_is_read_as_parquet() -> None:
    assert any(f"requests{suffix}" in PAGE for suffix in PARQUET)
