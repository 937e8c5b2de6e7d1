"""All that dsv needs of typer and that typer keeps private, in one place.

typer brings its own copy of click and gives no names to most of it. Who overrides a method of a command has to name
the classes in its signature, and only the class of an error tells an unknown option from a missing argument.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from typer._click import Command as AnyCommand
from typer._click import Context as AnyContext
from typer._click import HelpFormatter, Parameter
from typer._click.core import ParameterSource
from typer._click.exceptions import MissingParameter, NoSuchOption
from typer._click.shell_completion import CompletionItem
from typer._coercion import RuntimeParam
from typer.core import TyperArgument, TyperOption

__all__ = [
    "AnyCommand",
    "AnyContext",
    "CompletionItem",
    "HelpFormatter",
    "MissingParameter",
    "NoSuchOption",
    "Parameter",
    "ParameterSource",
    "take_as_typed",
]


class _AsTyped(RuntimeParam):
    """A word is what was typed, or what the parameter's own `parser` makes of it."""

    def _coerce_value(self, value: Any, param: Any, ctx: AnyContext) -> Any:
        parse = self.parameter_info.parser
        if parse is None:
            return value
        return [parse(word) for word in value] if param.multiple or param.nargs == -1 else parse(value)


def take_as_typed(params: Iterable[Parameter]) -> None:
    """Spares words that need no conversion typer's way of it: importing pydantic takes longer than a command may."""
    for param in params:
        if isinstance(param, TyperOption | TyperArgument):
            annotation, info = param.type_descriptor.annotation, param.type_descriptor.parameter_info
            if info.parser is not None or annotation in (str, bool, list[str]):
                param._runtime_param = _AsTyped(info, annotation)
