"""The local actuator runs real replicas, reports what they reached, and ends them in order."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from tritonclient.grpc import service_pb2

from controller.actuators.balancer import Balancer, NoCapacityError, encode_request
from controller.actuators.local_process import LocalProcessActuator, OrderError
from controller.adapters.clock import SystemClock
from controller.adapters.embedded.triton_server import TritonEnvironment
from controller.adapters.triton_metrics import TritonDemandMeter
from controller.core.types import CapacityProfile, Replica, Slo, Stage, Workload
from controller.ports import NotFoundError, StaleFenceError, UnavailableError

pytestmark = pytest.mark.triton
Started = Callable[[], list[int]]
PROFILE = CapacityProfile(engine="two_tower", gpu_type="cpu", qps_max=200.0)


def workload(**changes: object) -> Workload:
    values: dict[str, Any] = {
        "name": "shop",
        "model_name": "recommender",
        "profiles": (PROFILE,),
        "slo": Slo(latency_ms_p99=2000.0),
        "target": {"simulated_device_time_ms": "20", "batch_size_max": "4"},
    }
    return Workload(**(values | changes))


@pytest.fixture
async def actuator(tmp_path: Path) -> AsyncIterator[LocalProcessActuator]:
    actuator = LocalProcessActuator(tmp_path / "triton", SystemClock(), replica_limit=4, drain_s=5)
    yield actuator
    await actuator.close()


async def until(
    actuator: LocalProcessActuator, condition: Callable[[tuple[Replica, ...]], bool], name: str = "shop"
) -> tuple[Replica, ...]:
    """Wait for stage changes until the replicas are as described."""
    async with asyncio.timeout(120):
        while not condition(replicas := actuator.view(name).replicas):
            await actuator.changed()
    return replicas


def all_warm(count: int) -> Callable[[tuple[Replica, ...]], bool]:
    return lambda replicas: count == sum(r.warm for r in replicas) == len(replicas)


def request() -> Any:  # noqa: ANN401 - a protobuf message of an untyped package
    return encode_request(
        "recommender",
        "1",
        {
            "user_id": np.array([[1]], np.int64),
            "context": np.zeros((1, 8), np.float32),
            "candidate_ids": np.arange(16, dtype=np.int64)[None],
        },
    )


def endpoints(replicas: tuple[Replica, ...]) -> list[str]:
    return [r.endpoint for r in replicas if r.warm and r.endpoint]


async def test_ordered_replicas_become_warm_and_report_every_stage(actuator: LocalProcessActuator) -> None:
    await actuator.scale(workload(), 2, fence=1)
    assert [Stage.ORDERED] * 2 == [r.stage for r in actuator.view("shop").replicas]

    replicas = await until(actuator, all_warm(2))

    assert len({r.endpoint for r in replicas}) == 2
    assert all({"schedule", "load", "warmup"} == set(r.stage_s) for r in replicas)
    assert all(seconds > 0 for r in replicas for seconds in r.stage_s.values())
    assert {r.id for r in replicas} == actuator.baselines().keys()
    view = (await actuator.observe([workload(), workload(name="other")]))["other"]
    assert (0, ()) == (view.desired_replicas, view.replicas)


async def test_metered_demand_is_what_was_sent_and_no_warm_up(actuator: LocalProcessActuator) -> None:
    await actuator.scale(workload(), 2, fence=1)
    replicas = await until(actuator, all_warm(2))
    meter = TritonDemandMeter(SystemClock(), baselines=actuator.baselines)
    balancer = Balancer()
    balancer.set_endpoints(endpoints(replicas))

    responses = await asyncio.gather(*(balancer.infer(request(), timeout_s=10) for _ in range(60)))
    await meter.scrape(await actuator.observe([workload()]))

    tracks = meter.meter._workloads["shop"].minutes.values()
    await asyncio.gather(balancer.close(), meter.close())
    # Triton may still call a request pending for a moment after it was answered; the next scrape evens it out.
    assert sum(minute.demand for minute in tracks) == pytest.approx(60, abs=len(replicas))
    assert all(len(response.raw_output_contents[0]) == 16 * 4 for response in responses)


async def test_requests_answered_after_the_last_scrape_of_a_leaving_replica_are_metered(
    actuator: LocalProcessActuator,
) -> None:
    await actuator.scale(workload(), 1, fence=1)
    replicas = await until(actuator, all_warm(1))
    meter = TritonDemandMeter(
        SystemClock(), timeout_s=30, baselines=actuator.baselines, departures=actuator.departures
    )
    balancer = Balancer()
    balancer.set_endpoints(endpoints(replicas))

    for count in (20, 30):
        await meter.scrape(await actuator.observe([workload()]))
        await asyncio.gather(*(balancer.infer(request(), timeout_s=30) for _ in range(count)))
    await actuator.scale(workload(), 0, fence=1)
    await until(actuator, lambda replicas: not replicas)
    await meter.scrape(await actuator.observe([workload()]))

    minutes = meter.meter._workloads["shop"].minutes.values()
    await asyncio.gather(balancer.close(), meter.close())
    assert sum(minute.demand for minute in minutes) == pytest.approx(50)
    assert sum(minute.covered_s for minute in minutes) == pytest.approx(
        sum(minute.expected_s for minute in minutes)
    )


async def test_orders_for_two_workloads_at_once_keep_to_the_limit(actuator: LocalProcessActuator) -> None:
    outcomes = await asyncio.gather(
        *(actuator.scale(workload(name=name), 3, fence=1) for name in ("shop", "search")),
        return_exceptions=True,
    )

    assert sorted([OrderError, type(None)], key=repr) == sorted(map(type, outcomes), key=repr)
    assert 3 == sum(len(actuator.view(name).replicas) for name in ("shop", "search"))


async def test_scaling_down_under_load_fails_no_request(actuator: LocalProcessActuator) -> None:
    await actuator.scale(workload(), 2, fence=1)
    replicas = await until(actuator, all_warm(2))
    balancer = Balancer(outstanding_max=100)
    balancer.set_endpoints(endpoints(replicas))
    sent = [asyncio.create_task(balancer.infer(request(), timeout_s=20)) for _ in range(100)]
    await asyncio.sleep(0)  # let them go out

    await actuator.scale(workload(), 1, fence=1)
    staying = actuator.view("shop").replicas
    balancer.set_endpoints(endpoints(staying))
    sent += [asyncio.create_task(balancer.infer(request(), timeout_s=20)) for _ in range(20)]
    responses = await asyncio.gather(*sent)

    assert [Stage.VERIFIED, Stage.DRAINING] == [r.stage for r in staying]  # the youngest leaves
    assert len(responses) == 120
    (left,) = await until(actuator, all_warm(1))
    await balancer.close()
    assert replicas[0].id == left.id


async def test_a_start_that_is_no_longer_wanted_ends_at_once(
    actuator: LocalProcessActuator, started_processes: Started
) -> None:
    await actuator.scale(workload(), 1, fence=1)
    await until(actuator, lambda replicas: replicas[0].stage is Stage.SCHEDULED)

    await actuator.scale(workload(), 0, fence=1)
    await until(actuator, lambda replicas: not replicas)

    assert [] == started_processes()


async def test_the_replicas_of_a_deleted_workload_drain_and_end(
    actuator: LocalProcessActuator, started_processes: Started
) -> None:
    await actuator.scale(workload(), 1, fence=1)
    await until(actuator, all_warm(1))
    await actuator.claim([workload()], fence=1)
    assert [Stage.VERIFIED] == [r.stage for r in actuator.view("shop").replicas]

    await actuator.claim([], fence=1)
    assert [Stage.DRAINING] == [r.stage for r in actuator.view("shop").replicas]
    await until(actuator, lambda replicas: not replicas)

    assert [] == started_processes()
    assert 0 == actuator.view("shop").desired_replicas


async def test_a_stale_token_is_refused_and_changes_nothing(actuator: LocalProcessActuator) -> None:
    await actuator.scale(workload(), 0, fence=5)

    with pytest.raises(StaleFenceError, match="fence 4 is older than 5"):
        await actuator.scale(workload(), 1, fence=4)
    with pytest.raises(StaleFenceError, match="fence 4 is older than 5"):
        await actuator.replace(workload(), "any", fence=4)
    with pytest.raises(StaleFenceError, match="fence 4 is older than 5"):
        await actuator.claim([workload()], fence=4)

    assert () == actuator.view("shop").replicas


async def test_a_crashed_replica_is_reported_and_can_be_replaced(actuator: LocalProcessActuator) -> None:
    await actuator.scale(workload(), 1, fence=1)
    (crashed,) = await until(actuator, all_warm(1))
    server = actuator._pools["shop"][0].server
    assert server is not None
    assert server.process.pid is not None
    os.kill(server.process.pid, signal.SIGKILL)
    (failed,) = await until(actuator, lambda replicas: replicas[0].stage is Stage.FAILED)
    assert failed.failure == "its process ended with code -9"

    await actuator.replace(workload(), crashed.id, fence=1)
    (fresh,) = await until(actuator, all_warm(1))

    assert crashed.id != fresh.id


async def test_a_replica_that_hangs_is_given_up_and_ended(tmp_path: Path, started_processes: Started) -> None:
    actuator = LocalProcessActuator(tmp_path, SystemClock(), drain_s=0, health_period_s=0.1)
    await actuator.scale(workload(), 1, fence=1)
    await until(actuator, all_warm(1))
    server = actuator._pools["shop"][0].server
    assert server is not None
    assert server.process.pid is not None

    os.kill(server.process.pid, signal.SIGSTOP)
    (failed,) = await until(actuator, lambda replicas: replicas[0].stage is Stage.FAILED)
    await actuator.close()

    assert failed.failure == "it failed 3 health checks in a row"
    assert [] == started_processes()


async def test_another_digest_than_the_ordered_one_is_refused_before_anything_starts(
    actuator: LocalProcessActuator, started_processes: Started
) -> None:
    with pytest.raises(OrderError, match=r"workload shop: WRONG_DIGEST: two_tower_7\.onnx is sha256:"):
        await actuator.scale(workload(engine_digest="sha256:" + "0" * 64), 1, fence=1)

    view = actuator.view("shop")
    assert (0, ()) == (view.desired_replicas, view.replicas)
    assert (view.shortfall or "").startswith("WRONG_DIGEST: ")
    assert [] == started_processes()


async def test_a_replica_too_slow_for_its_slo_fails_with_the_figures(actuator: LocalProcessActuator) -> None:
    await actuator.scale(workload(slo=Slo(latency_ms_p99=10.0)), 1, fence=1)

    (failed,) = await until(actuator, lambda replicas: replicas[0].stage is Stage.FAILED)

    assert failed.failure is not None
    assert failed.failure.startswith("WARMUP_SLOW: after 30 probes")


@pytest.mark.parametrize(
    ("changes", "replicas", "problem"),
    [
        ({}, 5, "replicas: 5 of shop beside 0 others is outside 0 to 4; lower it or raise"),
        ({}, -1, "replicas: -1 of shop"),
        (
            {"target": {"colour": "red"}},
            1,
            "target: colour is not one of engine, catalog_model, shapes, batch_size_max",
        ),
        ({"target": {"batch_size_max": "many"}}, 1, "invalid literal for int"),
        ({"target": {"batch_size_max": "0"}}, 1, "batch_size_max: must be from 1 to 4096"),
        ({"target": {"engine": "/nowhere/x.onnx"}}, 1, "engine: /nowhere/x.onnx is not a readable"),
        ({"target": {"engine": "x", "catalog_model": "y"}}, 1, "engine and catalog_model exclude each other"),
        ({"target": {"catalog_model": "y"}}, 1, "set FORECREST_ENGINE_CATALOG"),
        ({"target": {"shapes": "x=1x2"}}, 1, "add catalog_model"),
        ({"target": {"catalog_model": "y", "shapes": "x=1xa"}}, 1, "shapes 'x=1xa' is none"),
        ({"model_version": "latest"}, 1, "model_version: Triton's versions are numbers"),
    ],
)
async def test_an_impossible_order_is_refused_by_name_and_starts_nothing(
    actuator: LocalProcessActuator, changes: dict[str, Any], replicas: int, problem: str
) -> None:
    with pytest.raises(OrderError, match=problem):
        await actuator.scale(workload(**changes), replicas, fence=1)

    view = actuator.view("shop")
    assert (0, ()) == (view.desired_replicas, view.replicas)


async def test_replacing_an_unknown_replica_is_refused(actuator: LocalProcessActuator) -> None:
    with pytest.raises(NotFoundError, match="shop has no replica ghost"):
        await actuator.replace(workload(), "ghost", fence=1)


async def test_a_missing_triton_says_how_to_get_it(tmp_path: Path) -> None:
    actuator = LocalProcessActuator(
        tmp_path,
        SystemClock(),
        environment=lambda: TritonEnvironment.find(tmp_path / "python"),
    )

    with pytest.raises(UnavailableError, match="Make it with `make triton`"):
        await actuator.scale(workload(), 1, fence=1)
    await actuator.close()


async def test_a_second_owner_of_the_folder_is_kept_out(
    actuator: LocalProcessActuator, tmp_path: Path
) -> None:
    await actuator.scale(workload(), 1, fence=1)
    second = LocalProcessActuator(tmp_path / "triton", SystemClock())

    with pytest.raises(UnavailableError, match=f"in use by the running process {os.getpid()}"):
        await second.scale(workload(), 1, fence=2)
    await second.close()


async def test_closing_ends_every_process(tmp_path: Path, started_processes: Started) -> None:
    actuator = LocalProcessActuator(tmp_path, SystemClock())
    await actuator.scale(workload(), 2, fence=1)
    await until(actuator, lambda replicas: any(r.warm for r in replicas))
    assert started_processes()

    await actuator.close()

    assert [] == started_processes()


class Echo:
    """A replica that answers when told to, to see where requests go."""

    def __init__(self) -> None:
        self.release = asyncio.Event()
        self.arrived_count = 0
        self.is_ending = False

    async def infer(self, _: bytes, context: grpc.aio.ServicerContext) -> bytes:
        if self.is_ending:
            await context.abort(grpc.StatusCode.UNAVAILABLE, "ending")
        self.arrived_count += 1
        await self.release.wait()
        response: bytes = service_pb2.ModelInferResponse().SerializeToString()
        return response

    async def serve(self) -> tuple[Any, str]:
        server = grpc.aio.server()
        handler = grpc.unary_unary_rpc_method_handler(self.infer)
        server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler("inference.GRPCInferenceService", {"ModelInfer": handler}),)
        )
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        return server, f"127.0.0.1:{port}"


@pytest.fixture
async def echoes() -> AsyncIterator[list[tuple[Echo, str]]]:
    made = [Echo(), Echo()]
    served = [await echo.serve() for echo in made]
    yield [(echo, endpoint) for echo, (_, endpoint) in zip(made, served, strict=True)]
    for server, _ in served:
        await server.stop(0)


async def test_balancer_prefers_the_replica_with_the_fewest_outstanding(
    echoes: list[tuple[Echo, str]],
) -> None:
    (first, first_at), (second, second_at) = echoes
    second.release.set()  # answers at once, so it has nothing outstanding
    balancer = Balancer(outstanding_max=4)
    balancer.set_endpoints([first_at])
    held = asyncio.create_task(balancer.infer(request(), timeout_s=20))
    await asyncio.sleep(0)
    balancer.set_endpoints([first_at, second_at])

    for _ in range(5):
        await balancer.infer(request(), timeout_s=20)
    first.release.set()
    await held
    await balancer.close()

    assert (1, 5) == (first.arrived_count, second.arrived_count)


async def test_balancer_refuses_beyond_its_limit_instead_of_queueing(
    echoes: list[tuple[Echo, str]],
) -> None:
    (echo, endpoint), _ = echoes
    balancer = Balancer(outstanding_max=3)
    with pytest.raises(NoCapacityError, match="no replica is warm"):
        await balancer.infer(request(), timeout_s=1)
    balancer.set_endpoints([endpoint])
    held = [asyncio.create_task(balancer.infer(request(), timeout_s=20)) for _ in range(3)]
    await asyncio.sleep(0)

    assert balancer.outstanding_count == 3
    with pytest.raises(NoCapacityError, match="every warm replica has its limit outstanding"):
        await balancer.infer(request(), timeout_s=1)
    echo.release.set()
    await asyncio.gather(*held)
    await balancer.close()


async def test_balancer_passes_over_a_replica_that_is_ending(echoes: list[tuple[Echo, str]]) -> None:
    (ending, ending_at), (staying, staying_at) = echoes
    ending.is_ending = True
    staying.release.set()
    balancer = Balancer()
    balancer.set_endpoints([ending_at, staying_at])

    for _ in range(4):
        await balancer.infer(request(), timeout_s=20)
    balancer.set_endpoints([ending_at])
    with pytest.raises(grpc.aio.AioRpcError, match="ending"):
        await balancer.infer(request(), timeout_s=20)
    await balancer.close()

    assert (0, 4) == (ending.arrived_count, staying.arrived_count)
