"""Find out whether a Triton replica is warm, through its gRPC alone.

Promises: WARM means that the server is live, the expected version of the model is loaded, its
engine has the expected digest, and probe inferences came back whole, finite and, at the end,
within the latency the SLO allows. Anything less is a result that names the last stage reached,
what failed, and how long each stage took; nothing raises except cancellation. Refuses to call a
replica warm because it replied. Called by the actuators.
"""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tritonclient.grpc import InferInput
from tritonclient.grpc.aio import InferenceServerClient
from tritonclient.utils import InferenceServerException, triton_to_np_dtype

from controller.adapters.clock import SystemClock
from controller.ports import Clock

DIGEST_PARAMETER = "engine_digest"
_POLL_S = 0.05
_CALL_TIMEOUT_S = 5.0
_ROLL_BACK = "; roll back to the engine before it, and validate this one on real inputs"


class WarmStage(StrEnum):
    """How far a replica verifiably got, in this order."""

    PROCESS_STARTED = "PROCESS_STARTED"
    SERVER_LIVE = "SERVER_LIVE"
    MODEL_LOADED = "MODEL_LOADED"
    ENGINE_VERIFIED = "ENGINE_VERIFIED"
    WARM = "WARM"


class WarmFailure(StrEnum):
    """Why a replica is not warm."""

    UNREACHABLE = "UNREACHABLE"  # the server does not answer
    LOAD_FAILED = "LOAD_FAILED"  # Triton refused to load the model, or took too long
    WRONG_VERSION = "WRONG_VERSION"  # loaded, but not the expected version
    WRONG_ENGINE = "WRONG_ENGINE"  # loaded, but another engine's digest, or none at all
    WARMUP_FAILED = "WARMUP_FAILED"  # a probe inference was refused
    MISSING_OUTPUT = "MISSING_OUTPUT"  # a probe's output is absent or empty
    WRONG_OUTPUT_SHAPE = "WRONG_OUTPUT_SHAPE"
    NAN_OUTPUT = "NAN_OUTPUT"  # a probe's output has values that are not finite
    WARMUP_SLOW = "WARMUP_SLOW"  # probes answer, but not within the SLO


@dataclass(frozen=True, slots=True, kw_only=True)
class WarmTarget:
    """What a warm replica must serve, and how long each step may take, in seconds."""

    model_name: str
    model_version: str
    engine_digest: str | None  # None: the catalogue knows no digest, so any engine passes
    latency_ms_max: float
    probe_count_min: int = 3
    probe_count_max: int = 30
    within_slo_count: int = 2  # so many probes in a row end the warm-up
    live_timeout_s: float = 30.0
    load_timeout_s: float = 120.0
    probe_timeout_s: float = 30.0

    def __post_init__(self) -> None:
        if not 1 <= self.within_slo_count <= self.probe_count_max >= self.probe_count_min >= 1:
            raise ValueError(
                "probe_count_max: must be at least probe_count_min and within_slo_count, all of them at least 1"
            )
        if not self.latency_ms_max > 0:
            raise ValueError(f"latency_ms_max: must be positive, got {self.latency_ms_max}")


@dataclass(frozen=True, slots=True)
class WarmResult:
    """The verdict. `stage` is the last stage reached; `stage_s` how long each stage reached took."""

    stage: WarmStage
    failure: WarmFailure | None
    detail: str
    stage_s: Mapping[WarmStage, float] = field(default_factory=dict[WarmStage, float])
    probe_latencies_ms: tuple[float, ...] = ()

    @property
    def reason(self) -> str:
        """Why it is not warm: the failure's name, which the core looks for, what was found, and the remedy."""
        return f"{self.failure}: {self.detail}"

    @property
    def is_warm(self) -> bool:
        """Whether the replica counts as capacity."""
        return self.failure is None and self.stage is WarmStage.WARM


class _NotWarmError(Exception):
    def __init__(self, failure: WarmFailure, detail: str) -> None:
        super().__init__(detail)
        self.failure, self.detail = failure, detail


async def verify_warm(
    endpoint: str,
    target: WarmTarget,
    *,
    clock: Clock,
    on_stage: Callable[[WarmStage], None] = lambda _: None,
) -> WarmResult:
    """Lead the replica at `endpoint` (host:port of its gRPC) from running to warm, or say why not.

    `clock` measures stages and latencies; time limits are always the machine's own. `on_stage`
    hears of each stage at the moment it is reached.
    """
    async with InferenceServerClient(endpoint) as client:
        return await _Verification(client, endpoint, target, clock, on_stage).run()


async def is_serving(endpoint: str, model_name: str, model_version: str, *, timeout_s: float) -> bool:
    """Whether the replica says, in time, that the model is ready; the cheap question between verifications."""
    async with InferenceServerClient(endpoint) as client:
        try:
            return bool(await client.is_model_ready(model_name, model_version, client_timeout=timeout_s))
        except InferenceServerException:
            return False


class _Verification:
    def __init__(
        self,
        client: InferenceServerClient,
        endpoint: str,
        target: WarmTarget,
        clock: Clock,
        on_stage: Callable[[WarmStage], None],
    ) -> None:
        self._client, self._endpoint, self._target = client, endpoint, target
        self._clock, self._on_stage = clock, on_stage
        self._stage_s: dict[WarmStage, float] = {}
        self._latencies_ms: list[float] = []

    async def run(self) -> WarmResult:
        reached = WarmStage.PROCESS_STARTED
        steps: tuple[tuple[WarmStage, Callable[[], Awaitable[None]]], ...] = (
            (WarmStage.SERVER_LIVE, self._await_live),
            (WarmStage.MODEL_LOADED, self._load),
            (WarmStage.ENGINE_VERIFIED, self._verify_engine),
            (WarmStage.WARM, self._probe),
        )
        for stage, step in steps:
            began_s = self._clock.monotonic()
            try:
                await step()
            except _NotWarmError as error:
                return self._result(reached, error.failure, error.detail)
            except InferenceServerException as error:
                # A server that ends between two calls fails the next one, whichever that is.
                return self._result(reached, WarmFailure.UNREACHABLE, f"{self._endpoint}: {_reason(error)}")
            reached = stage
            self._stage_s[stage] = self._clock.monotonic() - began_s
            self._on_stage(stage)
        last = ", ".join(f"{ms:.0f}" for ms in self._latencies_ms[-self._target.within_slo_count :])
        return self._result(reached, None, f"{len(self._latencies_ms)} probes, the last took {last} ms")

    def _result(self, stage: WarmStage, failure: WarmFailure | None, detail: str) -> WarmResult:
        return WarmResult(stage, failure, detail, self._stage_s, tuple(self._latencies_ms))

    async def _await_live(self) -> None:
        # A real process takes real time, whatever clock its stages are told on.
        wall = SystemClock()
        deadline_s = wall.monotonic() + self._target.live_timeout_s
        while True:
            try:
                if await self._client.is_server_live(client_timeout=_CALL_TIMEOUT_S):
                    return
                problem = "answers, but is not live"
            except InferenceServerException as error:
                problem = _reason(error)
            if wall.monotonic() >= deadline_s:
                waited = f"{self._endpoint} was not live within {self._target.live_timeout_s:g} s"
                raise _NotWarmError(WarmFailure.UNREACHABLE, f"{waited}: {problem}")
            await wall.sleep(_POLL_S)

    async def _load(self) -> None:
        name, version = self._target.model_name, self._target.model_version
        if not await self._client.is_model_ready(name, version, client_timeout=_CALL_TIMEOUT_S):
            try:
                await self._client.load_model(name, client_timeout=self._target.load_timeout_s)
            except InferenceServerException as error:
                if _is(error, "UNAVAILABLE"):
                    raise
                problem = _reason(error)
                if _is(error, "DEADLINE_EXCEEDED"):
                    problem = f"not loaded within {self._target.load_timeout_s:g} s"
                raise _NotWarmError(WarmFailure.LOAD_FAILED, f"model {name}: {problem}") from error
        if not await self._client.is_model_ready(name, version, client_timeout=_CALL_TIMEOUT_S):
            raise _NotWarmError(
                WarmFailure.WRONG_VERSION, f"model {name} is loaded, but version {version} is not served"
            )
        if not await self._client.is_server_ready(client_timeout=_CALL_TIMEOUT_S):
            raise _NotWarmError(
                WarmFailure.LOAD_FAILED, f"model {name} is loaded, but the server is not ready"
            )

    async def _verify_engine(self) -> None:
        expected = self._target.engine_digest
        if expected is None:
            return
        config = await self._config()
        found = (
            config.parameters[DIGEST_PARAMETER].string_value if DIGEST_PARAMETER in config.parameters else ""
        )
        if found != expected:
            raise _NotWarmError(
                WarmFailure.WRONG_ENGINE,
                f"model {self._target.model_name} runs engine {found or 'of unknown digest'}, expected {expected}; "
                f"publish the ordered engine, with its digest as parameter {DIGEST_PARAMETER}, or order what runs",
            )

    async def _config(self) -> Any:  # noqa: ANN401 - a protobuf message of the untyped client library
        name, version = self._target.model_name, self._target.model_version
        response: Any = await self._client.get_model_config(name, version, client_timeout=_CALL_TIMEOUT_S)
        return response.config

    async def _probe(self) -> None:
        target = self._target
        config = await self._config()
        inputs = [_zeros(tensor, batched=config.max_batch_size > 0) for tensor in config.input]
        in_a_row = 0
        for number in range(1, target.probe_count_max + 1):
            began_s = self._clock.monotonic()
            result = await self._infer(inputs)
            latency_ms = (self._clock.monotonic() - began_s) * 1000
            self._latencies_ms.append(latency_ms)
            for tensor in config.output:
                _check_output(tensor, result.as_numpy(tensor.name), config.max_batch_size > 0)
            in_a_row = in_a_row + 1 if latency_ms <= target.latency_ms_max else 0
            if number >= target.probe_count_min and in_a_row >= target.within_slo_count:
                return
        raise _NotWarmError(
            WarmFailure.WARMUP_SLOW,
            f"after {target.probe_count_max} probes the last took {self._latencies_ms[-1]:.0f} ms, "
            f"the SLO allows {target.latency_ms_max:g} ms",
        )

    async def _infer(self, inputs: list[InferInput]) -> Any:  # noqa: ANN401 - as above
        target = self._target
        try:
            return await self._client.infer(
                target.model_name,
                inputs,
                model_version=target.model_version,
                client_timeout=target.probe_timeout_s,
            )
        except InferenceServerException as error:
            if _is(error, "DEADLINE_EXCEEDED"):
                raise _NotWarmError(
                    WarmFailure.WARMUP_SLOW, f"a probe had no answer within {target.probe_timeout_s:g} s"
                ) from error
            if _is(error, "UNAVAILABLE"):
                raise
            raise _NotWarmError(
                WarmFailure.WARMUP_FAILED, f"a probe was refused: {_reason(error)}"
            ) from error


def _is(error: InferenceServerException, code: str) -> bool:
    return str(error.status()).endswith(code)


def _reason(error: InferenceServerException) -> str:
    """The server's sentence on one line; its stack traces run over many."""
    return " ".join(str(error.message()).split())[:500]


def _zeros(tensor: Any, *, batched: bool) -> InferInput:  # noqa: ANN401 - as above
    """Zeros of the declared shape; a free dimension gets length 1. Strings are empty."""
    shape = [1] * batched + [max(1, dim) for dim in tensor.dims]
    datatype = _datatype(tensor)
    value = (
        np.full(shape, b"", object) if datatype == "BYTES" else np.zeros(shape, triton_to_np_dtype(datatype))
    )
    probe = InferInput(tensor.name, shape, datatype)
    probe.set_data_from_numpy(value)
    return probe


def _datatype(tensor: Any) -> str:  # noqa: ANN401 - as above
    name: str = (
        type(tensor).DESCRIPTOR.fields_by_name["data_type"].enum_type.values_by_number[tensor.data_type].name
    )
    short = name.removeprefix("TYPE_")
    return "BYTES" if short == "STRING" else short


def _check_output(tensor: Any, value: NDArray[Any] | None, batched: bool) -> None:  # noqa: ANN401 - as above
    # Triton's python backend under numpy 2 replies without an error and without data.
    if value is None or value.size == 0:
        raise _NotWarmError(
            WarmFailure.MISSING_OUTPUT, f"output {tensor.name} is absent or empty{_ROLL_BACK}"
        )
    expected = [1] * batched + list(tensor.dims)
    if len(expected) != value.ndim or any(
        want not in (-1, have) for want, have in zip(expected, value.shape, strict=True)
    ):
        problem = f"output {tensor.name} has shape {list(value.shape)}, the model declares {expected}"
        raise _NotWarmError(WarmFailure.WRONG_OUTPUT_SHAPE, problem + _ROLL_BACK)
    if value.dtype.kind == "f" and not np.isfinite(value).all():
        count = int((~np.isfinite(value)).sum())
        problem = f"output {tensor.name} has {count} values that are not finite"
        raise _NotWarmError(WarmFailure.NAN_OUTPUT, problem + _ROLL_BACK)
