"""Templates and words: Jinja2 with autoescape, strings of every language in ``i18n/``, numbers and times.

Promises: what is unknown is shown as a dash that screen readers call unknown, never as 0; times are UTC in the page,
and the browser's own zone once its script ran; a key without a string is an error, in every language. Called by pages.
"""

import json
import math
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

HERE = Path(__file__).parent
STATIC = HERE / "static"
LANGUAGES: Mapping[str, str] = {"en": "English", "zh": "简体中文"}
HTML_LANG = {"en": "en", "zh": "zh-Hans"}
DASH = "–"  # noqa: RUF001 -- the typographer's dash is meant
# Strings that scripts need begin with this; they travel with every page.
JS_PREFIX = "js."
# Paths kept: the same lines are drawn again for every viewer and every order of rows.
PATHS_MAX = 4096


@cache
def strings(language: str) -> Mapping[str, str]:
    """Return all strings of a language; raise ValueError if two files have the same key."""
    found: dict[str, str] = {}
    for path in sorted((HERE / "i18n").glob(f"*.{language}.json")):
        for key, text in json.loads(path.read_text(encoding="utf-8")).items():
            if key in found:
                raise ValueError(f"{path.name}: {key!r} is in another file too; keys are unique")
            found[key] = text
    return found


def pick_language(cookie: str, accepted: str) -> str:
    """Return the language of a request: as chosen, else the first accepted one that there is, else English."""
    if cookie in LANGUAGES:
        return cookie
    for part in accepted[:500].split(","):
        tag = part.partition(";")[0].strip().lower()
        if tag.partition("-")[0] in LANGUAGES:
            return tag.partition("-")[0]
    return "en"


class Words:
    """Strings of one language: ``t(key, name=value)``."""

    def __init__(self, language: str) -> None:
        self.language = language
        self._strings = strings(language)

    def __call__(self, key: str, /, **values: object) -> str:
        """Return a string; raise KeyError if there is none."""
        text = self._strings[key]
        return text.format(**values) if values else text

    def enum(self, prefix: str, name: str) -> str:
        """Return the word for a value of an enum, or the value itself: newer servers know more values."""
        return self._strings.get(f"{prefix}.{name}", name.replace("_", " ").capitalize())

    def scripts(self) -> dict[str, str]:
        """Return what the scripts say."""
        return {key: text for key, text in self._strings.items() if key.startswith(JS_PREFIX)}

    # ------------------------------------------------------------ numbers and times; None is unknown

    def unknown(self) -> Markup:
        """Return the mark of what is not known."""
        return Markup(
            '<span class="unknown" title="{0}"><span aria-hidden="true">{1}</span><span class="sr">{0}</span></span>'
        ).format(self("common.unknown"), DASH)

    def number(self, value: float | None, digits: int = 0) -> str | Markup:
        """Format a count or an amount."""
        if value is None or not math.isfinite(value):
            return self.unknown()
        return f"{value:,.{digits}f}".replace(",", "\N{NARROW NO-BREAK SPACE}")

    def qps(self, value: float | None) -> str | Markup:
        """Format a rate to what matters of it."""
        if value is None or not math.isfinite(value):
            return self.unknown()
        return self.number(value) if value >= 100 else f"{value:.3g}"

    def signed(self, value: float | None) -> str | Markup:
        """Format a part of a rate, with its sign."""
        if value is None or not math.isfinite(value):
            return self.unknown()
        return ("+" if value > 0 else "\N{MINUS SIGN}" if value < 0 else "") + str(self.qps(abs(value)))

    def percent(self, share: float | None, digits: int = 0) -> str | Markup:
        """Format a share of 1."""
        if share is None or not math.isfinite(share):
            return self.unknown()
        return f"{100 * share:.{digits}f} %"

    def span(self, length: timedelta | float | None) -> str | Markup:
        """Format a duration, to its two largest units."""
        if length is None:
            return self.unknown()
        left_s = round(length.total_seconds() if isinstance(length, timedelta) else length)
        sign, left_s = ("-" if left_s < 0 else ""), abs(left_s)
        parts: list[str] = []
        for unit, size_s in (("d", 86_400), ("h", 3600), ("min", 60), ("s", 1)):
            if left_s >= size_s and len(parts) < 2:
                parts.append(f"{left_s // size_s}\N{NO-BREAK SPACE}{self(f'unit.{unit}')}")
                left_s %= size_s
            elif parts:
                break
        return sign + (" ".join(parts) or f"0\N{NO-BREAK SPACE}{self('unit.s')}")

    def when(self, at: datetime | None, style: str = "datetime") -> Markup:
        """Format an instant. ``style``: datetime, date, time (to the second), short, full, age or countdown (kept running)."""
        if at is None:
            return self.unknown()
        utc = at.astimezone(UTC)
        return Markup('<time datetime="{0}" data-style="{1}" title="{2} UTC">{3} UTC</time>').format(
            f"{utc:%Y-%m-%dT%H:%M:%SZ}", style, f"{utc:%Y-%m-%d %H:%M:%S}", f"{utc:%Y-%m-%d %H:%M}"
        )


def _points(
    values: Sequence[float | None], width: float, height: float, top: float
) -> list[tuple[float, float] | None]:
    step = width / max(1, len(values) - 1)
    return [
        None
        if value is None or not math.isfinite(value)
        else (index * step, height - min(1.0, value / top if top > 0 else 0.0) * height + 1)
        for index, value in enumerate(values)
    ]


@lru_cache(PATHS_MAX)
def path_of_line(values: tuple[float | None, ...], width: float, height: float, top: float) -> str:
    """Return an SVG path through values at equal distances, broken where one is unknown. ``top``: value at y = 1."""
    parts: list[str] = []
    pen_down = False
    for point in _points(values, width, height, top):
        if point is not None:
            parts.append(f"{'L' if pen_down else 'M'}{point[0]:.1f} {point[1]:.1f}")
        pen_down = point is not None
    return "".join(parts)


@lru_cache(PATHS_MAX)
def path_of_band(
    lower: tuple[float | None, ...], upper: tuple[float | None, ...], width: float, height: float, top: float
) -> str:
    """Return closed SVG paths between two lines of one length, one for each stretch in which both are known."""
    paths: list[str] = []
    there: list[tuple[float, float]] = []
    back: list[tuple[float, float]] = []
    pairs = zip(_points(lower, width, height, top), _points(upper, width, height, top), strict=True)
    for low, high in [*pairs, (None, None)]:
        if low is not None and high is not None:
            there.append(high)
            back.append(low)
        elif there:
            corners = "L".join(f"{x:.1f} {y:.1f}" for x, y in [*there, *reversed(back)])
            paths.append(f"M{corners}Z")
            there, back = [], []
    return "".join(paths)


class Renderer:
    """Renders templates of ``templates/``."""

    def __init__(self) -> None:
        self._environment = Environment(
            loader=PackageLoader("controller.console"),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        shared: dict[str, Any] = {
            "path_of_line": path_of_line,
            "path_of_band": path_of_band,
            "languages": LANGUAGES,
            "min": min,
            "max": max,
        }
        self._environment.globals.update(shared)

    def page(self, template: str, words: Words, **context: Any) -> str:  # noqa: ANN401 -- whatever a template shows
        """Render a template; in it ``t`` is the words."""
        return self._environment.get_template(template).render(
            t=words, html_lang=HTML_LANG[words.language], escape=escape, **context
        )
