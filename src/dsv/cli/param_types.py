"""Parameters of a command line, taken as they were typed, and named in errors."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any

from typer.core import TyperArgument, TyperOption

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


def with_option(error: UsageError, option: TyperOption) -> UsageError:
    """The error with the option's name before its message, unless that names it already."""
    if any(re.search(rf"(?<![\w-]){re.escape(name)}(?![\w-])", error.message) for name in option.opts):
        return error
    return UsageError(f"{'/'.join(option.opts)}: {error.message}", subject=error.subject, hint=error.hint)


def blamed(error: UsageError, given: Iterable[tuple[TyperOption | TyperArgument, object]]) -> UsageError:
    """The error with the name of the option whose word it is about; unchanged if that is none, or nobody can tell.

    given: the parameters that were typed, with their values. Errors carry the word that they are about as `subject`.
    """
    about = [param for param, value in given if error.subject and _is_among(error.subject, _words(value))]
    if len(about) == 1 and isinstance(about[0], TyperOption):
        return with_option(error, about[0])
    return error


def _is_among(subject: str, words: set[str]) -> bool:
    """Folders that were typed are called by their whole path."""
    return subject in words or any(word and subject.endswith(f"/{word}") for word in words)


def _words(value: object) -> set[str]:
    """The words that were typed, and their parts, for NAME=TARGET and lists with commas."""
    words = [
        each for each in (value if isinstance(value, list | tuple) else [value]) if isinstance(each, str)
    ]
    return {part for word in words for part in (word, *word.partition("="), *word.split(","))}
