"""``--output table|json|yaml`` for every command that has ``--json``, added where the commands are put together.

Promises: ``--json`` stays the short form of ``--output json``; with either of the two, standard output holds that and
nothing else; a stream is one JSON value a line, or one YAML document each. Called by ``app``; the commands themselves
know ``as_json`` and ``print_json`` only.
"""

import functools
import inspect
import json
from collections.abc import Callable
from contextvars import ContextVar
from enum import StrEnum
from typing import Annotated, Any

import typer
import yaml


class Output(StrEnum):
    """How a result is written."""

    TABLE = "table"
    JSON = "json"
    YAML = "yaml"


_chosen: ContextVar[Output] = ContextVar("output", default=Output.JSON)
Option = Annotated[
    Output | None,
    typer.Option(
        "--output",
        metavar="FORMAT",
        help="How to write the result: table, json or yaml; --json is short for json.",
    ),
]


def dump(value: Any, *, stream: bool = False) -> str:  # noqa: ANN401 - whatever JSON can hold
    """Return a result, or one of a ``stream``, as the caller of the command wants it."""
    if _chosen.get() is Output.YAML:
        text: str = yaml.safe_dump(value, sort_keys=False, allow_unicode=True, explicit_start=stream)
        return text.rstrip("\n")
    return json.dumps(value, indent=None if stream else 2, ensure_ascii=False)


def with_output(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command that takes ``as_json`` the option ``--output``, too; hand others back as they are."""
    own = inspect.signature(command, eval_str=True)
    if "as_json" not in own.parameters or "output" in own.parameters:
        return command

    @functools.wraps(command)
    def chosen(*args: Any, output: Output | None = None, **kwargs: Any) -> None:  # noqa: ANN401 - the command's own
        if kwargs["as_json"] and output not in {None, Output.JSON}:
            raise typer.BadParameter("contradicts --json; give one of them.", param_hint="--output")
        kwargs["as_json"] = kwargs["as_json"] or output in {Output.JSON, Output.YAML}
        token = _chosen.set(output or Output.JSON)
        try:
            command(*args, **kwargs)
        finally:
            _chosen.reset(token)

    added = inspect.Parameter("output", inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Option)
    parameters = [*own.parameters.values(), added]
    # Typer reads these two, and nothing else.
    chosen.__signature__ = own.replace(parameters=parameters)  # type: ignore[attr-defined]
    chosen.__annotations__ = {p.name: p.annotation for p in parameters} | {"return": None}
    return chosen


def add_output(app: typer.Typer) -> None:
    """Add the option to every command of an application and of its groups."""
    for info in app.registered_commands:
        if info.callback is not None:
            info.callback = with_output(info.callback)
    for group in app.registered_groups:
        if group.typer_instance is not None:
            add_output(group.typer_instance)
