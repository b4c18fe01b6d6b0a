"""Find the fewest layers that must stay in FP32 for the accuracy gate to pass.

Promises: the returned set passed the gate, or the search says that none does; layers are ranked by
the damage each does alone; about `layers + 2 log2(layers)` evaluations, told to `progress` as they
happen. Refuses an empty list of layers. Called by `forecrest engine build --search`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from engines.errors import EngineInputError
from engines.validation import GateReport

# Makes the candidate that keeps these layers in FP32, and judges it.
Evaluate = Callable[[frozenset[str]], GateReport]
Progress = Callable[[str, int, int], None]  # what happens, steps done, steps in all


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerDamage:
    """How far over budget a model is in which this layer alone is lowered; under 0 is within."""

    layer: str
    excess: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchResult:
    """Outcome. `kept` passed the gate if `report.is_passed`; otherwise keeping every layer did not help."""

    kept: tuple[str, ...]
    report: GateReport
    ranking: tuple[LayerDamage, ...]
    evaluation_count: int


def search(layers: Sequence[str], evaluate: Evaluate, progress: Progress) -> SearchResult:
    """Lower as many of `layers` as the gate allows, the least harmful first.

    The gate is taken to be monotone: keeping more layers does not make it fail. Where it is not, the
    result still passed, it is only not the smallest.

    Raises:
        EngineInputError: no layers.
    """
    if not layers:
        raise EngineInputError("model", "no layer can be lowered", "choose another precision")
    total = 1 + len(layers) + 2 * len(layers).bit_length()
    count = 0

    def tried(kept: frozenset[str], what: str) -> GateReport:
        nonlocal count
        report = evaluate(kept)
        count += 1
        progress(what, min(count, total), total)
        return report

    report = tried(frozenset(), "all layers lowered")
    if report.is_passed:
        return SearchResult(kept=(), report=report, ranking=(), evaluation_count=count)
    everything = frozenset(layers)
    damage = [
        LayerDamage(layer=layer, excess=tried(everything - {layer}, f"{layer} alone").excess)
        for layer in layers
    ]
    # Position decides between equals, so that the same model always keeps the same layers.
    ranking = sorted(damage, key=lambda one: (-one.excess, layers.index(one.layer)))
    worst = [one.layer for one in ranking]
    # How many of the worst must be kept: more than `low`, and `high` is enough.
    low, high, passed = 0, 1, None
    while True:
        report = tried(frozenset(worst[:high]), f"the {high} worst kept")
        if report.is_passed:
            passed = report
            break
        if high == len(worst):
            break
        low, high = high, min(2 * high, len(worst))
    while passed is not None and high - low > 1:
        middle = (low + high) // 2
        report = tried(frozenset(worst[:middle]), f"the {middle} worst kept")
        if report.is_passed:
            high, passed = middle, report
        else:
            low = middle
    progress("done", total, total)
    return SearchResult(
        kept=tuple(worst[:high]), report=passed or report, ranking=tuple(ranking), evaluation_count=count
    )
