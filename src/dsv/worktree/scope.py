"""Which part of a workspace a command is about."""

from __future__ import annotations

from collections.abc import Iterable


class Scope:
    """Some paths with all below them; no paths mean the whole workspace."""

    def __init__(self, paths: Iterable[bytes] = ()) -> None:
        chosen = set(paths)
        self.whole = not chosen or b"" in chosen
        self.paths: tuple[bytes, ...] = ()
        if not self.whole:
            roots = sorted(path for path in chosen if not any(part in chosen for part in above(path)))
            self.paths = tuple(roots)
        self._paths = frozenset(self.paths)
        self._ways = frozenset(part for path in self.paths for part in above(path))

    def __contains__(self, path: bytes) -> bool:
        return self.whole or path in self._paths or any(part in self._paths for part in above(path))

    @property
    def ways(self) -> frozenset[bytes]:
        """The folders that lead to the paths, the root aside."""
        return self._ways

    def touches(self, path: bytes) -> bool:
        """Whether the path is in the scope, or leads to something in it."""
        return path in self or path in self._ways


def above(path: bytes) -> Iterable[bytes]:
    """The folders that a path lies in, the root aside, the nearest first."""
    end = path.rfind(b"/")
    while end > 0:
        yield path[:end]
        end = path.rfind(b"/", 0, end)
