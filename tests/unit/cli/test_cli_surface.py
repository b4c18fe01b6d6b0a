"""What holds for every command there is: help with an example, 80 columns, output formats, completion, exit codes."""

import inspect
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer
import yaml

from controller.cli import common
from controller.cli.app import app, run_command

ROOT = Path(__file__).parents[3]
DOCS = ROOT / "docs" / "cli.md"
# Their result is a file, a secret, a process, or another program's own.
NO_OUTPUT = {
    "up",
    "serve",
    "migrate",
    "console",
    "demo",
    "simulate",
    "token create",
    "token revoke",
    "history export",
    "events export",
    "engine example",
    "kubernetes restore",
}
Captured = pytest.CaptureFixture[str]


def commands(within: typer.Typer = app, *path: str) -> Iterator[tuple[tuple[str, ...], inspect.Signature]]:
    """Every command that can be typed, with what it takes."""
    for info in within.registered_commands:
        assert info.callback is not None
        name = info.name or info.callback.__name__.replace("_", "-").strip("-")
        yield (*path, name), inspect.signature(info.callback)
    for group in within.registered_groups:
        assert group.typer_instance is not None
        yield from commands(group.typer_instance, *path, str(group.name))


COMMANDS = dict(commands())
GROUPS = {path[:-1] for path in COMMANDS}


@pytest.mark.parametrize("path", sorted(GROUPS | set(COMMANDS) - {("simulate",)}), ids=" ".join)
def test_every_help_has_an_example_in_eighty_columns(
    path: tuple[str, ...], capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")

    assert 0 == run_command([*path, "--help"])

    text = capsys.readouterr().out
    assert "Example" in text
    assert [] == [line for line in text.splitlines() if len(line) > 80]
    # A variable or value that is cut off cannot be copied; an ellipsis of our own stands apart.
    assert [] == re.findall(r"\S+…\s*│", text)


def test_every_command_that_a_message_or_an_example_names_exists() -> None:
    # The guides have a test of their own; these are what somebody reads when something is wrong.
    named: set[tuple[str, ...]] = set()
    read = [
        *ROOT.glob("controller/**/*.py"),
        *ROOT.glob("controller/**/*.html"),
        *ROOT.glob("engines/**/*.py"),
    ]
    for path in [*read, *ROOT.glob("deploy/**/*.yaml"), *ROOT.glob("deploy/**/*.txt")]:
        named |= {
            tuple(found.split())
            for found in re.findall(r"`forecrest ((?:[a-z][a-z-]+ ?)+)", path.read_text())
        }
    known = GROUPS | set(COMMANDS)

    assert len(named) > 20
    assert [] == sorted(
        words for words in named if words[:1] not in known or (words[:1] in GROUPS and words[:2] not in known)
    )


def test_every_command_with_a_result_writes_it_as_table_json_or_yaml() -> None:
    without = {" ".join(path) for path, taken in COMMANDS.items() if "output" not in taken.parameters}
    half = {" ".join(path) for path, taken in COMMANDS.items() if "as_json" in taken.parameters}

    assert without <= NO_OUTPUT
    assert not half & without


def made_token(tmp_path: Path, capsys: Captured) -> list[str]:
    file = ["--file", str(tmp_path / "tokens.json")]
    assert 0 == run_command(["token", "create", "--role", "viewer", "--namespace", "shop", *file])
    capsys.readouterr()
    return ["token", "list", *file]


def test_yaml_and_json_say_the_same(tmp_path: Path, capsys: Captured) -> None:
    listing = made_token(tmp_path, capsys)
    said = []
    for option in (["--json"], ["--output", "json"], ["--output", "yaml"]):
        assert 0 == run_command([*listing, *option])
        said.append(capsys.readouterr().out)

    assert said[0] == said[1]
    assert json.loads(said[0]) == yaml.safe_load(said[2])
    assert "[" not in said[2].splitlines()[0]


def test_one_yaml_result_leaves_the_next_command_alone(tmp_path: Path, capsys: Captured) -> None:
    listing = made_token(tmp_path, capsys)
    run_command([*listing, "--output", "yaml"])
    run_command([*listing, "--output", "table"])
    capsys.readouterr()

    assert 0 == run_command([*listing, "--json"])
    assert json.loads(capsys.readouterr().out)


def test_two_formats_at_once_are_refused(tmp_path: Path, capsys: Captured) -> None:
    listing = made_token(tmp_path, capsys)

    assert 2 == run_command([*listing, "--json", "--output", "yaml"])
    assert "contradicts --json" in capsys.readouterr().err


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_completion_script_is_printed_for_the_shell(
    shell: str, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("_FORECREST_COMPLETE", f"source_{shell}")

    assert 0 == run_command([])

    script = capsys.readouterr().out
    assert f"_FORECREST_COMPLETE=complete_{shell}" in script


def completed(*words: str, address: str = "127.0.0.1:1") -> list[str]:
    """What bash is offered for the last word."""
    done = subprocess.run(
        [sys.executable, "-m", "controller"],
        env={
            **os.environ,
            "_FORECREST_COMPLETE": "complete_bash",
            "COMP_WORDS": " ".join(("forecrest", *words)),
            "COMP_CWORD": str(len(words)),
            "FORECREST_ADDRESS": address,
        },
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    assert "" == done.stderr
    return done.stdout.split()


def test_commands_are_completed() -> None:
    assert ["export"] == completed("history", "e")


def test_without_a_controller_names_are_not_completed_and_nothing_is_said() -> None:
    assert [] == completed("workloads", "get", "r")


def test_exit_codes_are_those_the_documentation_promises() -> None:
    rows = re.findall(r"^\| (\d+) \| `(EXIT_[A-Z]+|0)` \|", DOCS.read_text(), re.MULTILINE)

    promised = {name: int(code) for code, name in rows if name != "0"}
    known = {name: code for name, code in vars(common).items() if re.fullmatch("EXIT_[A-Z]+", name)}
    assert known == promised
