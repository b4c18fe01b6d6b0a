"""Filters and orders of listings, as people write them: a small part of AIP-160 and AIP-132. Pure.

Promises: a filter is checked in full before anything is read; every refusal says at which character, what is
wrong there and what may stand there instead; length, depth and number of comparisons are bounded, so that no
text costs more than its length. Refuses AND beside OR without parentheses: their order of precedence in AIP-160
is not the one people know from elsewhere, and a filter must not mean something else than its author thinks.
Called by the listing use cases.
"""

import operator
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, Generic, TypeVar

from controller.usecases.errors import InvalidError, Violation

FILTER_LENGTH_MAX = 1000
COMPARISONS_MAX = 50
DEPTH_MAX = 10

Row = TypeVar("Row")
Predicate = Callable[[Any], bool]
_ORDERED: Mapping[str, Callable[[Any, Any], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_TOKEN = re.compile(
    r"""\s*(?:
        (?P<text>"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')
      | (?P<op><=|>=|!=|=|<|>|:(?!\d))
      | (?P<mark>[()])
      | (?P<word>(?:[^\s()"'<>=!:]|:(?=\d))+)
    )""",
    re.VERBOSE,
)


class Kind(StrEnum):
    """What a field holds, which says how it can be compared."""

    TEXT = "text"
    NUMBER = "number"
    TIME = "time"
    FLAG = "flag"
    MAP = "map"  # compared as {field}.{key}; its values are texts


@dataclass(frozen=True, slots=True)
class Field(Generic[Row]):
    """One field of a listing. ``read`` returns None for absent, a tuple for several values, a dict for MAP.

    ``choices`` closes the list of texts; ``prefix`` may stand before a value, as in a full resource name.
    """

    read: Callable[[Row], Any]
    kind: Kind = Kind.TEXT
    choices: Collection[str] = ()
    prefix: str = ""


@dataclass(frozen=True, slots=True)
class Filter(Generic[Row]):
    """A checked filter. ``equal`` holds the texts that fields must have in any case, to narrow what is read."""

    matches: Callable[[Row], bool] = field(default=lambda _: True)
    equal: Mapping[str, str] = field(default_factory=dict[str, str])


def filter_of(text: str, fields: Mapping[str, Field[Row]]) -> Filter[Row]:
    """Return the filter; raise InvalidError naming ``filter``, the place and the remedy."""
    if not text.strip():
        return Filter()
    if len(text) > FILTER_LENGTH_MAX:
        raise _refused(f"must have at most {FILTER_LENGTH_MAX} characters; got {len(text)}")
    if not text.isprintable():
        raise _refused("must not contain control characters; remove them")
    return _Parser(text, fields).run()


def order_of(text: str, fields: Collection[str], default: str) -> tuple[str, bool]:
    """Return the field to order by and whether it descends; raise InvalidError naming ``order_by``."""
    words = text.split()
    if not words:
        return default, False
    direction = words[1].lower() if len(words) == 2 else "asc"
    if len(words) > 2 or words[0] not in fields or direction not in {"asc", "desc"}:
        known = ", ".join(sorted(fields))
        raise InvalidError(
            [Violation("order_by", f'must be one of {known}, optionally with " desc"; got {text[:60]!r}')]
        )
    return words[0], direction == "desc"


def _refused(description: str) -> InvalidError:
    return InvalidError([Violation("filter", description)])


@dataclass(frozen=True, slots=True)
class _Token:
    kind: str
    text: str
    at: int


@dataclass(frozen=True, slots=True)
class _Node:
    """A condition, and what it demands in any case."""

    matches: Predicate
    equal: Mapping[str, str] = field(default_factory=dict[str, str])


class _Parser:
    def __init__(self, text: str, fields: Mapping[str, Field[Any]]) -> None:
        self._fields = fields
        self._tokens = _tokens(text)
        self._next = 0
        self._count = 0

    def run(self) -> Filter[Any]:
        node = self._expression(0)
        if (left := self._peek()) is not None:
            raise self._unexpected(left, "AND, OR or the end")
        return Filter(node.matches, node.equal)

    def _peek(self) -> _Token | None:
        return self._tokens[self._next] if self._next < len(self._tokens) else None

    def _take(self, wanted: str) -> _Token:
        token = self._peek()
        if token is None:
            raise _refused(f"ends where {wanted} is expected; complete it")
        self._next += 1
        return token

    @staticmethod
    def _unexpected(token: _Token, wanted: str) -> InvalidError:
        return _refused(
            f"at character {token.at + 1}: {token.text[:40]!r} stands where {wanted} is expected; see docs/api.md"
        )

    def _is_word(self, *words: str) -> bool:
        token = self._peek()
        return token is not None and token.kind == "word" and token.text in words

    def _expression(self, depth: int) -> _Node:
        if depth > DEPTH_MAX:
            raise _refused(f"must not nest deeper than {DEPTH_MAX}; simplify it")
        nodes = [self._term(depth)]
        joined = ""
        while self._is_word("AND", "OR"):
            token = self._take("AND or OR")
            if joined not in {"", token.text}:
                raise _refused(
                    f"at character {token.at + 1}: AND and OR stand side by side; say by parentheses which belongs "
                    "together"
                )
            joined = token.text
            nodes.append(self._term(depth))
        tests = [node.matches for node in nodes]
        if joined == "OR":
            return _Node(lambda row: any(test(row) for test in tests))
        equal: dict[str, str] = {}
        for node in nodes:
            equal.update(node.equal)
        return nodes[0] if len(nodes) == 1 else _Node(lambda row: all(test(row) for test in tests), equal)

    def _term(self, depth: int) -> _Node:
        if self._is_word("NOT"):
            self._take("NOT")
            inner = self._term(depth + 1) if depth < DEPTH_MAX else self._expression(depth + 1)
            return _Node(lambda row: not inner.matches(row))
        token = self._take("a field")
        if token.text == "(" and token.kind == "mark":
            node = self._expression(depth + 1)
            closing = self._take(")")
            if closing.text != ")":
                raise self._unexpected(closing, "AND, OR or )")
            return node
        return self._comparison(token)

    def _comparison(self, token: _Token) -> _Node:
        self._count += 1
        if self._count > COMPARISONS_MAX:
            raise _refused(f"must have at most {COMPARISONS_MAX} comparisons; simplify it")
        if token.kind != "word":
            raise self._unexpected(token, "a field")
        name, dot, key = token.text.partition(".")
        found = self._fields.get(name)
        if found is None or bool(dot) != (found.kind is Kind.MAP):
            known = ", ".join(n + (".{key}" if f.kind is Kind.MAP else "") for n, f in self._fields.items())
            raise self._unexpected(token, f"a field ({known})")
        if dot and not key:
            key = _unquoted(self._take("a key"))
        sign = self._take("=, !=, <, <=, >, >= or :")
        if sign.kind != "op":
            raise self._unexpected(sign, "=, !=, <, <=, >, >= or :")
        value = self._take("a value")
        if value.kind not in {"text", "word"} or (
            value.kind == "word" and value.text in {"AND", "OR", "NOT"}
        ):
            raise self._unexpected(value, "a value")
        return _condition(token.text, found, key, sign, value)


def _tokens(text: str) -> list[_Token]:
    found: list[_Token] = []
    at = 0
    while text[at:].strip():
        match = _TOKEN.match(text, at)
        if match is None:
            place = at + len(text[at:]) - len(text[at:].lstrip())
            raise _refused(
                f"at character {place + 1}: {text[place : place + 20]!r} cannot be read; put values that are no plain "
                'words into "quotes"'
            )
        kind = match.lastgroup or ""
        found.append(_Token(kind, match[kind], match.start(kind)))
        at = match.end()
    return found


def _unquoted(token: _Token) -> str:
    return re.sub(r"\\(.)", r"\1", token.text[1:-1]) if token.kind == "text" else token.text


def _condition(name: str, found: Field[Any], key: str, sign: _Token, value: _Token) -> _Node:
    read = found.read if not key else lambda row: found.read(row).get(key)
    text = _unquoted(value)
    allowed = {
        Kind.NUMBER: ("=", "!=", "<", "<=", ">", ">=", ":"),
        Kind.TIME: ("=", "!=", "<", "<=", ">", ">=", ":"),
    }.get(found.kind, ("=", "!=", ":"))
    if sign.text not in allowed:
        raise _refused(
            f"at character {sign.at + 1}: {name} cannot be compared by {sign.text}; use {', '.join(allowed)}"
        )
    if sign.text == ":" and text == "*" and value.kind == "word":
        return _Node(lambda row: read(row) not in (None, (), ""))
    if found.kind in {Kind.TEXT, Kind.MAP}:
        return _text_condition(name, found, read, sign.text, text, value)
    wanted = _value(name, found.kind, text, value)
    if sign.text in _ORDERED:
        compare = _ORDERED[sign.text]
        return _Node(lambda row: (held := read(row)) is not None and compare(held, wanted))
    if sign.text == "!=":
        return _Node(lambda row: read(row) != wanted)
    return _Node(lambda row: read(row) == wanted)


def _text_condition(
    name: str, found: Field[Any], read: Callable[[Any], Any], sign: str, text: str, value: _Token
) -> _Node:
    if found.choices:
        text = text.upper().removeprefix(found.prefix)
        if text not in found.choices:
            raise _refused(
                f"at character {value.at + 1}: {name} must be one of {', '.join(found.choices)}; "
                f"got {value.text[:40]!r}"
            )
    else:
        text = text.removeprefix(found.prefix)
    if sign == ":":
        part = text.casefold()
        return _Node(lambda row: any(part in held.casefold() for held in _several(read(row))))
    if sign == "!=":
        return _Node(lambda row: text not in _several(read(row)))
    return _Node(lambda row: text in _several(read(row)), {name: text})


def _several(held: Any) -> Sequence[str]:  # noqa: ANN401 -- as the field has it
    return () if held is None else held if isinstance(held, tuple) else (held,)


def _aware(at: datetime) -> datetime:
    if at.tzinfo is None:
        raise ValueError("a time without its zone")
    return at.astimezone(UTC)


def _value(name: str, kind: Kind, text: str, token: _Token) -> float | bool | datetime:
    try:
        if kind is Kind.NUMBER:
            return float(text)
        if kind is Kind.FLAG:
            return {"true": True, "false": False}[text.lower()]
        return _aware(datetime.fromisoformat(text))
    except (ValueError, KeyError, OverflowError):
        wanted = {
            Kind.NUMBER: "a number",
            Kind.FLAG: "true or false",
            Kind.TIME: 'a time with its zone, for example "2027-01-01T00:00:00Z"',
        }[kind]
        raise _refused(
            f"at character {token.at + 1}: {name} must be compared with {wanted}; got {token.text[:40]!r}"
        ) from None
