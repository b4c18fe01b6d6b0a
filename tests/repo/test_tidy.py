"""The repository's own conventions, held by a machine: a rule nobody enforces would be deleted."""

import ast
import re
import subprocess
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SOURCES = ("controller", "forecaster", "engines", "migrations", "benchmarks")


def tracked() -> list[Path]:
    # A checkout that another user made, as in many CI containers, is fine to read.
    command = ["git", "-c", f"safe.directory={ROOT}", "ls-files", "-z"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    return [ROOT / name for name in done.stdout.split("\0") if name and (ROOT / name).is_file()]


def test_sources_are_tracked() -> None:
    assert len(tracked()) > 50


@pytest.mark.parametrize("package", SOURCES)
def test_every_module_says_what_it_promises(package: str) -> None:
    bare = [
        str(path.relative_to(ROOT))
        for path in (ROOT / package).rglob("*.py")
        if "versions" not in path.parts and not ast.get_docstring(ast.parse(path.read_text()))
    ]

    assert bare == []


def test_no_file_names_a_registry_host_or_a_machine_path() -> None:
    forbidden = re.compile(
        r"pypi\.org|pythonhosted|registry\.npmjs|proxy\.golang|deb\.debian|/work/(?:main|shared)"
    )
    found = [
        f"{path.relative_to(ROOT)}:{number}"
        for path in tracked()
        if path.suffix in {".py", ".md", ".toml", ".txt", ".yaml", ".yml", ".proto", ".cfg", ".sh", ""}
        and path != Path(__file__)
        for number, line in enumerate(path.read_text(errors="replace").splitlines(), 1)
        if forbidden.search(line)
    ]

    assert found == []


def test_readme_commands_exist_in_the_makefile() -> None:
    makefile = (ROOT / "Makefile").read_text()
    commands = set(re.findall(r"^\s*make (\w+)", (ROOT / "README.md").read_text(), re.MULTILINE))

    assert {"run", "test"} <= commands
    assert [c for c in sorted(commands) if not re.search(rf"^{c}:", makefile, re.MULTILINE)] == []


def test_every_direct_dependency_is_locked() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    wanted = [*project["project"]["dependencies"], *project["dependency-groups"]["dev"]]
    names = {re.split(r"[\[<>=]", w)[0] for w in wanted}
    locked = set(
        re.findall(
            r"^([a-z0-9-]+)(?:\[[a-z,]+\])?==", (ROOT / "requirements/dev.txt").read_text(), re.MULTILINE
        )
    )

    assert sorted(names - locked) == []


def test_links_between_documents_lead_somewhere() -> None:
    broken = [
        f"{path.relative_to(ROOT)} -> {target}"
        for path in tracked()
        if path.suffix == ".md"
        for target in re.findall(r"\]\(([^)#:]+?)(?:#[^)]*)?\)", path.read_text())
        if not (path.parent / target).exists()
    ]

    assert broken == []


def test_proto_is_never_a_package() -> None:
    # PyPI's proto-plus owns the import name "proto".
    assert not (ROOT / "proto" / "__init__.py").exists()
