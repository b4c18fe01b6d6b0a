"""Builds examples into a catalogue, as the command line does."""

import getpass
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from controller.adapters.clock import SystemClock
from engines.builder import Builder, builder_for
from engines.catalog import Catalog
from engines.examples import Example
from engines.pipeline import BuildOutcome, BuildRequest, build
from engines.types import BuildOptions, DimRange, Precision, Profile, RuntimeKind
from engines.validation import GateReport

NOW = datetime(2026, 11, 11, tzinfo=UTC)
PASSED = GateReport(
    is_passed=True,
    reasons=(),
    ran="nothing",
    reference="nothing",
    sample_count=1,
    validation_digest="sha256:0",
    results=(),
)


def quiet(what: str, done: int, total: int) -> None:
    assert 0 <= done <= total, what


def profiles_of(name: str) -> tuple[Profile, ...]:
    return ({"batch": DimRange(1, 8, 64), "length": DimRange(1, 32, 64)},) if name == "transformer" else ()


@dataclass(frozen=True)
class Workshop:
    catalog: Catalog
    examples: dict[str, Example]
    folder: Path

    def build(
        self,
        name: str,
        precision: Precision = Precision.FP32,
        runtime: RuntimeKind = RuntimeKind.ONNX_RUNTIME,
        *,
        model_name: str | None = None,
        request: Callable[[BuildRequest], BuildRequest] = lambda r: r,
        catalog: Catalog | None = None,
        builder: Builder | None = None,
        now: datetime = NOW,
        **options: Any,  # noqa: ANN401 - whatever build options there are
    ) -> BuildOutcome:
        """Build one example; `request` may change what is asked for, `options` are build options."""
        example = self.examples[name]
        path = self.folder / f"{name}.onnx"
        path.write_bytes(example.model.SerializeToString(deterministic=True))
        made = BuildOptions(
            runtime=runtime, precision=precision, **{"profiles": profiles_of(name), **options}
        )
        asked = BuildRequest(
            model_path=path,
            model_name=model_name or name,
            options=made,
            calibration=example.calibration if precision.is_quantised else None,
            validation=example.validation,
        )
        return build(
            request(asked),
            builder or builder_for(runtime),
            catalog or self.catalog,
            by=getpass.getuser(),
            now=lambda: now,
            monotonic=SystemClock().monotonic,
            progress=quiet,
        )

    def admit(
        self,
        name: str,
        precision: Precision = Precision.FP32,
        *,
        catalog: Catalog | None = None,
        **options: Any,  # noqa: ANN401 - as above
    ) -> str:
        """Build one and record that it passed, without judging it: for tests of what comes after."""

        def unjudged(request: BuildRequest) -> BuildRequest:
            return replace(request, validation=None)

        made = self.build(name, precision, catalog=catalog, request=unjudged, **options).engine.manifest
        (catalog or self.catalog).record_gate(name, made.engine_id, PASSED, page="", at=NOW, by="a test")
        return made.engine_id
