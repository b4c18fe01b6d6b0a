"""Send inference requests to the warm replicas of one workload, from the client's side.

Promises: only replicas it was last told about get requests; each request goes to the one with the
fewest outstanding, in turn where equal; no replica gets more than `outstanding_max` at once; a
replica that refuses because it is ending is passed over for another. Refuses a request at once
when every replica is full or none is there, rather than queue without bound. Called by load
generators and the demo.
"""

import asyncio
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import grpc
import numpy as np
from numpy.typing import NDArray
from tritonclient.grpc import service_pb2, service_pb2_grpc
from tritonclient.utils import np_to_triton_dtype


class NoCapacityError(Exception):
    """No replica can take the request now: none is warm, or all have their limit outstanding."""


@dataclass(slots=True)
class _Target:
    channel: grpc.aio.Channel
    stub: Any  # the generated stub of an untyped package
    outstanding_count: int = 0


def encode_request(model_name: str, model_version: str, tensors: Mapping[str, NDArray[Any]]) -> Any:  # noqa: ANN401 - a protobuf message of an untyped package
    """Make a request once, to be sent many times; tensors have the batch as their first dimension."""
    messages: Any = service_pb2
    request = messages.ModelInferRequest(model_name=model_name, model_version=model_version)
    for name, array in tensors.items():
        request.inputs.add(name=name, datatype=np_to_triton_dtype(array.dtype), shape=array.shape)
        request.raw_input_contents.append(np.ascontiguousarray(array).tobytes())
    return request


class Balancer:
    """Spreads requests over endpoints (host:port), which `set_endpoints` changes at any time."""

    def __init__(self, *, outstanding_max: int = 64) -> None:
        if outstanding_max < 1:
            raise ValueError(f"outstanding_max: must be at least 1, got {outstanding_max}")
        self._outstanding_max = outstanding_max
        self._targets: dict[str, _Target] = {}
        self._turn = 0
        self._closing: set[asyncio.Task[None]] = set()

    @property
    def outstanding_count(self) -> int:
        """Requests sent and not answered, by replicas that are still offered work."""
        return sum(target.outstanding_count for target in self._targets.values())

    def set_endpoints(self, endpoints: Collection[str]) -> None:
        """Offer work to these replicas from now on; others finish what they have."""
        for endpoint in self._targets.keys() - set(endpoints):
            target = self._targets.pop(endpoint)
            # The grace lets outstanding calls finish; a replica drains for no longer than that.
            task = asyncio.create_task(target.channel.close(grace=30))
            self._closing.add(task)
            task.add_done_callback(self._closing.discard)
        for endpoint in endpoints:
            if endpoint not in self._targets:
                channel = grpc.aio.insecure_channel(endpoint)
                self._targets[endpoint] = _Target(channel, service_pb2_grpc.GRPCInferenceServiceStub(channel))

    async def infer(self, request: Any, *, timeout_s: float) -> Any:  # noqa: ANN401 - as above
        """Send a `ModelInferRequest` and return its response.

        Raises:
            NoCapacityError: at once, when no replica can take it.
            grpc.aio.AioRpcError: the replica's error, or DEADLINE_EXCEEDED.
        """
        tried: set[str] = set()
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_s
        while True:
            endpoint, target = self._choose(tried)
            target.outstanding_count += 1
            try:
                return await target.stub.ModelInfer(request, timeout=max(0.0, deadline - loop.time()))
            except grpc.aio.AioRpcError as error:
                tried.add(endpoint)
                # Inference changes nothing, so what an ending replica refused may go to another.
                if error.code() is not grpc.StatusCode.UNAVAILABLE or tried >= self._targets.keys():
                    raise
            finally:
                target.outstanding_count -= 1

    def _choose(self, tried: set[str]) -> tuple[str, _Target]:
        self._turn += 1
        endpoints = list(self._targets)
        best: str | None = None
        for offset in range(len(endpoints)):
            endpoint = endpoints[(self._turn + offset) % len(endpoints)]
            count = self._targets[endpoint].outstanding_count
            if endpoint in tried or count >= self._outstanding_max:
                continue
            if best is None or count < self._targets[best].outstanding_count:
                best = endpoint
        if best is None:
            problem = "every warm replica has its limit outstanding" if endpoints else "no replica is warm"
            raise NoCapacityError(problem)
        return best, self._targets[best]

    async def close(self) -> None:
        """Cut all connections."""
        targets, self._targets = self._targets, {}
        await asyncio.gather(*(target.channel.close() for target in targets.values()), *self._closing)
