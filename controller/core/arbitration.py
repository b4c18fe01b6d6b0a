"""Merge recommendations into one count. Pure: no clock, no I/O, no logging.

Veto beats floors, floors beat SET, ceilings beat both; among SETs the highest priority wins; with no SET
the current count stays. A floor above the ceiling ends at the ceiling and is reported as limited. Abstaining
changes nothing, and the order of recommendations never matters.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from controller.core.types import Recommendation, RecommendationKind, Source

_VETO, _ABSTAIN = RecommendationKind.VETO, RecommendationKind.ABSTAIN
_AT_LEAST, _AT_MOST = RecommendationKind.AT_LEAST, RecommendationKind.AT_MOST
_RANK = {source: rank for rank, source in enumerate(Source)}


@dataclass(frozen=True, slots=True)
class Arbitration:
    """The merged count, and which recommendation bound it."""

    replicas: int
    binding: Recommendation | None  # None: nobody spoke, the current count stays
    vetoed: bool
    floor: int  # what behavior may not go under, already cut at the ceiling
    ceiling: int | None
    limited_from: int | None  # the count before the ceiling cut it
    capped_by: Recommendation | None = None  # whose ceiling it is


def _strongest(recommendations: Sequence[Recommendation]) -> Recommendation:
    if len(recommendations) == 1:
        return recommendations[0]
    # Equal opinions are explained by the first source in the enum, so that input order never matters.
    return min(recommendations, key=lambda r: (_RANK[r.source], r.sentence, -r.priority))


def arbitrate(recommendations: Sequence[Recommendation], current: int) -> Arbitration:
    """Merge ``recommendations`` over the ``current`` count (our own last decision)."""
    vetoes: list[Recommendation] = []
    sets: list[tuple[int, Recommendation]] = []
    floors: list[tuple[int, Recommendation]] = []
    ceilings: list[tuple[int, Recommendation]] = []
    for r in recommendations:
        kind, count = r.kind, r.replicas
        if kind is _VETO:
            vetoes.append(r)
        elif count is None or kind is _ABSTAIN:
            continue
        elif kind is _AT_LEAST:
            floors.append((count, r))
        elif kind is _AT_MOST:
            ceilings.append((count, r))
        else:
            sets.append((count, r))
    if vetoes:
        veto = _strongest(vetoes)
        return Arbitration(current, veto, vetoed=True, floor=0, ceiling=None, limited_from=None)
    target, binding = current, None
    if sets:
        # Two equally strong SETs: the larger count, because being short costs more than being wide.
        top, target = max([(r.priority, count) for count, r in sets])
        binding = _strongest([r for count, r in sets if count == target and r.priority == top])
    floor = max([count for count, _ in floors], default=0)
    if floor > target or (floor == target and floors and binding is None):
        target, binding = floor, _strongest([r for count, r in floors if count == floor])
    ceiling = min([count for count, _ in ceilings], default=None)
    if ceiling is None:
        return Arbitration(target, binding, vetoed=False, floor=floor, ceiling=None, limited_from=None)
    merged = Arbitration(
        replicas=target,
        binding=binding,
        vetoed=False,
        floor=min(floor, ceiling),
        ceiling=ceiling,
        limited_from=None,
        capped_by=_strongest([r for count, r in ceilings if count == ceiling]),
    )
    return capped(merged, target)


def capped(merged: Arbitration, replicas: int) -> Arbitration:
    """Cut ``replicas`` at the ceiling and say so; unchanged where there is room."""
    if merged.ceiling is None or replicas <= merged.ceiling:
        return merged
    wanted = max(replicas, merged.limited_from or 0)
    return replace(merged, replicas=merged.ceiling, binding=merged.capped_by, limited_from=wanted)
