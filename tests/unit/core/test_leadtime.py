"""Lead time: prior, data, and what many starts at once cost."""

import pytest

from controller.core.leadtime import (
    DEFAULT_PRIORS,
    LeadSample,
    LeadTime,
    StagePrior,
    estimate_lead_time,
    fit_slope,
    quantile,
    with_load,
)


def samples(*totals: float, batch: int = 1) -> list[LeadSample]:
    return [LeadSample({"load": total}, batch) for total in totals]


@pytest.mark.parametrize(
    ("values", "level", "expected"),
    [
        ([3.0], 0.95, 3.0),
        ([1.0, 2.0, 3.0, 4.0], 0.5, 2.0),
        ([4.0, 1.0, 3.0, 2.0], 0.95, 4.0),
        ([1.0, 2.0], 0.0, 1.0),
    ],
)
def test_a_quantile_is_a_value_that_was_measured(values: list[float], level: float, expected: float) -> None:
    assert expected == quantile(values, level)


def test_before_anything_was_measured_the_prior_speaks_and_adds_spreads_not_worst_cases() -> None:
    lead = estimate_lead_time((StagePrior("image", 10.0, 13.0), StagePrior("load", 20.0, 24.0)))

    assert lead.total_p95_s == 35.0  # 30 + sqrt(3^2 + 4^2), not 37
    assert dict(lead.stage_p95_s) == {"image": 13.0, "load": 24.0}
    assert lead.sample_count == 0


def test_five_measured_starts_weigh_as_much_as_the_prior() -> None:
    prior = estimate_lead_time((StagePrior("load", 100.0, 100.0),))
    lead = estimate_lead_time((StagePrior("load", 100.0, 100.0),), samples(20.0, 20.0, 20.0, 20.0, 20.0))

    assert prior.total_p95_s == 100.0
    assert lead.total_p95_s == 60.0
    assert dict(lead.stage_p95_s) == {"load": 60.0}
    assert lead.sample_count == 5


def test_a_stage_never_measured_keeps_its_prior_and_an_unexpected_one_starts_from_nothing() -> None:
    lead = estimate_lead_time((StagePrior("image", 5.0, 20.0),), [LeadSample({"probe": 12.0}, 1)] * 5)

    assert dict(lead.stage_p95_s) == {"image": 20.0, "probe": 6.0}


def test_the_prior_slope_speaks_until_batches_of_different_size_were_seen() -> None:
    same = samples(*[60.0] * 20, batch=4)
    few = samples(60.0, batch=1) + samples(90.0, batch=4)

    assert fit_slope(same, default=7.0) == 7.0
    assert fit_slope(few, default=7.0) == 7.0


def test_the_slope_is_fitted_and_never_negative() -> None:
    slower = samples(*[60.0] * 4, batch=1) + samples(*[90.0] * 4, batch=4)
    faster = samples(*[90.0] * 4, batch=1) + samples(*[60.0] * 4, batch=4)

    assert fit_slope(slower, default=0.0) == 10.0
    assert fit_slope(faster, default=5.0) == 0.0


def test_measured_batches_do_not_make_one_replica_look_slow() -> None:
    crowded = samples(*[60.0] * 4, batch=1) + samples(*[90.0] * 4, batch=4)
    lead = estimate_lead_time((StagePrior("load", 60.0, 60.0),), crowded)

    assert lead.total_p95_s == pytest.approx(60.0)
    assert lead.for_batch(4) == pytest.approx(90.0)


@pytest.mark.parametrize(("count", "expected"), [(0, 60.0), (1, 60.0), (11, 80.0)])
def test_each_further_replica_started_at_once_adds_its_share(count: int, expected: float) -> None:
    assert expected == LeadTime(60.0, per_extra_replica_s=2.0).for_batch(count)


def test_what_remains_is_the_stages_left_and_never_more_than_the_whole() -> None:
    lead = LeadTime(40.0, (("image", 20.0), ("load", 30.0), ("warmup", 5.0)))

    assert lead.remaining(frozenset({"load", "warmup"})) == 35.0
    assert lead.remaining(frozenset({"image", "load", "warmup"})) == 40.0
    assert lead.remaining(frozenset()) == 0.0


def test_without_stages_the_whole_remains_until_none_is_left() -> None:
    assert LeadTime(40.0).remaining(frozenset({"warmup"})) == 40.0
    assert LeadTime(40.0).remaining(frozenset()) == 0.0


def test_a_measured_load_replaces_the_prior_of_its_stage_with_room_for_a_fresh_node() -> None:
    priors = {prior.name: (prior.p50_s, prior.p95_s) for prior in with_load(DEFAULT_PRIORS, 6.0, 8.0)}

    # 2 s for the server itself; twice the P95, because the files were cached when it was measured.
    assert priors == {p.name: (p.p50_s, p.p95_s) for p in DEFAULT_PRIORS} | {"load": (8.0, 18.0)}
    assert estimate_lead_time(with_load(DEFAULT_PRIORS, 300.0, 400.0)).total_p95_s > 800.0


def test_the_default_prior_is_under_a_minute() -> None:
    assert 23.0 < estimate_lead_time(DEFAULT_PRIORS).total_p95_s < 60.0
