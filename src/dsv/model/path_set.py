"""A set of paths with everything below them: what a command, a cached part, or a scan is limited to."""

from __future__ import annotations

import bisect
from collections.abc import Iterable, Iterator
from typing import Protocol

import msgspec
from blake3 import blake3

from dsv.model.entry import sort_key


class Scope(Protocol):
    """Paths of a tree, which a walk is limited to."""

    @property
    def whole(self) -> bool:
        """Whether it is every path."""
        ...

    def __contains__(self, path: bytes) -> bool: ...

    def overlaps(self, after: bytes | None, last: bytes) -> bool:
        """Whether sorted paths in (`after`, `last`] may be in it; `after` None: from the start."""
        ...


class PathSet(msgspec.Struct, frozen=True):
    """Files and folders of a tree, each with all that is below it. Without paths: the whole tree.

    keys: `sort_key` of each path, sorted; none lies below another.
    """

    keys: tuple[bytes, ...] = ()

    @classmethod
    def of(cls, paths: Iterable[bytes]) -> PathSet:
        """Slashes at either end are ignored. An empty path is the whole tree."""
        keys = sorted({sort_key(path.strip(b"/")) for path in paths})
        if b"" in keys:
            return cls()
        kept: list[bytes] = []
        for key in keys:
            if not kept or not _is_below(key, kept[-1]):
                kept.append(key)
        return cls(tuple(kept))

    @property
    def whole(self) -> bool:
        return not self.keys

    @property
    def paths(self) -> tuple[bytes, ...]:
        """In tree order; none for the whole tree."""
        return tuple(key.replace(b"\0", b"/") for key in self.keys)

    @property
    def id(self) -> str | None:
        """16 hex digits for the name of a cached part; None for the whole tree."""
        if self.whole:
            return None
        return blake3(b"\n".join(self.keys), derive_key_context="dsv 2026-11 selection v1").hexdigest(
            length=8
        )

    @property
    def ways(self) -> frozenset[bytes]:
        """The folders that lead to the paths, without the root; worked out at each call."""
        return frozenset(folder for path in self.paths for folder in folders_above(path))

    def __contains__(self, path: bytes) -> bool:
        if self.whole:
            return True
        key = sort_key(path)
        at = bisect.bisect_right(self.keys, key)
        return at > 0 and _is_below(key, self.keys[at - 1])

    def touches(self, path: bytes) -> bool:
        """Whether the path is in the set or leads to something in it."""
        return path in self or self._has_below(path)

    def overlaps(self, after: bytes | None, last: bytes) -> bool:
        """Whether sorted paths in (`after`, `last`] may be in the set; `after` None: from the start."""
        if self.whole:
            return True
        low = b"" if after is None else sort_key(after)
        high = sort_key(last)
        # A folder's paths have the keys from `key + NUL` up to, but without, `key + \1`.
        return any(key <= high and (key + b"\1") > low for key in self.keys)

    def _has_below(self, folder: bytes) -> bool:
        if not folder:
            return False
        prefix = sort_key(folder) + b"\0"
        at = bisect.bisect_left(self.keys, prefix)
        return at < len(self.keys) and self.keys[at].startswith(prefix)


class Both(msgspec.Struct, frozen=True):
    """What is in two scopes."""

    one: Scope
    other: Scope

    @property
    def whole(self) -> bool:
        return self.one.whole and self.other.whole

    def __contains__(self, path: bytes) -> bool:
        return path in self.one and path in self.other

    def overlaps(self, after: bytes | None, last: bytes) -> bool:
        return self.one.overlaps(after, last) and self.other.overlaps(after, last)


WHOLE = PathSet()


def folders_above(path: bytes) -> Iterator[bytes]:
    """The folders that a path lies in, the nearest first, without the root."""
    end = path.rfind(b"/")
    while end > 0:
        yield path[:end]
        end = path.rfind(b"/", 0, end)


def _is_below(key: bytes, folder: bytes) -> bool:
    return key == folder or key.startswith(folder + b"\0")
