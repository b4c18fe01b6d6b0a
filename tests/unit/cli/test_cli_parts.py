"""Times, durations, addresses, workload files and exit codes of the command line."""

import dataclasses
import inspect
import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import grpc
import pytest
from forecrest.v1 import engine_pb2, event_pb2, workload_pb2
from google.rpc import error_details_pb2, status_pb2  # type: ignore[import-untyped]

from controller.cli import common
from controller.cli.app import run_command
from controller.cli.common import CliError, find_address, parse_duration, parse_time
from controller.cli.event_options import NAMES, EventOptions
from controller.cli.workloads import read_workloads

NOW = datetime(2026, 11, 1, 12, tzinfo=UTC)
WORKLOAD = """
name: recommender
model_name: recommender
model_version: 3
profiles:
  - {engine: two_tower, qps_max: 60, batch_size_max: 4, precision: int8}
max_replicas: 8
mode: recommend
slo: {wait_s: 0.2}
policy:
  stable_window: 60
  prewarm_margin: 1m30s
  behavior:
    scale_down: {stabilization_window: 5m, policies: [{type: pods, value: 2, period: 60s}]}
target: {kind: Deployment}
"""


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("90s", timedelta(seconds=90)),
        ("1h30m", timedelta(minutes=90)),
        ("2d", timedelta(days=2)),
        ("0.5s", timedelta(milliseconds=500)),
    ],
)
def test_durations_are_read(text: str, expected: timedelta) -> None:
    assert expected == parse_duration(text, "--ramp")


@pytest.mark.parametrize("text", ["", "90", "soon", "5 m", "-5m", "1m1h"])
def test_what_is_no_duration_names_the_option_and_the_form(text: str) -> None:
    with pytest.raises(CliError, match=r"--ramp: .* write 90s, 5m, 1h30m or 2d") as refused:
        parse_duration(text, "--ramp")

    assert common.EXIT_USAGE == refused.value.code


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("now", NOW),
        ("+2h", NOW + timedelta(hours=2)),
        ("-1d", NOW - timedelta(days=1)),
        ("2026-11-11T00:00:00+08:00", datetime(2026, 11, 10, 16, tzinfo=UTC)),
    ],
)
def test_times_are_read(text: str, expected: datetime) -> None:
    assert expected == parse_time(text, "--since", NOW)


@pytest.mark.parametrize("text", ["tomorrow", "2026-11-11T00:00", "+soon"])
def test_a_time_without_a_zone_is_refused(text: str) -> None:
    with pytest.raises(CliError, match="--since: "):
        parse_time(text, "--since", NOW)


def test_a_wall_clock_time_of_an_event_stays_one_and_an_instant_stays_one() -> None:
    event = event_pb2.Event()
    given = EventOptions(start="2026-11-11T00:00", end="2026-11-11T02:00:00Z", time_zone="Asia/Shanghai")
    mask = given.fill(event)

    assert "2026-11-11T00:00" == event.start_local
    assert not event.HasField("start_time")
    assert datetime(2026, 11, 11, 2, tzinfo=UTC) == event.end_time.ToDatetime(UTC)
    assert ["start_local", "start_time", "end_local", "end_time", "time_zone"] == mask


def test_two_kinds_of_expected_load_are_refused() -> None:
    with pytest.raises(CliError, match="give one of them"):
        EventOptions(peak_qps=1.0, multiplier=2.0).fill(event_pb2.Event())


@pytest.mark.parametrize(
    ("field", "remedy", "expected"),
    [
        ("event.end_time", "must be after start_time", "--end: must be after --start"),
        (
            "event.workloads[1]",
            "no workload 'x'; create it first",
            "--workload[1]: no workload 'x'; create it first",
        ),
        (
            "event.expected_peak_qps",
            "give exactly one of expected_peak_qps and expected_multiplier",
            "--peak-qps: give exactly one of --peak-qps and --multiplier",
        ),
        ("event.max_replicas_override", "must be at least 1", "--max-replicas: must be at least 1"),
        ("event.exdate_times[0]", "is no start", "event.exdate_times[0]: is no start"),
    ],
)
def test_refusals_name_what_a_person_typed(field: str, remedy: str, expected: str) -> None:
    assert expected == common.typed(field, remedy, NAMES)


def test_commands_that_describe_an_event_take_the_same_options() -> None:
    from controller.cli.events import create, preview, update

    taken = [set(inspect.signature(command).parameters) for command in (create, update, preview)]
    shared = {field.name for field in dataclasses.fields(EventOptions)}

    assert [shared - names for names in taken] == [set()] * 3


def test_the_address_is_the_given_one_or_the_running_ones_or_the_default(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    assert "127.0.0.1:7443" == find_address(None)
    state = tmp_path / ".forecrest" / "runtime.json"
    state.parent.mkdir()
    state.write_text(json.dumps({"address": "127.0.0.1:5555"}))
    assert "127.0.0.1:5555" == find_address(None)
    assert "example.org:1" == find_address("example.org:1")
    with pytest.raises(CliError, match="is not host:port"):
        find_address("nowhere")


def test_a_workload_file_becomes_the_message_the_api_takes(tmp_path: Path) -> None:
    path = tmp_path / "w.yaml"
    path.write_text(WORKLOAD)
    (spec,) = read_workloads(path)
    message = spec.message()

    assert ("workloads/recommender", "3", 60.0) == (
        message.name,
        message.model_version,
        message.profiles[0].qps_max,
    )
    assert workload_pb2.PRECISION_INT8 == message.profiles[0].precision
    assert workload_pb2.MODE_RECOMMEND == message.mode
    assert timedelta(seconds=90) == message.policy.prewarm_margin.ToTimedelta()
    assert timedelta(minutes=5) == message.policy.behavior.scale_down.stabilization_window.ToTimedelta()
    assert not message.HasField("min_replicas")


@pytest.mark.parametrize(
    ("old", "new", "remedy"),
    [
        ("max_replicas", "max_replica", "max_replica: is no field of a workload"),
        (
            "  - {engine: two_tower, qps_max: 60,",
            "  - {engine: two_tower,",
            "profiles.0.qps_max: is required",
        ),
        ("stable_window: 60", "stable_window: soon", "policy.stable_window: 'soon' is no duration"),
        ("mode: recommend", "mode: magic", "mode: 'magic' is unknown; choose from RECOMMEND, FLOOR"),
        ("name: recommender\nmodel", "name: Recommender\nmodel", "name: 'Recommender' must be 1 to 63"),
        ("max_replicas: 8", "max_replicas: many", "max_replicas: Input should be a valid integer"),
        ("slo: {wait_s: 0.2}", "slo: {wait: 0.2}", "slo.wait: is no field"),
        ("target: {kind: Deployment}", "target: [", "is not YAML"),
    ],
)
def test_a_workload_file_with_a_mistake_names_the_field(
    tmp_path: Path, old: str, new: str, remedy: str
) -> None:
    path = tmp_path / "w.yaml"
    assert old in WORKLOAD
    path.write_text(WORKLOAD.replace(old, new, 1))

    with pytest.raises(CliError) as refused:
        read_workloads(path)

    assert remedy in str(refused.value)


def test_the_same_workload_twice_in_a_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "w.yaml"
    path.write_text(f"{WORKLOAD}\n---\n{WORKLOAD}")

    with pytest.raises(CliError, match="occurs twice"):
        read_workloads(path)


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["nosuch"], 2, "nosuch"),
        (["workloads", "list", "--bogus"], 2, "--bogus"),
        (["events", "create"], 2, "EVENT"),
        (["workloads", "list", "--address", "nowhere"], 2, "host:port"),
        (["workloads", "apply", "-f", "/nowhere.yaml"], 1, "check the path"),
        (["history", "import", "/nowhere.csv", "-w", "x"], 1, "no such file"),
        (["serve"], 2, "FORECREST_DATABASE_URL"),
        (["migrate"], 2, "FORECREST_DATABASE_URL"),
        (["events", "update", "x"], 2, "Nothing to change"),
        (["events", "list", "--state", "GONE"], 2, "choose from SCHEDULED"),
        (["history", "export", "-w", "x", "--start", "now", "--end", "-1d"], 2, "--start: must come before"),
        (["history", "export", "-w", "x", "--start", "-9999999d"], 2, "outside the years 1 to 9999"),
        (["history", "export", "-w", "x", "--step", "9999999999d"], 2, "longer than any calendar"),
        (["migrate", "--database-url", "mysql://u:s3cret@h/x"], 2, "FORECREST_DATABASE_URL: is no such URL"),
        (["migrate", "--database-url", "postgresql://u:s3cret@h:x/y"], 2, "write postgresql://"),
    ],
)
def test_wrong_usage_ends_with_its_code_and_a_sentence(
    arguments: list[str],
    code: int,
    said: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("FORECREST_DATABASE_URL", "FORECREST_REDIS_URL", "FORECREST_ADDRESS"):
        monkeypatch.delenv(name, raising=False)

    assert code == run_command(arguments)

    captured = capsys.readouterr()
    assert said in captured.err
    assert "Traceback" not in captured.err
    assert "s3cret" not in captured.err
    assert "" == captured.out


def test_a_setting_that_makes_no_sense_is_named(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORECREST_TICK_PERIOD_S", "-5")

    assert 2 == run_command(["up"])
    assert "FORECREST_TICK_PERIOD_S" in capsys.readouterr().err


def test_the_data_folder_is_that_of_the_environment(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORECREST_DATA_DIR", str(tmp_path))

    run_command(["doctor", "--json"])

    disk = next(f for f in json.loads(capsys.readouterr().out) if f["check"] == "disk")
    assert disk["detail"].endswith(str(tmp_path))


def test_no_controller_says_how_to_start_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert 3 == run_command(["workloads", "get", "x", "--address", "127.0.0.1:1"])
    assert "forecrest up" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("code", "reason", "sentence", "exit_code"),
    [
        (grpc.StatusCode.UNAVAILABLE, "", "No controller answers.", common.EXIT_UNAVAILABLE),
        # It does answer, and says what is away.
        (
            grpc.StatusCode.UNAVAILABLE,
            "DEPENDENCY_UNAVAILABLE",
            "storage or cache is away (DEPENDENCY_UNAVAILABLE)",
            common.EXIT_UNAVAILABLE,
        ),
        (grpc.StatusCode.DEADLINE_EXCEEDED, "", "did not answer in time", common.EXIT_UNAVAILABLE),
        (grpc.StatusCode.PERMISSION_DENIED, "ROLE_FORBIDDEN", "(ROLE_FORBIDDEN)", common.EXIT_FAILED),
    ],
)
def test_a_controller_that_is_away_is_told_from_one_that_cannot_and_one_that_is_slow(
    code: grpc.StatusCode, reason: str, sentence: str, exit_code: int
) -> None:
    status = status_pb2.Status(code=code.value[0])
    status.details.add().Pack(error_details_pb2.ErrorInfo(reason=reason))
    details = grpc.aio.Metadata(("grpc-status-details-bin", status.SerializeToString()))

    async def fails() -> None:
        raise grpc.aio.AioRpcError(code, grpc.aio.Metadata(), details, "storage or cache is away")

    with pytest.raises(CliError) as refused:
        common.run(fails())

    assert sentence in str(refused.value)
    assert exit_code == refused.value.code


def test_a_message_is_shown_field_by_field_and_never_as_python(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    engine = engine_pb2.Engine(name="engines/int8", compute_capabilities=["8.6", "8.9"])
    engine.validation.passed = True
    engine.validation.measures.add(measure="cosine", value=0.9991, min=0.99)
    engine.validation.measures.add(measure="top1_agreement", value=0.997, min=0.99)

    common.out().print(common.fields_table(engine))

    rows = dict(line.split(None, 1) for line in capsys.readouterr().out.splitlines() if line[:1] != " ")
    assert "8.6, 8.9" == rows["compute_capabilities"].strip()
    assert "True" == rows["validation.passed"].strip()
    assert rows["validation.measures"].startswith("measure cosine, value 0.9991, min 0.99;")
    assert "size_bytes" not in rows
