"""The commands of docs/engines.md do what the page says."""

import importlib.util
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from controller.cli.app import run_command
from engines.compatibility import Rejection
from engines.measures import find_measure

ROOT = Path(__file__).resolve().parents[3]
PAGE = (ROOT / "docs" / "engines.md").read_text()


def test_the_commands_run_in_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    blocks = re.findall(r"```bash\n(.*?)```", PAGE, re.DOTALL)
    commands = [line for block in blocks for line in block.splitlines()]
    assert len(commands) >= 8
    has_rtx = importlib.util.find_spec("tensorrt_rtx") is not None
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FORECREST_ENGINE_CATALOG", "catalog")
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")

    said = ""
    for command in commands:
        if "tensorrt-rtx" in command and not has_rtx:
            continue
        if "$(" in command:  # needs a shell
            done = subprocess.run(command, shell=True, capture_output=True, text=True, check=False)
            code, text, errors = done.returncode, done.stdout, done.stderr
        else:
            code = run_command(shlex.split(command)[1:])
            text, errors = capsys.readouterr()
        assert code == 0, f"{command}\n{text}{errors}"
        said += text

    assert 4 + has_rtx == said.count("Gate passed")
    assert "record and file are right" in said


def test_every_rejection_is_explained() -> None:
    for rejection in Rejection:
        assert f"`{rejection}`" in PAGE


MEASURES = PAGE.partition("| measure |")[2].partition("\n\n")[0]


@pytest.mark.parametrize("measure", re.findall(r"`([a-z_]+)(?:@K)?`", MEASURES))
def test_every_measure_of_the_page_exists(measure: str) -> None:
    found = [name for name in (measure, f"{measure}@3") if _exists(name)]

    assert found


def _exists(name: str) -> bool:
    try:
        find_measure(name)
    except Exception:  # noqa: BLE001 - whatever refuses the name
        return False
    return True
