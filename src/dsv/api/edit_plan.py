"""Edits of a dataset as values, and what a list of them does to a tree."""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from dsv.errors import Conflict, NotFound, UsageError
from dsv.format.tree import Entry, Kind
from dsv.repo.tree.overlay import EditedTree, Placed
from dsv.repo.tree.read import TreeReader
from dsv.transfer.file_reader import Problem
from dsv.transfer.save import ReadInto, Source
from dsv.values.names import clean_path
from dsv.values.paths import check_path, folders_above, show
from dsv.values.patterns import PathPattern, is_pattern
from dsv.workspace.scan.walk import Walk, named_file

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
    content: Path | bytes | ReadInto
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


@dataclass(slots=True)
class Plan:
    """What edits do to a tree. changes: in tree order; None is a path that goes. old: of each path that was moved, by
    its new name. had: which of the changed paths the base has. problems: what can't be stored.
    """

    changes: list[tuple[bytes, Placed[Source] | None]]
    old: dict[bytes, bytes]
    had: set[bytes]
    problems: list[Problem]

    @property
    def lost(self) -> list[bytes]:
        """Paths that go and were not moved elsewhere."""
        moved = set(self.old.values())
        return [path for path, what in self.changes if what is None and path not in moved]


def make_plan(base: TreeReader | None, edits: Sequence[Edit], name: str) -> Plan:
    """Applies the edits one after the other; each sees what those before it did. name: of the branch, for messages.

    Raises `NotFound` for a path that is not there, `Conflict` if a folder would be replaced by a file or the other way
    round, and `UsageError` for edits that contradict themselves.
    """
    planner = _Planner(base, name)
    planner.look_up(edits)
    for edit in edits:
        planner.apply(edit)
    changes = planner.tree.changes()
    new = {path for path, what in changes if what is not None}
    return Plan(
        changes,
        {path: old for path, old in planner.old.items() if path in new and planner.tree.had(old)},
        {path for path, _ in changes if planner.tree.had(path)},
        planner.problems,
    )


class _Planner:
    def __init__(self, base: TreeReader | None, name: str) -> None:
        self._name = name
        self._is_empty = base is None
        self.tree = EditedTree[Source](base)
        self.old: dict[bytes, bytes] = {}
        self.problems: list[Problem] = []

    def look_up(self, edits: Iterable[Edit]) -> None:
        """What is surely asked of the base, at once."""
        paths: list[bytes] = []
        for edit in edits:
            if isinstance(edit, MoveAll):
                paths += [_clean(one)[0] for pair in edit.pairs for one in pair]
            elif isinstance(edit, RemoveAll):
                paths += [_clean(one)[0] for one in edit.paths]
            else:
                paths.append(_clean(edit.path)[0])
                if isinstance(edit, Move):
                    paths.append(_clean(edit.to)[0])
        self.tree.look_up(path for path in paths if path)

    def apply(self, edit: Edit) -> None:
        if isinstance(edit, Put):
            self._put(edit)
        elif isinstance(edit, PutSources):
            self._put_sources(edit)
        elif isinstance(edit, Remove):
            self._remove([edit.path], literal=edit.literal)
        elif isinstance(edit, RemoveAll):
            self._remove(edit.paths, literal=edit.literal)
        elif isinstance(edit, Move):
            self._move(edit)
        else:
            self._move_all(edit)

    def _remove(self, paths: Sequence[Path_], *, literal: bool) -> None:
        chosen = [found for path in paths for found in self._chosen(path, literal=literal)]
        for _, below in chosen:
            for path, _ in below:
                if self.tree.find(path) is not None:
                    self.tree.remove(path)

    def _put(self, edit: Put) -> None:
        path, into = _clean(edit.path)
        into = into or self.tree.is_folder(path)
        if not isinstance(edit.content, Path):
            if into:
                raise UsageError(
                    f"{show(path) + ' is a folder, and ' if path else ''}what is put there has no name of its own",
                    subject=_text(path) or self._name,
                    hint="end the path with the name of a file, such as " + _text(_join(path, b"NAME")),
                )
            source = Source(Kind.FILE, open=_opener(edit.content))
            if isinstance(edit.content, bytes):
                source.size = len(edit.content)
            self._place(path, source, edit.replace)
            return
        file = named_file(edit.content)
        name = os.fsencode(edit.content.name)
        if edit.contents or name in (b"", b".."):
            name = b""
        if file is not None:
            self._place(_join(path, name) if into else path, file, edit.replace)
        else:
            self._put_folder(edit.content, _join(path, name) if into else path, edit.replace)

    def _put_folder(self, root: Path, to: bytes, replace: bool) -> None:
        walk = Walk(root)
        found = [(_join(to, name), source) for name, source in walk.sources()]
        self.problems += walk.problems
        if to and not found:
            self._place(to, Source(Kind.EMPTY_DIRECTORY), replace)
        self.tree.look_up_below(to, [path for path, _ in found])
        for path, source in found:
            self._place(path, source, replace)

    def _put_sources(self, edit: PutSources) -> None:
        to = _clean(edit.path)[0]
        self.problems += [Problem(_join(to, each.path), each.reason) for each in edit.problems]
        found = {_join(to, name): source for name, source in edit.sources}
        self.tree.look_up_below(to, found)
        if edit.mirror:
            others = [(path, what) for path, what in self.tree.below(to) if path not in found]
            self.tree.keep(others)
            for path, _ in others:
                self.tree.remove(path)
        for path, source in found.items():
            try:
                check_path(path)
            except ValueError as error:
                self.problems.append(Problem(path, str(error)))
                continue
            if not self._has(path, source):
                self._place(path, source, replace=True)

    def _has(self, path: bytes, source: Source) -> bool:
        """Whether the path has just what is known of the source. Its mode stays, as a URL says nothing of modes."""
        here, stored = self.tree.find(path), source.stored
        if here is None or here.entry is None or not here.entry.is_file:
            return False
        source.kind = here.entry.kind
        return stored is not None and here.entry.file_id == stored.file_id

    def _place(self, path: bytes, source: Source, replace: bool) -> None:
        if not replace and self.tree.find(path) is not None:
            return
        if source.kind in (Kind.SYMLINK, Kind.EMPTY_DIRECTORY):
            entry = Entry(path, source.kind, target=source.target)
            self.tree.place(path, Placed(source.kind, entry))
        else:
            self.tree.place(path, Placed(source.kind, source=source))
        self.old.pop(path, None)

    def _move(self, edit: Move) -> None:
        chosen = self._chosen(edit.path, literal=edit.literal)
        to, into = _clean(edit.to)
        into = into or self.tree.is_folder(to)
        if len(chosen) > 1 and not into:
            raise UsageError(
                f"{len(chosen):,} paths can't all be moved to {show(to)}",
                subject=_text(to),
                hint=f"end it with a slash to move them into a folder: {_text(to)}/",
            )
        pairs: list[tuple[bytes, bytes]] = []
        for top, below in chosen:
            new = _join(to, top.rpartition(b"/")[2]) if into else to
            if new == top or new.startswith(top + b"/"):
                where = "to itself" if new == top else f"into itself, to {show(new)}"
                raise UsageError(f"{show(top)} can't be moved {where}", subject=_text(top))
            is_folder = below[0][0] != top
            if is_folder and self.tree.is_folder(new) and not edit.replace:
                raise _there(new)
            if is_folder:
                self.tree.look_up_below(new, [new + path[len(top) :] for path, _ in below])
            pairs += [(path, new + path[len(top) :]) for path, _ in below]
        self._relocate(pairs, edit.replace)

    def _move_all(self, edit: MoveAll) -> None:
        pairs: list[tuple[bytes, bytes]] = []
        for old_text, new_text in edit.pairs:
            old, (new, into) = _clean(old_text)[0], _clean(new_text)
            new = _join(new, old.rpartition(b"/")[2]) if into else new
            if old == new:
                continue
            if self.tree.find(old) is not None:
                pairs.append((old, new))
                continue
            [(top, below)] = self._chosen(old, literal=True)
            pairs += [(path, new + path[len(top) :]) for path, _ in below]
        self._relocate(pairs, edit.replace)

    def _relocate(self, pairs: list[tuple[bytes, bytes]], replace: bool) -> None:
        self.tree.look_up(new for _, new in pairs)
        taken: list[tuple[bytes, bytes, Placed[Source]]] = []
        for old, new in pairs:
            what = self.tree.find(old)
            if what is None:
                raise Conflict(f"{show(old)} is moved twice", subject=_text(old))
            taken.append((self.old.pop(old, old), new, what))
            self.tree.remove(old)
        placed: set[bytes] = set()
        for old, new, what in taken:
            if new in placed:
                raise Conflict(f"two paths are moved to {show(new)}", subject=_text(new))
            placed.add(new)
            self.tree.place(new, what, replace=replace)
            self.old[new] = old

    def _chosen(
        self, text: Path_, *, literal: bool
    ) -> list[tuple[bytes, list[tuple[bytes, Placed[Source]]]]]:
        """The files and folders that are meant, each with all at and below it, at least one. Raises `NotFound`."""
        path, is_folder = _clean(text)
        if not path:
            raise UsageError(
                "the path is that of the whole dataset", hint="name a file or a folder in it, or '*'"
            )
        here = self.tree.find(path)
        if here is not None and (not is_folder or here.kind is Kind.EMPTY_DIRECTORY):
            return [(path, [(path, here)])]
        if here is None and self.tree.is_folder(path):
            below = sorted(self.tree.below(path), key=lambda item: item[0])
            self.tree.keep(below)
            return [(path, below)]
        found = [] if literal or not is_pattern(path) else self._matching(path, is_folder)
        if not found:
            raise self._nothing(path, by_pattern=is_pattern(path) and not literal)
        return found

    def _nothing(self, path: bytes, *, by_pattern: bool) -> NotFound:
        if self._is_empty:
            what, hint = f"is not in {self._name}, which has no commit yet", "dsv put adds files"
        else:
            what = f"matches nothing in {self._name}" if by_pattern else f"is not in {self._name}"
            hint = f"dsv ls {self._name} lists the paths"
        return NotFound(f"{show(path)} {what}", subject=_text(path), hint=hint)

    def _matching(
        self, text: bytes, folders_only: bool
    ) -> list[tuple[bytes, list[tuple[bytes, Placed[Source]]]]]:
        pattern = PathPattern(text, folders_only)
        verdicts: dict[bytes, bool] = {}
        groups: dict[bytes, list[tuple[bytes, Placed[Source]]]] = {}
        for path, what in self.tree.starting_with(pattern.start):
            top = _topmost(pattern, path, verdicts, what.kind is Kind.EMPTY_DIRECTORY)
            if top is not None:
                groups.setdefault(top, []).append((path, what))
        for found in groups.values():
            self.tree.keep(found)
        return sorted(groups.items())


def _opener(content: bytes | ReadInto) -> Callable[[], ReadInto]:
    """Returns what opens a content that was given: bytes as often as asked for, a stream once."""
    if isinstance(content, bytes):
        return lambda: io.BytesIO(content).readinto
    streams = [content]

    def open_stream() -> ReadInto:
        if not streams:
            raise Conflict(
                "gc is removing from the store what came from a stream and was just stored there",
                hint="run the same command again",
            )
        return streams.pop()

    return open_stream


def _topmost(pattern: PathPattern, path: bytes, verdicts: dict[bytes, bool], is_folder: bool) -> bytes | None:
    """The highest of the path and the folders above it that matches."""
    top = path if pattern.matches(path, folder=is_folder) else None
    for folder in folders_above(path):
        verdict = verdicts.get(folder)
        if verdict is None:
            verdict = pattern.matches(folder, folder=True)
            verdicts[folder] = verdict
        if verdict:
            top = folder
    return top


def _clean(text: Path_) -> tuple[bytes, bool]:
    """A path as a tree spells it, and whether it was written as a folder's."""
    raw = text.encode("utf-8", "surrogateescape") if isinstance(text, str) else text
    path = clean_path(raw)
    return path, not path or raw.endswith((b"/", b"/."))


def _there(path: bytes) -> Conflict:
    return Conflict(
        f"{show(path)} is there already", subject=_text(path), hint="--replace puts both folders together"
    )


def _join(folder: bytes, name: bytes) -> bytes:
    return folder + b"/" + name if folder and name else folder or name


def _text(path: bytes) -> str:
    return path.decode("utf-8", "backslashreplace")
