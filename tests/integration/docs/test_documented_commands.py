"""Commands of the guides do what they say: run in order, in one small world with a real controller.

Every `sh` block of a page in PAGES is run, unless the line before it is `<!-- not run: REASON -->`. Other pages have tests of
their own (ELSEWHERE), or show `grpcurl` alone, which tests/unit/api/test_docs_grpcurl.py runs. Commands of ours that are
nowhere run are at least understood by our own parser.
"""

import csv
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path

import click
import grpc
import pytest
import typer

from controller.adapters.clock import SystemClock
from controller.cli.app import app, run_command
from tests.unit.api.test_docs_grpcurl import Reflected, _command

ROOT = Path(__file__).resolve().parents[3]
DOCS = ROOT / "docs"
PAGES = ("quickstart.md", "planner.md", "operator.md", "runbooks.md")
ELSEWHERE = {
    "cli.md": "tests/unit/cli/test_cli_surface.py",
    "engines.md": "tests/integration/engines/test_engine_docs.py",
    "notifications.md": "tests/integration/notify/test_webhooks.py",
    "security.md": "tests/integration/security/test_security_run.py",
    "telemetry.md": "tests/unit/api/test_telemetry_documented.py",
}
SHELLS = {"sh", "bash", "console", "shell"}
BLOCK = re.compile(r"((?:<!-- [^\n]* -->\n)?) *```(\w*)\n(.*?)```", re.DOTALL)
# Commands that follow something until Ctrl-C: started, and ended once they have said a line.
ENDLESS = (["decisions", "watch"], ["events", "watch"])
HISTORY_HOURS = 240


@dataclass(frozen=True)
class Block:
    page: str
    language: str
    excuse: str
    commands: tuple[str, ...]


def blocks(path: Path) -> Iterator[Block]:
    for mark, language, text in BLOCK.findall(path.read_text()):
        joined = re.sub(r"\\\n\s*", " ", text)
        # A quoted request goes over several lines; it ends where its quote does.
        commands: list[str] = []
        for line in joined.splitlines():
            if commands and commands[-1].count("'") % 2:
                commands[-1] += " " + line.strip()
            elif line.strip() and not line.strip().startswith("#"):
                commands.append(line.strip().removeprefix("$ "))
        excuse = (
            mark.removeprefix("<!-- not run:").removesuffix(" -->\n").strip() if "not run" in mark else ""
        )
        yield Block(path.name, language, excuse, tuple(commands))


def pages() -> list[Path]:
    return [*sorted(DOCS.glob("*.md")), ROOT / "README.md"]


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder as a reader has it, with a controller that is up, as `make up` leaves it, and does not start replicas."""
    shutil.copytree(DOCS / "examples", tmp_path / "docs" / "examples")
    now = SystemClock().now().replace(minute=0, second=0, microsecond=0)
    with (tmp_path / "my_traffic.csv").open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(("timestamp", "value"))
        for hour in range(HISTORY_HOURS):
            rows.writerow(((now - timedelta(hours=HISTORY_HOURS - hour)).isoformat(), 100 + hour % 24))
    environment = {name: value for name, value in os.environ.items() if not name.startswith("FORECREST_")}
    environment |= {
        "FORECREST_ACTUATOR": "dry_run",
        "FORECREST_TICK_PERIOD_S": "1",
        "FORECREST_CONSOLE_BIND": "",
    }
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PWD", str(tmp_path))  # as a shell would have it
    for name in set(os.environ) - set(environment):
        monkeypatch.delenv(name)
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    command = [sys.executable, "-m", "controller", "up", "--bind", "127.0.0.1:0"]
    with subprocess.Popen(
        command, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()  # comes when it serves, or as an empty line when it ended
        state = json.loads((tmp_path / ".forecrest" / "runtime.json").read_text())
        monkeypatch.setenv("FORECREST_ADDRESS", state["address"])
        yield tmp_path
        process.send_signal(signal.SIGINT)
        process.wait(60)


class Reader:
    """Types what the guides say."""

    def __init__(self, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
        self._capsys, self._monkeypatch = capsys, monkeypatch

    def type(self, command: str) -> str:
        """Run one command; return what it says, fail with it if it fails."""
        words = shlex.split(command, comments=True)
        if words[0] == "export":
            name, _, value = words[1].partition("=")
            self._monkeypatch.setenv(name, os.path.expandvars(value))
            return ""
        if words[0] == "grpcurl":
            return self._grpcurl(words[1:])
        if words[1:3] in ENDLESS:
            return self._until_it_speaks(words)
        if words[0] == "forecrest" and not set(words) & {">", "|", "&&", "&"}:
            code = run_command(words[1:])
            said, complaint = self._capsys.readouterr()
        else:
            done = subprocess.run(
                command, shell=True, capture_output=True, text=True, check=False, timeout=120
            )
            code, said, complaint = done.returncode, done.stdout, done.stderr
        assert 0 == code, f"{command}\n{said}{complaint}"
        return said

    def until_done(self, command: str) -> None:
        """Repeat a command whose subject the controller makes in its own time."""
        for _ in range(600):
            if run_command(shlex.split(command)[1:]) == 0:
                break
            threading.Event().wait(0.2)
        self._capsys.readouterr()

    def _grpcurl(self, words: list[str]) -> str:
        call = _command("", words)
        assert "127.0.0.1:7443" == call.address
        try:
            return str(Reflected(os.environ["FORECREST_ADDRESS"]).run(replace(call)))
        except grpc.RpcError as error:
            pytest.fail(f"{words}: {error.code()} {error.details()}")

    def _until_it_speaks(self, words: list[str]) -> str:
        command = [sys.executable, "-m", "controller", *words[1:]]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=Path.cwd()) as process:
            assert process.stdout is not None
            said = process.stdout.readline()
            process.send_signal(signal.SIGINT)
            process.wait(60)
        assert said, words
        return said


def test_the_commands_of_the_guides_do_what_they_say(
    world: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    reader, said = Reader(capsys, monkeypatch), dict[str, str]()
    for page in PAGES:
        for block in blocks(DOCS / page):
            if block.language not in SHELLS or block.excuse:
                continue
            for command in block.commands:
                if command.startswith(("forecrest forecast ", "forecrest explain ")):
                    reader.until_done(command)
                said[command] = reader.type(command)

    # What the quick start shows as the answer is the answer.
    (answer,) = (text for lang, text in fences(DOCS / "quickstart.md") if lang == "text")
    (create,) = (text for command, text in said.items() if "create midnight-sale" in command)
    assert answer.split() == create.split()
    assert 25 <= len(said)


def fences(path: Path) -> Iterator[tuple[str, str]]:
    for _, language, text in BLOCK.findall(path.read_text()):
        yield language, text


def test_an_excuse_that_names_a_test_names_one_there_is() -> None:
    excuses = [block.excuse for path in pages() for block in blocks(path) if block.excuse]
    named = {name for excuse in excuses for name in re.findall(r"tests/[\w/]+\.py", excuse)}

    assert 5 <= len(excuses)
    assert [] == [name for name in sorted(named) if not (ROOT / name).is_file()]


@pytest.mark.parametrize("path", pages(), ids=lambda path: path.name)
def test_every_command_is_run_somewhere_or_says_why_not(path: Path) -> None:
    shells = [block for block in blocks(path) if block.language in SHELLS]
    left = [
        block.commands
        for block in shells
        if not block.excuse and not all(command.startswith("grpcurl ") for command in block.commands)
    ]
    if path.name in ELSEWHERE:
        assert path.name in (ROOT / ELSEWHERE[path.name]).read_text()
    elif path.name not in {*PAGES, "README.md"}:
        assert [] == left


def test_the_readme_says_nothing_that_the_quick_start_does_not_run() -> None:
    run = {command for block in blocks(DOCS / "quickstart.md") for command in block.commands}
    shown = [
        re.sub(r"\s+#.*|^\.venv/bin/", "", command)
        for block in blocks(ROOT / "README.md")
        if block.language == "sh"
        for command in block.commands
    ]
    understood = {"make test", "forecrest explain recommender --plot"}

    assert [] == [command for command in shown if command not in run | understood]


def ours() -> Iterator[tuple[str, list[str]]]:
    for path in pages():
        for language, text in fences(path):
            if language in {*SHELLS, "", "text"}:
                for line in re.sub(r"\\\n\s*", " ", text).splitlines():
                    found = re.match(r"\s*(?:\$ )?(?:\.venv/bin/)?forecrest ([a-z-].*)", line)
                    if found:
                        words = shlex.split(found[1], comments=True)
                        ends = [
                            n for n, word in enumerate(words) if word in {">", "|", "&", "&&", "2>/dev/null"}
                        ]
                        yield path.name, words[: ends[0]] if ends else words


@pytest.mark.parametrize(("page", "words"), list(ours()), ids=lambda value: str(value)[:60])
def test_every_documented_command_of_ours_exists_with_its_options(page: str, words: list[str]) -> None:
    command: click.Command = typer.main.get_command(app)
    context = click.Context(command, info_name="forecrest")
    rest = list(words)
    while isinstance(command, click.Group):
        while rest and rest[0].startswith("-"):  # global options, each with its value
            rest = rest[2:]
        name, found, rest = command.resolve_command(context, rest)
        assert found is not None, (page, words)
        context, command = click.Context(found, parent=context, info_name=name), found
    if not command.context_settings.get("ignore_unknown_options"):
        command.make_parser(context).parse_args(rest)
