# ruff: noqa: INP001 -- a script beside what it writes; docs/ is no package
"""Write ``docs/reference/*.md``, the API reference, from the comments of the protos; with ``--check``, report drift.

Promises: every service, method, message, field and enum value with its comment, types linked; the output depends on the
.proto files only. Refuses to run without the development dependencies. Run by hand after ``make proto``; a test runs
``--check``.
"""

import argparse
import importlib.resources
import re
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from google.protobuf.descriptor_pb2 import (
    DescriptorProto,
    EnumDescriptorProto,
    FieldDescriptorProto,
    FileDescriptorProto,
    FileDescriptorSet,
    ServiceDescriptorProto,
)
from grpc_tools import protoc

ROOT = Path(__file__).resolve().parents[1]
OUT = ROOT / "docs" / "reference"
PACKAGES = ("forecrest/v1", "forecrest/keda")
# Numbers of fields in the descriptors' own messages, which a path to a comment is made of.
MESSAGE, ENUM, SERVICE, FIELD, NESTED, NESTED_ENUM, INNER = 4, 5, 6, 2, 3, 4, 2
TITLES = {
    "audit": "Audit",
    "control": "Control: plans, decisions, overrides, pauses",
    "engine": "Engines",
    "event": "Traffic events",
    "externalscaler": "KEDA external scaler",
    "forecast": "Forecasts and history",
    "notification": "Notifications",
    "telemetry": "Telemetry",
    "workload": "Workloads",
}
_SCALARS = {
    value.number: name.removeprefix("TYPE_").lower()
    for name, value in FieldDescriptorProto.Type.DESCRIPTOR.values_by_name.items()
}
Comments = Mapping[tuple[int, ...], str]


def descriptors() -> Sequence[FileDescriptorProto]:
    """The protos with their comments."""
    sources = [
        path.relative_to(ROOT / "proto").as_posix()
        for package in PACKAGES
        for path in sorted((ROOT / "proto" / package).glob("*.proto"))
    ]
    well_known = importlib.resources.files("grpc_tools") / "_proto"
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "set.binpb"
        command = ["protoc", f"-I{ROOT / 'proto'}", f"-I{well_known}", "--include_source_info"]
        if protoc.main([*command, f"--descriptor_set_out={out}", *sources]) != 0:
            raise SystemExit("protoc failed; its message is above")
        return FileDescriptorSet.FromString(out.read_bytes()).file


def page_of(file: FileDescriptorProto) -> str:
    """Name of the page that a file's parts are on: those of a resource and of its service share one."""
    return Path(file.name).stem.removesuffix("_service")


class Reference:
    """All pages; knows where each type is described."""

    def __init__(self, files: Sequence[FileDescriptorProto]) -> None:
        self._files = files
        self._pages: dict[str, str] = {}
        for file in files:
            for message in file.message_type:
                self._place(f".{file.package}.{message.name}", message, page_of(file))
            for enum in file.enum_type:
                self._pages[f".{file.package}.{enum.name}"] = page_of(file)

    def _place(self, name: str, message: DescriptorProto, page: str) -> None:
        self._pages[name] = page
        for enum in message.enum_type:
            self._pages[f"{name}.{enum.name}"] = page
        for nested in message.nested_type:
            self._place(f"{name}.{nested.name}", nested, page)

    def pages(self) -> dict[str, str]:
        """Text of each page by its name."""
        found: dict[str, str] = {}
        for page in sorted({page_of(file) for file in self._files}):
            files = [file for file in self._files if page_of(file) == page]
            lines = [
                f"# {TITLES.get(page, page.capitalize())}",
                "",
                f"Generated from {_and(sorted(file.name for file in files))} by `docs/generate_api.py`; do not edit.",
                "What holds for every method stands in [the API](../api.md).",
                "",
            ]
            for part in (self._services, self._messages, self._enums):
                for file in files:
                    said = {
                        tuple(at.path): at.leading_comments.strip() for at in file.source_code_info.location
                    }
                    lines += part(page, file, said)
            found[page] = "\n".join(lines).rstrip() + "\n"
        return found

    def _services(self, page: str, file: FileDescriptorProto, said: Comments) -> Iterator[str]:
        for number, service in enumerate(file.service):
            yield from (f"## {service.name}", "", _prose(said.get((SERVICE, number), "")), "")
            yield from self._methods(page, service, (SERVICE, number), said)

    def _methods(
        self, page: str, service: ServiceDescriptorProto, path: tuple[int, ...], said: Comments
    ) -> Iterator[str]:
        for number, method in enumerate(service.method):
            asked, answered = self._link(method.input_type, page), self._link(method.output_type, page)
            asked = f"stream of {asked}" if method.client_streaming else asked
            answered = f"stream of {answered}" if method.server_streaming else answered
            yield from (f"### {method.name}", "", f"{asked} → {answered}", "")
            yield from (_prose(said.get((*path, INNER, number), "")), "")

    def _messages(self, page: str, file: FileDescriptorProto, said: Comments) -> Iterator[str]:
        for number, message in enumerate(file.message_type):
            yield from self._message(page, message, message.name, (MESSAGE, number), said)

    def _message(
        self, page: str, message: DescriptorProto, name: str, path: tuple[int, ...], said: Comments
    ) -> Iterator[str]:
        if message.options.map_entry:
            return
        yield from (f"## {name}", "", _prose(said.get(path, "")), "")
        if message.field:
            yield from ("| field | type | meaning |", "|---|---|---|")
        for number, field in enumerate(message.field):
            kind = self._type(field, message, page)
            oneof = ""
            if field.HasField("oneof_index") and not field.proto3_optional:
                oneof = f"One of `{message.oneof_decl[field.oneof_index].name}`. "
            meaning = _cell(oneof + said.get((*path, FIELD, number), ""))
            yield f"| `{field.name}` | {kind} | {meaning} |"
        yield ""
        for number, nested in enumerate(message.nested_type):
            inner = (*path, NESTED, number)
            yield from self._message(page, nested, f"{name}.{nested.name}", inner, said)
        for number, enum in enumerate(message.enum_type):
            yield from _enum(enum, f"{name}.{enum.name}", (*path, NESTED_ENUM, number), said)

    def _enums(self, _: str, file: FileDescriptorProto, said: Comments) -> Iterator[str]:
        for number, enum in enumerate(file.enum_type):
            yield from _enum(enum, enum.name, (ENUM, number), said)

    def _type(self, field: FieldDescriptorProto, message: DescriptorProto, page: str) -> str:
        kind = self._link(field.type_name, page) if field.type_name else _SCALARS[field.type]
        if field.label != FieldDescriptorProto.LABEL_REPEATED:
            return f"optional {kind}" if field.proto3_optional else kind
        for nested in message.nested_type:
            if nested.options.map_entry and field.type_name.endswith(f".{message.name}.{nested.name}"):
                key, value = (self._type(one, nested, page) for one in nested.field)
                return f"map of {key} to {value}"
        return f"repeated {kind}"

    def _link(self, full_name: str, page: str) -> str:
        there = self._pages.get(full_name)
        # Below the package begins the name of a type, which may be nested.
        name = re.sub(r"^\.[a-z0-9_.]+\.(?=[A-Z])", "", full_name)
        if there is None:
            return name
        anchor = "#" + re.sub(r"[^a-z0-9_-]", "", name.lower())
        return f"[{name}]({anchor if there == page else f'{there}.md{anchor}'})"


def _enum(enum: EnumDescriptorProto, name: str, path: tuple[int, ...], said: Comments) -> Iterator[str]:
    yield from (
        f"## {name}",
        "",
        _prose(said.get(path, "")),
        "",
        "| value | number | meaning |",
        "|---|---|---|",
    )
    for number, value in enumerate(enum.value):
        yield f"| `{value.name}` | {value.number} | {_cell(said.get((*path, INNER, number), ''))} |"
    yield ""


def _and(names: Sequence[str]) -> str:
    return " and ".join(f"`{name}`" for name in names)


def _prose(comment: str) -> str:
    """A comment's paragraphs; what looks like HTML is text."""
    joined = "\n\n".join(
        " ".join(line.strip() for line in paragraph.splitlines()) for paragraph in comment.split("\n\n")
    )
    return joined.replace("<", "&lt;") or "—"


def _cell(comment: str) -> str:
    return _prose(comment).replace("|", "\\|").replace("\n\n", "<br>")


def main() -> int:
    """Return 0 if the pages are (now) what the protos say, else 1."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--check", action="store_true", help="change nothing; fail if a page is out of date")
    check: bool = parser.parse_args().check
    fresh = {f"{name}.md": text for name, text in Reference(descriptors()).pages().items()}
    OUT.mkdir(exist_ok=True)
    present = {path.name: path.read_text() for path in OUT.glob("*.md")}
    stale = sorted(name for name in fresh.keys() | present.keys() if fresh.get(name) != present.get(name))
    for name in stale:
        if check:
            sys.stderr.write(f"docs/reference/{name} is out of date; run `python docs/generate_api.py`\n")
        elif name in fresh:
            (OUT / name).write_text(fresh[name])
        else:
            (OUT / name).unlink()
    return 1 if check and stale else 0


if __name__ == "__main__":
    sys.exit(main())
