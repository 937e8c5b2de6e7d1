"""What counts as text."""

from __future__ import annotations

from dsv.errors import UsageError


def is_text(value: str) -> bool:
    """Whether it can be written as UTF-8: a string may hold half characters (lone surrogates), of JSON's escapes or
    in place of a name's bytes that are no UTF-8.
    """
    return value.isascii() or not any("\ud800" <= character <= "\udfff" for character in value)


SHORT_MAX, LONG_MAX = 1024, 65536
"""Characters of an author, and of a message: what the records of a store can hold."""


def check_length(value: str, most: int, what: str) -> None:
    """Raises `UsageError` for a text that no record can hold. what: a noun for it."""
    if len(value) > most:
        raise UsageError(
            f"{what} has {len(value):,} characters, and {most:,} is the most",
            subject=f"{value[:40]}…",
            hint="shorten it; longer texts can be files of the dataset",
        )
