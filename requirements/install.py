"""Install a locked requirements file into an environment, with hashes, as fast as this machine allows.

``uv`` installs in seconds what pip takes minutes for, and comes as an ordinary package; where it cannot be
had (an odd platform, an index that lacks it) plain pip does the same work. Standard library only: it runs
before anything is installed.
"""

import argparse
import re
import subprocess
import sys
from pathlib import Path


def uv_requirement(lock: Path) -> str:
    """Return the pin of uv, with its hashes, from the lock beside this file."""
    text = (lock.parent / "dev.txt").read_text()
    found = re.search(r"^uv==.*(?:\n    .*)*", text, re.MULTILINE)
    if found is None:
        raise SystemExit(f"{lock.parent}/dev.txt does not pin uv; run make lock")
    return re.sub(r"^\s*#.*\n?", "", found.group(0), flags=re.MULTILINE).strip()


def install_uv(python: Path, lock: Path) -> bool:
    """Put uv into the environment; False where that is not possible."""
    present = subprocess.run([python, "-m", "uv", "--version"], capture_output=True, check=False)
    if present.returncode == 0:
        return True
    wanted = python.parent / "uv.requirement"
    wanted.write_text(uv_requirement(lock) + "\n")
    command = [python, "-m", "pip", "install", "-q", "--require-hashes", "-r", wanted]
    try:
        return subprocess.run(command, check=False).returncode == 0
    finally:
        wanted.unlink()


def main() -> int:
    """Install the lock, and the project itself editable if asked."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("python", type=Path, help="interpreter of the environment to install into")
    parser.add_argument("lock", type=Path, help="requirements file with hashes")
    parser.add_argument("--project", type=Path, help="checkout to install editable, without its dependencies")
    given = parser.parse_args()
    python = given.python.absolute()
    runner = Path(sys.executable)
    uv = install_uv(runner, given.lock)
    pip = (
        [runner, "-m", "uv", "pip", "install", "-q", "--python", python]
        if uv
        else [python, "-m", "pip", "install", "-q"]
    )
    steps = [[*pip, "--require-hashes", "-r", given.lock]]
    if given.project:
        steps.append([*pip, "--no-deps", "--no-build-isolation", "--editable", given.project])
    for step in steps:
        done = subprocess.run(step, check=False)
        if done.returncode != 0:
            sys.stderr.write(
                f"Installing {given.lock} failed; check the network and the package index, then try again.\n"
            )
            return done.returncode
    return 0


if __name__ == "__main__":
    sys.exit(main())
