"""Bounds of every listing, and the translation of a store's refusal of a page token."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from controller.core.resources import Page
from controller.usecases.errors import InvalidError, Violation

PAGE_SIZE_DEFAULT = 50
PAGE_SIZE_MAX = 1000


def page_of(size: int, token: str) -> Page:
    """Return the page asked for: 0 means the default, more than the maximum means the maximum."""
    if size < 0:
        raise InvalidError([Violation("page_size", f"must be 0 to {PAGE_SIZE_MAX}; got {size}")])
    return Page(size=min(size or PAGE_SIZE_DEFAULT, PAGE_SIZE_MAX), token=token)


@asynccontextmanager
async def listing(page: Page) -> AsyncGenerator[None]:
    """Around a store's listing: a ValueError there means that the page's token is not one of its own."""
    try:
        yield
    except ValueError as error:
        if not page.token:
            raise
        remedy = "is not a token of this listing; send next_page_token of the page before, or leave it empty"
        raise InvalidError([Violation("page_token", remedy)]) from error
