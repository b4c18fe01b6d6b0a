"""A whole controller decides on demand that a real Prometheus tells, stores it, and tells KEDA."""

import asyncio
from contextlib import aclosing
from datetime import timedelta
from pathlib import Path
from typing import Any

from forecrest.keda import externalscaler_pb2, externalscaler_pb2_grpc
from forecrest.v1 import workload_pb2, workload_service_pb2

from controller.bootstrap import open_runtime
from controller.client import Client
from controller.settings import Settings
from tests.integration.prometheus.conftest import StartPrometheus

QPS = 1234.5


async def test_the_loop_decides_on_what_prometheus_tells(
    tmp_path: Path, start_prometheus: StartPrometheus
) -> None:
    server = await start_prometheus()
    settings = Settings(
        data_dir=tmp_path / "data",
        bind="127.0.0.1:0",
        actuator="dry_run",
        tick_period_s=0.5,
        scrape_period_s=0.5,
        prometheus_url=server.url,
        prometheus_period_s=1,
    )
    async with asyncio.timeout(240), open_runtime(settings) as runtime, Client(runtime.api.target) as client:
        workload = workload_pb2.Workload(
            model_name="m",
            profiles=[workload_pb2.CapacityProfile(engine="e", gpu_type="L4", qps_max=100)],
            max_replicas=50,
            mode=workload_pb2.MODE_KEDA,
            demand_query=f"vector({QPS})",
        )
        await client.workloads.CreateWorkload(
            workload_service_pb2.CreateWorkloadRequest(workload_id="rec", workload=workload)
        )
        async with aclosing(client.watch_decisions("workloads/rec")) as decisions:
            async for response in decisions:
                decision = response.decision
                if decision.HasField("demand_qps"):
                    break
        scaler: Any = externalscaler_pb2_grpc.ExternalScalerStub(client.channel)
        scaled_object = externalscaler_pb2.ScaledObjectRef(scalerMetadata={"workload": "rec"})
        metrics = await scaler.GetMetrics(externalscaler_pb2.GetMetricsRequest(scaledObjectRef=scaled_object))
        active = await scaler.IsActive(scaled_object)
        now = runtime.clock.now()
        while True:
            async with runtime.store.unit_of_work() as unit:
                minutes = await unit.traffic.read("rec", now - timedelta(minutes=10), now)
            known = {qps for _, qps in minutes if qps is not None}
            if known:
                break
            await runtime.clock.sleep(0.2)

    assert decision.demand_qps == QPS
    # 1 234.5 QPS at 100 a replica, within the SLO.
    assert decision.desired_replicas >= 13
    assert known == {QPS}
    assert [value.metricValue for value in metrics.metricValues] >= [decision.desired_replicas]
    assert active.result
