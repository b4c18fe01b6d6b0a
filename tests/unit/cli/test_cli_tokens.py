"""``forecrest token`` works on the file alone, and never shows a token twice."""

import json
from pathlib import Path

import pytest

from controller.adapters.clock import SystemClock
from controller.api.auth.tokens import TokenBook, read_tokens
from controller.cli.app import run_command

Captured = pytest.CaptureFixture[str]


def created(capsys: Captured, file: Path, *more: str) -> str:
    code = run_command(
        ["token", "create", "--role", "planner", "--namespace", "shop", "--file", str(file), *more]
    )
    assert 0 == code
    return capsys.readouterr().out.strip()


def test_a_token_is_printed_alone_and_once(tmp_path: Path, capsys: Captured) -> None:
    file = tmp_path / "new" / "tokens.json"
    text = created(capsys, file, "--name", "ci")
    run_command(["token", "list", "--file", str(file)])
    listed = capsys.readouterr().out
    run_command(["token", "list", "--file", str(file), "--json"])
    (known,) = json.loads(capsys.readouterr().out)

    assert TokenBook(read_tokens(file)).find(text, SystemClock().now()) is not None
    assert "ci" in listed
    assert "planner:shop" in listed
    assert text[21:] not in listed + json.dumps(known)
    assert ["planner:shop"] == known["grants"]
    assert "sha256" not in known


def test_roles_and_namespaces_are_combined(tmp_path: Path, capsys: Captured) -> None:
    created(capsys, tmp_path / "t.json", "--role", "viewer", "--namespace", "*", "--expires", "never")

    (token,) = read_tokens(tmp_path / "t.json").tokens
    assert {"planner:shop", "planner:*", "viewer:shop", "viewer:*"} == set(token.grants)
    assert token.expires_at is None


def test_a_withdrawn_token_is_gone_and_the_others_stay(tmp_path: Path, capsys: Captured) -> None:
    file = tmp_path / "t.json"
    first, second = created(capsys, file), created(capsys, file)
    first_id = first.split("_")[1]

    assert 0 == run_command(["token", "revoke", first_id, "--file", str(file)])
    assert 1 == run_command(["token", "revoke", first_id, "--file", str(file)])
    book = TokenBook(read_tokens(file))
    assert (None, True) == (
        book.find(first, SystemClock().now()),
        book.find(second, SystemClock().now()) is not None,
    )


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--role", "king", "--namespace", "shop"], "write ROLE:NAMESPACE"),
        (["--role", "viewer"], "--namespace: is required"),
        (["--role", "viewer", "--namespace", "shop", "--expires", "soon"], "no duration"),
        (["--role", "viewer", "--namespace", "shop", "--name", "Not A Name"], "name"),
    ],
)
def test_what_cannot_be_granted_is_refused_and_nothing_is_kept(
    tmp_path: Path, capsys: Captured, arguments: list[str], says: str
) -> None:
    file = tmp_path / "t.json"

    assert 0 != run_command(["token", "create", "--file", str(file), *arguments])
    assert says in capsys.readouterr().err
    assert not file.exists()


def test_a_broken_file_is_named_and_left_alone(tmp_path: Path, capsys: Captured) -> None:
    file = tmp_path / "t.json"
    file.write_text("{")

    code = run_command(["token", "create", "--role", "viewer", "--namespace", "*", "--file", str(file)])

    assert 1 == code
    assert "t.json" in capsys.readouterr().err
    assert "{" == file.read_text()


def test_a_token_on_the_way_to_another_machine_needs_tls(
    tmp_path: Path, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORECREST_TOKEN", "fct_0123456789abcdef_" + "A" * 43)
    monkeypatch.delenv("FORECREST_CA", raising=False)

    assert 2 == run_command(["workloads", "list", "--address", "192.0.2.1:7443"])
    assert "plain text" in capsys.readouterr().err
    missing = ["--token-file", str(tmp_path / "none"), "workloads", "list", "--address", "127.0.0.1:1"]
    assert 2 == run_command(missing)
    assert "cannot be read" in capsys.readouterr().err
