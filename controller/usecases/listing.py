"""Bounds of every listing, tokens that belong to one query, and the translation of a store's refusal of a token."""

import base64
import hashlib
import json
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from controller.core.resources import Page
from controller.usecases.errors import InvalidError, Violation

PAGE_SIZE_DEFAULT = 50
PAGE_SIZE_MAX = 1000
# More than any fleet has; what looks at all of them stops there.
EVERY_MAX = 100_000
_SCOPE_LENGTH = 12
_TOKEN_LENGTH_MAX = 2048
_REMEDY = "is not a token of this listing; send next_page_token of the page before with the same other fields, or leave it empty"

Row = TypeVar("Row")


def page_of(size: int, token: str, scope: str = "") -> Page:
    """Return the page asked for: 0 means the default, more than the maximum means the maximum.

    ``scope`` says of which query the token must be; raise InvalidError if it is of another.
    """
    if size < 0:
        raise InvalidError([Violation("page_size", f"must be 0 to {PAGE_SIZE_MAX}; got {size}")])
    if token and scope:
        mark, dot, token = token.partition(".")
        if mark != _mark(scope) or not dot or len(token) > _TOKEN_LENGTH_MAX:
            raise _no_token()
    return Page(size=min(size or PAGE_SIZE_DEFAULT, PAGE_SIZE_MAX), token=token)


def seal(token: str, scope: str) -> str:
    """Return a store's token as one of this query only; the empty one stays empty."""
    return f"{_mark(scope)}.{token}" if token else ""


def _mark(scope: str) -> str:
    return hashlib.sha256(scope.encode()).hexdigest()[:_SCOPE_LENGTH]


def _no_token() -> InvalidError:
    return InvalidError([Violation("page_token", _REMEDY)])


@asynccontextmanager
async def listing(page: Page) -> AsyncGenerator[None]:
    """Around a store's listing: a ValueError there means that the page's token is not one of its own."""
    try:
        yield
    except ValueError as error:
        if not page.token:
            raise
        raise _no_token() from error


async def every(
    read: Callable[[Page], Awaitable[tuple[Sequence[Row], str]]], limit: int = EVERY_MAX
) -> list[Row]:
    """All rows of a store's listing, page by page, at most ``limit``."""
    found: list[Row] = []
    token = ""
    while len(found) < limit:
        rows, token = await read(Page(min(PAGE_SIZE_MAX, limit - len(found)), token))
        found += rows
        if not token:
            break
    return found


def sorted_page(
    rows: Sequence[Row], page: Page, key: Callable[[Row], tuple[Any, str]], *, descending: bool
) -> tuple[Sequence[Row], str]:
    """Sort rows that are all in memory, and cut one page. ``key``: what to sort by, then what tells rows apart."""
    ordered = sorted(rows, key=key, reverse=descending)
    if page.token:
        try:
            value, name = json.loads(base64.urlsafe_b64decode(page.token))
            after = (value, str(name))
            ordered = [row for row in ordered if (key(row) < after if descending else key(row) > after)]
        except (ValueError, TypeError, RecursionError) as error:
            raise _no_token() from error
    found = ordered[: page.size]
    if len(ordered) <= page.size:
        return found, ""
    return found, base64.urlsafe_b64encode(json.dumps(key(found[-1])).encode()).decode()
