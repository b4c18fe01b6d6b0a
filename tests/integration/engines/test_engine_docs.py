"""The commands of docs/engines.md do what the page says."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from engines.compatibility import Rejection
from engines.measures import find_measure

ROOT = Path(__file__).resolve().parents[3]
PAGE = (ROOT / "docs" / "engines.md").read_text()


def test_the_commands_run_in_order(tmp_path: Path) -> None:
    commands = [
        line for block in re.findall(r"```bash\n(.*?)```", PAGE, re.DOTALL) for line in block.splitlines()
    ]
    assert len(commands) >= 8
    has_rtx = subprocess.run([sys.executable, "-c", "import tensorrt_rtx"], capture_output=True, check=False)
    if has_rtx.returncode != 0:
        commands = [command for command in commands if "tensorrt-rtx" not in command]
    script = "set -eu\n" + "\n".join(commands)
    bin_folder = Path(sys.executable).parent

    done = subprocess.run(
        ["sh", "-c", script],
        cwd=tmp_path,
        env={
            **os.environ,
            "PATH": f"{bin_folder}{os.pathsep}{os.environ['PATH']}",
            "FORECREST_ENGINE_CATALOG": "c",
        },
        capture_output=True,
        text=True,
        check=False,
    )

    assert 0 == done.returncode, done.stdout + done.stderr
    assert 4 + (has_rtx.returncode == 0) == done.stdout.count("Gate passed")
    assert "record and file are right" in done.stdout


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
