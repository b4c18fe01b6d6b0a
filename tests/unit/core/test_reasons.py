"""Why, in a closed word and a sentence for three in the morning; and the three conditions."""

import pytest

from controller.core.arbitration import Arbitration, arbitrate
from controller.core.reasons import classify, conditions, sentence
from controller.core.types import (
    Condition,
    Mode,
    Reason,
    Recommendation,
    RecommendationKind,
    Source,
    WorkloadInput,
)
from tests.unit.core.worlds import given, workload

SET, AT_LEAST, AT_MOST, VETO, ABSTAIN = RecommendationKind


def merged(kind: RecommendationKind, replicas: int | None, source: Source, current: int = 5) -> Arbitration:
    return arbitrate([Recommendation(source, kind, replicas, f"because of {source}")], current)


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        (Source.OVERRIDE, Reason.OVERRIDE),
        (Source.EVENT, Reason.EVENT_FLOOR),
        (Source.PLAN, Reason.PLAN_FLOOR),
        (Source.PANIC, Reason.PANIC),
        (Source.KEEP_WARM, Reason.KEEP_WARM),
        (Source.GUARD, Reason.GUARDED),
        (Source.MIN, Reason.MIN_REPLICAS),
    ],
)
def test_a_floor_is_named_after_its_source(source: Source, expected: Reason) -> None:
    assert expected is classify(5, 9, merged(AT_LEAST, 9, source), "", has_demand=True)


@pytest.mark.parametrize(
    ("current", "desired", "expected"),
    [
        (5, 5, Reason.STEADY),
        (5, 9, Reason.REACTIVE_UP),
        (5, 2, Reason.REACTIVE_DOWN),
        (5, 0, Reason.SCALED_TO_ZERO),
        (0, 0, Reason.STEADY),
    ],
)
def test_present_load_is_named_after_its_direction(current: int, desired: int, expected: Reason) -> None:
    assert expected is classify(current, desired, merged(SET, desired, Source.REACTIVE), "", has_demand=True)


def test_a_veto_is_a_pause_whatever_else_holds() -> None:
    assert classify(5, 5, merged(VETO, None, Source.PAUSE), "rate", has_demand=False) is Reason.PAUSED


@pytest.mark.parametrize(
    ("hindrance", "expected"),
    [
        ("rate", Reason.RATE_LIMITED),
        ("stabilization", Reason.STABILIZING),
        ("tolerance", Reason.WITHIN_TOLERANCE),
    ],
)
def test_what_behavior_held_back_is_named(hindrance: str, expected: Reason) -> None:
    assert expected is classify(5, 5, merged(SET, 2, Source.REACTIVE), hindrance, has_demand=True)


def test_without_demand_a_guarded_or_silent_hold_is_for_want_of_data() -> None:
    assert classify(5, 5, merged(AT_LEAST, 5, Source.GUARD), "", has_demand=False) is Reason.NO_DATA
    assert classify(5, 5, arbitrate([], 5), "", has_demand=False) is Reason.NO_DATA
    assert classify(5, 9, merged(AT_LEAST, 9, Source.EVENT), "", has_demand=False) is Reason.EVENT_FLOOR


def test_ceilings_are_named_after_their_source() -> None:
    assert classify(5, 3, merged(AT_MOST, 3, Source.MAX), "", has_demand=True) is Reason.MAX_REPLICAS
    assert classify(5, 3, merged(AT_MOST, 3, Source.QUOTA), "", has_demand=True) is Reason.QUOTA


@pytest.mark.parametrize(
    ("arbitration", "desired", "hindrance", "expected"),
    [
        (merged(AT_LEAST, 9, Source.EVENT), 9, "", "Scale 5 to 9: because of EVENT."),
        (merged(SET, 5, Source.REACTIVE), 5, "", "Hold 5: because of REACTIVE."),
        (
            merged(SET, 9, Source.REACTIVE),
            7,
            "rate",
            "Scale 5 to 7: because of REACTIVE; the scaling rate allows no more yet.",
        ),
        (merged(AT_MOST, 3, Source.QUOTA), 3, "", "Scale 5 to 3: because of QUOTA; 5 were wanted."),
        (arbitrate([], 5), 5, "", "Hold 5: nothing asks for another count."),
    ],
)
def test_the_sentence_says_what_is_done_and_because_of_what(
    arbitration: Arbitration, desired: int, hindrance: str, expected: str
) -> None:
    assert expected == sentence(5, desired, arbitration, hindrance)


def told(
    inp: WorkloadInput, arbitration: Arbitration | None = None, why_not: str = "", *, forecast_ok: bool = True
) -> list[Condition]:
    return list(conditions(inp, arbitration or arbitrate([], 5), why_not, forecast_ok=forecast_ok))


def test_all_is_well() -> None:
    assert [(c.ok, c.reason) for c in told(given())] == [
        (True, "READY"),
        (True, "READY"),
        (False, "WITHIN_LIMITS"),
    ]


@pytest.mark.parametrize(
    ("inp", "arbitration", "expected"),
    [
        pytest.param(
            given(competing_owner="hpa/toy"), None, (False, "COMPETING_OWNER"), id="somebody else scales it"
        ),
        pytest.param(
            given(workload(mode=Mode.FLOOR), competing_owner="hpa/toy"),
            None,
            (True, "READY"),
            id="as intended in mode FLOOR",
        ),
        pytest.param(given(), merged(VETO, None, Source.PAUSE), (False, "PAUSED"), id="paused"),
        pytest.param(
            given(workload(mode=Mode.RECOMMEND)), None, (True, "RECOMMEND_ONLY"), id="only recommended"
        ),
        pytest.param(given(replicas=None), None, (False, "REPLICAS_UNKNOWN"), id="the actuator is silent"),
    ],
)
def test_whether_it_can_be_scaled(
    inp: WorkloadInput, arbitration: Arbitration | None, expected: tuple[bool, str]
) -> None:
    able = told(inp, arbitration)[0]

    assert expected == (able.ok, able.reason)


def test_whether_scaling_is_active() -> None:
    blind, reactive = told(given(), why_not="demand is 90 s old")[1], told(given(), forecast_ok=False)[1]

    assert (blind.ok, blind.reason, blind.message) == (
        False,
        "NO_DEMAND",
        "demand is 90 s old; floors still apply",
    )
    assert (reactive.ok, reactive.reason) == (True, "REACTIVE_ONLY")


def test_what_the_cluster_cannot_place_limits_scaling() -> None:
    limited = told(given(shortfall="2 pods find no node: Insufficient nvidia.com/gpu"))[2]

    assert (limited.ok, limited.reason) == (True, "SHORTFALL")
    assert limited.message == "2 pods find no node: Insufficient nvidia.com/gpu"


def test_whether_scaling_is_limited_and_by_whom() -> None:
    limited = told(given(), merged(AT_MOST, 3, Source.QUOTA))[2]

    assert (limited.ok, limited.reason) == (True, "LIMITED_BY_QUOTA")
    assert limited.message == "because of QUOTA; 5 were wanted"
