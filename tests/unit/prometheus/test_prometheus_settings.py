"""From settings to a source of demand."""

from pathlib import Path

import pytest
from pydantic import SecretStr, ValidationError

from controller.adapters.clock import SystemClock
from controller.bootstrap import prometheus_traffic
from controller.settings import Settings


def test_without_an_address_nobody_is_asked() -> None:
    assert prometheus_traffic(Settings(), SystemClock()) is None


def test_every_setting_reaches_the_client() -> None:
    source = prometheus_traffic(
        Settings(
            prometheus_url="https://prometheus:9090",
            prometheus_username="me",
            prometheus_password=SecretStr("secret-word"),
            prometheus_ca_file=Path("ca.pem"),
            prometheus_headers={"X-Scope-OrgID": SecretStr("team")},
            prometheus_timeout_s=3.0,
            prometheus_period_s=5.0,
        ),
        SystemClock(),
    )
    assert source is not None
    access = source._prometheus._access

    assert (access.url, access.username, access.password, access.ca_file) == (
        "https://prometheus:9090",
        "me",
        "secret-word",
        Path("ca.pem"),
    )
    assert (access.headers, access.timeout_s) == ({"X-Scope-OrgID": "team"}, 3.0)
    assert source._period.total_seconds() == 5.0


@pytest.mark.parametrize(
    "wrong",
    [
        {"prometheus_url": "prometheus:9090"},
        {"prometheus_url": "http://me:secret-word@prometheus"},
        {"prometheus_url": "http://p", "prometheus_username": "u", "prometheus_token_file": Path("t")},
    ],
)
def test_wrong_settings_are_refused_without_repeating_secrets(wrong: dict[str, object]) -> None:
    with pytest.raises(ValidationError, match="prometheus_") as caught:
        Settings(**wrong)  # type: ignore[arg-type]

    assert "secret-word" not in str(caught.value)
