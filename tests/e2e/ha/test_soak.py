"""The soak in a minute and a half: real servers, controllers and faults, held against the same rules as the long one."""

from pathlib import Path

import pytest

from benchmarks.soak import Soak

FAULTS = ("connections terminated", "leader kill -9", "postgres restart", "valkey flush")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """One that the servers can pass through: where we are root they run as another user."""
    tmp_path.chmod(0o711)
    return tmp_path


async def test_a_short_soak_makes_no_wrong_decision_and_loses_no_event(folder: Path) -> None:
    found, record = await Soak(1.5, 5, 6, FAULTS, None, has_disk=False, lead_s=10.0).measure(folder)

    assert [] == found["wrong"]
    assert 0 == found["lost_events"]
    assert len(FAULTS) <= len(record.spells)
    assert all(spell.settled_s >= 0 for spell in record.spells)  # not NaN: the fleet was as decided again
    assert found["events"]["floors_met_when_due"] > 0
    assert found["decisions"] > found["workloads"]
    assert found["leaders"] > 1
    assert {"rss_mib", "fds", "threads", "tasks"} < found["processes"][0].keys()
