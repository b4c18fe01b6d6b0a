"""Rows in one block read as tuples of tuples do."""

from array import array

import pytest

from controller.core.rows import Rows, in_rows, packed

TABLE = ((1.0, 2.0), (3.0, 4.0), (5.0, 6.0))


def test_packed_rows_read_as_what_they_were_made_of() -> None:
    rows = packed(TABLE)

    assert isinstance(rows, Rows)
    assert len(rows) == 3
    assert TABLE == tuple(rows)
    assert [TABLE[i] for i in range(-3, 3)] == [rows[i] for i in range(-3, 3)]
    for cut in (slice(None), slice(1, None), slice(-2, None), slice(0, 9, 2), slice(2, 1)):
        assert TABLE[cut] == rows[cut]
    assert rows


def test_packed_rows_are_equal_to_what_holds_the_same() -> None:
    rows = packed(TABLE)

    assert rows == TABLE
    assert TABLE == rows
    assert rows == packed(TABLE)
    assert hash(TABLE) == hash(rows)
    assert rows != packed(TABLE[:2])
    assert rows != in_rows(array("d", (x for row in TABLE for x in row)), 3)
    assert rows != object()


@pytest.mark.parametrize("index", [3, -4])
def test_there_is_no_row_beyond_the_last(index: int) -> None:
    with pytest.raises(IndexError):
        packed(TABLE)[index]


@pytest.mark.parametrize("rows", [(), ((),), ((1.0,), (1.0, 2.0))])
def test_what_is_no_table_stays_as_it_is(rows: tuple[tuple[float, ...], ...]) -> None:
    assert packed(rows) is not None
    assert rows == packed(rows)
    assert isinstance(packed(rows), tuple)


@pytest.mark.parametrize("width", [0, 4])
def test_a_block_of_another_width_is_refused(width: int) -> None:
    with pytest.raises(ValueError, match="width"):
        Rows(array("d", (1.0, 2.0, 3.0)), width)
