"""Partial targets: which paths of a commit are wanted, and the name of that choice."""

from __future__ import annotations

import bisect
from collections.abc import Iterable
from dataclasses import dataclass

from blake3 import blake3

from dsv.model.entry import sort_key


@dataclass(frozen=True, slots=True)
class Selection:
    """Files or folders of a tree; no path lies below another. Empty: the whole commit.

    keys: `sort_key` of each path, sorted.
    """

    keys: tuple[bytes, ...] = ()

    @classmethod
    def of(cls, paths: Iterable[bytes]) -> Selection:
        """Paths as they stand in the tree; slashes at the ends are ignored, an empty path is the whole commit."""
        keys = sorted({sort_key(path.strip(b"/")) for path in paths})
        if b"" in keys:
            return cls()
        kept: list[bytes] = []
        for key in keys:
            if not kept or not _below(key, kept[-1]):
                kept.append(key)
        return cls(tuple(kept))

    @property
    def paths(self) -> tuple[bytes, ...]:
        return tuple(key.replace(b"\0", b"/") for key in self.keys)

    @property
    def id(self) -> str | None:
        """16 hex digits for the visible name; None for the whole commit. The order of asking does not matter."""
        if not self.keys:
            return None
        return blake3(b"\n".join(self.keys), derive_key_context="dsv 2026-11 selection v1").hexdigest(
            length=8
        )

    def includes(self, path: bytes) -> bool:
        if not self.keys:
            return True
        key = sort_key(path)
        at = bisect.bisect_right(self.keys, key)
        return at > 0 and _below(key, self.keys[at - 1])

    def overlaps(self, after: bytes | None, last: bytes) -> bool:
        """Whether a run of sorted paths in (`after`, `last`] may hold a wanted one; `after` None: from the start."""
        if not self.keys:
            return True
        low = b"" if after is None else sort_key(after)
        high = sort_key(last)
        # A folder's paths are the keys from `key + NUL` up to, not including, `key + \1`.
        return any(key <= high and (key + b"\1") > low for key in self.keys)


def _below(key: bytes, folder: bytes) -> bool:
    return key == folder or key.startswith(folder + b"\0")
