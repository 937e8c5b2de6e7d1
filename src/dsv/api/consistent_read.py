"""Looking at a whole store while a garbage collection may be at work there."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from dsv.errors import Conflict, IntegrityError, NotFound
from dsv.format import keys
from dsv.store.base import StoreMissing

if TYPE_CHECKING:
    from dsv.api.context import Context
    from dsv.repo.repository import Repository
    from dsv.store.base import Store

T = TypeVar("T")
_TIMES = 3


def listed_epochs(store: Store) -> set[tuple[int, str]]:
    """Return what is there of each garbage collection; these records are never deleted."""
    return set(filter(None, (keys.parse_gc_key(item.key) for item in store.list(keys.GC_PREFIX))))


def read_consistently(
    context: Context, look: Callable[[Repository], T], is_right: Callable[[T], bool] = lambda _: True
) -> T:
    """Return what `look` finds. If something is missing there and a garbage collection was at work meanwhile, which may
    be why, look again. Raises `Conflict` if that happens each time.
    """
    for _ in range(_TIMES):
        with context.repository() as repository:
            before = listed_epochs(repository.store)
            try:
                found = look(repository)
                if is_right(found) or listed_epochs(repository.store) == before:
                    return found
            except StoreMissing:
                raise
            except (IntegrityError, NotFound):
                if listed_epochs(repository.store) == before:
                    raise
            url = repository.store.url
    raise Conflict(
        f"garbage collections of {url} were at work all the time",
        subject=url,
        hint="when they have ended, run the same command again",
    )


@contextmanager
def room(context: Context) -> Iterator[Path]:
    """A folder for ids, beside the local copies of metadata: a folder for temporary files may lie in memory."""
    try:
        context.metadata.mkdir(parents=True, exist_ok=True)
        above = tempfile.TemporaryDirectory(
            prefix="upkeep-", dir=context.metadata, ignore_cleanup_errors=True
        )
    except OSError:
        above = tempfile.TemporaryDirectory(prefix="dsv-upkeep-", ignore_cleanup_errors=True)
    with above as folder:
        yield Path(folder)
