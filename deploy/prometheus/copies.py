# ruff: noqa: INP001 -- a script beside what it copies; deploy/ is no package
"""Copy ``forecrest.rules.yml`` to where Helm and kustomize can read it; with ``--check``, report drift.

Promises: a chart and a kustomization read no file outside of themselves, so each has its copy, and all say the same.
Refuses nothing. Run by hand after a change of the rules; a test runs ``--check``.
"""

import argparse
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
DEPLOY = HERE.parent
MANIFEST = """\
# Made by deploy/prometheus/copies.py; needs the Prometheus operator's custom resources.
apiVersion: monitoring.coreos.com/v1
kind: PrometheusRule
metadata:
  name: forecrest
spec:
"""


def copies() -> dict[Path, str]:
    """What stands where."""
    rules = (HERE / "forecrest.rules.yml").read_text()
    body = "".join(f"  {line}" if line.strip() else line for line in rules.splitlines(keepends=True))
    return {
        DEPLOY / "helm" / "forecrest" / "rules" / "forecrest.rules.yml": rules,
        DEPLOY / "kustomize" / "components" / "alerts" / "prometheusrule.yaml": MANIFEST + body,
    }


def main() -> int:
    """Return 0 if the copies are (now) what the rules say, else 1."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--check", action="store_true", help="change nothing; fail if a copy is out of date")
    check: bool = parser.parse_args().check
    stale = [path for path, text in copies().items() if not path.exists() or path.read_text() != text]
    for path in stale:
        if check:
            sys.stderr.write(
                f"{path.relative_to(DEPLOY)} is out of date; run `python deploy/prometheus/copies.py`\n"
            )
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(copies()[path])
    return 1 if check and stale else 0


if __name__ == "__main__":
    sys.exit(main())
