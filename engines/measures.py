"""How far a candidate's answers lie from the reference's, numerically and in terms of the business. Pure.

Promises: every measure is a named function with one meaning of better; what cannot be measured raises
and is never reported as 0. Refuses outputs that disagree in shape. A measure of the user's own is
`module:function`, called with (reference, candidate, labels). Called by the accuracy gate.

| measure | better | meaning |
|---|---|---|
| `abs_error_max`, `abs_error_mean` | lower | absolute difference, of any value and on average |
| `rel_error` | lower | root mean square of the difference over that of the reference |
| `cosine_min` | higher | cosine between the two answers to a sample, for the worst sample |
| `topk_agreement@K` | higher | share of the reference's K highest that the candidate's K highest hold |
| `auc_drop` | lower | area under the ROC curve: reference's less candidate's |
| `ndcg_drop@K` | lower | NDCG of the K highest: reference's less candidate's |
| `accuracy_drop` | lower | share of samples whose highest class is the label: reference's less candidate's |
"""

import importlib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from engines.datasets import Array
from engines.errors import EngineInputError
from engines.types import Precision

Outputs = Mapping[str, Array]
Floats = NDArray[np.float64]
_BUDGET = re.compile(r"\s*([\w.:@]+)\s*(<=|>=)\s*([-+0-9.eE]+)\s*")


@dataclass(frozen=True, slots=True)
class Budget:
    """The limit of one measure."""

    measure: str
    limit: float
    is_upper: bool  # True: the value must stay at or under the limit

    def __str__(self) -> str:
        """The form `parse_budget` reads."""
        return f"{self.measure}{'<=' if self.is_upper else '>='}{self.limit:g}"

    def holds(self, value: float) -> bool:
        """Whether a value is within; one that is not finite never is."""
        return bool(np.isfinite(value)) and (value <= self.limit if self.is_upper else value >= self.limit)

    def excess(self, value: float) -> float:
        """How far a value is beyond the limit, in limits; negative within, infinite where not finite."""
        if not np.isfinite(value):
            return float("inf")
        beyond = value - self.limit if self.is_upper else self.limit - value
        # What a similarity may lose is the distance to 1, not the limit itself.
        scale = abs(self.limit) if self.is_upper else abs(1 - self.limit)
        return beyond / max(scale, 1e-9)


@dataclass(frozen=True, slots=True)
class Measured:
    """One measure of one comparison; `detail` shows both sides where there are two."""

    value: float
    detail: str = ""


Measure = Callable[[Outputs, Outputs, Array | None], Measured]


def parse_budget(text: str) -> Budget:
    """Read `auc_drop<=0.002` or `my_package.metrics:regret<=0.1`.

    Raises:
        EngineInputError: not of this form, or a measure that does not exist.
    """
    found = _BUDGET.fullmatch(text)
    try:
        limit = float(found[3]) if found else float("nan")
    except ValueError:
        limit = float("nan")
    if found is None or not np.isfinite(limit):
        raise EngineInputError("budget", f"{text!r} is none", "write measure<=limit or measure>=limit")
    find_measure(found[1])
    return Budget(found[1], limit, found[2] == "<=")


def find_measure(name: str) -> Measure:
    """The function behind a name of the table above, or behind `module:function`.

    Raises:
        EngineInputError: there is none.
    """
    if ":" in name:
        return _own_measure(name)
    base, _, count = name.partition("@")
    if count and base in _RANKED and count.isdecimal() and 1 <= int(count) <= 1000:
        return lambda reference, candidate, labels: _RANKED[base](reference, candidate, labels, int(count))
    if not count and base in _PLAIN:
        return _PLAIN[base]
    known = [*_PLAIN, *(f"{one}@K" for one in _RANKED)]
    raise EngineInputError(
        "budget", f"measure {name!r} is unknown", f"use {', '.join(known)} or module:function"
    )


def _own_measure(name: str) -> Measure:
    module, _, function = name.partition(":")
    try:
        call = getattr(importlib.import_module(module), function)
    except (ImportError, AttributeError, ValueError) as error:
        raise EngineInputError(
            "budget",
            f"{name!r} cannot be imported: {error}",
            "name an importable module and a function in it",
        ) from error

    def measure(reference: Outputs, candidate: Outputs, labels: Array | None) -> Measured:
        return Measured(float(call(reference, candidate, labels)))

    return measure


def default_budgets(precision: Precision, outputs: Outputs, labels: Array | None) -> tuple[Budget, ...]:
    """What a converted model must hold where nobody says otherwise, by precision and kind of labels."""
    rel_error, cosine, agreement = {
        Precision.FP32: (1e-3, 0.9999, 0.999),
        Precision.FP16: (0.01, 0.999, 0.99),
        Precision.BF16: (0.05, 0.99, 0.95),
        Precision.INT8: (0.1, 0.97, 0.9),
        Precision.INT8_FP16: (0.1, 0.97, 0.9),
    }[precision]
    texts = [f"rel_error<={rel_error}", f"cosine_min>={cosine}"]
    scores = next(iter(outputs.values()))
    if scores.ndim == 2 and scores.shape[-1] > 1:
        is_ranking = labels is not None and labels.shape == scores.shape
        top = min(3, scores.shape[-1]) if is_ranking else 1
        texts.append(f"topk_agreement@{top}>={agreement}")
        if is_ranking:
            texts += ["auc_drop<=0.005", f"ndcg_drop@{top}<=0.01"]
        elif labels is not None and labels.ndim == 1:
            texts.append("accuracy_drop<=0.02")
    return tuple(parse_budget(text) for text in texts)


def _pairs(reference: Outputs, candidate: Outputs) -> list[tuple[Floats, Floats]]:
    """Both sides of every output, [samples, values] in float64."""
    made: list[tuple[Floats, Floats]] = []
    for name, expected in reference.items():
        actual = candidate.get(name)
        if actual is None or actual.shape != expected.shape:
            shape = None if actual is None else actual.shape
            raise EngineInputError(
                f"output.{name}",
                f"has shape {shape}, the reference {expected.shape}",
                "compare one model with itself",
            )
        flat = len(expected), -1
        made.append((expected.reshape(flat).astype(np.float64), actual.reshape(flat).astype(np.float64)))
    return made


def _abs_error_max(reference: Outputs, candidate: Outputs, _: Array | None) -> Measured:
    return Measured(max(float(np.abs(c - r).max()) for r, c in _pairs(reference, candidate)))


def _abs_error_mean(reference: Outputs, candidate: Outputs, _: Array | None) -> Measured:
    return Measured(max(float(np.abs(c - r).mean()) for r, c in _pairs(reference, candidate)))


def relative_error(reference: NDArray[np.floating], candidate: NDArray[np.floating]) -> float:
    """Root mean square of the difference over that of the reference; a reference of zeros counts as 1."""
    size = float(np.sqrt(np.mean(np.square(reference, dtype=np.float64))))
    difference = np.asarray(candidate, np.float64) - reference
    return float(np.sqrt(np.mean(np.square(difference)))) / (size or 1.0)


def _rel_error(reference: Outputs, candidate: Outputs, _: Array | None) -> Measured:
    return Measured(max(relative_error(r, c) for r, c in _pairs(reference, candidate)))


def _cosine_min(reference: Outputs, candidate: Outputs, _: Array | None) -> Measured:
    def worst(r: Floats, c: Floats) -> float:
        lengths = np.linalg.norm(r, axis=1) * np.linalg.norm(c, axis=1)
        # Two zero vectors agree; one zero vector agrees with nothing.
        same = np.all(r == c, axis=1)
        safe = np.where(lengths > 0, lengths, 1.0)
        return float(np.where(same, 1.0, (r * c).sum(axis=1) / safe).min())

    return Measured(min(worst(r, c) for r, c in _pairs(reference, candidate)))


def _first(reference: Outputs, candidate: Outputs) -> tuple[Floats, Floats]:
    """The first output of both: business measures speak of one score per choice."""
    r, c = _pairs(dict([next(iter(reference.items()))]), candidate)[0]
    return r, c


def _topk_agreement(reference: Outputs, candidate: Outputs, _: Array | None, count: int) -> Measured:
    r, c = _first(reference, candidate)
    if count > r.shape[1]:
        raise EngineInputError("budget", f"topk_agreement@{count}", f"the model offers {r.shape[1]} choices")
    chosen = np.argsort(-r, axis=1, kind="stable")[:, :count]
    offered = np.argsort(-c, axis=1, kind="stable")[:, :count]
    shared = (chosen[:, :, None] == offered[:, None, :]).any(axis=2)
    return Measured(float(shared.mean()))


def _labels_like(labels: Array | None, scores: Floats, measure: str) -> Array:
    if labels is None or labels.reshape(len(labels), -1).shape != scores.shape:
        shape = None if labels is None else labels.shape
        raise EngineInputError(
            "validation.labels", f"{measure} needs one per score, {scores.shape}, and has {shape}", "add them"
        )
    return labels.reshape(scores.shape)


def auc(labels: Array, scores: Floats) -> float:
    """Area under the ROC curve over all scores, ties counted half.

    Raises:
        EngineInputError: labels of one kind only.
    """
    positive = labels.ravel() > 0
    count = int(positive.sum())
    if not 0 < count < positive.size:
        raise EngineInputError(
            "validation.labels", "AUC needs positives and negatives", "add the missing kind"
        )
    _, group, sizes = np.unique(scores.ravel(), return_inverse=True, return_counts=True)
    ranks = (np.cumsum(sizes) - (sizes - 1) / 2)[group]  # equal scores share their mean rank
    return float((ranks[positive].sum() - count * (count + 1) / 2) / (count * (positive.size - count)))


def ndcg(labels: Array, scores: Floats, count: int) -> float:
    """Mean NDCG of the `count` highest scores per row; rows without any gain are left out.

    Raises:
        EngineInputError: no row has a gain.
    """
    gains = 2.0 ** np.asarray(labels, np.float64) - 1
    discounts = 1 / np.log2(np.arange(2, min(count, gains.shape[1]) + 2))

    def total(order: NDArray[np.intp]) -> Floats:
        top = np.take_along_axis(gains, order, axis=1)[:, : len(discounts)]
        return np.asarray((top * discounts).sum(axis=1))

    ideal = total(np.argsort(-gains, axis=1, kind="stable"))
    has_gain = ideal > 0
    if not has_gain.any():
        raise EngineInputError("validation.labels", "NDCG needs a positive label", "add some")
    return float((total(np.argsort(-scores, axis=1, kind="stable"))[has_gain] / ideal[has_gain]).mean())


def _auc_drop(reference: Outputs, candidate: Outputs, labels: Array | None) -> Measured:
    r, c = _first(reference, candidate)
    known = _labels_like(labels, r, "auc_drop")
    return _drop(auc(known, r), auc(known, c))


def _ndcg_drop(reference: Outputs, candidate: Outputs, labels: Array | None, count: int) -> Measured:
    r, c = _first(reference, candidate)
    known = _labels_like(labels, r, "ndcg_drop")
    return _drop(ndcg(known, r, count), ndcg(known, c, count))


def _accuracy_drop(reference: Outputs, candidate: Outputs, labels: Array | None) -> Measured:
    r, c = _first(reference, candidate)
    if labels is None or labels.shape != (len(r),):
        raise EngineInputError("validation.labels", "accuracy_drop needs one class per sample", "add them")
    return _drop(float((r.argmax(axis=1) == labels).mean()), float((c.argmax(axis=1) == labels).mean()))


def _drop(before: float, after: float) -> Measured:
    return Measured(before - after, f"{before:.4f} to {after:.4f}")


_PLAIN: dict[str, Measure] = {
    "abs_error_max": _abs_error_max,
    "abs_error_mean": _abs_error_mean,
    "rel_error": _rel_error,
    "cosine_min": _cosine_min,
    "auc_drop": _auc_drop,
    "accuracy_drop": _accuracy_drop,
}
_RANKED: dict[str, Callable[[Outputs, Outputs, Array | None, int], Measured]] = {
    "topk_agreement": _topk_agreement,
    "ndcg_drop": _ndcg_drop,
}
