"""Which option a refused word was given to, as a command line may have many words."""

from __future__ import annotations

import re
from collections.abc import Iterable

from typer.core import TyperArgument, TyperOption

from dsv.errors import UsageError


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
