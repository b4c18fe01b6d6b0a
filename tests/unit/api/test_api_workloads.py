"""WorkloadService over a real channel, on the fakes."""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta

import pytest
from forecrest.v1 import workload_pb2, workload_service_pb2

from controller.adapters.fakes import FakeSignalCache, FakeStore
from controller.api.server import ApiDependencies, serve
from controller.client import ApiError, Client, explain, pages
from controller.ports import Clock

Refused = Callable[[Awaitable[object]], Awaitable[ApiError]]


def a_workload(**changes: object) -> workload_pb2.Workload:
    fields: dict[str, object] = {
        "model_name": "recommender",
        "profiles": [workload_pb2.CapacityProfile(engine="int8", gpu_type="L4", qps_max=900.0)],
    }
    fields.update(changes)
    return workload_pb2.Workload(**fields)  # type: ignore[arg-type]


def creation(**changes: object) -> workload_service_pb2.CreateWorkloadRequest:
    return workload_service_pb2.CreateWorkloadRequest(workload=a_workload(**changes), workload_id="new")


async def test_defaults_are_filled_in_and_returned(client: Client) -> None:
    created = await client.workloads.CreateWorkload(creation())

    assert (created.name, created.generation) == ("workloads/new", 1)
    assert (created.min_replicas, created.max_replicas) == (1, 10)
    assert created.mode == workload_pb2.MODE_SCALE
    assert created.policy.prewarm_margin.ToTimedelta() == timedelta(seconds=30)
    assert not created.policy.HasField("break_even")
    assert created == await client.workloads.GetWorkload(
        workload_service_pb2.GetWorkloadRequest(name="workloads/new")
    )


async def test_a_time_zone_is_kept_found_by_and_taken_back(client: Client, refused: Refused) -> None:
    created = await client.workloads.CreateWorkload(creation(time_zone="Asia/Shanghai"))
    assert created.time_zone == "Asia/Shanghai"
    request = workload_service_pb2.ListWorkloadsRequest(filter='time_zone = "Asia/Shanghai"')
    assert ["workloads/new"] == [
        w.name async for w in pages(client.workloads.ListWorkloads, request, "workloads")
    ]

    error = await refused(client.workloads.CreateWorkload(creation(time_zone="Peking")))
    (violation,) = error.violations
    assert violation == (
        "workload.time_zone",
        'must be an IANA zone name such as "Asia/Shanghai" or "UTC", or empty if it is not known; got \'Peking\'',
    )

    update = workload_service_pb2.UpdateWorkloadRequest(workload=workload_pb2.Workload(name="workloads/new"))
    update.update_mask.paths.append("time_zone")
    assert not (await client.workloads.UpdateWorkload(update)).time_zone


async def test_zero_is_a_minimum_and_not_an_absent_one(client: Client) -> None:
    created = await client.workloads.CreateWorkload(creation(min_replicas=0))

    assert created.min_replicas == 0


PROFILE = workload_pb2.CapacityProfile


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"model_name": ""}, "workload.model_name"),
        ({"model_version": "latest"}, "workload.model_version"),
        ({"model_version": ""}, "workload.model_version"),
        ({"namespace": "No Spaces"}, "workload.namespace"),
        ({"profiles": []}, "workload.profiles"),
        ({"profiles": [PROFILE(engine="e")]}, "workload.profiles[0].qps_max"),
        ({"profiles": [PROFILE(engine="e", qps_max=float("nan"))]}, "workload.profiles[0].qps_max"),
        ({"profiles": [PROFILE(qps_max=1.0)]}, "workload.profiles[0].engine"),
        ({"profiles": [PROFILE(engine="e", qps_max=1.0, precision=77)]}, "workload.profiles[0].precision"),  # type: ignore[arg-type]
        ({"min_replicas": -1}, "workload.min_replicas"),
        ({"max_replicas": 0}, "workload.max_replicas"),
        ({"min_replicas": 5, "max_replicas": 4}, "workload.max_replicas"),
        ({"max_replicas": 20_000}, "workload.max_replicas"),
        ({"quota_pool": ""}, "workload.quota_pool"),
        ({"time_zone": "Europe/Bonn"}, "workload.time_zone"),
        ({"time_zone": "+08:00"}, "workload.time_zone"),
        ({"target": {"k": "v" * 501}}, 'workload.target["k"]'),
        ({"slo": workload_pb2.Slo(wait_s=0.0)}, "workload.slo.wait_s"),
        ({"slo": workload_pb2.Slo(wait_exceed_share=1.0)}, "workload.slo.wait_exceed_share"),
        ({"policy": workload_pb2.Policy(quorum=1.5)}, "workload.policy.quorum"),
        ({"policy": workload_pb2.Policy(stable_window=timedelta(days=1))}, "workload.policy.stable_window"),
        ({"policy": workload_pb2.Policy(panic_window=timedelta(minutes=5))}, "workload.policy.panic_window"),
        (
            {
                "policy": workload_pb2.Policy(
                    behavior=workload_pb2.Behavior(
                        scale_up=workload_pb2.ScalingRules(
                            stabilization_window=timedelta(0), policies=[workload_pb2.ScalingPolicy(value=1)]
                        )
                    )
                )
            },
            "workload.policy.behavior.scale_up.policies[0].type",
        ),
    ],
)
async def test_a_bad_workload_is_refused_by_the_name_of_its_field(
    client: Client, refused: Refused, store: FakeStore, changes: dict[str, object], field: str
) -> None:
    error = await refused(client.workloads.CreateWorkload(creation(**changes)))

    assert (error.code, error.reason) == ("INVALID_ARGUMENT", "INVALID_FIELDS")
    assert field in [name for name, _ in error.violations]
    assert "new" not in store.tables.workloads


async def test_an_update_replaces_the_masked_fields_and_counts_a_generation(client: Client) -> None:
    await client.workloads.CreateWorkload(creation(max_replicas=20, priority=5))

    updated = await client.workloads.UpdateWorkload(
        workload_service_pb2.UpdateWorkloadRequest(
            workload=workload_pb2.Workload(name="workloads/new", max_replicas=30),
            update_mask={"paths": ["max_replicas", "priority"]},
        )
    )

    assert (updated.max_replicas, updated.priority, updated.generation) == (30, 0, 2)


async def test_a_masked_field_that_is_not_given_goes_back_to_its_default(client: Client) -> None:
    await client.workloads.CreateWorkload(creation(max_replicas=20))

    updated = await client.workloads.UpdateWorkload(
        workload_service_pb2.UpdateWorkloadRequest(
            workload=workload_pb2.Workload(name="workloads/new"), update_mask={"paths": ["max_replicas"]}
        )
    )

    assert updated.max_replicas == 10


async def test_a_star_replaces_everything(client: Client, refused: Refused) -> None:
    await client.workloads.CreateWorkload(creation(max_replicas=20, priority=5))
    request = workload_service_pb2.UpdateWorkloadRequest(
        workload=a_workload(name="workloads/new", model_name="other"), update_mask={"paths": ["*"]}
    )

    updated = await client.workloads.UpdateWorkload(request)

    assert (updated.model_name, updated.max_replicas, updated.priority) == ("other", 10, 0)
    request.workload.ClearField("profiles")
    assert "workload.profiles" in dict((await refused(client.workloads.UpdateWorkload(request))).violations)


async def test_of_two_concurrent_changes_with_one_etag_one_is_refused(client: Client) -> None:
    created = await client.workloads.CreateWorkload(creation())
    changes = [
        client.workloads.UpdateWorkload(
            workload_service_pb2.UpdateWorkloadRequest(
                workload=workload_pb2.Workload(name=created.name, etag=created.etag, max_replicas=count)
            )
        )
        for count in (20, 30)
    ]

    results = await asyncio.gather(*changes, return_exceptions=True)

    failed = [explain(r) for r in results if isinstance(r, Exception)]  # type: ignore[arg-type]
    assert [error.reason for error in failed] == ["ETAG_MISMATCH"]


async def test_concurrent_copies_of_one_request_act_once(client: Client, store: FakeStore) -> None:
    request = creation()
    request.request_id = "r-1"

    responses = await asyncio.gather(*(client.workloads.CreateWorkload(request) for _ in range(8)))

    assert len({response.SerializeToString(deterministic=True) for response in responses}) == 1
    assert len(store.tables.audit) == 1


async def test_a_deleted_workload_is_gone_and_its_deletion_can_be_retried(
    client: Client, refused: Refused
) -> None:
    created = await client.workloads.CreateWorkload(creation())
    stale = workload_service_pb2.DeleteWorkloadRequest(name=created.name, etag='"9"')
    assert (await refused(client.workloads.DeleteWorkload(stale))).reason == "ETAG_MISMATCH"
    request = workload_service_pb2.DeleteWorkloadRequest(name=created.name, etag=created.etag, request_id="d")

    await client.workloads.DeleteWorkload(request)
    await client.workloads.DeleteWorkload(request)

    again = workload_service_pb2.DeleteWorkloadRequest(name=created.name)
    assert (await refused(client.workloads.DeleteWorkload(again))).code == "NOT_FOUND"


async def test_workloads_are_listed_by_name_page_by_page(client: Client) -> None:
    await client.workloads.CreateWorkload(creation())

    found = pages(
        client.workloads.ListWorkloads, workload_service_pb2.ListWorkloadsRequest(page_size=2), "workloads"
    )

    assert [w.name async for w in found] == ["workloads/new", "workloads/rec", "workloads/search"]


@pytest.mark.parametrize("request_id", ["a b", "é", "x" * 129])
async def test_a_request_id_is_printable_and_short(client: Client, refused: Refused, request_id: str) -> None:
    request = creation()
    request.request_id = request_id

    error = await refused(client.workloads.CreateWorkload(request))

    assert [field for field, _ in error.violations] == ["request_id"]


@pytest.mark.parametrize(
    ("paths", "remedy"),
    [
        pytest.param(["max_replicas"] * 1001, "at most 1000 paths; got 1001", id="many"),
        pytest.param(["max_replicas", "m" * 101], "at most 100 characters; one has 101", id="long"),
    ],
)
async def test_a_mask_of_more_than_any_message_has_is_refused_before_it_is_read(
    client: Client, refused: Refused, paths: list[str], remedy: str
) -> None:
    # A workload that does not exist: nothing was looked up.
    workload = a_workload(name="workloads/nothing")
    request = workload_service_pb2.UpdateWorkloadRequest(workload=workload, update_mask={"paths": paths})

    error = await refused(client.workloads.UpdateWorkload(request))

    assert ("INVALID_ARGUMENT", ["update_mask"]) == (error.code, [field for field, _ in error.violations])
    assert remedy in error.message


async def test_a_pool_that_another_shard_decides_for_is_refused(
    store: FakeStore, signals: FakeSignalCache, clock: Clock, refused: Refused
) -> None:
    def update(pool: str) -> workload_service_pb2.UpdateWorkloadRequest:
        return workload_service_pb2.UpdateWorkloadRequest(
            workload=workload_pb2.Workload(name="workloads/rec", quota_pool=pool),
            update_mask={"paths": ["quota_pool"]},
        )

    deps = ApiDependencies(store, signals, clock, shard_of=lambda w: int(w.quota_pool == "far"))
    running = await serve(deps, "127.0.0.1:0")
    async with Client(running.target) as client:
        error = await refused(client.workloads.UpdateWorkload(update("far")))
        moved = await client.workloads.UpdateWorkload(update("near"))
    await running.stop(grace_s=0)

    assert ("FAILED_PRECONDITION", "SHARD_FIXED") == (error.code, error.reason)
    assert "near" == moved.quota_pool
