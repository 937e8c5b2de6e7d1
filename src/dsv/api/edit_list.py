"""The edits that a program or a command makes of a dataset, as values."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from dsv.api.local_files import Source
from dsv.worktree.scan.problem import Problem

Path_ = str | bytes
"""A path in a dataset, parts joined by `/`. A slash at its end says that it is a folder."""


@dataclass(frozen=True, slots=True)
class Put:
    """Adds or replaces a file, or a folder with what is in it.

    content: a file or folder on this machine, bytes, or what fills a buffer and says with how many bytes, 0 at the end.
    path: if it ends with a slash, or is a folder, the content goes into it by its own name; else it is the new name.
    A folder is merged into one that is there. replace: without it, paths that are there stay as they are.
    contents: of a folder, all that is in it is put, without a folder of its name.
    """

    path: Path_
    content: Path | bytes | Callable[[memoryview], int]
    replace: bool = True
    contents: bool = False


@dataclass(frozen=True, slots=True)
class Remove:
    """Removes a file, or a folder with all below it, or all that a pattern such as `train/**/*.tmp` matches.

    literal: `*`, `?` and `[` stand for themselves, as they do if there is a path of exactly this name.
    """

    path: Path_
    literal: bool = False


@dataclass(frozen=True, slots=True)
class RemoveAll:
    """Removes many at once, each as `Remove` does: one may be named twice, or lie below another, or match a pattern."""

    paths: Sequence[Path_]
    literal: bool = False


@dataclass(frozen=True, slots=True)
class Move:
    """Moves a file or a folder, or all that a pattern matches.

    to: if it ends with a slash, or is a folder, what moves goes into it by its own name; else it is the new name.
    replace: a file that is there is replaced, and a folder merged into; without it that is a `Conflict`.
    """

    path: Path_
    to: Path_
    replace: bool = False
    literal: bool = False


@dataclass(frozen=True, slots=True)
class MoveAll:
    """Moves many paths at once, each from its old to its new name: all go before the first one comes, so that two may
    change places. No name is a pattern.
    """

    pairs: Sequence[tuple[Path_, Path_]]
    replace: bool = False


@dataclass(frozen=True, slots=True)
class PutSources:
    """Adds or replaces files below a path, given in tree order. mirror: whatever else lies there goes.

    problems: what lies beside them and can't be stored, by its path from there.
    """

    path: Path_
    sources: Sequence[tuple[bytes, Source]]
    mirror: bool = False
    problems: Sequence[Problem] = ()


Edit = Put | Remove | RemoveAll | Move | MoveAll | PutSources
