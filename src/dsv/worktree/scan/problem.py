"""Why a path can't be stored."""

from __future__ import annotations

import enum
from collections.abc import Iterable

import msgspec

from dsv.errors import Unsupported
from dsv.model.paths import show

_SHOWN = 1000  # in a message; programs get all


class Trouble(enum.Enum):
    """The kinds of problem, by what would help."""

    UNSUPPORTED = "unsupported"
    """Its type, its name or its target can't be in a tree."""
    UNREADABLE = "unreadable"
    """It can't be read: what the base has there stays."""
    CHANGING = "changing"
    """It was written to each time it was read."""


class Problem(msgspec.Struct, frozen=True):
    """`reason` follows the path in a sentence: 'it is a socket'."""

    path: bytes
    reason: str
    trouble: Trouble = Trouble.UNSUPPORTED

    def __str__(self) -> str:
        return f"{show(self.path)}: {self.reason}"


def refusal(problems: Iterable[Problem], root: str) -> Unsupported:
    """The error that lists them all."""
    found = list(problems)
    lines = [str(problem) for problem in found[:_SHOWN]]
    if len(found) > _SHOWN:
        lines.append(f"and {len(found) - _SHOWN} more")
    what = "1 path" if len(found) == 1 else f"{len(found)} paths"
    return Unsupported(
        f"{what} in {root} can't be stored:\n  " + "\n  ".join(lines),
        subject=root,
        hint="remove them, name them in .dsvignore, or leave them out with dsv sync --skip-unsupported",
    )
