"""Help that cuts nothing off: names of variables and values are copied from it.

Called by the application before a command that was asked for its help.
"""

from functools import cache
from typing import Any


@cache
def fold_help() -> None:
    """Break words too long for their column of the help over lines, where typer would end them with an ellipsis.

    typer has no setting for it: its tables, and the parts of a cell, leave rich's default, which cuts.
    """
    from rich.console import Group  # noqa: PLC0415 - only help needs these
    from rich.table import Table  # noqa: PLC0415 - as above
    from typer import rich_utils  # noqa: PLC0415 - slow to import

    class Folding(Table):
        def add_row(self, *cells: Any, **options: Any) -> None:  # noqa: ANN401 - rich's own
            super().add_row(*cells, **options)
            for column in self.columns:
                column.overflow = "fold"

    swapped: Any = rich_utils
    swapped.Table, swapped.Columns = Folding, lambda parts: Group(*parts)
