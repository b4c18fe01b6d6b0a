"""EngineService over a real channel, on the fakes: the life of an engine, and the capacity workloads get from it."""

from collections.abc import Awaitable, Callable

import pytest
from forecrest.v1 import engine_pb2, engine_service_pb2, workload_pb2, workload_service_pb2

from controller.adapters.fakes import FakeStore
from controller.client import ApiError, Client
from controller.core.leadtime import DEFAULT_PRIORS, estimate_lead_time
from controller.usecases.engines import lead_priors, measured_profiles, with_measured
from tests.integration.api.methods import a_profile, a_validation, an_engine
from tests.unit.api.conftest import NOW

Refused = Callable[[Awaitable[object]], Awaitable[ApiError]]
G = engine_service_pb2


async def register(client: Client, engine_id: str, digit: str, **changes: object) -> engine_pb2.Engine:
    engine = an_engine(digest="sha256:" + digit * 64, **changes)
    return await client.engines.RegisterEngine(G.RegisterEngineRequest(engine=engine, engine_id=engine_id))


async def validate(client: Client, engine_id: str, value: float = 0.999) -> engine_pb2.Engine:
    return await client.engines.ValidateEngine(
        G.ValidateEngineRequest(name=f"engines/{engine_id}", validation=a_validation(value))
    )


async def promote(client: Client, engine_id: str) -> engine_pb2.Engine:
    return await client.engines.PromoteEngine(G.PromoteEngineRequest(name=f"engines/{engine_id}"))


async def retire(client: Client, engine_id: str) -> engine_pb2.Engine:
    return await client.engines.RetireEngine(G.RetireEngineRequest(name=f"engines/{engine_id}", reason="old"))


async def state(client: Client, engine_id: str) -> str:
    found = await client.engines.GetEngine(G.GetEngineRequest(name=f"engines/{engine_id}"))
    return engine_pb2.EngineState.Name(found.state).removeprefix("ENGINE_STATE_")


async def measure(client: Client, engine_id: str, qps: float = 2400.0) -> engine_pb2.EngineProfile:
    profile = a_profile(
        capacity=workload_pb2.CapacityProfile(engine="-", gpu_type="L4", qps_max=qps, batch_size_max=8)
    )
    profile.measure_time.FromDatetime(NOW)
    return await client.engines.RecordEngineProfile(
        G.RecordEngineProfileRequest(parent=f"engines/{engine_id}", profile=profile)
    )


async def test_an_engine_goes_from_built_to_active_and_its_predecessor_retires(client: Client) -> None:
    built = await register(client, "v1", "1")
    validated = await validate(client, "v1")
    active = await promote(client, "v1")
    await register(client, "v2", "2")
    await validate(client, "v2")
    newer = await promote(client, "v2")

    states = (built.state, validated.state, active.state, newer.state)
    names = [engine_pb2.EngineState.Name(s).removeprefix("ENGINE_STATE_") for s in states]
    assert ["BUILT", "VALIDATED", "ACTIVE", "ACTIVE"] == names
    assert validated.validation.passed
    assert ("local", "local") == (validated.validation.validated_by, active.promoted_by)
    assert "RETIRED" == await state(client, "v1")
    old = await client.engines.GetEngine(G.GetEngineRequest(name="engines/v1"))
    assert "replaced by engines/v2" == old.retire_reason


async def test_engines_for_other_hardware_or_models_stay_active(client: Client) -> None:
    for engine_id, digit, changes in (
        ("a", "1", {}),
        ("b", "2", {"compute_capabilities": ["9.0"]}),
        ("c", "3", {"model_name": "ranker"}),
    ):
        await register(client, engine_id, digit, **changes)
        await validate(client, engine_id)
        await promote(client, engine_id)

    assert ["ACTIVE"] * 3 == [await state(client, engine_id) for engine_id in "abc"]


async def test_an_older_engine_is_promoted_again_as_a_rollback(client: Client) -> None:
    for engine_id, digit in (("v1", "1"), ("v2", "2")):
        await register(client, engine_id, digit)
        await validate(client, engine_id)
        await promote(client, engine_id)

    await promote(client, "v1")

    assert ["ACTIVE", "RETIRED"] == [await state(client, e) for e in ("v1", "v2")]


async def test_what_was_not_validated_is_not_promoted(client: Client, refused: Refused) -> None:
    await register(client, "v1", "1")
    never = await refused(promote(client, "v1"))
    failed = await validate(client, "v1", 0.5)
    after = await refused(promote(client, "v1"))

    assert (
        ("FAILED_PRECONDITION", "ENGINE_NOT_VALIDATED")
        == (never.code, never.reason)
        == (after.code, after.reason)
    )
    assert not failed.validation.passed
    assert "BUILT" == await state(client, "v1")


async def test_a_failed_validation_takes_the_state_back(client: Client) -> None:
    await register(client, "v1", "1")
    await validate(client, "v1")

    await validate(client, "v1", 0.1)

    assert "BUILT" == await state(client, "v1")


async def test_an_active_engine_keeps_the_validation_it_was_promoted_with(
    client: Client, refused: Refused
) -> None:
    await register(client, "v1", "1")
    await validate(client, "v1")
    await promote(client, "v1")

    error = await refused(validate(client, "v1", 0.1))

    assert ("FAILED_PRECONDITION", "ENGINE_STATE") == (error.code, error.reason)


async def test_clients_cannot_say_what_only_we_say(client: Client) -> None:
    made = await register(
        client,
        "v1",
        "1",
        state=engine_pb2.ENGINE_STATE_ACTIVE,
        validation=a_validation(),
        promoted_by="me",
        generation=9,
    )

    assert (engine_pb2.ENGINE_STATE_BUILT, False, "", 1) == (
        made.state,
        made.HasField("validation"),
        made.promoted_by,
        made.generation,
    )


async def test_a_digest_is_registered_once(client: Client, refused: Refused) -> None:
    await register(client, "v1", "1")

    error = await refused(register(client, "other", "1"))

    assert ("ALREADY_EXISTS", "RESOURCE_EXISTS") == (error.code, error.reason)


async def test_engines_are_filtered_and_ordered(client: Client) -> None:
    for engine_id, digit in (("v1", "1"), ("v2", "2")):
        await register(client, engine_id, digit, labels={"by": engine_id})
    await validate(client, "v2")

    def listed(**asked: object) -> G.ListEnginesRequest:
        return G.ListEnginesRequest(**asked)  # type: ignore[arg-type]

    validated = await client.engines.ListEngines(listed(filter="state = VALIDATED"))
    labelled = await client.engines.ListEngines(listed(filter="labels.by:V1"))
    backwards = await client.engines.ListEngines(listed(order_by="name desc", page_size=1))
    rest = await client.engines.ListEngines(
        listed(order_by="name desc", page_size=1, page_token=backwards.next_page_token)
    )

    assert ["engines/v2"] == [e.name for e in validated.engines]
    assert ["engines/v1"] == [e.name for e in labelled.engines]
    assert ["engines/v2", "engines/v1"] == [e.name for e in (*backwards.engines, *rest.engines)]
    assert "" == rest.next_page_token


async def test_a_page_token_of_another_query_is_refused(client: Client, refused: Refused) -> None:
    for engine_id, digit in (("v1", "1"), ("v2", "2")):
        await register(client, engine_id, digit)
    page = await client.engines.ListEngines(G.ListEnginesRequest(page_size=1))

    error = await refused(
        client.engines.ListEngines(
            G.ListEnginesRequest(page_size=1, filter="name:v", page_token=page.next_page_token)
        )
    )

    assert ["page_token"] == [field for field, _ in error.violations]
    assert "the same other fields" in error.violations[0][1]


async def serving(client: Client, qps: float = 2400.0) -> None:
    await register(client, "v1", "1")
    await validate(client, "v1")
    await promote(client, "v1")
    await measure(client, "v1", qps)


def a_spec(engine: str = "engines/v1", qps: float = 0.0) -> workload_pb2.Workload:
    return workload_pb2.Workload(
        model_name="recommender",
        profiles=[workload_pb2.CapacityProfile(engine=engine, gpu_type="L4", qps_max=qps)],
    )


async def test_a_workload_gets_the_capacity_its_active_engine_was_measured_with(
    client: Client, store: FakeStore
) -> None:
    await serving(client)
    made = await client.workloads.CreateWorkload(
        workload_service_pb2.CreateWorkloadRequest(workload=a_spec(), workload_id="new")
    )
    await measure(client, "v1", 3000.0)
    async with store.unit_of_work() as uow:
        workload = await uow.workloads.get("new")
        seen = with_measured(workload, await measured_profiles(uow, [workload]))

    profile = made.profiles[0]
    assert (2400.0, 8, workload_pb2.PRECISION_INT8) == (
        profile.qps_max,
        profile.batch_size_max,
        profile.precision,
    )
    assert 3000.0 == seen.profile.qps_max  # measured again: the next tick decides with it


async def test_the_measured_load_of_an_engine_is_the_prior_of_lead_times_until_replicas_started(
    client: Client, store: FakeStore, refused: Refused
) -> None:
    await serving(client)
    await client.workloads.CreateWorkload(
        workload_service_pb2.CreateWorkloadRequest(workload=a_spec(), workload_id="new")
    )
    capacity = workload_pb2.CapacityProfile(engine="-", gpu_type="L4", qps_max=3000.0)
    profile = a_profile(capacity=capacity, load_s_p50=50.0, load_s_p95=60.0)
    profile.measure_time.FromDatetime(NOW)
    before = await planned_lead_s(store)

    kept = await client.engines.RecordEngineProfile(
        G.RecordEngineProfileRequest(parent="engines/v1", profile=profile)
    )

    assert (50.0, 60.0) == (kept.load_s_p50, kept.load_s_p95)
    assert await planned_lead_s(store) > 120.0 > before
    profile.ClearField("load_s_p95")
    error = await refused(
        client.engines.RecordEngineProfile(G.RecordEngineProfileRequest(parent="engines/v1", profile=profile))
    )
    assert ["profile.load_s_p95"] == [field for field, _ in error.violations]


async def planned_lead_s(store: FakeStore) -> float:
    async with store.unit_of_work() as uow:
        workload = await uow.workloads.get("new")
        return estimate_lead_time(await lead_priors(uow, workload, DEFAULT_PRIORS)).total_p95_s


async def test_an_engine_that_is_not_active_gives_no_capacity(client: Client, refused: Refused) -> None:
    await register(client, "v1", "1")
    await measure(client, "v1")
    request = workload_service_pb2.CreateWorkloadRequest(workload=a_spec(), workload_id="new")

    error = await refused(client.workloads.CreateWorkload(request))
    by_hand = await client.workloads.CreateWorkload(
        workload_service_pb2.CreateWorkloadRequest(workload=a_spec(qps=500.0), workload_id="new")
    )

    assert ["workload.profiles[0].engine"] == [field for field, _ in error.violations]
    assert 500.0 == by_hand.profiles[0].qps_max


async def test_an_engine_that_a_workload_names_is_not_retired(client: Client, refused: Refused) -> None:
    await serving(client)
    await client.workloads.CreateWorkload(
        workload_service_pb2.CreateWorkloadRequest(workload=a_spec(), workload_id="new")
    )

    error = await refused(retire(client, "v1"))
    await client.workloads.DeleteWorkload(workload_service_pb2.DeleteWorkloadRequest(name="workloads/new"))
    retired = await retire(client, "v1")
    again = await retire(client, "v1")

    assert ("FAILED_PRECONDITION", "ENGINE_IN_USE") == (error.code, error.reason)
    assert "new" in error.message
    assert "old" == retired.retire_reason
    assert retired == again


async def test_an_older_measurement_does_not_replace_a_newer_one(client: Client) -> None:
    await serving(client)
    older = a_profile()
    older.measure_time.FromSeconds(1_700_000_000)

    kept = await client.engines.RecordEngineProfile(
        G.RecordEngineProfileRequest(parent="engines/v1", profile=older)
    )
    listed = await client.engines.ListEngineProfiles(G.ListEngineProfilesRequest(parent="engines/v1"))

    assert 8 == kept.capacity.batch_size_max
    assert ["engines/v1/profiles/l4"] == [p.name for p in listed.profiles]
    assert "engines/v1" == kept.capacity.engine


@pytest.mark.parametrize(
    ("gpu_type", "expected"),
    [("NVIDIA H200 NVL", "nvidia-h200-nvl"), ("", "gpu"), ("4090", "gpu-4090"), ("!", "gpu")],
)
def test_a_profile_is_named_by_its_gpu(gpu_type: str, expected: str) -> None:
    from controller.usecases.names import ID, profile_id

    assert expected == profile_id(gpu_type)
    assert ID.fullmatch(profile_id(gpu_type))
