"""Parameters of a command line, taken as they were typed, and named in errors."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, get_args, get_type_hints

import typer
from typer.core import TyperArgument, TyperOption

from dsv.errors import UsageError

_PLAIN: tuple[Any, ...] = (str, bool, list[str])


def take_as_typed(params: Iterable[Any], function: Callable[..., Any]) -> None:
    """Give words to their parser, and plain text, flags and lists of text to the command as they were typed.

    Typer passes every word through pydantic, which takes longer to import than most commands take. `process_value` is
    what click documents as the step from the words to the value: where typer no longer calls it, commands work and
    start slowly, and tests/cli/test_process.py says so.
    """
    declared = get_type_hints(function, include_extras=True)
    for param in params:
        kind, *extras = get_args(declared[param.name])
        parse = next((found for extra in extras if (found := getattr(extra, "parser", None))), None)
        if parse is not None or kind in _PLAIN or any(kind == each | None for each in _PLAIN):
            param.process_value = partial(_process_value, param, parse, param.process_value)


def _process_value(
    param: TyperOption | TyperArgument,
    parse: Callable[[str], Any] | None,
    process: Callable[[Any, Any], Any],
    ctx: typer.Context,
    value: Any,
) -> Any:
    if param.required and param.value_is_missing(value):
        return process(ctx, value)  # which raises typer's own error
    several = param.multiple or param.nargs == -1
    if value is None:
        value = () if several else None
    elif parse is not None:
        try:
            value = [parse(word) for word in value] if several else parse(value)
        except UsageError as error:
            raise (with_option(error, param) if isinstance(param, TyperOption) else error) from None
    return value if param.callback is None else param.callback(ctx, param, value)


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
