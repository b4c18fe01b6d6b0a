"""`forecrest engine profile`: what it refuses, and what it says when nothing answers."""

import pytest

from controller.cli.app import run_command
from controller.cli.common import EXIT_USAGE

BASE = ["engine", "profile", "--endpoint", "127.0.0.1:1", "--model", "m", "--slo-ms", "50"]


@pytest.mark.parametrize(
    ("given", "named"),
    [
        (["--batch", "1,many"], "--batch"),
        (["--batch", "0"], "--batch"),
        (["--queue-delay-us", "-1"], "--queue-delay-us"),
        (["--instances", "65"], "--instances"),
        (["--record", "dlrm"], "--gpu-type"),
        (["--sender", "wrk"], "--sender"),
    ],
)
def test_what_makes_no_sense_is_refused_by_name(
    given: list[str], named: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_command([*BASE, *given]) == EXIT_USAGE
    assert named in capsys.readouterr().err


def test_an_endpoint_that_does_not_answer_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(BASE) == 1
    assert "127.0.0.1:1" in capsys.readouterr().err
