# ruff: noqa: INP001 -- proto/ must never become a package: PyPI's proto-plus owns the import name
"""Generate ``proto/gen/forecrest`` from ``proto/forecrest/*/*.proto``; with ``--check``, report drift.

Promises: the output depends on the .proto files and the locked generator versions only, and files that
no .proto accounts for are removed. Refuses to run without the development dependencies. Called by
``make proto`` and, with ``--check``, by ``make check``.
"""

import argparse
import importlib.resources
import os
import sys
import tempfile
from pathlib import Path

from grpc_tools import protoc

PROTO = Path(__file__).resolve().parent
# Ours, and KEDA's interface: its proto package is `externalscaler`, but a Python package of that name at the top
# level would not be ours to take.
PACKAGES = (Path("forecrest/v1"), Path("forecrest/keda"))


def generate(out: Path) -> None:
    """Write messages, services and their type stubs under ``out``."""
    sources = sorted(
        str(path.relative_to(PROTO)) for package in PACKAGES for path in (PROTO / package).glob("*.proto")
    )
    well_known = importlib.resources.files("grpc_tools") / "_proto"
    # protoc finds the mypy plugins on PATH; they stand beside the interpreter that runs this.
    os.environ["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    arguments = [
        "protoc",
        f"--proto_path={PROTO}",
        f"--proto_path={well_known}",
        f"--python_out={out}",
        f"--grpc_python_out={out}",
        f"--mypy_out=quiet:{out}",
        f"--mypy_grpc_out=quiet:{out}",
        *sources,
    ]
    if protoc.main(arguments) != 0:
        raise SystemExit("protoc failed; its message is above")
    for path in sorted((out / "forecrest").glob("*/*_pb2_grpc.py")):
        # A .proto without a service yields an empty service module; nobody should import it.
        if "Stub" not in path.read_text():
            path.unlink()
            path.with_suffix(".pyi").unlink(missing_ok=True)
    for folder in (out / "forecrest", *(out / package for package in PACKAGES)):
        (folder / "__init__.py").write_text("")
        (folder / "py.typed").write_text("")


def files(root: Path) -> dict[str, bytes]:
    """Every generated file's content, by path relative to ``root``."""
    return {
        str(path.relative_to(root)): path.read_bytes()
        for path in sorted(root.rglob("*"))
        if path.is_file() and "__pycache__" not in path.parts
    }


def main() -> int:
    """Return 0 if the checked-in code is (now) what the .proto files say, else 1."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--check", action="store_true", help="change nothing; fail if generated code is out of date"
    )
    check: bool = parser.parse_args().check
    checked_in = PROTO / "gen"
    with tempfile.TemporaryDirectory() as folder:
        generate(Path(folder))
        fresh, present = files(Path(folder)), files(checked_in)
    stale = sorted(name for name in fresh.keys() | present.keys() if fresh.get(name) != present.get(name))
    if check:
        for name in stale:
            sys.stderr.write(
                f"proto/gen/{name} is not what the .proto files say; run `make proto` and commit it\n"
            )
        return 1 if stale else 0
    for name in stale:
        target = checked_in / name
        if name in fresh:
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(fresh[name])
        else:
            target.unlink()
    return 0


if __name__ == "__main__":
    sys.exit(main())
