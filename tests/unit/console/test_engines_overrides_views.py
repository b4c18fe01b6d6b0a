"""The engine catalogue, overrides and pauses as the console shows them."""

from datetime import UTC, datetime, timedelta

import pytest
from forecrest.v1 import control_pb2, engine_pb2, workload_pb2
from google.protobuf.timestamp_pb2 import Timestamp

from controller.client import ApiError
from controller.console.views import engines, overrides

NOW = datetime(2026, 11, 10, 12, 0, tzinfo=UTC)
DIGEST = "sha256:" + "ab12" * 16


def an_engine(state: str, *, passed: bool = True, report: str = "") -> engine_pb2.Engine:
    return engine_pb2.Engine(
        name="engines/rec-int8",
        model_name="recommender",
        digest=DIGEST,
        precision=workload_pb2.PRECISION_INT8,
        state=engine_pb2.EngineState.Value(f"ENGINE_STATE_{state}"),
        compute_capabilities=["8.9"],
        validation=engine_pb2.EngineValidation(
            passed=passed,
            report_uri=report,
            measures=[engine_pb2.EngineMeasure(measure="cosine", value=0.99, min=0.999)],
        ),
    )


@pytest.mark.parametrize(
    ("state", "passed", "action"),
    [
        ("BUILT", True, ""),
        ("VALIDATED", True, "promote"),
        ("VALIDATED", False, ""),
        ("ACTIVE", True, ""),
        ("RETIRED", True, "rollback"),
        ("RETIRED", False, ""),
    ],
)
def test_only_what_the_state_allows_is_offered(state: str, passed: bool, action: str) -> None:
    (row,) = engines.engine_rows([an_engine(state, passed=passed)], [], [])
    assert row.action == action


def test_an_engine_shows_who_uses_it_and_what_it_sustains() -> None:
    profile = engine_pb2.EngineProfile(
        name="engines/rec-int8/profiles/l4",
        capacity=workload_pb2.CapacityProfile(gpu_type="L4", qps_max=2500),
        points=[
            engine_pb2.CapacityPoint(offered_qps=2500, latency_ms_p99=40, within_slo=True),
            engine_pb2.CapacityPoint(offered_qps=2700, latency_ms_p99=900, within_slo=False),
        ],
    )
    other = engine_pb2.EngineProfile(name="engines/rec-int8-b/profiles/l4")
    users = [
        workload_pb2.Workload(name="workloads/a", engine_digest=DIGEST),
        workload_pb2.Workload(
            name="workloads/b", profiles=[workload_pb2.CapacityProfile(engine="engines/rec-int8")]
        ),
        workload_pb2.Workload(name="workloads/c"),
    ]
    (row,) = engines.engine_rows([an_engine("ACTIVE")], [profile, other], users)
    assert row.used_by == ("a", "b")
    assert [(c.gpu_type, c.qps, c.latency_ms_p99) for c in row.capacities] == [("L4", 2500, 40)]
    assert row.digest_short == "ab12ab12ab12"
    assert not row.measures[0].kept


@pytest.mark.parametrize(
    ("uri", "link"),
    [
        ("https://reports.example/1", "https://reports.example/1"),
        ("javascript:alert(1)", ""),
        ("/tmp/r.json", ""),
    ],
)
def test_only_web_addresses_become_links(uri: str, link: str) -> None:
    (row,) = engines.engine_rows([an_engine("BUILT", report=uri)], [], [])
    assert (row.report_link, row.report_text) == (link, uri)


def test_an_engine_never_validated_says_so() -> None:
    engine = an_engine("BUILT")
    engine.ClearField("validation")
    (row,) = engines.engine_rows([engine], [], [])
    assert (row.validated, row.size_bytes) == (None, None)


def test_overrides_that_count_come_by_their_end_and_over_ones_last() -> None:
    def one(name: str, hours: float, *, active: bool) -> control_pb2.Override:
        until = Timestamp()
        until.FromDatetime(NOW + timedelta(hours=hours))
        return control_pb2.Override(
            name=f"workloads/rec/overrides/{name}", expire_time=until, active=active, replicas=9
        )

    rows = overrides.override_rows(
        [one("old", -1, active=False), one("b", 2, active=True), one("a", 1, active=True)], NOW
    )
    assert [(row.workload, row.id, row.remaining) for row in rows] == [
        ("rec", "a", timedelta(hours=1)),
        ("rec", "b", timedelta(hours=2)),
        ("rec", "old", None),
    ]


def test_an_override_without_reason_or_end_is_not_sent() -> None:
    _, wrong = overrides.draft(overrides.OverrideForm(workload="rec", replicas="9"))
    assert wrong == {"minutes": "overrides.error.minutes", "reason": "overrides.error.reason"}


def test_a_whole_form_makes_an_override() -> None:
    form = overrides.OverrideForm("rec", "at_least", "9", "90", "load test")
    override, wrong = overrides.draft(form)
    assert wrong == {}
    assert (override.kind, override.replicas) == (control_pb2.OVERRIDE_KIND_AT_LEAST, 9)
    assert override.ttl.ToTimedelta() == timedelta(minutes=90)


def test_a_fleets_pause_needs_a_reason_and_no_end() -> None:
    assert overrides.missing(overrides.OverrideForm(), ends=False) == {"reason": "overrides.error.reason"}


@pytest.mark.parametrize("minutes", ["", "-5", "0", "soon", "1e400", "nan"])
def test_a_length_that_is_none_is_refused(minutes: str) -> None:
    assert overrides.length(overrides.OverrideForm(minutes=minutes)) is None


def test_a_pause_that_could_not_be_read_is_not_called_running() -> None:
    assert not overrides.pause_row(None, "rec").known


def test_violations_stand_at_the_fields_of_the_form() -> None:
    error = ApiError(
        "INVALID_ARGUMENT",
        "INVALID_FIELDS",
        "no",
        (
            ("override.replicas", "must be 1 to 30"),
            ("override.expire_time", "too far"),
            ("request_id", "bad"),
        ),
    )
    found = overrides.field_errors(error)
    assert found.fields == {"replicas": ("must be 1 to 30",), "minutes": ("too far",)}
    assert found.general == ("request_id: bad",)
