"""The model that `benchmarks.gpu` lets Triton serve on a CUDA GPU, through the python backend and PyTorch.

Copied into a model repository as `model.py`. Which network and precision is read from the model's parameters. Inputs
and outputs travel as DLPack: this Triton's python backend hands empty tensors back under numpy 2.
"""

import json
import time

import torch
import triton_python_backend_utils as pb_utils

_WIDTH = 4096
_LAYERS = 6
_INT8_ROWS_MIN = 32  # the INT8 product needs more than 16 rows


class _Int8Linear(torch.nn.Module):
    """A linear layer whose product runs in INT8: weights per output channel, activations per row."""

    def __init__(self, linear):
        super().__init__()
        weight = linear.weight.detach()
        scale = weight.abs().amax(dim=1, keepdim=True) / 127
        self.register_buffer("weight", (weight / scale).round().to(torch.int8).t().contiguous().t())
        self.register_buffer("scale", scale.t().to(torch.float32))
        self.register_buffer("bias", linear.bias.detach().to(torch.float32))

    def forward(self, x):
        rows = x.shape[0]
        scale = x.abs().amax(dim=1, keepdim=True).clamp(min=1e-6) / 127
        q = (x / scale).round().to(torch.int8)
        if rows < _INT8_ROWS_MIN:
            q = torch.nn.functional.pad(q, (0, 0, 0, _INT8_ROWS_MIN - rows))
        y = torch._int_mm(q, self.weight.t())[:rows]  # noqa: SLF001 - the only INT8 product PyTorch has
        return y * (scale * self.scale) + self.bias


def build(network, precision):
    """The network in a precision; same seed, same weights, whatever the precision."""
    torch.manual_seed(7)
    if network == "resnet50":
        import torchvision

        model = torchvision.models.resnet50(weights=None).eval()
    else:
        layers = []
        for _ in range(_LAYERS):
            layers += [torch.nn.Linear(_WIDTH, _WIDTH), torch.nn.ReLU()]
        model = torch.nn.Sequential(torch.nn.Linear(64, _WIDTH), *layers, torch.nn.Linear(_WIDTH, 8)).eval()
    model = model.cuda()
    if precision == "fp16":
        model = model.half()
    elif precision == "int8":
        for i, layer in enumerate(model):
            if isinstance(layer, torch.nn.Linear) and layer.in_features == layer.out_features:
                model[i] = _Int8Linear(layer)
    return model


def prepare(network, x, precision):
    """The client's bytes as the network takes them."""
    x = x.cuda(non_blocking=True)
    x = x.float() / 255 - 0.5 if network == "resnet50" else x.float()
    return x.half() if precision == "fp16" else x


class TritonPythonModel:
    def initialize(self, args):
        config = json.loads(args["model_config"])
        told = {k: v["string_value"] for k, v in config["parameters"].items()}
        began_s = time.perf_counter()
        self.network, self.precision = told["network"], told["precision"]
        torch.backends.cuda.matmul.allow_tf32 = False  # FP32 means FP32
        torch.backends.cudnn.allow_tf32 = False
        self.model = build(self.network, self.precision)
        torch.cuda.synchronize()
        pb_utils.Logger.log_info(f"built in {time.perf_counter() - began_s:.2f} s")

    @torch.inference_mode()
    def execute(self, requests):
        parts = [torch.from_dlpack(pb_utils.get_input_tensor_by_name(r, "x").to_dlpack()) for r in requests]
        x = prepare(self.network, torch.cat(parts), self.precision)
        y = self.model(x).float().cpu()
        rows = torch.split(y, [p.shape[0] for p in parts])
        return [pb_utils.InferenceResponse([pb_utils.Tensor.from_dlpack("y", r.contiguous())]) for r in rows]
