"""Build the control plane's binary once, and again only when its sources change: `python -m tests.e2e.cluster.binary`.

The first build takes minutes and gigabytes of Go's build cache; the result lies in the user's cache folder.
"""

import hashlib
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

SOURCES = Path(__file__).parent
_INPUTS = ("main.go", "go.mod", "go.sum")
_VERSION = re.compile(r"^\tk8s\.io/kubernetes (v1\S+)$", re.MULTILINE)
_KEPT = 2  # older ones are removed


class BinaryError(Exception):
    """There is no binary and none can be built; the message says why."""


def cached() -> Path:
    """Where the binary of the present sources lies, built or not."""
    digest = hashlib.sha256(b"".join((SOURCES / name).read_bytes() for name in _INPUTS)).hexdigest()[:16]
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return home / "forecrest" / "cluster" / digest / "cluster"


def build() -> Path:
    """The binary, built if need be.

    Raises:
        BinaryError: Go is missing, or the build failed.
    """
    binary = cached()
    if binary.exists():
        return binary
    go = shutil.which("go")
    if go is None:
        raise BinaryError(
            "Go is not installed; with it, a real Kubernetes control plane is built for these tests"
        )
    binary.parent.mkdir(parents=True, exist_ok=True)
    fresh = binary.with_name(f"cluster.{os.getpid()}")
    version = _VERSION.search((SOURCES / "go.mod").read_text())
    if version is None:
        raise BinaryError("go.mod names no version of k8s.io/kubernetes")
    flags = f"-ldflags=-s -w -X k8s.io/component-base/version.gitVersion={version[1]}"
    command = [go, "build", "-mod=readonly", "-trimpath", flags, f"-o={fresh}", "."]
    environment = {**os.environ, "CGO_ENABLED": "0"}
    run = subprocess.run(command, cwd=SOURCES, env=environment, check=False)
    if run.returncode:
        fresh.unlink(missing_ok=True)
        raise BinaryError(f"go build ended with code {run.returncode}; its output is above")
    fresh.replace(binary)
    builds = sorted(binary.parent.parent.iterdir(), key=lambda folder: folder.stat().st_mtime)
    for old in builds[:-_KEPT]:
        shutil.rmtree(old, ignore_errors=True)
    return binary


if __name__ == "__main__":
    try:
        if not cached().exists():
            sys.stderr.write("Building the Kubernetes control plane for tests; this takes minutes, once …\n")
        sys.stdout.write(f"{build()}\n")
    except BinaryError as problem:
        sys.stderr.write(f"No Kubernetes control plane for tests: {problem}\n")
