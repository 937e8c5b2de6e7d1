"""Proving that a name, which was just won, is what the store has, and still has it when something is built on it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from dsv.errors import Denied, IntegrityError, OutcomeUnknown, Unreachable
from dsv.model.ids import Nonce
from dsv.repo.damage import ONE_WINS_AGAIN


class Signed(Protocol):
    """A record that tells its writer from every other."""

    @property
    def nonce(self) -> Nonce: ...
    @property
    def author(self) -> str: ...


def check_kept(read: Callable[[], Signed | None], url: str, key: str, what: str, entry: Signed) -> None:
    """Raises `IntegrityError` if the store has something else: then it does not keep its promise that one writer wins,
    and another writer's record took the place of this one.

    what: what was written, for a message.
    """
    try:
        kept = read()
    except (Unreachable, Denied, IntegrityError) as error:
        raise OutcomeUnknown(
            f"{what} may have been published in {url}, but it could not be read back: {error.message}",
            subject=key,
            hint="run the same command again: it finds out by itself",
        ) from error
    if kept is None or kept.nonce != entry.nonce:
        raise changed(url, key, what, kept)


def changed(url: str, key: str, what: str, now: Signed | None) -> IntegrityError:
    """For a name that was won, and read, and has other bytes by now."""
    how = "has vanished" if now is None else f"was overwritten by one of {now.author}"
    return IntegrityError(
        f"{url} no longer lets one writer win: {what} {how} ({key})", subject=key, hint=ONE_WINS_AGAIN
    )
