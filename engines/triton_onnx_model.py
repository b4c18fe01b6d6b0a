"""Serve one ONNX file with ONNX Runtime inside Triton's python backend.

`triton_repository` copies this file into the model repository as `model.py`; Triton's python
backend imports it there, in an environment of its own, so it stands alone. Promises: refuses to
load an ONNX file whose digest is not the one the configuration names, so a client that reads the
digest from the configuration knows what really runs. One thread per instance.

Parameters of the model configuration:

    engine_digest                            sha256:… of model.onnx
    simulated_device_time_ms                 see below; 0 switches it off
    simulated_device_time_ms_per_request     see below

**Simulated device.** On a machine without accelerators several replicas compete for the same few
cores, so adding one adds no capacity and an autoscaler has nothing to do. The two parameters give
each instance the throughput of an imagined accelerator: a batch of n requests occupies it for
`simulated_device_time_ms + n * simulated_device_time_ms_per_request`. The real inference runs
within that time and the rest is waited out, so capacity per replica is known, limited, and adds
up over replicas. Never set them where a real accelerator serves.
"""

import hashlib
import importlib
import json
import os
import time
from pathlib import Path
from typing import Any


class TritonPythonModel:
    """The class Triton's python backend looks for, by this name."""

    def initialize(self, args: dict[str, str]) -> None:
        """Load the ONNX file; called once per instance.

        Raises:
            RuntimeError: the file's digest is not the configured one.
        """
        # Official packages report to their maker and keep a device id in the home directory otherwise.
        # Read once at import, so calling disable_telemetry_events afterwards would be too late.
        os.environ["ORT_DISABLE_TELEMETRY"] = "1"
        ort = importlib.import_module("onnxruntime")
        self._pb = importlib.import_module("triton_python_backend_utils")
        config = json.loads(args["model_config"])
        parameters = {key: value["string_value"] for key, value in config["parameters"].items()}
        engine = Path(args["model_repository"]) / args["model_version"] / "model.onnx"
        content = engine.read_bytes()
        digest = f"sha256:{hashlib.sha256(content).hexdigest()}"
        if digest != parameters["engine_digest"]:
            raise RuntimeError(f"engine_digest: expected {parameters['engine_digest']}, {engine} is {digest}")
        options = ort.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        self._session = ort.InferenceSession(content, options, providers=["CPUExecutionProvider"])
        self._inputs = [entry["name"] for entry in config["input"]]
        self._outputs = [entry["name"] for entry in config["output"]]
        self._batch_s = float(parameters["simulated_device_time_ms"]) / 1000
        self._request_s = float(parameters["simulated_device_time_ms_per_request"]) / 1000

    def execute(self, requests: list[Any]) -> list[Any]:
        """Run the requests that Triton batched as one inference; one response for each, in order."""
        np = importlib.import_module("numpy")
        # The device's own pace, not a wait for something else: the Clock port does not exist here.
        busy_until = time.monotonic()  # noqa: TID251
        tensor = self._pb.get_input_tensor_by_name
        parts = {name: [tensor(r, name).as_numpy() for r in requests] for name in self._inputs}
        sizes = [len(part) for part in parts[self._inputs[0]]]
        feeds = {name: np.concatenate(arrays) for name, arrays in parts.items()}
        results = self._session.run(self._outputs, feeds)
        splits = [np.split(result, np.cumsum(sizes)[:-1]) for result in results]
        responses = [
            self._pb.InferenceResponse(
                [self._pb.Tensor(name, split[i]) for name, split in zip(self._outputs, splits, strict=True)]
            )
            for i in range(len(requests))
        ]
        if self._batch_s or self._request_s:
            busy_until += self._batch_s + self._request_s * sum(sizes)
            time.sleep(max(0.0, busy_until - time.monotonic()))  # noqa: TID251 - the simulated device
        return responses
