"""Growth within terms: a leak is found under jumps and changes of role, and none where there is none."""

from pathlib import Path

import pytest

from benchmarks.vitals import Record, Spell, Vitals, growth, medians, plot, processes, slope_per_hour, terms

LOOK_S = 5.0


def look(n: int, rss_mib: float, *shards: int, member: str = "a") -> Vitals:
    return Vitals(LOOK_S * n, member, shards, rss_mib, 20, 9, 30, 12.0 if shards else None)


def a_day_of_roles(mib_per_hour: float) -> list[Vitals]:
    """Ten minutes as follower, leader of one shard, of two, and follower again; each role is 30 MiB over the last."""
    roles: tuple[tuple[int, ...], ...] = ((), (1,), (1, 3), ())
    return [
        look(120 * number + n, 300 + 30 * number + mib_per_hour * LOOK_S * (120 * number + n) / 3600, *shards)
        for number, shards in enumerate(roles)
        for n in range(120)
    ]


def test_the_slope_of_a_leak_is_found_under_jumps_and_none_where_there_is_none() -> None:
    times_s = [5.0 * n for n in range(360)]
    jumps = [40.0 if 100 <= n < 130 else 0.0 for n in range(360)]
    leaking = medians(
        (at_s, 300 + at_s * 12 / 3600 + jump) for at_s, jump in zip(times_s, jumps, strict=True)
    )
    flat = medians((at_s, 300 + (n % 3) + jumps[n]) for n, at_s in enumerate(times_s))

    leak, low, high = slope_per_hour([leaking]) or (0.0, 0.0, 0.0)

    assert 12 == pytest.approx(leak, rel=0.2)
    assert low <= leak <= high
    assert low > 0
    assert 0 == pytest.approx((slope_per_hour([flat]) or (9.0,))[0], abs=0.5)
    assert slope_per_hour([flat[:2]]) is None
    assert slope_per_hour([]) is None


def test_a_term_ends_where_the_shards_change() -> None:
    found = terms([look(0, 1.0, 2), look(1, 1.0, 2), look(0, 1.0, member="b"), look(2, 1.0), look(3, 1.0, 2)])

    assert [("a", 2), ("a", 1), ("a", 1), ("b", 1)] == [(t.vitals[0].member, len(t.vitals)) for t in found]
    assert ["leads", "follows", "leads", "follows"] == [t.role for t in found]


@pytest.mark.parametrize("mib_per_hour", [0.0, 12.0])
def test_steps_between_roles_are_no_growth_and_growth_within_them_is(mib_per_hour: float) -> None:
    found = growth(a_day_of_roles(mib_per_hour))

    for role in ("leads", "follows"):
        assert 2 == found[role]["terms"]
        assert 15.8 == found[role]["minutes"]  # of twenty, without the first two of each
        assert [mib_per_hour] * 3 == pytest.approx(found[role]["rss_mib"], abs=0.01)
        assert [0.0] * 3 == found[role]["fds"]


def test_pools_of_terms_are_surer_than_one_and_of_none_nothing_is_said() -> None:
    noisy = [look(n, 300 + 12 * LOOK_S * n / 3600 + (n * 7919 % 13) / 10, 1) for n in range(120)]
    again = [look(v_n + 500, v.rss_mib, 1, 2) for v_n, v in enumerate(noisy)]
    one, both = growth(noisy)["leads"]["rss_mib"], growth(noisy + again)["leads"]["rss_mib"]

    assert both[2] - both[1] < one[2] - one[1]
    assert growth(noisy[:30])["leads"] == {
        "terms": 0, "minutes": 0.0, "rss_mib": None, "fds": None, "threads": None, "tasks": None
    }  # fmt: skip


def test_processes_tell_each_longer_term() -> None:
    (found,) = processes(Record(vitals=a_day_of_roles(0.0)))

    assert [(), (1,), (1, 3), ()] == [term["shards"] for term in found["terms"]]
    assert [300.0, 330.0, 360.0, 390.0] == [term["rss_mib_max"] for term in found["terms"]]
    assert 0.5 == found["led_share"]


def test_a_record_is_drawn(tmp_path: Path) -> None:
    record = Record(vitals=a_day_of_roles(12.0), spells=[Spell("valkey flush", 60.0, 61.0, 1.0)])

    plot(record, tmp_path / "folder" / "soak.png")

    assert (tmp_path / "folder" / "soak.png").read_bytes().startswith(b"\x89PNG")
