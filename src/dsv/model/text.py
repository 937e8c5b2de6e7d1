"""What counts as text."""

from __future__ import annotations


def is_text(value: str) -> bool:
    """Whether it can be written as UTF-8: a string may hold half characters (lone surrogates), of JSON's escapes or
    in place of a name's bytes that are no UTF-8.
    """
    return value.isascii() or not any("\ud800" <= character <= "\udfff" for character in value)
