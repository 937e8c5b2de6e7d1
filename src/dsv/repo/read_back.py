"""Proving that a move of a branch, which was just won, is what the store has."""

from __future__ import annotations

from collections.abc import Callable

from dsv.errors import Denied, IntegrityError, OutcomeUnknown, Unreachable
from dsv.model.names import BranchName, DatasetName
from dsv.model.records import RefEntry
from dsv.repo.damage import ONE_WINS_AGAIN


def check_kept(
    read: Callable[[], RefEntry | None],
    url: str,
    key: str,
    branch: tuple[DatasetName, BranchName],
    entry: RefEntry,
) -> None:
    """Raises `IntegrityError` if the store has something else: then it does not keep its promise that one writer wins,
    and another writer's move took the place of this one.
    """
    dataset, name = branch
    try:
        kept = read()
    except (Unreachable, Denied, IntegrityError) as error:
        raise OutcomeUnknown(
            f"this move of branch {name} of {dataset} may have been published in {url}, but it could not be read "
            f"back: {error.message}",
            subject=key,
            hint="run the same command again: it finds out by itself",
        ) from error
    if kept is not None and kept.nonce == entry.nonce:
        return
    what = "has vanished" if kept is None else f"was overwritten by one of {kept.author}"
    raise IntegrityError(
        f"{url} no longer lets one writer win: this move of branch {name} of {dataset} {what} ({key})",
        subject=key,
        hint=ONE_WINS_AGAIN,
    )
