"""A replica is warm only if the right engine answers rightly and in time; anything less has a name."""

import asyncio
import os
import re
import signal
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tritonclient.grpc import InferInput
from tritonclient.grpc.aio import InferenceServerClient

from controller.actuators.triton import WarmFailure, WarmStage, WarmTarget, verify_warm
from controller.adapters.clock import SystemClock
from controller.adapters.embedded.folder import choose_port
from controller.adapters.embedded.triton_server import TritonServer
from engines.onnx_examples import TwoTowerSizes, two_tower_weights
from engines.triton_repository import ServedModel, ServingOptions

pytestmark = pytest.mark.triton
StartTriton = Callable[[Path], Awaitable[TritonServer]]
BuildModel = Callable[..., ServedModel]
BrokenModel = Callable[[str], Path]


def target_of(model: ServedModel) -> WarmTarget:
    return WarmTarget(
        model_name=model.name,
        model_version=str(model.version),
        engine_digest=model.digest,
        latency_ms_max=2000,
    )


BROKEN = WarmTarget(model_name="broken", model_version="1", engine_digest=None, latency_ms_max=2000)


async def test_a_fresh_server_is_led_stage_by_stage_to_warm(
    start_triton: StartTriton, build_model: BuildModel
) -> None:
    model = build_model()
    server = await start_triton(model.repository)
    heard: list[WarmStage] = []

    result = await verify_warm(
        server.endpoints.grpc, target_of(model), clock=SystemClock(), on_stage=heard.append
    )

    assert result.is_warm, result
    assert list(WarmStage)[1:] == heard == list(result.stage_s)
    assert all(seconds >= 0 for seconds in result.stage_s.values())
    assert len(result.probe_latencies_ms) >= 3


async def test_scores_are_those_of_the_model_that_was_written(
    start_triton: StartTriton, build_model: BuildModel
) -> None:
    model = build_model()
    server = await start_triton(model.repository)
    assert (await verify_warm(server.endpoints.grpc, target_of(model), clock=SystemClock())).is_warm
    rng = np.random.default_rng(3)
    # One id beyond each table: ids are folded, so that no request can be invalid.
    users = np.array([[5], [4096 + 5]], np.int64)
    candidates = np.tile(rng.integers(0, 20_000, (1, 16), np.int64), (2, 1))
    context = np.tile(rng.standard_normal((1, 8)).astype(np.float32), (2, 1))
    inputs: list[InferInput] = []
    for name, array, datatype in (
        ("user_id", users, "INT64"),
        ("context", context, "FP32"),
        ("candidate_ids", candidates, "INT64"),
    ):
        tensor = InferInput(name, array.shape, datatype)
        tensor.set_data_from_numpy(array)
        inputs.append(tensor)

    async with InferenceServerClient(server.endpoints.grpc) as client:
        scores = (await client.infer("recommender", inputs)).as_numpy("scores")

    w, sizes = two_tower_weights(7), TwoTowerSizes()
    features = np.concatenate([w["user_table"][users[:, 0] % sizes.user_count], context], axis=1)
    user = np.maximum(features @ w["user_w1"] + w["user_b1"], 0) @ w["user_w2"]
    items = w["item_table"][candidates % sizes.item_count] @ w["item_w"]
    expected = 1 / (1 + np.exp(-(items @ user[:, :, None])[:, :, 0]))
    np.testing.assert_allclose(scores, expected, rtol=1e-4)
    assert scores.std() > 0.01
    np.testing.assert_array_equal(scores[0], scores[1])


async def test_another_engine_is_refused_although_it_answers(
    start_triton: StartTriton, build_model: BuildModel
) -> None:
    model = build_model()
    server = await start_triton(model.repository)
    target = replace(target_of(model), engine_digest="sha256:" + "0" * 64)

    result = await verify_warm(server.endpoints.grpc, target, clock=SystemClock())

    assert not result.is_warm
    assert (WarmStage.MODEL_LOADED, WarmFailure.WRONG_ENGINE) == (result.stage, result.failure)
    assert f"runs engine {model.digest}, expected sha256:000" in result.detail


async def test_an_engine_without_a_digest_does_not_pass_for_the_expected_one(
    start_triton: StartTriton, broken_model: BrokenModel
) -> None:
    server = await start_triton(
        broken_model(
            "return [pb.InferenceResponse([pb.Tensor('y', np.zeros((1, 2), 'f'))]) for _ in requests]"
        )
    )

    result = await verify_warm(
        server.endpoints.grpc, replace(BROKEN, engine_digest="sha256:1"), clock=SystemClock()
    )

    assert result.failure is WarmFailure.WRONG_ENGINE
    assert "of unknown digest" in result.detail


async def test_an_engine_file_changed_after_the_build_does_not_load(
    start_triton: StartTriton, build_model: BuildModel
) -> None:
    model = build_model()
    with (model.repository / "recommender" / "1" / "model.onnx").open("ab") as file:
        file.write(b"\0")
    server = await start_triton(model.repository)

    result = await verify_warm(server.endpoints.grpc, target_of(model), clock=SystemClock())

    assert (WarmStage.SERVER_LIVE, WarmFailure.LOAD_FAILED) == (result.stage, result.failure)
    assert f"engine_digest: expected {model.digest}" in result.detail


async def test_a_version_that_is_not_served_is_named(
    start_triton: StartTriton, build_model: BuildModel
) -> None:
    model = build_model(version=2)
    server = await start_triton(model.repository)

    result = await verify_warm(
        server.endpoints.grpc, replace(target_of(model), model_version="1"), clock=SystemClock()
    )

    assert result.failure is WarmFailure.WRONG_VERSION
    assert "version 1 is not served" in result.detail


async def test_a_missing_model_is_a_failed_load(start_triton: StartTriton, build_model: BuildModel) -> None:
    model = build_model()
    server = await start_triton(model.repository)

    result = await verify_warm(
        server.endpoints.grpc, replace(target_of(model), model_name="absent"), clock=SystemClock()
    )

    assert result.failure is WarmFailure.LOAD_FAILED
    assert "model absent" in result.detail


async def test_probes_slower_than_the_slo_do_not_count_as_warm(
    start_triton: StartTriton, build_model: BuildModel
) -> None:
    model = build_model(options=ServingOptions(simulated_device_time_ms=60))
    server = await start_triton(model.repository)
    target = replace(target_of(model), latency_ms_max=50, probe_count_max=4)

    result = await verify_warm(server.endpoints.grpc, target, clock=SystemClock())

    assert (WarmStage.ENGINE_VERIFIED, WarmFailure.WARMUP_SLOW) == (result.stage, result.failure)
    assert len(result.probe_latencies_ms) == 4
    assert min(result.probe_latencies_ms) >= 60
    assert "the SLO allows 50 ms" in result.detail


@pytest.mark.parametrize(
    ("tensor", "failure", "problem"),
    [
        ("np.full((1, 2), np.nan, 'f')", WarmFailure.NAN_OUTPUT, "2 values that are not finite; roll back"),
        ("np.zeros((1, 0), 'f')", WarmFailure.MISSING_OUTPUT, "is absent or empty"),
        (
            "np.zeros((1, 3), 'f')",
            WarmFailure.WRONG_OUTPUT_SHAPE,
            r"has shape \[1, 3\], the model declares \[1, 2\]",
        ),
    ],
)
async def test_an_answer_that_is_not_whole_and_finite_is_not_warm(
    start_triton: StartTriton, broken_model: BrokenModel, tensor: str, failure: WarmFailure, problem: str
) -> None:
    body = f"return [pb.InferenceResponse([pb.Tensor('y', {tensor})]) for _ in requests]"
    server = await start_triton(broken_model(body))

    result = await verify_warm(server.endpoints.grpc, BROKEN, clock=SystemClock())

    assert result.failure is failure
    assert re.search(problem, result.detail)


async def test_a_refused_probe_carries_the_models_own_words(
    start_triton: StartTriton, broken_model: BrokenModel
) -> None:
    server = await start_triton(broken_model("raise ValueError('out of shelf space')"))

    result = await verify_warm(server.endpoints.grpc, BROKEN, clock=SystemClock())

    assert result.failure is WarmFailure.WARMUP_FAILED
    assert "out of shelf space" in result.detail


async def test_a_probe_that_hangs_ends_at_its_deadline(
    start_triton: StartTriton, broken_model: BrokenModel
) -> None:
    server = await start_triton(broken_model("__import__('threading').Event().wait(3)"))

    result = await verify_warm(
        server.endpoints.grpc, replace(BROKEN, probe_timeout_s=0.5), clock=SystemClock()
    )

    assert result.failure is WarmFailure.WARMUP_SLOW
    assert "no answer within 0.5 s" in result.detail


async def test_nobody_listening_is_unreachable() -> None:
    result = await verify_warm(
        f"127.0.0.1:{choose_port()}", replace(BROKEN, live_timeout_s=0.2), clock=SystemClock()
    )

    assert (WarmStage.PROCESS_STARTED, WarmFailure.UNREACHABLE) == (result.stage, result.failure)


async def test_a_server_that_dies_under_verification_is_unreachable(
    start_triton: StartTriton, build_model: BuildModel
) -> None:
    model = build_model()
    server = await start_triton(model.repository)
    pid = server.process.pid
    assert pid is not None

    def kill_when_loaded(stage: WarmStage) -> None:
        if stage is WarmStage.MODEL_LOADED:
            os.kill(pid, signal.SIGKILL)

    async with asyncio.timeout(60):
        result = await verify_warm(
            server.endpoints.grpc, target_of(model), clock=SystemClock(), on_stage=kill_when_loaded
        )

    assert result.failure is WarmFailure.UNREACHABLE
    assert result.stage in {WarmStage.MODEL_LOADED, WarmStage.ENGINE_VERIFIED}
