"""Policies by name, each with its safety knob and the values a frontier sweeps.

Called by the CLI, the frontier and the simulation's callers; the one place that lists what can be compared.
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import sqrt

from controller.simulation.harness import Policy
from controller.simulation.ours import Forecrest, ForecrestReactive, Foresight
from controller.simulation.peers import DynamoLike, Hpa, KedaCronHpa, Kpa, LastValue, Oracle, Phpa, StaticPeak

TARGETS = (1.0, 0.85, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.12)
# The quantile to serve.
SAFETIES = (0.9, 0.95, 0.97, 0.98, 0.99, 0.995, 0.997, 0.999, 0.9998, 0.99995, 0.99999, 0.999997)
# From few to many, or a sweep that is safe enough would leave out what is cheaper.
# min_replicas before the point, the quantile after it: against a jump without precedent, only capacity that is always
# there helps, and every peer's target knob buys just that.
FLOORS = (16.9, 16.99, 20.9, 24.9, 24.99, 28.9, 32.9, 32.99, 36.9, 41.9, 41.99)


def _middle(first: float, second: float) -> float:
    return (first + second) / 2


def _middle_quantile(first: float, second: float) -> float:
    """Return the quantile whose chance to be exceeded is the geometric mean of theirs."""
    return 1 - sqrt((1 - first) * (1 - second))


@dataclass(frozen=True, slots=True)
class Entry:
    """One policy: how to make it at a knob value (None: its default), and its sweep, cheapest first.

    ``also`` is a second way from cheap to safe, swept by itself. ``between`` is the setting halfway between two.
    """

    make: Callable[[float | None], Policy]
    sweep: tuple[float, ...]
    reactive: bool  # a reactive or scheduled peer, which the comparison is made against
    also: tuple[float, ...] = ()
    between: Callable[[float, float], float] = _middle


def entries(foresight: Foresight | None = None, known_days: float | None = None) -> dict[str, Entry]:
    """Return every policy.

    ``foresight`` lets several runs on one trace share the forecasting work; ``known_days`` is what whoever
    wrote the cron rules had seen of the trace.
    """
    return {
        "forecrest": Entry(
            lambda knob: _forecrest(knob, foresight),
            SAFETIES,
            reactive=False,
            also=FLOORS,
            between=_middle_quantile,
        ),
        "forecrest-reactive": Entry(
            lambda knob: ForecrestReactive() if knob is None else ForecrestReactive(knob),
            TARGETS,
            reactive=False,
        ),
        "hpa": Entry(lambda knob: Hpa() if knob is None else Hpa(knob), TARGETS, reactive=True),
        "kpa": Entry(lambda knob: Kpa() if knob is None else Kpa(knob), TARGETS, reactive=True),
        "keda-cron+hpa": Entry(
            lambda knob: (
                KedaCronHpa(known_days=known_days)
                if knob is None
                else KedaCronHpa(knob, known_days=known_days)
            ),
            TARGETS,
            reactive=True,
        ),
        "phpa": Entry(lambda knob: Phpa() if knob is None else Phpa(knob), TARGETS, reactive=False),
        "dynamo-like": Entry(
            lambda knob: DynamoLike() if knob is None else DynamoLike(knob), TARGETS, reactive=False
        ),
        "last-value": Entry(
            lambda knob: LastValue() if knob is None else LastValue(knob), TARGETS, reactive=True
        ),
        "static-peak": Entry(
            lambda knob: StaticPeak() if knob is None else StaticPeak(knob),
            (2.0, 1.5, 1.25, 1.1, 1.0),
            reactive=True,
        ),
        "oracle": Entry(lambda knob: Oracle() if knob is None else Oracle(knob), (1e-4,), reactive=False),
    }


def _forecrest(knob: float | None, foresight: Foresight | None) -> Forecrest:
    if knob is None:
        return Forecrest(foresight=foresight)
    return Forecrest(round(knob % 1, 6), foresight=foresight, min_replicas=int(knob))


NAMES: tuple[str, ...] = tuple(entries())


def make(names: tuple[str, ...] | list[str], foresight: Foresight | None = None) -> list[Policy]:
    """Return the named policies at their defaults, each once, in the order named.

    Raises:
        ValueError: An unknown name.
    """
    known = entries(foresight)
    for name in names:
        if name not in known:
            raise ValueError(f"policy: {name!r} is unknown; choose from {', '.join(known)}.")
    return [known[name].make(None) for name in dict.fromkeys(names)]
