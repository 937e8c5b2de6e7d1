"""Merging what two sides made of a common state, path by path.

A pure function from the changes of each side to the changes of the result against `ours`, and the undecided
paths. All are in tree order. Only a path that becomes a folder on one side waits for the paths below it. A
change of one side is dropped only if the other side has an equal one.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

import msgspec
from msgspec.structs import replace

from dsv.errors import Conflict
from dsv.format.locator import Location
from dsv.format.tree import Entry, Kind
from dsv.repo.tree.diff import PathChange
from dsv.values.ids import FileId
from dsv.values.paths import PathSet, check_path, folders_above, show, sort_key

UNDECIDED = Entry(b"", Kind.EMPTY_DIRECTORY)
"""The common state of a path on which several merge bases disagree: unlike every real entry."""


class ConflictKind(enum.StrEnum):
    """The reasons why a path can't be merged. `ours` is the side that the result is written over."""

    BOTH_CHANGED = "both-changed"
    BOTH_ADDED = "both-added"
    OURS_REMOVED = "ours-removed"
    THEIRS_REMOVED = "theirs-removed"
    FILE_AND_FOLDER = "file-and-folder"
    IN_THE_WAY = "in-the-way"


class PathConflict(msgspec.Struct, frozen=True):
    """A path that both sides changed."""

    path: bytes
    kind: ConflictKind
    ours: Entry | None
    """The current entry, if any; so is `theirs`."""
    theirs: Entry | None
    reason: str = ""
    """The reason why its content could not be merged."""


class MergeConflict(Conflict):
    """Both sides changed paths for which the user chose no side."""

    def __init__(
        self,
        message: str,
        conflicts: tuple[PathConflict, ...],
        *,
        subject: str | None = None,
        hint: str,
        without_effect: tuple[bytes, ...] = (),
    ) -> None:
        first = show(conflicts[0].path) if conflicts else None
        super().__init__(message, subject=subject or first, hint=hint)
        self.conflicts = conflicts
        """All conflicts, in tree order."""
        self.without_effect = without_effect
        """Paths for which a side was chosen although they had no conflict."""


class ConflictChoice(enum.Enum):
    """The winner of a conflict. BOTH: ours stays, and theirs is kept beside it. RESOLVED: the user's file."""

    OURS = enum.auto()
    THEIRS = enum.auto()
    BOTH = enum.auto()
    RESOLVED = enum.auto()


def winner(base: object, ours: object, theirs: object) -> ConflictChoice | None:
    """Return the side whose value a merge takes: ours if theirs changes nothing, None if both changed it."""
    if theirs in (ours, base):
        return ConflictChoice.OURS
    return ConflictChoice.THEIRS if ours == base else None


class Choices(msgspec.Struct, frozen=True):
    """The user's choices for conflicts, by path. The first field that has a path decides."""

    ours: PathSet | None = None
    theirs: PathSet | None = None
    both: PathSet | None = None
    resolved: dict[bytes, str] = {}
    """Local files with the contents of paths that both sides changed."""

    def of(self, path: bytes) -> ConflictChoice | None:
        if path in self.resolved:
            return ConflictChoice.RESOLVED
        sets = (
            (self.ours, ConflictChoice.OURS),
            (self.theirs, ConflictChoice.THEIRS),
            (self.both, ConflictChoice.BOTH),
        )
        return next((choice for paths, choice in sets if paths is not None and path in paths), None)

    def without_effect(self, resolved: Iterable[bytes]) -> tuple[bytes, ...]:
        """Return the named paths at or below which no conflict was settled."""
        used = {way for path in resolved for way in (path, *folders_above(path))}
        named = (
            path for paths in (self.ours, self.theirs, self.both) if paths is not None for path in paths.paths
        )
        return tuple(path for path in (*named, *self.resolved) if path not in used)


class Places:
    """Rows or lines of a file. All are counted, and the first are named."""

    def __init__(self) -> None:
        self.count = 0
        self.first: list[str] = []

    def note(self, place: str) -> None:
        self.count += 1
        if self.count <= _NAMED:
            self.first.append(place)

    def __str__(self) -> str:
        more = [f"{self.count - _NAMED:,} more"] if self.count > _NAMED else []
        return ", ".join([*self.first, *more])


_NAMED = 10


class MergedContent(NamedTuple):
    """A content with the changes of both sides."""

    data: bytes
    taken: Places
    """Places with the change of theirs."""
    resolved: Places
    """Places that both sides changed, and a choice decided."""


class Resolution(NamedTuple):
    """A path whose content combines both sides, or whose conflict a choice has decided."""

    path: bytes
    choice: ConflictChoice | None
    """The side whose rows or lines were taken where both changed them; None if none were."""
    content: MergedContent | None = None
    """None if it is all of one side."""

    def without_data(self) -> Resolution:
        return self if self.content is None else self._replace(content=self.content._replace(data=b""))

    def __str__(self) -> str:
        parts: list[str] = []
        if self.content is not None and self.content.taken.count:
            parts.append(f"{self.content.taken} from theirs")
        if self.choice is not None:
            where = f"{self.content.resolved} " if self.content is not None else ""
            parts.append(where + _TAKEN[self.choice])
        return f"{show(self.path)}: {'; '.join(parts) or 'merged'}"


_TAKEN = {
    ConflictChoice.OURS: "taken from ours",
    ConflictChoice.THEIRS: "taken from theirs",
    ConflictChoice.BOTH: "taken from ours, with theirs beside it",
    ConflictChoice.RESOLVED: "from a resolved file",
}


class Decision(NamedTuple):
    """The result for one path that a side changed."""

    path: bytes
    ours: Entry | None
    result: Entry | None
    location: Location | None = None
    """The location of the result's content, if known."""
    content: bytes | None = None
    """The bytes of `result` if they are new."""
    conflict: PathConflict | None = None
    file: str | None = None
    """The local file with the content."""
    undecided: bool = False
    """True if the path is part of a conflict, which is reported once, with its first path."""
    resolved: Resolution | None = None
    """A conflict that a choice has decided, or a content that combines both sides."""
    beside: tuple[Entry, Location | None] | None = None
    """The entry of theirs to keep under another name."""

    @property
    def changes_ours(self) -> bool:
        return not self.undecided and (
            self.content is not None or self.file is not None or self.result != self.ours
        )


class NotByRows(str):
    """The reason why a table can't be merged by rows, as was asked: a choice of a side is for rows, then."""


MergeContent = Callable[[PathChange, PathChange, ConflictChoice | None], MergedContent | str]
"""Returns the content of a file that both sides changed, or why it can't be merged. The arguments are the
changes in ours and in theirs, and the choice for rows or lines that both changed."""


def merge_changes(
    ours: Iterable[PathChange],
    theirs: Iterable[PathChange],
    merge_content: MergeContent,
    choices: Choices = Choices(),
) -> Iterator[Decision]:
    """Yield a decision for every path that any side changed since the common state, in tree order."""
    decide = _Decider(merge_content, choices)
    for group in _groups(_pairs(ours, theirs)):
        yield from decide.group(group)


class _Pair(NamedTuple):
    """A path and its change on each side; None: unchanged."""

    path: bytes
    ours: PathChange | None
    theirs: PathChange | None

    @property
    def value_of_ours(self) -> Entry | None:
        if self.ours is not None:
            return self.ours.after
        assert self.theirs is not None
        return self.theirs.before

    @property
    def is_parent(self) -> bool:
        """True if a side has an entry at this path, so that nothing can be below it."""
        return any(one is not None and one.after is not None for one in (self.ours, self.theirs))


def _pairs(ours: Iterable[PathChange], theirs: Iterable[PathChange]) -> Iterator[_Pair]:
    left, right = iter(ours), iter(theirs)
    one, other = next(left, None), next(right, None)
    while one is not None or other is not None:
        if other is None or (one is not None and sort_key(one.path) < sort_key(other.path)):
            assert one is not None
            yield _Pair(one.path, one, None)
            one = next(left, None)
        elif one is None or one.path != other.path:
            yield _Pair(other.path, None, other)
            other = next(right, None)
        else:
            yield _Pair(one.path, one, other)
            one, other = next(left, None), next(right, None)


def _groups(pairs: Iterable[_Pair]) -> Iterator[list[_Pair]]:
    """Yield each path alone, but one that has an entry together with all that changed below it."""
    group: list[_Pair] = []
    for pair in pairs:
        if group and not (group[0].is_parent and pair.path.startswith(group[0].path + b"/")):
            yield group
            group = []
        group.append(pair)
    if group:
        yield group


class _Decider:
    def __init__(self, merge_content: MergeContent, choices: Choices) -> None:
        self._merge_content = merge_content
        self._choices = choices

    def group(self, group: list[_Pair]) -> Iterator[Decision]:
        first, below = group[0], group[1:]
        if _file_meets_folder(first, below):
            yield from self._file_and_folder(first, below)
            return
        decided = [decision for part in _groups(below) for decision in self.group(part)]
        yield _without_placeholder(self._one(first), decided)
        yield from decided

    def _file_and_folder(self, first: _Pair, below: list[_Pair]) -> Iterator[Decision]:
        """Decide where a side has a file and the other has added to a folder: one has to win all of it."""
        choice = self._choices.of(first.path)
        if choice is ConflictChoice.OURS:
            yield from (_resolved(_keep_ours(pair), choice) for pair in (first, *below))
        elif choice is ConflictChoice.THEIRS:
            yield from (_resolved(_take_theirs(pair), choice) for pair in (first, *below))
        else:
            reason = "" if choice is None else "a file and a folder can't both be kept"
            theirs = first.theirs.after if first.theirs is not None else _before(first)
            conflict = PathConflict(
                first.path, ConflictKind.FILE_AND_FOLDER, first.value_of_ours, theirs, reason
            )
            yield _keep_ours(first)._replace(undecided=True, conflict=conflict)
            yield from (_keep_ours(pair)._replace(undecided=True) for pair in below)

    def _one(self, pair: _Pair) -> Decision:
        ours, theirs = pair.ours, pair.theirs
        if theirs is None:
            return _keep_ours(pair)
        if ours is None:
            return _take_theirs(pair)
        if ours.after == theirs.after:
            return _keep_ours(pair)
        return merge_path(ours, theirs, self._merge_content, self._choices)


def merge_path(
    ours: PathChange, theirs: PathChange, merge_content: MergeContent | None, choices: Choices
) -> Decision:
    """Decide about a path that both sides changed differently. merge_content: None to merge nothing of it."""
    pair, reason = _Pair(ours.path, ours, theirs), ""
    if merge_content is not None:
        merged = merge_file(ours, theirs, merge_content, choices)
        if isinstance(merged, Decision):
            return merged
        reason = merged
    choice = choices.of(pair.path)
    if isinstance(reason, NotByRows) and choice in (ConflictChoice.OURS, ConflictChoice.THEIRS):
        reason, choice = f"{reason}; without --table-key, --{choice.name.lower()} takes all of it", None
    if choice is ConflictChoice.OURS or (choice is ConflictChoice.BOTH and theirs.after is None):
        return _resolved(_keep_ours(pair), choice)
    if choice is ConflictChoice.THEIRS:
        return _resolved(_take_theirs(pair), choice)
    if choice is ConflictChoice.RESOLVED:
        files = [one for one in (ours.after, theirs.after) if one is not None and one.is_file]
        entry = Entry(pair.path, files[0].kind if files else Kind.FILE)
        file = choices.resolved[pair.path]
        return _resolved(Decision(pair.path, pair.value_of_ours, entry, file=file), choice)
    if choice is ConflictChoice.BOTH:
        kept = _with_theirs(_resolved(_keep_ours(pair), choice), theirs)
        if isinstance(kept, Decision):
            return kept
        reason = kept
    kind = conflict_kind(ours.before, ours.after, theirs.after)
    conflict = PathConflict(pair.path, kind, ours.after, theirs.after, reason)
    return _keep_ours(pair)._replace(undecided=True, conflict=conflict)


def merge_file(
    ours: PathChange, theirs: PathChange, merge_content: MergeContent, choices: Choices
) -> Decision | str:
    """Merge content and mode of a file that both sides changed, separately from each other.

    If that is impossible, return the reason, or "" if it is only that both changed the same.
    """
    base, mine, other = ours.before, ours.after, theirs.after
    if base is None or mine is None or other is None:
        return ""
    if not (base.is_file and mine.is_file and other.is_file):
        return ""
    kind = mine.kind if mine.kind != base.kind else other.kind
    side = winner(*((each.size, each.file_id) for each in (base, mine, other)))
    if side is not None:
        kept, location = (mine, ours.location) if side is ConflictChoice.OURS else (other, theirs.location)
        return Decision(ours.path, mine, kept._replace(kind=kind), location)
    choice = choices.of(ours.path)
    if choice is ConflictChoice.RESOLVED:
        return ""
    merged = merge_content(ours, theirs, choice)
    if isinstance(merged, str):
        return merged
    resolved = Resolution(ours.path, choice if merged.resolved.count else None, merged)
    file_id = FileId.hash(merged.data)
    made = Entry(ours.path, kind, len(merged.data), file_id)
    done = Decision(ours.path, mine, made, content=merged.data, resolved=resolved)
    for change in (ours, theirs):
        if change.after is not None and change.after.file_id == file_id:
            kept = change.after._replace(kind=kind)
            done = done._replace(result=kept, location=change.location, content=None)
            break
    return _with_theirs(done, theirs) if resolved.choice is ConflictChoice.BOTH else done


def _with_theirs(decision: Decision, theirs: PathChange) -> Decision | str:
    """Keep the entry of theirs under another name, or return why that is not possible."""
    assert theirs.after is not None
    if theirs.after.kind is Kind.EMPTY_DIRECTORY:
        return "an empty folder can't be kept beside a file"
    name = beside(decision.path)
    if name is None:
        return "its name with .theirs in it would be too long"
    return decision._replace(beside=(theirs.after._replace(path=name), theirs.location))


def _resolved(decision: Decision, choice: ConflictChoice) -> Decision:
    return decision._replace(resolved=Resolution(decision.path, choice))


def conflict_kind(base: Entry | None, ours: Entry | None, theirs: Entry | None) -> ConflictKind:
    if ours is None:
        return ConflictKind.OURS_REMOVED
    if theirs is None:
        return ConflictKind.THEIRS_REMOVED
    return ConflictKind.BOTH_ADDED if base is None else ConflictKind.BOTH_CHANGED


def _before(pair: _Pair) -> Entry | None:
    one = pair.ours or pair.theirs
    return None if one is None else one.before


def _keep_ours(pair: _Pair) -> Decision:
    return Decision(pair.path, pair.value_of_ours, pair.value_of_ours)


def _take_theirs(pair: _Pair) -> Decision:
    if pair.theirs is None:
        return Decision(pair.path, pair.value_of_ours, _before(pair))
    return Decision(pair.path, pair.value_of_ours, pair.theirs.after, pair.theirs.location)


def _file_meets_folder(first: _Pair, below: list[_Pair]) -> bool:
    """Return whether a side made the path a file or a symlink, and the other changed something below it."""

    def meets(one: PathChange | None, other: Iterable[PathChange | None]) -> bool:
        is_file = one is not None and one.after is not None and one.after.kind is not Kind.EMPTY_DIRECTORY
        return is_file and any(change is not None and change.after is not None for change in other)

    ours, theirs = [pair.ours for pair in below], [pair.theirs for pair in below]
    return meets(first.ours, theirs) or meets(first.theirs, ours)


def _without_placeholder(decision: Decision, below: list[Decision]) -> Decision:
    """Remove the entry of a folder that is not empty."""
    if decision.result is None or decision.result.kind is not Kind.EMPTY_DIRECTORY:
        return decision
    if any(one.result is not None or one.beside is not None for one in below):
        return decision._replace(result=None, location=None)
    return decision


def beside(path: bytes) -> bytes | None:
    """Return NAME.theirs.EXT for NAME.EXT; None if that is not a valid path."""
    folder, slash, name = path.rpartition(b"/")
    stem, dot, extension = name.rpartition(b".")
    if not stem:
        stem, dot, extension = name, b"", b""
    made = folder + slash + stem + b".theirs" + dot + extension
    try:
        check_path(made)
    except ValueError:
        return None
    return made


def since_another(changes: Iterable[PathChange], between: Iterable[PathChange]) -> Iterator[PathChange]:
    """Return the changes from V to X, given those from B to X (`changes`) and from B to V (`between`)."""
    for pair in _pairs(changes, between):
        change, moved = pair.ours, pair.theirs
        if moved is None:
            assert change is not None
            yield change
        elif change is None:
            yield PathChange(moved.path, moved.after, moved.before)
        elif change.after != moved.after:
            yield replace(change, before=moved.after)
