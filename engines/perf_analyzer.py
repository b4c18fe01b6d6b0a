"""Measure one offered rate with NVIDIA's `perf_analyzer`, where it is installed.

Promises: the same question as `profile.measure_here` asks, open-loop Poisson arrivals at one rate, answered by the
vendor's C++ client, which loads a fast server harder than Python can. Its CSV names its columns, and only those are
read, so that more of them do no harm. A run that fails, hangs or cannot keep up is a point that does not count as
sustained, never an exception. Refuses nothing. Called by ``forecrest engine profile``.

What its latency leaves out: time that a request waited inside the client before it was sent. A rate that it did not
reach is therefore never believed.
"""

import asyncio
import csv
import math
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from engines.profile import REQUESTS_MIN, LoadPoint, Send, TritonModel

TOOL: Final = "perf_analyzer"
# Beyond the time that the requests themselves take: start of the tool, waiting for the last answers.
_SPARE_S: Final = 60.0
# Arrivals of a Poisson stream vary by the root of their number; four times that is no chance any more.
_SHORTFALL_SIGMA: Final = 4.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PerfAnalyzer:
    """The tool, and the model it asks. `shapes` are `name:1,2` for inputs with free dimensions."""

    tool: Path
    endpoint: str  # host:port of Triton's gRPC
    model: str
    shapes: tuple[str, ...] = ()

    @classmethod
    def find(cls, endpoint: str, model: TritonModel) -> "PerfAnalyzer | None":
        """The installed tool, asking this model as `open_model` would; None where there is none."""
        tool = shutil.which(TOOL)
        if tool is None:
            return None
        shapes: list[str] = []
        for tensor in model.base["input"]:
            dims = [int(dim) for dim in tensor["dims"]]
            if min(dims, default=1) < 1:
                shapes.append(f"{tensor['name']}:{','.join(str(max(1, dim)) for dim in dims)}")
        return cls(tool=Path(tool), endpoint=endpoint, model=model.name, shapes=tuple(shapes))

    async def measure(self, _: Send, qps: float, *, duration_s: float, seed: int) -> LoadPoint:
        """Offer one rate; `seed` is the tool's own affair, and it sends by itself."""
        del seed
        count = max(REQUESTS_MIN, round(qps * duration_s))
        with tempfile.TemporaryDirectory(prefix="forecrest-perf-") as folder:
            report = Path(folder) / "report.csv"
            problem = await self._run(self._arguments(qps, count, report), count / qps + _SPARE_S)
            if problem is None:
                try:
                    return read_report(report, qps, count)
                except (OSError, ValueError, KeyError, TypeError, csv.Error) as error:
                    problem = f"its report cannot be read: {error!r}"
        return LoadPoint(
            qps, 0.0, math.nan, math.nan, math.nan, count, count, math.nan, f"{TOOL}: {problem}"[:300]
        )

    def _arguments(self, qps: float, count: int, report: Path) -> list[str]:
        return [
            *("-m", self.model, "-u", self.endpoint, "-i", "grpc", "--input-data", "random"),
            "--async",  # its synchronous mode never has more requests under way than threads
            *("--request-rate-range", f"{qps:.6g}", "--request-distribution", "poisson"),
            *("--request-count", str(count), "-f", str(report)),
            *(part for shape in self.shapes for part in ("--shape", shape)),
        ]

    async def _run(self, arguments: Sequence[str], timeout_s: float) -> str | None:
        """Run it to its end; what went wrong, or None."""
        try:
            process = await asyncio.create_subprocess_exec(
                self.tool, *arguments, stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.PIPE
            )
        except OSError as error:
            return f"cannot be started: {error.strerror}"
        try:
            async with asyncio.timeout(timeout_s):
                _, errors = await process.communicate()
        except TimeoutError:
            return f"did not end within {timeout_s:.0f} s"
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        if process.returncode:
            last = errors.decode(errors="replace").strip().splitlines()[-1:]
            return f"ended with code {process.returncode}: {' '.join(last)}"
        return None


def read_report(report: Path, qps: float, count: int) -> LoadPoint:
    """Read the one row of a latency report; latencies there are in microseconds.

    Raises:
        ValueError, KeyError, TypeError, csv.Error: there is no such row, it is cut short, or a column is missing or no
            number.
    """
    with report.open(newline="") as file:
        rows = list(csv.DictReader(file))
    if len(rows) != 1:
        raise ValueError(f"{len(rows)} rows instead of one")
    (row,) = rows
    achieved = float(row["Inferences/Second"])
    p50, p95, p99 = (float(row[f"p{level} latency"]) / 1000 for level in (50, 95, 99))
    kept_up = achieved >= qps * (1 - _SHORTFALL_SIGMA / math.sqrt(count))
    return LoadPoint(
        offered_qps=qps,
        achieved_qps=achieved,
        latency_ms_p50=p50,
        latency_ms_p95=p95,
        latency_ms_p99=p99,
        sent_count=count,
        error_count=0,
        # It does not say how late it sent; where it fell behind, that is unknown and counts against the point.
        sender_late_ms_p99=0.0 if kept_up else math.nan,
        first_error="" if kept_up else f"{TOOL} reached {achieved:.1f} of {qps:.1f} requests per second",
    )
