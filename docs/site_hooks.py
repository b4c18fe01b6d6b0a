# ruff: noqa: INP001 -- mkdocs loads it by its path
"""Hooks of the documentation site: what a reader of the repository may follow and a reader of the site cannot.

Promises: a link that leaves ``docs/`` becomes its text with the path behind it, so that nothing on the site leads
nowhere; long names in tables may break after an underscore; ``folder/*`` in the navigation stands for the pages of that folder. Called by mkdocs.
"""

import re
from pathlib import Path
from typing import Any

_LINK = re.compile(r"(?<!!)\[([^\[\]]*)\]\(((?!https?:|mailto:|#)[^)\s]+)\)")


_CELL = re.compile(r"<td[^>]*>.*?</td>", re.DOTALL)
_CODE = re.compile(r"<code>[^<]*</code>")


def on_config(config: Any, **_: Any) -> Any:  # noqa: ANN401 -- mkdocs' own types are untyped
    """Unfold ``folder/*`` in the navigation."""
    config.nav = _unfolded(config.nav, Path(config.docs_dir))
    return config


def _unfolded(entry: Any, docs: Path) -> Any:  # noqa: ANN401 -- lists, maps and names in each other
    if isinstance(entry, list):
        return [_unfolded(one, docs) for one in entry]
    if isinstance(entry, dict):
        return {title: _unfolded(one, docs) for title, one in entry.items()}
    if isinstance(entry, str) and entry.endswith("/*"):
        folder = entry.removesuffix("/*")
        return [f"{folder}/{path.name}" for path in sorted((docs / folder).glob("*.md"))]
    return entry


def on_page_markdown(markdown: str, page: Any, config: Any, **_: Any) -> str:  # noqa: ANN401 -- as above
    """Replace links that leave the documentation by text."""
    docs = Path(config.docs_dir).resolve()
    here = Path(page.file.abs_src_path).parent

    def replaced(match: re.Match[str]) -> str:
        text, target = match.groups()
        path = (here / target.partition("#")[0]).resolve()
        if path.is_relative_to(docs) and path.is_file():
            return match[0]
        name = path.relative_to(docs.parent).as_posix()
        return text if text.strip("`") == name else f"{text} (`{name}`)"

    return _LINK.sub(replaced, markdown)


def on_page_content(html: str, **_: Any) -> str:  # noqa: ANN401 -- as above
    """Let names in tables break where a reader would."""

    def breakable(cell: re.Match[str]) -> str:
        return _CODE.sub(lambda code: code[0].replace("_", "_<wbr>"), cell[0])

    return _CELL.sub(breakable, html)
