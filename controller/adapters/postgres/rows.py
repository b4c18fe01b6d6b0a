"""Many rows in few statements, and quantiles without a Python object for each.

Promises: a thousand rows go as one JSON array, which PostgreSQL takes apart itself, for about a tenth of what as
many statements cost; they are stored as they would be one by one. Refuses nothing: the caller says what a conflict
means. Called by the stores.
"""

import json
import struct
from array import array
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
from psycopg.abc import Buffer
from psycopg.adapt import Dumper, Loader
from psycopg.errors import DataError
from psycopg.pq import Format
from sqlalchemy import Table, TextClause, text
from sqlalchemy.dialects import postgresql

from controller.adapters.codec import encode
from controller.adapters.postgres.database import Session
from controller.core.rows import Row, in_rows

# Keeps each statement well inside its time limit, and its text at a few megabytes.
ROWS_PER_STATEMENT = 1000


async def insert_rows(
    session: Session, table: Table, rows: Sequence[Mapping[str, Any]], *, conflict: str
) -> None:
    """Insert rows that all name the same columns; ``conflict`` is what follows ON CONFLICT.

    A statement that updates on conflict takes each key once.
    """
    if not rows:
        return
    statement = _insert(table, tuple(rows[0]), conflict)
    for start in range(0, len(rows), ROWS_PER_STATEMENT):
        batch = ",".join(map(_object, rows[start : start + ROWS_PER_STATEMENT]))
        await session.execute(statement, {"rows": f"[{batch}]"})


@cache
def _insert(table: Table, columns: tuple[str, ...], conflict: str) -> TextClause:
    dialect = postgresql.dialect()  # type: ignore[no-untyped-call]
    names = ", ".join(columns)
    kinds = ", ".join(f"{name} {table.c[name].type.compile(dialect)}" for name in columns)
    return text(
        f"INSERT INTO {table.name} AS kept ({names}) SELECT {names} "  # noqa: S608 - names of our own tables
        f"FROM jsonb_to_recordset(CAST(:rows AS jsonb)) AS given ({kinds}) ON CONFLICT {conflict}"
    )


def _object(row: Mapping[str, Any]) -> str:
    return "{" + ",".join(f'"{name}":{_cell(value)}' for name, value in row.items()) + "}"


def _cell(value: Any) -> str:  # noqa: ANN401 - a column's value, or a record
    if value is None or isinstance(value, str | int | float):
        return json.dumps(value)
    return f'"{value.isoformat()}"' if isinstance(value, datetime) else encode(value)


_FLOAT8, _FLOAT8_ARRAY = 701, 1022
# Each element is its length (8; a NULL is not stored) and its value.
_CELL = np.dtype([("size", ">i4"), ("value", ">f8")])


class RowsDumper(Dumper):
    """Writes a two-dimensional array of doubles as `RowsLoader` reads it."""

    format = Format.BINARY
    oid = _FLOAT8_ARRAY

    def dump(self, obj: npt.NDArray[np.float64]) -> bytes:
        """Return PostgreSQL's binary form: dimensions, no nulls, the type, both lengths counted from 1; then cells."""
        if not obj.size:
            return struct.pack(">iii", 0, 0, _FLOAT8)
        height, width = obj.shape
        cells = np.empty(obj.size, _CELL)
        cells["size"], cells["value"] = 8, obj.ravel()
        return struct.pack(">iiiiiii", 2, 0, _FLOAT8, height, 1, width, 1) + cells.tobytes()


class RowsLoader(Loader):
    """Reads a two-dimensional array of doubles into `core.rows`, as it lies in the answer."""

    format = Format.BINARY

    def load(self, data: Buffer) -> tuple[Row, ...]:
        """Return the rows; none for an empty array."""
        (dimensions,) = struct.unpack_from(">i", data)
        if not dimensions:
            return ()
        if dimensions != 2:
            raise DataError(f"quantiles of {dimensions} dimensions")
        (width,) = struct.unpack_from(">i", data, 20)
        cells = np.frombuffer(data, _CELL, offset=28)
        return in_rows(array("d", cells["value"].astype(np.float64).tobytes()), width)
