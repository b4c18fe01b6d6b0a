"""Values of the pipeline: their limits, their JSON, and the identity of an engine."""

from dataclasses import replace

import pytest

from engines.errors import EngineInputError
from engines.keys import content_digest, engine_id
from engines.types import BuildOptions, DimRange, Precision, RuntimeKind, Toolchain, from_json, to_json

OPTIONS = BuildOptions(
    runtime=RuntimeKind.TENSORRT,
    precision=Precision.INT8,
    profiles=({"batch": DimRange(1, 8, 64)},),
    compute_capabilities=("8.9",),
    kept_layers=("conv_1",),
)
TOOLS = Toolchain(runtime=RuntimeKind.TENSORRT, version="10.13.3.9", driver="580.95", gpu="L4")


def test_options_survive_json() -> None:
    assert from_json(BuildOptions, to_json(OPTIONS), "options") == OPTIONS


def test_damaged_json_names_the_field() -> None:
    damaged = to_json(OPTIONS).replace('"INT8"', '"INT7"')

    with pytest.raises(EngineInputError, match=r"options\.precision: .*damaged"):
        from_json(BuildOptions, damaged, "options")


@pytest.mark.parametrize(
    "changed",
    [
        {"precision": Precision.FP16},
        {"profiles": ({"batch": DimRange(1, 8, 65)},)},
        {"compute_capabilities": ("8.6",)},
        {"kept_layers": ()},
        {"calibration_digest": "sha256:0"},
        {"version_compatible": True},
        {"workspace_bytes": 1 << 29},
    ],
)
def test_every_option_is_part_of_the_identity(changed: dict[str, object]) -> None:
    other = replace(OPTIONS, **changed)

    assert engine_id("sha256:1", OPTIONS, TOOLS) != engine_id("sha256:1", other, TOOLS)


@pytest.mark.parametrize(
    "changed",
    [
        {"version": "10.13.3.10"},
        {"driver": "581.0"},
        {"gpu": "L40"},
        {"cuda": "13"},
        {"quantizer": "onnxruntime 1"},
    ],
)
def test_every_tool_is_part_of_the_identity(changed: dict[str, str]) -> None:
    assert engine_id("sha256:1", OPTIONS, TOOLS) != engine_id("sha256:1", OPTIONS, replace(TOOLS, **changed))


def test_the_same_build_has_the_same_identity() -> None:
    again = from_json(BuildOptions, to_json(OPTIONS), "options")

    assert engine_id("sha256:1", OPTIONS, TOOLS) == engine_id("sha256:1", again, TOOLS)
    assert engine_id("sha256:1", OPTIONS, TOOLS) != engine_id("sha256:2", OPTIONS, TOOLS)


def test_a_digest_is_sha256() -> None:
    expected = "sha256:ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"

    assert expected == content_digest(b"abc")


@pytest.mark.parametrize("lengths", [(0, 1, 2), (2, 1, 3), (1, 3, 2), (1, 1, 2**31)])
def test_a_range_must_rise(lengths: tuple[int, int, int]) -> None:
    with pytest.raises(EngineInputError, match="profile"):
        DimRange(*lengths)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("compute_capability", {"compute_capabilities": ("sm_89",)}),
        ("workspace_bytes", {"workspace_bytes": 10}),
        ("optimization_level", {"optimization_level": 6}),
        ("profile", {"profiles": tuple({"batch": DimRange(1, 1, n)} for n in range(1, 18))}),
    ],
)
def test_an_option_out_of_bounds_is_named(field: str, value: dict[str, object]) -> None:
    with pytest.raises(EngineInputError, match=field):
        replace(OPTIONS, **value)
