"""Words of a command line, taken as they were typed."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any

from typer.core import TyperArgument, TyperOption

from dsv.cli.named_options import with_option
from dsv.errors import UsageError


@dataclass(frozen=True, slots=True)
class _AsTyped:
    """What typer asks for the value of a parameter. parse: the parameter's own parser."""

    parse: Callable[[str], Any] | None

    def coerce(self, value: Any, param: TyperArgument | TyperOption, ctx: object) -> Any:
        several = param.multiple or param.nargs == -1
        if value is None:
            return () if several else None
        if self.parse is None:
            return value
        try:
            return [self.parse(word) for word in value] if several else self.parse(value)
        except UsageError as error:
            raise (with_option(error, param) if isinstance(param, TyperOption) else error) from None


def take_as_typed(params: Iterable[Any]) -> None:
    """Spares words that need no conversion typer's own: importing pydantic takes longer than a command may."""
    for param in params:
        if isinstance(param, TyperOption | TyperArgument):
            parse, kind = param.type_descriptor.parameter_info.parser, param.type_descriptor.annotation
            if parse is not None or kind in (str, bool, list[str]):
                # An attribute of the parameter, which stands before the method of its class.
                vars(param)["get_runtime_param"] = partial(_AsTyped, parse)
