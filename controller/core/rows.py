"""Rows of numbers in one block of memory. Pure.

Promises: whatever reads a tuple of tuples of floats reads these as well, and both compare equal when they hold the
same; a day's forecast takes a sixth of the memory. Refuses rows of different widths. Called by what keeps the
forecasts of a fleet.
"""

from array import array
from collections.abc import Iterable, Iterator, Sequence
from typing import cast, overload

Row = tuple[float, ...]


class Rows(Sequence[Row]):
    """An immutable table of doubles; `packed` makes one."""

    __slots__ = ("_values", "_width")

    def __init__(self, values: "array[float]", width: int) -> None:
        """``values`` row by row, which must not be changed any more; ``width`` of a row, at least 1."""
        if width < 1 or len(values) % width:
            raise ValueError(f"width: {len(values)} values are no rows of {width}")
        self._values, self._width = values, width

    def __len__(self) -> int:
        return len(self._values) // self._width

    @overload
    def __getitem__(self, index: int) -> Row: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Row, ...]: ...
    def __getitem__(self, index: int | slice) -> Row | tuple[Row, ...]:
        if isinstance(index, slice):
            return tuple(self[i] for i in range(*index.indices(len(self))))
        at = range(len(self))[index] * self._width
        return tuple(self._values[at : at + self._width])

    def __iter__(self) -> Iterator[Row]:
        values = iter(self._values)
        return zip(*[values] * self._width, strict=True)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Rows):
            return self._width == other._width and self._values == other._values
        return tuple(self) == other if isinstance(other, tuple) else NotImplemented

    def __hash__(self) -> int:
        return hash(tuple(self))


def packed(rows: Iterable[Row]) -> tuple[Row, ...]:
    """The rows in little memory; as they are where there are none, or their widths differ."""
    kept = tuple(rows)
    widths = {len(row) for row in kept}
    if len(widths) != 1 or widths == {0}:
        return kept
    values = array("d")
    for row in kept:
        values.extend(row)
    return in_rows(values, widths.pop())


def in_rows(values: "array[float]", width: int) -> tuple[Row, ...]:
    """`Rows` under the name of what they stand for: records are declared with tuples, which their codec knows."""
    return cast("tuple[Row, ...]", Rows(values, width))
