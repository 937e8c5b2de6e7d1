"""Writes that a store refuses, told by what they were for."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from dsv.errors import Denied


@contextmanager
def denial_named(url: str, key: str, what: str) -> Iterator[None]:
    """A refusal to write the key names what the key is for."""
    try:
        yield
    except Denied as error:
        # What was refused is the store's name for it, or that of the other place, which has its names.
        said = error.message.replace(f"{key} in ", "").replace(f"/{key}", "").replace(key, url)
        raise Denied(f"{what} was not changed: {said}", subject=what, hint=error.hint) from error


@contextmanager
def may_write(url: str) -> Iterator[None]:
    """Around the first write of a command: a refusal says that the store can be read, and no more."""
    try:
        yield
    except Denied as error:
        raise Denied(
            f"you can read {url} but not write to it: {error.message}",
            subject=url,
            hint=f"ask whoever keeps the store for the right to write; {error.hint or 'dsv config store'}",
        ) from error
