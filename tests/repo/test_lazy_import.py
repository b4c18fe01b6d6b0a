"""What a controller, or the command line, loads before it is of use; the rest waits for its first use."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

# Each is a second and more, or tens of megabytes: modelling belongs to the pool's processes, the others to who asks.
HEAVY = (
    *("pandas", "scipy", "statsmodels", "lightgbm", "ray", "holidays", "matplotlib"),
    *("kubernetes", "alembic", "forecaster.service"),
)


def loaded(code: str) -> set[str]:
    """Names of all modules that there are in a fresh process after some code."""
    code += "\nimport sys; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return set(done.stdout.split())


@pytest.mark.parametrize(
    ("code", "more"),
    [
        ("import controller.bootstrap", ()),
        ("import controller.cli.app", ("sqlalchemy", "redis", "controller.bootstrap")),
        ("import forecaster.workers", ("controller",)),
    ],
)
def test_a_start_waits_for_nothing_that_it_may_never_use(code: str, more: tuple[str, ...]) -> None:
    found = loaded(code)

    assert set() == found & {*HEAVY, *more}


def test_what_waits_is_there_when_it_is_used() -> None:
    """The probe above can see what it looks for."""
    found = loaded("import forecaster; forecaster.forecast, forecaster.explain, forecaster.nowcast")

    assert {"pandas", "scipy", "forecaster.service"} <= found
