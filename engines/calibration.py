"""Look at a calibration set before INT8 scales are taken from it.

Promises: findings with a severity and a sentence, in a fixed order: too few samples, a part of the
validation inputs outside what calibration saw, drift between the two, long tails. An ERROR means that
scales from this set cannot be trusted; the pipeline refuses it unless told otherwise. Refuses sets of
different models. Pure. Called by the pipeline and the accuracy gate.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from engines.datasets import Array, Dataset
from engines.errors import EngineInputError

SAMPLES_MIN, SAMPLES_GOOD = 32, 256
# Share of validation values outside the calibrated range, per feature.
OUTSIDE_WARNING, OUTSIDE_ERROR = 0.02, 0.05
# Population stability index: under 0.1 is the same population, over 0.25 another one, by convention.
PSI_WARNING, PSI_ERROR = 0.1, 0.25
# Largest magnitude over its 99th percentile: beyond it, a few outliers set the scale for all.
TAIL_WARNING = 4.0
_BINS = 10
# A feature is a column of an input; wider inputs (images, texts) count as one feature.
_FEATURES_MAX = 256


class Severity(StrEnum):
    """How bad a finding is."""

    WARNING = "WARNING"
    ERROR = "ERROR"


class FindingKind(StrEnum):
    """What was found."""

    TOO_FEW_SAMPLES = "TOO_FEW_SAMPLES"
    NOT_COVERED = "NOT_COVERED"  # validation values outside the calibrated range
    DRIFT = "DRIFT"  # the two sets are distributed differently
    LONG_TAIL = "LONG_TAIL"  # rare large values
    CONSTANT = "CONSTANT"  # a feature without variation in calibration, though validation varies


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One finding; `subject` is the input or its feature, `value` what was measured, `limit` what is allowed."""

    kind: FindingKind
    severity: Severity
    subject: str
    value: float
    limit: float
    sentence: str


def check_calibration(calibration: Dataset, validation: Dataset | None = None) -> tuple[Finding, ...]:
    """Findings about a calibration set, against a validation set where there is one."""
    if validation is not None and set(calibration.inputs) != set(validation.inputs):
        raise EngineInputError(
            "calibration",
            f"holds {sorted(calibration.inputs)}, validation {sorted(validation.inputs)}",
            "take both from the same model's traffic",
        )
    found = list(_size(calibration))
    for name, array in sorted(calibration.inputs.items()):
        others = None if validation is None else validation.inputs[name]
        if others is not None and others.shape[1:] != array.shape[1:] and array[0].size <= _FEATURES_MAX:
            others = others.reshape(-1, 1)
            array = array.reshape(-1, 1)  # noqa: PLW2901 - lengths differ: compared as one feature
        for feature, seen, judged in _features(name, array, others):
            found.extend(_feature_findings(feature, seen, judged, is_id=array.dtype.kind in "iu"))
    return tuple(found)


def errors_in(findings: tuple[Finding, ...]) -> tuple[Finding, ...]:
    """The findings that forbid using the set."""
    return tuple(finding for finding in findings if finding.severity is Severity.ERROR)


def _size(calibration: Dataset) -> Iterator[Finding]:
    count = calibration.sample_count
    if count < SAMPLES_GOOD:
        severity = Severity.ERROR if count < SAMPLES_MIN else Severity.WARNING
        limit = SAMPLES_MIN if severity is Severity.ERROR else SAMPLES_GOOD
        yield Finding(
            kind=FindingKind.TOO_FEW_SAMPLES,
            severity=severity,
            subject="calibration",
            value=count,
            limit=limit,
            sentence=f"{count} samples; thresholds settle from about {SAMPLES_GOOD}, under {SAMPLES_MIN} they are chance.",
        )


def _features(name: str, array: Array, others: Array | None) -> Iterator[tuple[str, Array, Array | None]]:
    """Columns of a narrow float input each for itself; anything else as one feature."""
    width = array[0].size
    if array.ndim == 2 and 1 < width <= _FEATURES_MAX and array.dtype.kind == "f":
        for column in range(width):
            yield f"{name}[{column}]", array[:, column], None if others is None else others[:, column]
    else:
        yield name, array.ravel(), None if others is None else others.ravel()


def _feature_findings(subject: str, seen: Array, judged: Array | None, *, is_id: bool) -> Iterator[Finding]:
    if not is_id:
        yield from _tail(subject, seen)
    if judged is None:
        return
    low, high = seen.min(), seen.max()
    if low == high:
        if (judged != low).any():
            yield Finding(
                kind=FindingKind.CONSTANT,
                severity=Severity.ERROR,
                subject=subject,
                value=float(low),
                limit=float(low),
                sentence=f"{subject} is always {low:g} in calibration and varies in validation.",
            )
        return
    if not is_id:
        outside = float(((judged < low) | (judged > high)).mean())
        yield from _judge(
            FindingKind.NOT_COVERED,
            subject,
            outside,
            (OUTSIDE_WARNING, OUTSIDE_ERROR),
            f"{100 * outside:.1f} % of {subject} in validation lie outside calibration's {low:.4g} to {high:.4g}"
            " and would be clipped.",
        )
    index = psi(seen, judged)
    yield from _judge(
        FindingKind.DRIFT,
        subject,
        index,
        (PSI_WARNING, PSI_ERROR),
        f"{subject} is distributed differently in validation: stability index {index:.2f}.",
    )


def _judge(
    kind: FindingKind, subject: str, value: float, limits: tuple[float, float], sentence: str
) -> Iterator[Finding]:
    warning, error = limits
    if value > warning:
        severity = Severity.ERROR if value > error else Severity.WARNING
        limit = error if severity is Severity.ERROR else warning
        yield Finding(
            kind=kind, severity=severity, subject=subject, value=value, limit=limit, sentence=sentence
        )


def _tail(subject: str, seen: Array) -> Iterator[Finding]:
    size = np.abs(seen)
    usual = float(np.quantile(size, 0.99))
    ratio = float(size.max()) / usual if usual > 0 else 1.0
    if ratio > TAIL_WARNING:
        yield Finding(
            kind=FindingKind.LONG_TAIL,
            severity=Severity.WARNING,
            subject=subject,
            value=ratio,
            limit=TAIL_WARNING,
            sentence=f"{subject} reaches {ratio:.1f} times its 99th percentile; INT8 must clip it or lose resolution.",
        )


def psi(expected: Array, actual: Array) -> float:
    """Population stability index between two samples, over bins that hold equal shares of the first.

    0 for equal distributions. Both sides get half a sample per bin, so that empty bins stay finite and
    small samples do not look like drift by chance alone.
    """
    edges = np.unique(np.quantile(expected, np.linspace(0, 1, _BINS + 1)[1:-1]))
    bins = len(edges) + 1
    shares = [
        (np.bincount(np.searchsorted(edges, sample, side="left"), minlength=bins) + 0.5)
        / (sample.size + bins / 2)
        for sample in (expected, actual)
    ]
    return float(((shares[1] - shares[0]) * np.log(shares[1] / shares[0])).sum())
