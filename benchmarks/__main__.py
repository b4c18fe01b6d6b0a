"""List the benchmarks, run one, or the cheap ones: `python -m benchmarks [NAME [ARGUMENTS] | --quick]`.

Promises: every module here with a `main` function is found; nothing is imported to make the list. `--quick` needs no
data, no GPU and no other libraries than the tests do, and ends with 1 when any of them missed what it must hold.
Refuses: unknown names, naming those that exist.
Called by: `make bench` and people.
"""

import ast
import importlib
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

# Of a benchmark that Ctrl-C or SIGTERM ended.
EXITS_ENDED = {130, 143}
# Small enough to take a few minutes together on two cores.
QUICK: Mapping[str, Sequence[str]] = {
    "parts": ("--rounds", "3"),
    "scale": ("--workloads", "10", "100", "--ticks", "5"),
    "api": ("--streams", "200", "--minutes", "300", "--rounds", "1"),
    "failover": ("--kills", "3"),
}


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
    if list(arguments) == ["--quick"]:
        worst = 0
        for name, given in QUICK.items():
            # In a process of its own, so that none inherits another's memory.
            print(f"\npython -m benchmarks {name} {' '.join(given)}", flush=True)
            worst = max(worst, run_apart([sys.executable, "-m", "benchmarks", name, *given]))
            if worst in EXITS_ENDED:
                break
        return worst
    name, *rest = arguments
    if name not in benchmarks:
        print(f"No benchmark is called {name!r}; there are: {', '.join(benchmarks)}.", file=sys.stderr)
        return 2
    return int(importlib.import_module(f"benchmarks.{name}").main(rest))


def run_apart(command: Sequence[str]) -> int:
    """Run a command and wait until it has ended, however long it takes to put away what it started; return its status.

    Ctrl-C reaches it as it reaches us. SIGTERM reaches us alone, so it is passed on.
    """
    ended_by: list[int] = []

    def end(number: int, _: object) -> None:
        ended_by.append(number)
        if number == signal.SIGTERM and process is not None:
            process.terminate()

    process: subprocess.Popen[bytes] | None = None
    before = {number: signal.signal(number, end) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        process = subprocess.Popen(command)
        if signal.SIGTERM in ended_by:
            process.terminate()
        code = process.wait()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    return 128 + ended_by[0] if ended_by else code


if __name__ == "__main__":
    sys.exit(run(sys.argv[1:]))
