"""Golden traces: what the core does in whole stories, one line a tick on which it did something.

Each line holds the time, what the core was told (demand, warm and starting replicas) and every effect. A
difference in review is the change of behaviour; `--rewrite-golden` writes the traces anew.
"""

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from controller.core.leadtime import LeadTime
from controller.core.types import (
    ClearAlarm,
    Effect,
    OverrideKind,
    QuotaPool,
    RaiseAlarm,
    RecordDecision,
    ReplaceReplica,
    ScaleTo,
    StorePlan,
)
from tests.unit.core.worlds import (
    A10,
    MIDNIGHT,
    START,
    T4,
    Fleet,
    Pool,
    alone,
    event,
    minutes,
    override,
    seconds,
    workload,
)

DATA = Path(__file__).with_name("data")
HOUR = timedelta(hours=1)
Line = dict[str, object]


def clock(at: datetime) -> str:
    return f"{at:%d %H:%M:%S}"


def told(effect: Effect) -> Line:
    match effect:
        case RecordDecision(d):
            return {"record": f"{d.workload} {d.reason}", "sentence": d.sentence}
        case ScaleTo():
            return {"scale": effect.workload, "to": effect.replicas}
        case ReplaceReplica():
            return {"replace": effect.replica_id, "sentence": effect.sentence}
        case StorePlan(plan):
            floors = [
                f"{f.replicas} for {clock(f.needed_at)} order {clock(f.order_at)}" for f in plan.floors[:4]
            ]
            return {"plan": f"{plan.workload} revision {plan.revision}", "floors": floors}
        case RaiseAlarm(alarm):
            return {"alarm": alarm.key, "sentence": alarm.sentence}
        case ClearAlarm(alarm):
            return {"cleared": alarm.key}


def observed(fleet: Fleet) -> Line:
    found: Line = {}
    for name, pool in sorted(fleet.pools.items()):
        members = pool.replicas(fleet.now)
        found[name] = f"{sum(r.warm for r in members)} warm, {sum(r.in_flight for r in members)} starting"
    return found


def play(
    fleet: Fleet, until: datetime, demand: Callable[[datetime], float | None] | float | None
) -> Iterator[Line]:
    """Tick until ``until``; demand may be a function of time, and is the same for every workload."""
    while fleet.now < until:
        at, seen = fleet.now, observed(fleet)
        qps = demand(at) if callable(demand) else demand
        effects = fleet.tick(**dict.fromkeys(fleet.pools, qps))
        if effects:
            yield {"at": clock(at), "qps": qps, "seen": seen, "effects": [told(e) for e in effects]}


def reference_event() -> Iterator[Line]:
    """8 000 QPS on 4 replicas, 35 000 from midnight: registered at 23:00, a minute of cold start."""
    fleet, pool = alone(warm=4, w=workload(profiles=(T4,), min_replicas=2, max_replicas=24))
    pool.events = (event("midnight", expected_peak_qps=35_000.0),)
    yield from play(
        fleet,
        MIDNIGHT + HOUR + minutes(8),
        lambda at: 35_000.0 if MIDNIGHT <= at < MIDNIGHT + HOUR else 8_000.0,
    )


def fizzle() -> Iterator[Line]:
    """The event is announced and nobody comes: the floor decays, and the count with it."""
    fleet, pool = alone(warm=1)
    pool.events = (event(end_at=MIDNIGHT + 2 * HOUR),)
    fleet.now = MIDNIGHT - minutes(3)
    yield from play(fleet, MIDNIGHT + HOUR, 90.0)


def dip_inside_an_event() -> Iterator[Line]:
    """Ten minutes into the event clients fail and come back five minutes later, all at once."""
    fleet, pool = alone(warm=1)
    pool.events = (event(),)
    fleet.now = MIDNIGHT - minutes(3)

    def demand(at: datetime) -> float:
        if MIDNIGHT + minutes(10) <= at < MIDNIGHT + minutes(15):
            return 0.0
        return 950.0 if at >= MIDNIGHT else 90.0

    yield from play(fleet, MIDNIGHT + minutes(20), demand)


def metrics_outage() -> Iterator[Line]:
    """Demand is not observed for ten minutes, in which an event's floor falls due."""
    fleet, pool = alone(warm=5)
    pool.events = (event(),)
    fleet.now = MIDNIGHT - minutes(8)
    yield from play(fleet, MIDNIGHT - minutes(5), 450.0)
    yield from play(fleet, MIDNIGHT + minutes(5), None)
    yield from play(fleet, MIDNIGHT + minutes(7), 950.0)


def panic() -> Iterator[Line]:
    """Demand quadruples within a tick and falls back a minute later."""
    fleet, _ = alone(warm=2)
    yield from play(fleet, START + minutes(1), 150.0)
    yield from play(fleet, START + minutes(2), 950.0)
    yield from play(fleet, START + minutes(10), 150.0)


def override_and_pause() -> Iterator[Line]:
    """An operator caps at three, pauses, scales by hand, and lets go."""
    fleet, pool = alone(warm=5)
    yield from play(fleet, START + seconds(30), 450.0)
    pool.overrides = (override(OverrideKind.AT_MOST, 3, START + minutes(2)),)
    yield from play(fleet, START + minutes(3), 450.0)
    fleet.paused = True
    pool.seed(5, fleet.now)
    yield from play(fleet, START + minutes(5), 450.0)
    fleet.paused = False
    yield from play(fleet, START + minutes(12), 450.0)


def to_zero_and_back() -> Iterator[Line]:
    """Half an hour of verified silence, then one request."""
    fleet, _ = alone(warm=2, w=workload(min_replicas=0))
    yield from play(fleet, START + minutes(37), 0.0)
    yield from play(fleet, START + minutes(39), 5.0)


def quota_shortage() -> Iterator[Line]:
    """Ten GPUs: the important workload takes what the other only holds, and is short of the rest."""
    pools = {
        "batch": Pool(workload("batch", quota_pool="gpus")),
        "live": Pool(workload("live", quota_pool="gpus", priority=9)),
    }
    pools["batch"].seed(8, START)
    pools["live"].seed(2, START)
    fleet = Fleet(pools, (QuotaPool("gpus", 10),))
    pools["live"].events = (event("show", start_at=START + minutes(5), end_at=START + minutes(20)),)
    yield from play(fleet, START + minutes(30), 190.0)


def restart_with_two_seconds_of_data() -> Iterator[Line]:
    """A controller without any stored state starts over ten replicas and has seen two seconds of little traffic."""
    fleet, pool = alone(warm=10)
    pool.window = seconds(2)
    yield from play(fleet, START + minutes(1), 150.0)
    pool.window = minutes(1)
    yield from play(fleet, START + minutes(6), 150.0)


def mixed_t4_and_a10() -> Iterator[Line]:
    """Four T4 replicas run; new ones are A10 with the faster engine. The event needs fewer of those, and more in all."""
    fleet, pool = alone(warm=0, w=workload(profiles=(A10, T4), max_replicas=24))
    pool.seed(4, START, T4)
    pool.events = (event("midnight", expected_peak_qps=35_000.0),)
    fleet.now = MIDNIGHT - minutes(3)
    yield from play(fleet, MIDNIGHT + minutes(2), lambda at: 35_000.0 if at >= MIDNIGHT else 8_000.0)


def failing_replicas_and_a_lead_time_learnt() -> Iterator[Line]:
    """The prewarm's first replicas fail; replaced, they come up, and a shorter lead time is learnt on the way."""
    fleet, pool = alone(warm=1, lead=LeadTime(600.0))
    pool.events = (replace(event(), margin=minutes(2)),)
    fleet.now = MIDNIGHT - minutes(13)
    pool.fails = True
    yield from play(fleet, MIDNIGHT - minutes(9), 90.0)
    pool.fails, pool.lead = False, LeadTime(60.0)
    yield from play(fleet, MIDNIGHT + minutes(1), 90.0)


STORIES = (
    reference_event,
    fizzle,
    dip_inside_an_event,
    metrics_outage,
    panic,
    override_and_pause,
    to_zero_and_back,
    quota_shortage,
    restart_with_two_seconds_of_data,
    mixed_t4_and_a10,
    failing_replicas_and_a_lead_time_learnt,
)


@pytest.mark.parametrize("story", STORIES, ids=lambda story: story.__name__)
def test_the_core_does_what_its_golden_trace_says(
    story: Callable[[], Iterator[Line]], rewrite_golden: bool
) -> None:
    path = DATA / f"{story.__name__}.jsonl"
    lines = [{"story": story.__doc__}, *story()]
    if rewrite_golden:
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))

    assert [json.loads(line) for line in path.read_text().splitlines()] == lines


def test_no_trace_is_left_without_its_story() -> None:
    assert {story.__name__ for story in STORIES} == {path.stem for path in DATA.glob("*.jsonl")}
