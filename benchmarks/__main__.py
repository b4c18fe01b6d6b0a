"""List the benchmarks, or run one: `python -m benchmarks [NAME [ARGUMENTS]]`.

Promises: every module here with a `main` function is found; nothing is imported to make the list.
Refuses: unknown names, naming those that exist.
Called by: `make bench` and people.
"""

import ast
import importlib
import sys
from collections.abc import Sequence
from pathlib import Path


def available(folder: Path) -> dict[str, str]:
    """Return benchmark name -> first line of its docstring, for modules in `folder` that define `main`."""
    found: dict[str, str] = {}
    for path in sorted(folder.glob("*.py")):
        if path.stem.startswith("_"):
            continue
        tree = ast.parse(path.read_text(encoding="utf-8"))
        if any(isinstance(node, ast.FunctionDef) and node.name == "main" for node in tree.body):
            found[path.stem] = (ast.get_docstring(tree) or "").partition("\n")[0]
    return found


def run(arguments: Sequence[str]) -> int:
    """List when `arguments` is empty, else run the benchmark it names; return the exit status."""
    benchmarks = available(Path(__file__).parent)
    if not arguments:
        for name, summary in benchmarks.items():
            print(f"python -m benchmarks.{name:<12} {summary}")
        return 0
    name, *rest = arguments
    if name not in benchmarks:
        print(f"No benchmark is called {name!r}; there are: {', '.join(benchmarks)}.", file=sys.stderr)
        return 2
    return int(importlib.import_module(f"benchmarks.{name}").main(rest))


if __name__ == "__main__":
    sys.exit(run(sys.argv[1:]))
