"""How a workspace differs from its base. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field

from dsv.model.diff import What, difference, retyped

__all__ = ["Differences", "What", "difference", "retyped"]


@dataclass(slots=True)
class Differences:
    """Paths in tree order, one list for each way to differ."""

    added: list[bytes] = field(default_factory=list)
    changed: list[bytes] = field(default_factory=list)
    removed: list[bytes] = field(default_factory=list)
    retyped: list[bytes] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.added or self.changed or self.removed or self.retyped)

    def __len__(self) -> int:
        return len(self.added) + len(self.changed) + len(self.removed) + len(self.retyped)

    def note(self, path: bytes, what: What | None) -> None:
        """Adds a path; None is no difference."""
        if what is What.ADDED:
            self.added.append(path)
        elif what is What.CHANGED:
            self.changed.append(path)
        elif what is What.REMOVED:
            self.removed.append(path)
        elif what is What.RETYPED:
            self.retyped.append(path)
