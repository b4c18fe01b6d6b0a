"""The sinks file is taken whole or refused by field and remedy, and never repeats a secret."""

from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
import yaml

from controller.core.types import AlarmKind
from controller.notify.config import Sink, SinksError, check_url, read_sinks
from controller.notify.types import Kind, Notification, Severity

TOLD = Notification(
    "1", datetime(2026, 11, 10, tzinfo=UTC), Kind.ALARM_RAISED, Severity.WARNING, "rec", "shop", "", "Late.",
    AlarmKind.PREWARM_LATE,
)  # fmt: skip


def write(tmp_path: Path, **fields: object) -> Path:
    (tmp_path / "secret").write_text("s3cret\n")
    sink = {"name": "ops", "url": "https://hooks.example.com/x", "secret_file": str(tmp_path / "secret")}
    kept = {key: value for key, value in (sink | fields).items() if value is not None}
    path = tmp_path / "sinks.yaml"
    path.write_text(yaml.safe_dump({"sinks": [kept]}))
    return path


def test_a_file_is_read_with_its_secrets_elsewhere(tmp_path: Path) -> None:
    (sink,) = read_sinks(write(tmp_path, severity="WARNING", kinds=["PREWARM_LATE"]))

    assert ("https://hooks.example.com/x", ["s3cret"]) == (sink.address(), sink.secrets())
    assert "s3cret" not in repr(sink)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"url": "http://hooks.example.com/x"}, "use https, or say allow_http: true"),
        ({"url": "ftp://hooks.example.com/x"}, "is no address"),
        ({"url": "https://me:hunter2@hooks.example.com/x"}, "leave user and password out"),
        ({"url": "https://169.254.169.254/latest"}, "is for no receiver"),
        ({"url": "https://[fe80::1]/x"}, "is for no receiver"),
        ({"url": "https://[::ffff:169.254.169.254]/x"}, "is for no receiver"),
        ({"url": "http://0.0.0.0/x", "allow_http": True}, "is for no receiver"),
        ({"url": "https://2852039166/latest"}, "write all four numbers"),
        ({"url": "https://169.254.43518/latest"}, "write all four numbers"),
        ({"url": "https://a b/"}, "is no address"),
        ({"url": None}, "give either url or url_file"),
        ({"url_file": "/nowhere"}, "give either url or url_file"),
        ({"url": None, "url_file": "/nowhere"}, "url_file /nowhere: cannot be read"),
        ({"secret_file": None}, "secret_file is needed with format webhook"),
        ({"format": "slack"}, "of no use with slack"),
        ({"kinds": ["PREWARM"]}, "'PREWARM' is unknown; choose from"),
        ({"severity": "LOUD"}, "sinks.0.severity"),
        ({"timeout_s": 31}, "sinks.0.timeout_s"),
        ({"name": "Ops!"}, "sinks.0.name"),
        ({"colour": "red"}, "sinks.0.colour"),
    ],
)
def test_what_cannot_work_is_refused_by_name(tmp_path: Path, fields: dict[str, object], said: str) -> None:
    with pytest.raises(SinksError) as refused:
        read_sinks(write(tmp_path, **fields))

    assert said in str(refused.value)
    assert "hunter2" not in str(refused.value)


@pytest.mark.parametrize(
    "url", ["http://127.0.0.1:9/x", "http://localhost/x", "http://[::1]:80/", "https://10.1.2.3/x"]
)
def test_loopback_needs_no_tls_and_private_addresses_are_receivers(url: str) -> None:
    check_url(url, allow_http=False)


@pytest.mark.parametrize("text", ["sinks: [", "- 1", "", "sinks: []"])
def test_what_is_no_sinks_file_says_so(tmp_path: Path, text: str) -> None:
    path = tmp_path / "sinks.yaml"
    path.write_text(text)

    with pytest.raises(SinksError, match=r"sinks\.yaml"):
        read_sinks(path)


def test_a_missing_file_names_its_setting(tmp_path: Path) -> None:
    with pytest.raises(SinksError, match="FORECREST_NOTIFICATIONS_FILE"):
        read_sinks(tmp_path / "none")


def test_an_empty_secret_is_refused(tmp_path: Path) -> None:
    path = write(tmp_path)
    (tmp_path / "secret").write_text("\n")

    with pytest.raises(SinksError, match="is empty"):
        read_sinks(path)


def test_two_sinks_of_one_name_are_refused(tmp_path: Path) -> None:
    path = write(tmp_path)
    (sink,) = yaml.safe_load(path.read_text())["sinks"]
    path.write_text(yaml.safe_dump({"sinks": [sink, sink]}))

    with pytest.raises(SinksError, match="same name"):
        read_sinks(path)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, True),
        ({"severity": "WARNING"}, True),
        ({"severity": "CRITICAL"}, False),
        ({"namespaces": ("shop", "lab")}, True),
        ({"namespaces": ("lab",)}, False),
        ({"kinds": ("ALARM_RAISED",)}, True),
        ({"kinds": ("PREWARM_LATE",)}, True),
        ({"kinds": ("PREWARM_MISSED", "ALARM_CLEARED")}, False),
    ],
)
def test_a_sink_is_told_what_passes_all_of_its_filters(fields: dict[str, object], expected: bool) -> None:
    sink = Sink.model_validate({"name": "ops", "format": "slack", "url": "https://h/x"} | fields)

    assert expected is sink.wants(TOLD)
    assert not Sink.model_validate(dict(sink) | {"severity": "CRITICAL"}).wants(
        replace(TOLD, severity=Severity.INFO)
    )
