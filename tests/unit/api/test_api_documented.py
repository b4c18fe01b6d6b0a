"""Every message field is documented and mapped; a golden copy of the public names stands beside the protos."""

import importlib.resources
from pathlib import Path

import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorProto, FileDescriptorSet
from grpc_tools import protoc

from controller.api.mappers import SHAPES
from controller.api.server import SERVICES

PROTO = Path(__file__).resolve().parents[3] / "proto"
# Paths in a descriptor: message 4, enum 5, service 6; below a message: field 2, nested 3, oneof 8.
MESSAGES, ENUMS, PROTO_SERVICES = 4, 5, 6


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[FileDescriptorProto]:
    out = tmp_path_factory.mktemp("descriptors") / "set.pb"
    sources = sorted(str(p.relative_to(PROTO)) for p in (PROTO / "forecrest/v1").glob("*.proto"))
    well_known = importlib.resources.files("grpc_tools") / "_proto"
    arguments = [
        "protoc",
        f"-I{PROTO}",
        f"-I{well_known}",
        "--include_source_info",
        f"--descriptor_set_out={out}",
    ]
    assert protoc.main([*arguments, *sources]) == 0
    return list(FileDescriptorSet.FromString(out.read_bytes()).file)


def comments(file: FileDescriptorProto) -> dict[tuple[int, ...], str]:
    return {tuple(loc.path): loc.leading_comments.strip() for loc in file.source_code_info.location}


def test_every_message_field_and_method_says_what_it_is(files: list[FileDescriptorProto]) -> None:
    bare: list[str] = []
    for file in files:
        said = comments(file)
        for m, message in enumerate(file.message_type):
            bare += [message.name] if not said.get((MESSAGES, m)) else []
            bare += [
                f"{message.name}.{field.name}"
                for f, field in enumerate(message.field)
                if not said.get((MESSAGES, m, 2, f))
            ]
        for s, service in enumerate(file.service):
            bare += [
                f"{service.name}.{method.name}"
                for i, method in enumerate(service.method)
                if not said.get((PROTO_SERVICES, s, 2, i))
            ]

    assert bare == []


def test_comments_state_a_unit_for_every_duration_in_seconds_or_milliseconds(
    files: list[FileDescriptorProto],
) -> None:
    vague = [
        f"{message.name}.{field.name}"
        for file in files
        for m, message in enumerate(file.message_type)
        for f, field in enumerate(message.field)
        if field.name.endswith(("_s", "_ms", "_ms_p99"))
        and "second" not in comments(file)[(MESSAGES, m, 2, f)]
    ]

    assert vague == []


def test_enums_are_zero_for_unspecified_and_bear_their_name(files: list[FileDescriptorProto]) -> None:
    odd = [
        value.name
        for file in files
        for enum in file.enum_type
        for value in enum.value
        if (value.number == 0) != value.name.endswith("_UNSPECIFIED")
    ]

    assert odd == []


def test_every_field_of_every_mapped_type_is_paired() -> None:
    assert SHAPES.unpaired() == []


def test_every_service_of_the_protos_is_served(files: list[FileDescriptorProto]) -> None:
    defined = {f"{file.package}.{service.name}" for file in files for service in file.service}

    assert set(SERVICES) == defined


def test_every_method_has_a_servicer_of_our_own() -> None:
    from controller.api import control, engines, events, forecasts, telemetry, workloads

    servicers = (
        control.ControlServicer,
        engines.EngineServicer,
        events.EventServicer,
        forecasts.ForecastServicer,
        telemetry.TelemetryServicer,
        workloads.WorkloadServicer,
    )
    # A method left to the generated base class would answer UNIMPLEMENTED.
    inherited = [
        f"{servicer.__name__}.{name}"
        for servicer in servicers
        for base in servicer.__mro__[1:2]
        for name in vars(base)
        if not name.startswith("_") and name not in vars(servicer)
    ]

    assert inherited == []
