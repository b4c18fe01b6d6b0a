"""Write a small real recommender as ONNX, for the demo and the tests.

Promises: the same seed gives the same weights and, with the same `onnx` release, the same file,
so its digest identifies the engine. The weights are pseudo-random: the model's scores mean
nothing, its work (embedding look-up, two towers, dot products) is a recommender's. Refuses
nothing but nonsense sizes. Called by the demo, the local actuator's set-up and tests.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

# Fixed, so that a newer onnx package does not raise them past what serving runtimes accept.
_OPSET = 17
_IR_VERSION = 8


@dataclass(frozen=True, slots=True)
class TwoTowerSizes:
    """Sizes of the recommender; ids are folded into the tables by remainder, so any id is valid."""

    user_count: int = 4096
    item_count: int = 8192
    embedding: int = 32
    context: int = 8
    hidden: int = 64
    candidates: int = 16

    def __post_init__(self) -> None:
        for name in self.__slots__:
            if getattr(self, name) < 1:
                raise ValueError(f"{name}: must be at least 1, got {getattr(self, name)}")


def pseudo_random(seed: int, *shape: int) -> NDArray[np.float32]:
    """Values in [-1, 1) from SplitMix64, whose stream no library release can change."""
    with np.errstate(over="ignore"):
        x = np.arange(1, int(np.prod(shape)) + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        x += np.uint64(seed) * np.uint64(0xD1342543DE82EF95)
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        x ^= x >> np.uint64(31)
    # 24 bits fit a float32 exactly, so every machine rounds the same.
    unit = (x >> np.uint64(40)).astype(np.float32) / np.float32(2**23) - np.float32(1)
    return unit.reshape(shape)


def two_tower_weights(seed: int, sizes: TwoTowerSizes | None = None) -> dict[str, NDArray[np.float32]]:
    """The recommender's tensors by name, float32."""
    s = sizes or TwoTowerSizes()
    shapes = {
        "user_table": (s.user_count, s.embedding),
        "item_table": (s.item_count, s.embedding),
        "user_w1": (s.embedding + s.context, s.hidden),
        "user_b1": (s.hidden,),
        "user_w2": (s.hidden, s.embedding),
        "item_w": (s.embedding, s.embedding),
    }
    # Scaled by fan-in, so that scores spread over (0, 1) instead of sticking to its ends.
    return {
        name: pseudo_random(seed * 101 + index, *shape)
        * np.float32(shape[0] ** -0.5 if "_w" in name else 1.0)
        for index, (name, shape) in enumerate(shapes.items())
    }


def write_two_tower(path: Path, *, seed: int, sizes: TwoTowerSizes | None = None) -> None:
    """Write the model to `path`.

    Inputs: `user_id` int64 [batch, 1], `context` float32 [batch, context], `candidate_ids` int64
    [batch, candidates]. Output: `scores` float32 [batch, candidates], each in (0, 1).
    """
    import onnx  # noqa: PLC0415 - only who writes a model needs it
    from onnx import TensorProto, helper, numpy_helper  # noqa: PLC0415

    s = sizes or TwoTowerSizes()
    constants: dict[str, NDArray[np.float32] | NDArray[np.int64]] = {
        **two_tower_weights(seed, s),
        "user_modulus": np.array(s.user_count, np.int64),
        "item_modulus": np.array(s.item_count, np.int64),
        "axis_1": np.array([1], np.int64),
        "axis_2": np.array([2], np.int64),
    }
    node = helper.make_node
    nodes = [
        node("Mod", ["user_id", "user_modulus"], ["user_row"]),
        node("Gather", ["user_table", "user_row"], ["user_embedding_3d"]),
        node("Squeeze", ["user_embedding_3d", "axis_1"], ["user_embedding"]),
        node("Concat", ["user_embedding", "context"], ["user_features"], axis=1),
        node("Gemm", ["user_features", "user_w1", "user_b1"], ["user_hidden_raw"]),
        node("Relu", ["user_hidden_raw"], ["user_hidden"]),
        node("MatMul", ["user_hidden", "user_w2"], ["user_vector"]),
        node("Unsqueeze", ["user_vector", "axis_2"], ["user_column"]),
        node("Mod", ["candidate_ids", "item_modulus"], ["item_rows"]),
        node("Gather", ["item_table", "item_rows"], ["item_embeddings"]),
        node("MatMul", ["item_embeddings", "item_w"], ["item_vectors"]),
        node("MatMul", ["item_vectors", "user_column"], ["logits_3d"]),
        node("Squeeze", ["logits_3d", "axis_2"], ["logits"]),
        node("Sigmoid", ["logits"], ["scores"]),
    ]

    def value(name: str, kind: int, width: int) -> onnx.ValueInfoProto:
        return helper.make_tensor_value_info(name, kind, ["batch", width])

    graph = helper.make_graph(
        nodes,
        "two_tower",
        inputs=[
            value("user_id", TensorProto.INT64, 1),
            value("context", TensorProto.FLOAT, s.context),
            value("candidate_ids", TensorProto.INT64, s.candidates),
        ],
        outputs=[value("scores", TensorProto.FLOAT, s.candidates)],
        initializer=[numpy_helper.from_array(array, name) for name, array in constants.items()],
    )
    model = helper.make_model(
        graph,
        producer_name="forecrest",
        ir_version=_IR_VERSION,
        opset_imports=[helper.make_opsetid("", _OPSET)],
    )
    onnx.checker.check_model(model, full_check=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(model.SerializeToString(deterministic=True))
