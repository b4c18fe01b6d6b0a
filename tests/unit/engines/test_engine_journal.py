"""States of engines as they follow from the journal; each way that exists and each that must not."""

from datetime import UTC, datetime, timedelta

import pytest

from engines.journal import (
    Change,
    Entry,
    ForbiddenChangeError,
    ModelState,
    State,
    removable,
    replay,
    require_promotable,
)

START = datetime(2026, 11, 1, tzinfo=UTC)
GPU, CPU = "TENSORRT:8.9", "ONNX_RUNTIME:cpu"


def history(*changes: tuple[Change, str], targets: dict[str, str] | None = None) -> ModelState:
    """Replay changes, one a day."""
    entries = [
        Entry(
            sequence=number,
            at=START + timedelta(days=number),
            by="a test",
            change=change,
            engine_id=engine,
            reason="why",
            folder=f"{engine}-0",
            manifest_digest=f"sha256:{engine}",
            target=(targets or {}).get(engine, GPU),
            owner="recommender",
        )
        for number, (change, engine) in enumerate(changes, start=1)
    ]
    return replay(entries)


def states(state: ModelState) -> dict[str, State]:
    return {name: record.state for name, record in state.engines.items()}


BUILT_A, PASSED_A, PROMOTED_A = (Change.BUILT, "a"), (Change.GATE_PASSED, "a"), (Change.PROMOTED, "a")
BUILT_B, PASSED_B, PROMOTED_B = (Change.BUILT, "b"), (Change.GATE_PASSED, "b"), (Change.PROMOTED, "b")
SERVING_A = (BUILT_A, PASSED_A, PROMOTED_A)
SERVING_B = (*SERVING_A, BUILT_B, PASSED_B, PROMOTED_B)


def test_an_engine_goes_from_built_to_active() -> None:
    assert {"a": State.BUILT} == states(history(BUILT_A))
    assert {"a": State.VALIDATED} == states(history(BUILT_A, PASSED_A))
    assert {"a": State.ACTIVE} == states(history(*SERVING_A))


def test_promotion_retires_the_engine_it_replaces() -> None:
    state = history(*SERVING_B)

    assert {"a": State.RETIRED, "b": State.ACTIVE} == states(state)
    assert state.active(GPU) is state.engines["b"]
    assert state.previous(GPU) is state.engines["a"]


def test_engines_of_different_targets_serve_side_by_side() -> None:
    state = history(*SERVING_B, targets={"b": CPU})

    assert {"a": State.ACTIVE, "b": State.ACTIVE} == states(state)
    assert state.active(CPU) is state.engines["b"]
    assert state.previous(CPU) is None


def test_a_rollback_swaps_them() -> None:
    state = history(*SERVING_B, (Change.ROLLED_BACK, "a"))

    assert {"a": State.ACTIVE, "b": State.RETIRED} == states(state)
    assert (3, 7) == state.engines["a"].active_sequences


def test_a_failed_gate_takes_the_validation_but_not_the_service() -> None:
    assert {"a": State.BUILT} == states(history(BUILT_A, PASSED_A, (Change.GATE_FAILED, "a")))
    assert {"a": State.ACTIVE} == states(history(*SERVING_A, (Change.GATE_FAILED, "a")))


def test_a_rollback_never_returns_to_what_failed_since() -> None:
    state = history(*SERVING_B, (Change.GATE_FAILED, "a"))

    assert state.previous(GPU) is None


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ((BUILT_A,), "never validated; validate it first"),
        ((BUILT_A, (Change.GATE_FAILED, "a")), r"failed its accuracy gate \(why\)"),
        (SERVING_A, "ACTIVE already"),
        ((*SERVING_A, (Change.RETIRED, "a")), "roll back to it instead"),
        ((*SERVING_A, (Change.GATE_FAILED, "a")), "failed its accuracy gate"),
    ],
)
def test_what_may_not_be_promoted_says_why(changes: tuple[tuple[Change, str], ...], sentence: str) -> None:
    with pytest.raises(ForbiddenChangeError, match=sentence):
        require_promotable(history(*changes).get("a"))


def test_a_removed_engine_is_gone() -> None:
    state = history(BUILT_A, (Change.REMOVED, "a"))

    with pytest.raises(ForbiddenChangeError, match="not in the catalogue"):
        state.get("a")
    assert {"a": State.BUILT} == states(
        replay(
            [
                Entry(
                    sequence=3,
                    at=START,
                    by="",
                    change=Change.BUILT,
                    engine_id="a",
                    folder="a-1",
                    manifest_digest="d",
                    target=GPU,
                )
            ],
            state,
        )
    )


def kept_and_removed(
    state: ModelState, *, before_day: int = 99, previous_kept: int = 1
) -> tuple[dict[str, str], list[str]]:
    gone, kept = removable(
        state, built_before=START + timedelta(days=before_day), previous_kept=previous_kept
    )
    return dict(kept), [record.engine_id for record in gone]


def test_what_serves_and_what_it_may_return_to_is_kept() -> None:
    state = history(*SERVING_B, (Change.BUILT, "c"), (Change.BUILT, "d"), (Change.GATE_PASSED, "d"))

    assert ({"b": "it is ACTIVE", "a": "a rollback may return to it"}, ["c", "d"]) == kept_and_removed(state)
    assert ({"b": "it is ACTIVE"}, ["a", "c", "d"]) == kept_and_removed(state, previous_kept=0)


def test_what_somebody_relies_on_is_kept_until_released() -> None:
    referenced = (BUILT_A, (Change.REFERENCED, "a"))

    assert ({"a": "recommender relies on it"}, []) == kept_and_removed(history(*referenced))
    assert ({}, ["a"]) == kept_and_removed(history(*referenced, (Change.RELEASED, "a")))


def test_what_is_young_is_kept() -> None:
    assert ({"b": "it is too young"}, ["a"]) == kept_and_removed(history(BUILT_A, BUILT_B), before_day=2)
