"""The samples of a commit, for training: which files they are, and how they are read."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Literal

from blake3 import blake3

from dsv.cache.record import lookup, mark_used
from dsv.cache.root import CacheRoot, Place, folder_name
from dsv.errors import DsvError, NotFound, UsageError
from dsv.training.samples import Index, Samples, open_index
from dsv.values.names import Rev, Target, clean_path
from dsv.values.patterns import PathPattern, is_pattern

if TYPE_CHECKING:
    from pathlib import Path

    from dsv.api.connection import Connection
    from dsv.api.reading import Opened
    from dsv.format.locator import Location
    from dsv.format.tree import Entry
    from dsv.repo.resolve import Resolved

_LEAST = 1 << 20  # bytes
_HOLD = 86_400.0  # seconds


class CommitSource:
    """A commit, as samples are read from it. Can be pickled."""

    def __init__(self, connection: Connection, found: Resolved) -> None:
        self._connection, self._found = connection, found

    def __str__(self) -> str:
        return f"{self._found.dataset}@{self.id[:12]}"

    @property
    def id(self) -> str:
        return str(self._found.commit)

    def opened(self) -> Opened:
        """Return the repository, as this process has opened it."""
        from dsv.api.reading import opened

        context = self._connection.reading  # it is resolved already, and only a cache needs to know of what
        return opened(context, Target(self._found.dataset, Rev(self.id)) if context.offline else None)

    def index(self, patterns: Sequence[str]) -> Index:
        """Return the index of the files that are samples."""
        opened = self.opened()
        objects = opened.repository.objects
        with opened.explaining():
            erasures, tree = objects.erasures, opened.tree(self._found.commit)
            chosen = [self.id, *sorted(patterns), "", *sorted(map(str, erasures.known))]
            name = blake3("\n".join(chosen).encode("utf-8", "surrogateescape")).hexdigest()
            folder = self._connection.reading.metadata_folder(opened.repository.id)
            return open_index(folder, name, tree.segments, _accepting(patterns), erasures)

    def read(self, rows: Sequence[tuple[Entry, Location | None]]) -> list[bytes]:
        """As of `Source`. Errors name the commit too."""
        opened = self.opened()
        try:
            asked = [(opened.layout(entry, where), 0, entry.size) for entry, where in rows]
            return opened.read(asked, self._found.dataset)
        except DsvError as error:
            message = f"{error.message} (in {self})"
            raise type(error)(message, subject=error.subject, hint=error.hint) from error

    def cached(self) -> Path | None:
        """As of `Source`; notes that the commit is used."""
        with suppress(OSError, DsvError):
            root = CacheRoot(self._connection.reading.settings.cache().path)
            place = Place.of(folder_name(self._found.dataset), self._found.commit)
            there = lookup(root, place)
            if there is not None:
                with suppress(OSError, DsvError):
                    mark_used(root, place)
                return there.path
        return None

    def fill(self) -> None:
        """As of `Source`, with a hold of a day. Raises as `dsv cache`."""
        from dsv.api.cache import cache

        context = self._connection.reading
        target = Target(self._found.dataset, Rev(self.id))
        cache(context, context.settings.cache().path, [target], hold=_HOLD)


def open_samples(
    source: CommitSource, patterns: Sequence[str], window: int, cache: bool | Literal["fill"]
) -> Samples:
    """As `Commit.samples`."""
    if window < _LEAST:
        raise UsageError(f"a window of {window} bytes is too small", hint=f"at least {_LEAST}")
    index = source.index(patterns)
    if not len(index):
        what = ", ".join(patterns) or "a file"
        raise NotFound(f"{what} is not in {source}", subject=what, hint=f"dsv ls {source}")
    return Samples(source, index, window, cache)


def _accepting(patterns: Sequence[str]) -> Callable[[bytes], bool] | None:
    """Return a test of the paths that are samples; None if all are."""
    if not patterns:
        return None
    raw = [clean_path(one.encode("utf-8", "surrogateescape")) for one in patterns]
    below = tuple(one + b"/" for one in raw if not is_pattern(one))
    exactly = {one for one in raw if not is_pattern(one)}
    matching = [PathPattern(one) for one in raw if is_pattern(one)]
    if b"" in exactly:
        return None

    def accepts(path: bytes) -> bool:
        return (
            path in exactly
            or path.startswith(below)
            or any(pattern.matches(path, folder=False) for pattern in matching)
        )

    return accepts
