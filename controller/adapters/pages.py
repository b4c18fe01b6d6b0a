"""Page tokens for keyset pagination: the sort key of the last row, opaque to clients.

Promises: a token continues right after the row it was made from, also when rows were added or removed
meanwhile; page sizes are bounded. Refuses sizes below 1 and tokens it did not make, by the name of the
field. Called by the stores, real and fake.
"""

import base64
from collections.abc import Sequence
from typing import Any, TypeVar

from controller.adapters.codec import RecordError, decode, encode
from controller.core.resources import Page

PAGE_SIZE_MAX = 10_000
_TOKEN_LENGTH_MAX = 1024

Key = TypeVar("Key", bound=tuple[Any, ...])
Row = TypeVar("Row")


def page_size(page: Page | None) -> int:
    """How many rows to return: what was asked for, at most `PAGE_SIZE_MAX`; None asks for that many.

    Raises:
        ValueError: the size is below 1.
    """
    if page is None:
        return PAGE_SIZE_MAX
    if page.size < 1:
        raise ValueError(f"page_size: {page.size} is not a size; ask for 1 to {PAGE_SIZE_MAX} rows")
    return min(page.size, PAGE_SIZE_MAX)


def last_key(page: Page | None, kind: type[Key]) -> Key | None:
    """The sort key a page continues after; None: from the beginning.

    Raises:
        ValueError: the token was not made by `cut` for this listing.
    """
    if page is None or not page.token:
        return None
    try:
        return decode(kind, base64.urlsafe_b64decode(page.token[:_TOKEN_LENGTH_MAX]))
    except (ValueError, RecordError) as error:
        raise ValueError(
            "page_token: not a token of this listing; pass next_page_token of the previous page, or leave it empty"
        ) from error


def cut(rows: Sequence[Row], keys: Sequence[tuple[Any, ...]], size: int) -> tuple[Sequence[Row], str]:
    """Cut a page of at most `size` from up to `size + 1` rows; the token is empty on the last page."""
    if len(rows) <= size:
        return rows, ""
    return rows[:size], base64.urlsafe_b64encode(encode(keys[size - 1]).encode()).decode()
