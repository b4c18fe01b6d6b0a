"""The load generator as a process of its own, so that the controller's work never delays a request.

Promises: sends exactly the given arrival times once told to go; ends when its standard input does, so it
cannot outlive the demo. Speaks JSON lines: settings, then ``{"endpoints": […]}`` and ``{"go": true}`` in;
``{"answers": [[meant_s, latency_s, answered], …]}`` and at last ``{"done": true}`` out.
"""

import asyncio
import contextlib
import gc
import json
import sys
from typing import Any

import numpy as np

from controller.actuators.balancer import Balancer, encode_request
from controller.adapters.clock import SystemClock
from controller.demo.load import OpenLoop
from engines.onnx_examples import TwoTowerSizes

LINE_BYTES_MAX = 64 * 1024 * 1024
REPORT_PERIOD_S = 0.2
# Different users and items, so that no two requests in a row are the same.
REQUEST_COUNT = 256
# High enough that what one replica cannot take queues in Triton, where its metrics show it.
OUTSTANDING_MAX = 512


def requests(model_name: str, model_version: str, seed: int) -> list[Any]:
    """Make requests of the built-in recommender."""
    sizes, random = TwoTowerSizes(), np.random.default_rng(seed)
    return [
        encode_request(
            model_name,
            model_version,
            {
                "user_id": random.integers(0, sizes.user_count, (1, 1), np.int64),
                "context": random.random((1, sizes.context), np.float32),
                "candidate_ids": random.integers(0, sizes.item_count, (1, sizes.candidates), np.int64),
            },
        )
        for _ in range(REQUEST_COUNT)
    ]


def _say(message: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()


async def _obey(reader: asyncio.StreamReader, balancer: Balancer, go: asyncio.Event) -> None:
    while line := await reader.readline():
        message = json.loads(line)
        if "endpoints" in message:
            balancer.set_endpoints(message["endpoints"])
        if message.get("go"):
            go.set()


async def _report(loop: OpenLoop, clock: SystemClock) -> None:
    while True:
        await clock.sleep(REPORT_PERIOD_S)
        _flush(loop)


def _flush(loop: OpenLoop) -> None:
    answers = loop.drain()
    if answers:
        _say({"answers": [[round(a.meant_s, 4), round(a.latency_s, 5), a.answered] for a in answers]})


async def run() -> None:
    """Read settings, wait for the word, send, report."""
    reader = asyncio.StreamReader(limit=LINE_BYTES_MAX)
    await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), sys.stdin
    )
    settings = json.loads(await reader.readline())
    balancer, clock, go = Balancer(outstanding_max=OUTSTANDING_MAX), SystemClock(), asyncio.Event()
    made = requests(settings["model_name"], settings["model_version"], settings["seed"])

    async def send(number: int, timeout_s: float) -> None:
        await balancer.infer(made[number % len(made)], timeout_s=timeout_s)

    async def work() -> None:
        await go.wait()
        # Nothing made so far is garbage; collecting it again and again would only delay requests.
        gc.collect()
        gc.freeze()
        reporting = asyncio.create_task(_report(loop, clock))
        await loop.run(settings["times_s"])
        reporting.cancel()
        _flush(loop)
        _say({"done": True})

    loop = OpenLoop(send, clock, timeout_s=settings["timeout_s"])
    obeying = asyncio.create_task(_obey(reader, balancer, go))
    working = asyncio.create_task(work())
    # The end of our input means that the demo is gone, whatever is still to be sent.
    await obeying
    working.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await working
    await balancer.close()


if __name__ == "__main__":
    asyncio.run(run())
