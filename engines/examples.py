"""Models to try the pipeline on, made here: a wide-and-deep recommender, a CNN and a transformer encoder.

Promises: the same seed gives the same model, calibration set and validation set. Labels come from
a teacher whose weights the model knows only with an error, so AUC, NDCG and top-k measure something
and fall when precision is lost; one input feature has a long tail, as traffic has. Refuses unknown
names. Nothing is downloaded. Called by `forecrest engine example`, tests and documentation.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from engines.datasets import Array, Dataset, write_dataset
from engines.errors import EngineInputError
from engines.onnx_examples import pseudo_random

if TYPE_CHECKING:
    import onnx

Floats = NDArray[np.float32]
Weights = dict[str, Floats]
# Fixed, so that a newer onnx package does not raise them past what serving runtimes accept.
_OPSET = 17
_IR_VERSION = 8
_TEACHER_SEED = 7
# How far the model's weights lie from the teacher's: enough that it errs, little enough that it is good.
_STUDENT_ERROR = 0.1


@dataclass(frozen=True, slots=True)
class Example:
    """One generated model with its sets; `task` says what its labels are."""

    name: str
    model: "onnx.ModelProto"
    calibration: Dataset
    validation: Dataset


@dataclass(frozen=True, slots=True)
class _Family:
    shapes: dict[str, tuple[int, ...]]
    make: Callable[[Weights], "onnx.ModelProto"]
    draw: Callable[[np.random.Generator, int], dict[str, Array]]
    label: Callable[[np.random.Generator, Floats], Array]


def make_example(
    name: str, *, seed: int = 1, calibration_count: int = 512, validation_count: int = 512
) -> Example:
    """Make the example `name`, one of `EXAMPLE_NAMES`.

    Raises:
        EngineInputError: no example has this name.
    """
    if name not in _FAMILIES:
        raise EngineInputError("example", f"{name!r} is unknown", f"choose one of {', '.join(EXAMPLE_NAMES)}")
    from engines.onnx_runner import OnnxRunner  # noqa: PLC0415 - onnxruntime is loaded by who runs models

    family = _FAMILIES[name]
    teacher = _teacher(family)
    noise = _weights(family.shapes, 1000 + seed)
    student: Weights = {
        key: (value + np.float32(_STUDENT_ERROR) * noise[key]).astype(np.float32)
        for key, value in teacher.items()
    }
    judge = OnnxRunner(family.make(teacher))

    def labelled(stream: int, count: int) -> Dataset:
        random = np.random.default_rng([seed, stream])
        inputs = family.draw(random, count)
        truth = next(iter(judge.run(inputs).values()))
        return Dataset(inputs, family.label(random, truth))

    return Example(name, family.make(student), labelled(1, calibration_count), labelled(2, validation_count))


def write_example(name: str, folder: Path, *, seed: int = 1) -> tuple[Path, Path, Path]:
    """Write `model.onnx`, `calibration.npz` and `validation.npz` into `folder`; return their paths."""
    example = make_example(name, seed=seed)
    folder.mkdir(parents=True, exist_ok=True)
    paths = folder / "model.onnx", folder / "calibration.npz", folder / "validation.npz"
    paths[0].write_bytes(example.model.SerializeToString(deterministic=True))
    write_dataset(paths[1], example.calibration)
    write_dataset(paths[2], example.validation)
    return paths


def _teacher(family: _Family) -> Weights:
    """The weights that are right; the output bias makes every class about as likely as the others."""
    from engines.onnx_runner import OnnxRunner  # noqa: PLC0415 - as above

    weights = _weights(family.shapes, _TEACHER_SEED)
    if "b_out" in weights:
        inputs = family.draw(np.random.default_rng(_TEACHER_SEED), 256)
        logits = next(iter(OnnxRunner(family.make(weights)).run(inputs).values()))
        weights["b_out"] -= logits.mean(axis=0)
    return weights


def _weights(shapes: dict[str, tuple[int, ...]], seed: int) -> Weights:
    """Matrices and kernels scaled by fan-in, biases small, norms near 1."""
    made: Weights = {}
    for index, (name, shape) in enumerate(shapes.items()):
        value = pseudo_random(seed * 101 + index, *shape)
        if len(shape) == 4:
            value *= np.float32((6 / np.prod(shape[1:])) ** 0.5)
        elif "table" in name:
            value *= np.float32(1.0)
        elif len(shape) == 2:
            value *= np.float32((6 / shape[0]) ** 0.5)
        else:
            value *= np.float32(0.1)
        made[name] = value
    return made


class _Graph:
    """Nodes and constants of one model; every method returns the name of what it made."""

    def __init__(self, constants: dict[str, Any]) -> None:
        self._constants = dict(constants)
        self._nodes: list[Any] = []

    def add(self, kind: str, *inputs: str, name: str, **attributes: Any) -> str:  # noqa: ANN401 - ONNX attributes
        from onnx import helper  # noqa: PLC0415 - only who makes a model needs it

        self._nodes.append(helper.make_node(kind, list(inputs), [name], name=name, **attributes))
        return name

    def constant(self, name: str, value: Any, kind: type = np.int64) -> str:  # noqa: ANN401 - numbers of any shape
        self._constants[name] = np.asarray(value, kind)
        return name

    def model(
        self, name: str, inputs: list[tuple[str, int, list[str | int]]], output: str, dims: list[str | int]
    ) -> "onnx.ModelProto":
        import onnx  # noqa: PLC0415 - as above
        from onnx import TensorProto, helper, numpy_helper  # noqa: PLC0415

        graph = helper.make_graph(
            self._nodes,
            name,
            inputs=[helper.make_tensor_value_info(n, kind, shape) for n, kind, shape in inputs],
            outputs=[helper.make_tensor_value_info(output, TensorProto.FLOAT, dims)],
            initializer=[numpy_helper.from_array(value, key) for key, value in self._constants.items()],
        )
        made = helper.make_model(
            graph,
            producer_name="forecrest",
            ir_version=_IR_VERSION,
            opset_imports=[helper.make_opsetid("", _OPSET)],
        )
        onnx.checker.check_model(made, full_check=True)
        return made


_USERS, _ITEMS, _EMBED, _CONTEXT, _HIDDEN, _CANDIDATES = 2048, 4096, 32, 8, 64, 16


def _wide_and_deep(w: Weights) -> "onnx.ModelProto":
    from onnx import TensorProto  # noqa: PLC0415 - only who makes a model needs it

    g = _Graph(w)
    g.constant("users", _USERS)
    g.constant("items", _ITEMS)
    g.constant("axis_2", [2])
    g.add("Mod", "user_id", "users", name="user_row")
    g.add("Mod", "candidate_ids", "items", name="item_row")
    g.add("Gather", "user_table", "user_row", name="user_embedding")  # [batch, 1, embed]
    g.add("Gather", "item_table", "item_row", name="item_embedding")  # [batch, candidates, embed]
    # Deep: user, context and item meet in the first hidden layer, then two more.
    g.add("MatMul", "user_embedding", "w_user", name="deep_user")
    g.add("MatMul", "context", "w_context", name="deep_context_2d")
    g.constant("axis_1", [1])
    g.add("Unsqueeze", "deep_context_2d", "axis_1", name="deep_context")
    g.add("MatMul", "item_embedding", "w_item", name="deep_item")
    g.add("Add", "deep_user", "deep_context", name="deep_shared")
    g.add("Add", "deep_shared", "deep_item", name="deep_sum")
    g.add("Add", "deep_sum", "b_1", name="deep_biased")
    g.add("Relu", "deep_biased", name="deep_1")
    g.add("MatMul", "deep_1", "w_2", name="deep_2_product")
    g.add("Add", "deep_2_product", "b_2", name="deep_2_biased")
    g.add("Relu", "deep_2_biased", name="deep_2")
    g.add("MatMul", "deep_2", "w_3", name="deep_logit")
    # Wide: a weight of its own for every item and for the context.
    g.add("Gather", "wide_table", "item_row", name="wide_item")
    g.add("Add", "deep_logit", "wide_item", name="logit_3d")
    g.add("Squeeze", "logit_3d", "axis_2", name="logit")
    g.add("Sigmoid", "logit", name="scores")
    inputs: list[tuple[str, int, list[str | int]]] = [
        ("user_id", TensorProto.INT64, ["batch", 1]),
        ("context", TensorProto.FLOAT, ["batch", _CONTEXT]),
        ("candidate_ids", TensorProto.INT64, ["batch", _CANDIDATES]),
    ]
    return g.model("wide_and_deep", inputs, "scores", ["batch", _CANDIDATES])


def _draw_visits(random: np.random.Generator, count: int) -> dict[str, Array]:
    context = random.normal(0, 1, (count, _CONTEXT)).astype(np.float32)
    # What a basket holds, a session lasts, a price is: log-normal, with a tail that calibration must see.
    context[:, -1] = random.lognormal(-0.5, 0.6, count)
    return {
        # Popularity falls with rank, for users and items alike.
        "user_id": random.zipf(1.3, (count, 1)).astype(np.int64) % _USERS,
        "context": context,
        "candidate_ids": random.integers(0, _ITEMS, (count, _CANDIDATES), np.int64),
    }


def _label_clicks(random: np.random.Generator, truth: Floats) -> Array:
    return (random.random(truth.shape) < truth).astype(np.int64)


_CLASSES, _CHANNELS, _SIDE = 10, 16, 16


def _cnn(w: Weights) -> "onnx.ModelProto":
    from onnx import TensorProto  # noqa: PLC0415 - only who makes a model needs it

    g = _Graph(w)
    same = {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1]}
    g.add("Conv", "image", "k_1", "b_1", name="conv_1", **same)
    g.add("Relu", "conv_1", name="relu_1")
    g.add("Conv", "relu_1", "k_2", "b_2", name="conv_2", **same, strides=[2, 2])
    g.add("Relu", "conv_2", name="relu_2")
    g.add("Conv", "relu_2", "k_3", "b_3", name="conv_3", **same)
    g.add("Add", "conv_3", "relu_2", name="residual")
    g.add("Relu", "residual", name="relu_3")
    g.add("GlobalAveragePool", "relu_3", name="pooled")
    g.add("Flatten", "pooled", name="features", axis=1)
    g.add("Gemm", "features", "w_out", "b_out", name="logits")
    image: list[str | int] = ["batch", 3, _SIDE, _SIDE]
    return g.model("cnn", [("image", TensorProto.FLOAT, image)], "logits", ["batch", _CLASSES])


def _draw_images(random: np.random.Generator, count: int) -> dict[str, Array]:
    """Waves of a random direction, length and colour, with noise: smooth, as photographs are."""
    y, x = np.mgrid[0:_SIDE, 0:_SIDE] / _SIDE
    angle, length, phase = random.uniform([0, 0.15, 0], [np.pi, 1.0, 2 * np.pi], (count, 3)).T[
        ..., None, None
    ]
    wave = np.sin(2 * np.pi * (x * np.cos(angle) + y * np.sin(angle)) / length + phase)
    colour = random.normal(0, 1, (count, 3, 1, 1))
    image = colour * wave[:, None] + random.normal(0, 0.2, (count, 3, _SIDE, _SIDE))
    return {"image": image.astype(np.float32)}


def _label_class(random: np.random.Generator, truth: Floats) -> Array:
    # Sharpened, so that the best class mostly wins.
    return np.asarray((truth / truth.std() * 6 + random.gumbel(size=truth.shape)).argmax(axis=1))


_VOCABULARY, _WIDTH, _HEADS, _FEED, _LENGTH_MAX, _TOPICS = 512, 32, 4, 64, 64, 8


def _transformer(w: Weights) -> "onnx.ModelProto":
    from onnx import TensorProto  # noqa: PLC0415 - only who makes a model needs it

    g = _Graph(w)
    g.constant("zero", [0])
    g.constant("one", [1])
    g.constant("two", [2])
    g.constant("split", [0, 0, _HEADS, _WIDTH // _HEADS])
    g.constant("merge", [0, 0, _WIDTH])
    g.constant("scale", (_WIDTH // _HEADS) ** -0.5, np.float32)
    g.constant("half", 0.5, np.float32)
    g.constant("unit", 1.0, np.float32)
    g.constant("root_half", 0.5**0.5, np.float32)
    for layer in ("1", "2"):
        for part in ("attention", "feed"):
            g.constant(f"{part}_gain_{layer}", np.ones(_WIDTH), np.float32)
    g.add("Gather", "token_table", "tokens", name="token_embedding")
    g.add("Shape", "tokens", name="shape")
    g.add("Slice", "shape", "one", "two", name="length")
    g.add("Slice", "position_table", "zero", "length", "zero", name="positions")
    g.add("Add", "token_embedding", "positions", name="x_0")
    for layer in ("1", "2"):
        _encoder_layer(g, layer, "x_0" if layer == "1" else "x_1")
    g.add("ReduceMean", "x_2", name="pooled", axes=[1], keepdims=0)
    g.add("Gemm", "pooled", "w_out", "b_out", name="logits")
    tokens: list[str | int] = ["batch", "length"]
    return g.model("encoder", [("tokens", TensorProto.INT64, tokens)], "logits", ["batch", _TOPICS])


def _encoder_layer(g: _Graph, layer: str, x: str) -> None:
    """Attention and feed-forward, each with its norm before and its sum after; makes `x_<layer>`."""

    def named(name: str) -> str:
        return f"{name}_{layer}"

    g.add("LayerNormalization", x, named("attention_gain"), named("b_norm"), name=named("normed"), axis=-1)
    for part in ("q", "k", "v"):
        g.add("MatMul", named("normed"), named(f"w_{part}"), name=named(f"{part}_flat"))
        g.add("Reshape", named(f"{part}_flat"), "split", name=named(f"{part}_heads"))
        order = [0, 2, 3, 1] if part == "k" else [0, 2, 1, 3]
        g.add("Transpose", named(f"{part}_heads"), name=named(part), perm=order)
    g.add("MatMul", named("q"), named("k"), name=named("affinity_raw"))
    g.add("Mul", named("affinity_raw"), "scale", name=named("affinity"))
    g.add("Softmax", named("affinity"), name=named("attention"), axis=-1)
    g.add("MatMul", named("attention"), named("v"), name=named("mixed_heads"))
    g.add("Transpose", named("mixed_heads"), name=named("mixed_back"), perm=[0, 2, 1, 3])
    g.add("Reshape", named("mixed_back"), "merge", name=named("mixed"))
    g.add("MatMul", named("mixed"), named("w_o"), name=named("attended"))
    g.add("Add", x, named("attended"), name=named("y"))
    g.add(
        "LayerNormalization", named("y"), named("feed_gain"), named("b_norm"), name=named("y_normed"), axis=-1
    )
    g.add("MatMul", named("y_normed"), named("w_up"), name=named("up_product"))
    g.add("Add", named("up_product"), named("b_up"), name=named("up"))
    # GELU in the operators that every runtime of this opset has.
    g.add("Mul", named("up"), "root_half", name=named("gelu_scaled"))
    g.add("Erf", named("gelu_scaled"), name=named("gelu_erf"))
    g.add("Add", named("gelu_erf"), "unit", name=named("gelu_sum"))
    g.add("Mul", named("up"), named("gelu_sum"), name=named("gelu_product"))
    g.add("Mul", named("gelu_product"), "half", name=named("gelu"))
    g.add("MatMul", named("gelu"), named("w_down"), name=named("down"))
    g.add("Add", named("y"), named("down"), name=named("x"))


def _draw_sentences(random: np.random.Generator, count: int) -> dict[str, Array]:
    return {"tokens": random.zipf(1.2, (count, 32)).astype(np.int64) % _VOCABULARY}


def _encoder_shapes() -> dict[str, tuple[int, ...]]:
    shapes: dict[str, tuple[int, ...]] = {
        "token_table": (_VOCABULARY, _WIDTH),
        "position_table": (_LENGTH_MAX, _WIDTH),
    }
    for layer in ("1", "2"):
        shapes |= {f"w_{part}_{layer}": (_WIDTH, _WIDTH) for part in "qkvo"}
        shapes |= {f"w_up_{layer}": (_WIDTH, _FEED), f"b_up_{layer}": (_FEED,)}
        shapes |= {f"w_down_{layer}": (_FEED, _WIDTH), f"b_norm_{layer}": (_WIDTH,)}
    return shapes | {"w_out": (_WIDTH, _TOPICS), "b_out": (_TOPICS,)}


_FAMILIES = {
    "wide-and-deep": _Family(
        {
            "user_table": (_USERS, _EMBED),
            "item_table": (_ITEMS, _EMBED),
            "wide_table": (_ITEMS, 1),
            "w_user": (_EMBED, _HIDDEN),
            "w_context": (_CONTEXT, _HIDDEN),
            "w_item": (_EMBED, _HIDDEN),
            "b_1": (_HIDDEN,),
            "w_2": (_HIDDEN, _HIDDEN),
            "b_2": (_HIDDEN,),
            "w_3": (_HIDDEN, 1),
        },
        _wide_and_deep,
        _draw_visits,
        _label_clicks,
    ),
    "cnn": _Family(
        {
            "k_1": (_CHANNELS, 3, 3, 3),
            "b_1": (_CHANNELS,),
            "k_2": (2 * _CHANNELS, _CHANNELS, 3, 3),
            "b_2": (2 * _CHANNELS,),
            "k_3": (2 * _CHANNELS, 2 * _CHANNELS, 3, 3),
            "b_3": (2 * _CHANNELS,),
            "w_out": (2 * _CHANNELS, _CLASSES),
            "b_out": (_CLASSES,),
        },
        _cnn,
        _draw_images,
        _label_class,
    ),
    "transformer": _Family(_encoder_shapes(), _transformer, _draw_sentences, _label_class),
}
EXAMPLE_NAMES = tuple(_FAMILIES)
