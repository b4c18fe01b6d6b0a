"""Capacity of a real Triton whose device time is known, measured through its gRPC."""

import pytest

from engines.profile import Batching, LoadPoint, Objective, measure_here, open_model, sweep
from engines.triton_repository import ServingOptions
from tests.integration.triton.conftest import BuildModel, StartTriton

pytestmark = pytest.mark.triton

# A batch occupies the device for 20 ms however large it is: without batching 50 requests a second at most.
OPTIONS = ServingOptions(batch_size_max=8, queue_delay_us=0, simulated_device_time_ms=20.0)
ALONE_QPS = 50.0


async def test_batching_raises_what_is_sustained_and_the_model_is_left_as_it_was(
    start_triton: StartTriton, build_model: BuildModel
) -> None:
    served = build_model(options=OPTIONS)
    server = await start_triton(served.repository)
    seen: list[LoadPoint] = []
    async with open_model(server.endpoints.grpc, served.name) as model:
        await model.load()
        before = await model.client.get_model_config(served.name, as_json=True)
        rows = await sweep(
            model,
            [Batching(1, 0, 1), Batching(8, 1000, 1)],
            # Generous: a loaded test machine's own pauses are no subject here.
            Objective(latency_ms_p99=1500.0),
            duration_s=1.0,
            qps_from=40.0,
            precision=0.5,
            on_point=lambda _batching, point: seen.append(point),
        )
        after = await model.client.get_model_config(served.name, as_json=True)

    alone, batched = (row.sustained.qps_max for row in rows)
    assert alone is not None
    assert batched is not None
    assert batched > alone
    assert alone < 3 * ALONE_QPS
    assert len(seen) == sum(len(row.sustained.points) for row in rows)
    assert after == before
    assert all(row.load_s is not None and row.load_s > 0 for row in rows)


async def test_beyond_its_capacity_the_latency_says_so(
    start_triton: StartTriton, build_model: BuildModel
) -> None:
    served = build_model(options=ServingOptions(batch_size_max=1, simulated_device_time_ms=20.0))
    server = await start_triton(served.repository)
    async with open_model(server.endpoints.grpc, served.name) as model:
        within = await measure_here(model.infer, 0.4 * ALONE_QPS, duration_s=1.0, seed=1)
        beyond = await measure_here(model.infer, 4 * ALONE_QPS, duration_s=1.0, seed=2)

    # Open loop: what is offered beyond the capacity queues, and the wait counts.
    assert beyond.latency_ms_p50 > 3 * within.latency_ms_p50
