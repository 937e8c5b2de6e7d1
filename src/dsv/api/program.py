"""The classes of `import dsv`: `Store`, `Commit` and `Edits`. They call the same functions as the commands.

Paths are text, with surrogates for bytes that are not UTF-8. Ids are hex digits.
"""

from __future__ import annotations

import io
import os
import posixpath
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Literal, Self, cast

from dsv.api.connection import Connection
from dsv.api.listed import Listed, ListedRuns
from dsv.errors import Conflict, NotFound, UsageError, as_read_errors
from dsv.format.tree import Entry, Kind
from dsv.values import notebook
from dsv.values.ids import CommitId
from dsv.values.names import DatasetName, Rev, Target, clean_path
from dsv.values.paths import folders_above, show
from dsv.values.patterns import PathPattern, is_pattern
from dsv.values.units import format_bytes, format_count, parse_duration, rfc3339, utc

if TYPE_CHECKING:
    from datetime import datetime

    from dsv.api.context import Context
    from dsv.api.datasets import DatasetItem
    from dsv.api.edits import Edit, Edited
    from dsv.api.open_commits import KeptTree, OpenRepository
    from dsv.format.locator import Location
    from dsv.format.records import CommitRecord
    from dsv.repo.resolve import Resolved
    from dsv.run.lineage import Lineage
    from dsv.run.series import Series
    from dsv.training.samples import Samples
    from dsv.transfer.download import Layout

_LINKS = 40
"""Symlinks that are followed to reach one file; the same limit as Linux."""


class IsFolder(UsageError):
    """A folder where a file is needed."""


@dataclass(frozen=True, slots=True)
class Info:
    """A path of a commit."""

    path: str
    kind: str
    """`file`, `executable`, `symlink` or `directory`."""
    size: int = 0
    """Bytes of a file."""
    id: str | None = None
    """BLAKE3 of a file's bytes, as `b3sum` prints it."""
    target: str | None = None
    """The target of a symlink."""


@dataclass(frozen=True, slots=True)
class Change:
    """A path that differs between two commits. A renamed path has its own path on each side."""

    what: str
    """`added`, `changed`, `removed`, `retyped` or `renamed`."""
    before: Info | None
    after: Info | None

    @property
    def path(self) -> str:
        """The path after the change; for a removed path, the path before."""
        found = self.after or self.before
        assert found is not None
        return found.path

    def __repr__(self) -> str:
        old = f" from {show(_raw(self.before.path))}" if self.before and self.before.path != self.path else ""
        size = format_bytes((self.after or self.before or Info("", "")).size)
        return f"<{self.what} {show(_raw(self.path))}{old}, {size}>"


class Store:
    """The datasets of one store, made by `dsv.store`. Opens nothing before it is needed. Can be pickled."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    @property
    def context(self) -> Context:
        """The first argument of the functions of `dsv.api`, which has one for each command."""
        return self._connection.context

    def open(self, target: str) -> Commit:
        """Return the commit that `DATASET[@REV]` names, or in a workspace `@REV`.

        The store is asked once, at the first read: later moves of a branch change nothing.
        """
        return Commit(self._connection, _target(target))

    def edit(
        self, target: str, *, message: str = "", create: bool = False, allow_removals: bool = False
    ) -> Edits:
        """Return a context that publishes one commit on `DATASET[@BRANCH]` if it ends without an error.

        create: make a missing dataset. allow_removals: allow removing more than half of its files.
        """
        return Edits(self._connection, _target(target), message, create, allow_removals)

    def datasets(self) -> Listed[DatasetItem]:
        """Return every dataset, by name, with the commit of its `main`."""
        from dsv.api.datasets import datasets

        return Listed(datasets(self._connection.reading))

    def runs(
        self,
        dataset: str | None = None,
        *,
        where: Sequence[str] = (),
        sort: str | None = None,
        limit: int | None = None,
    ) -> ListedRuns:
        """Return the records of runs, newest first: of this dataset, else of the workspace's, else of all.

        where: conditions such as `metrics.acc>0.9`; all must hold. sort: a key, as for `dsv runs --sort`.
        Raises `UsageError` for a key that no record has, `NotFound` for a missing dataset.
        """
        from dsv.api.runs import open_runs
        from dsv.run.listing import Filter, RunQuery

        name = None if dataset is None else DatasetName.parse(dataset)
        with open_runs(self._connection.reading, self._connection.variables) as found:
            query = RunQuery(tuple(Filter.parse(text) for text in where), sort, limit=limit)
            return ListedRuns(found.settle(found.listed(name, query)))

    def series(self, run: str) -> dict[str, Series]:
        """Return the curves of a run's metrics by name, also while it is under way. run: as for `dsv runs`"""
        from dsv.api.runs import open_runs

        with open_runs(self._connection.reading, self._connection.variables) as found:
            return found.series(found.show(run).record)

    def lineage(
        self, target: str, *, down: bool = False, changes: bool = False, depth: int | None = None
    ) -> Lineage:
        """Return what `[DATASET][@REV][:PATH]` comes from, or with `down` what was made of it, as nodes and edges.

        target: what begins with `./`, `../`, `/` or `~` is a file. changes: also say what has changed since in the raw
        data. depth: the most runs from one end to the other. Raises `NotFound`, `UsageError`.
        """
        from dsv.api.lineage import lineage

        return lineage(self._connection.reading, target, down=down, changes=changes, depth=depth)


class Commit:
    """A commit and its files, which are read from the store when needed and verified against their ids.

    Threads may share it. A copy in another process, made by pickling or a fork, opens the store itself.
    """

    def __init__(self, connection: Connection, target: Target, found: Resolved | None = None) -> None:
        self._connection = connection
        self._target = target
        if found is not None:
            self._found = found

    def __repr__(self) -> str:
        if (read := self.__dict__.get("_read")) is None:  # the store is not asked for this
            return f"<dsv.Commit {self._target}>"
        about = f"{format_count(read.files, 'file')}, {format_bytes(read.bytes)}, {rfc3339(read.time_ms)}"
        title, _, _ = read.message.partition("\n")
        return f"<dsv.Commit {self._target}: {about}, {title[:60]!r}>"

    def _repr_html_(self) -> str | None:
        return notebook.html(self)

    def __eq__(self, other: object) -> bool:
        return self.id == other.id if isinstance(other, Commit) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.id)

    @property
    def id(self) -> str:
        """64 hex digits. Raises `NotFound`, `Unreachable`, `Denied`, like all members that look it up."""
        return str(self._resolved.commit)

    @property
    def dataset(self) -> str:
        """The name of its dataset."""
        return str(self._resolved.dataset)

    @property
    def branch(self) -> str | None:
        """The name of the branch by which it was opened, if any."""
        return self._resolved.branch

    @property
    def author(self) -> str:
        """Who made it, as they signed."""
        return self._record.author

    @property
    def time(self) -> datetime:
        """When it was made, by its author's clock; in UTC."""
        return utc(self._record.time_ms)

    @property
    def message(self) -> str:
        """The whole message; empty if there is none."""
        return self._record.message

    @property
    def files(self) -> int:
        """The number of files, without symlinks."""
        return self._record.files

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return self._record.bytes

    @property
    def parents(self) -> tuple[Commit, ...]:
        """None for a first commit, several for a merge."""
        return tuple(self._other(one) for one in self._record.parents)

    def log(self, *paths: str, limit: int | None = None) -> list[Commit]:
        """Return this commit and its ancestors, newest first; only those that changed the paths, if any."""
        from dsv.api.log import LogQuery, log

        query = LogQuery(limit=limit, paths=tuple(map(_raw, paths)))
        with log(self._connection.reading, self._pinned(), query) as items:
            return [self._other(item.id) for item in items]

    def diff(self, other: Commit | str, *paths: str) -> Listed[Change]:
        """Return the changes from this commit to `other`, by path; below the given paths only, if any.

        other: a commit of the same store, or a target as for `open`; `@REV` means this dataset.
        """
        from dsv.api.diff import diff

        after = other._pinned() if isinstance(other, Commit) else _target(other)
        after = after if after.dataset is not None else Target(self._resolved.dataset, after.rev)
        with diff(self._connection.reading, self._pinned(), after, [*map(_raw, paths)]) as compared:
            return Listed(
                Change(one.what.value, one.before and _info(one.before), one.after and _info(one.after))
                for one in compared.found.differences
            )

    def cache(self, path: str = "", *, hold: str | float | None = None) -> Path:
        """Cache the commit, or the files at or below a path, read-only, and return their folder.

        hold: how long they are kept in any case, such as `3d` or in seconds.
        """
        from dsv.api.cache import cache

        seconds = parse_duration(hold) if isinstance(hold, str) else hold
        context = self._connection.reading
        folder, offline = context.settings.cache().path, self._connection.offline
        [item] = cache(context, folder, [self._pinned(path)], hold=seconds, offline=offline)
        return item.path

    def export(self, to: str | os.PathLike[str], path: str = "") -> None:
        """Write the files at and below a path to a folder, tar (by its name) or URL, like `dsv export`."""
        from dsv.api.export import export

        export(self._connection.reading, self._pinned(path), os.fspath(to))

    def info(self, path: str, *, follow: bool = False) -> Info:
        """Return the entry at a path. Raises `NotFound`. follow: if it is a symlink, return the file that it
        leads to, with its own path; raises `UsageError` for a folder.
        """
        raw, tree = _raw(path), self._tree
        with self._opened.explaining():
            found = tree.entry(raw) if raw else None
            if found is not None and not (follow and found[0].kind is Kind.SYMLINK):
                return _info(found[0])
            if found is None and (not raw or next(tree.below(raw), None) is not None):
                return Info(_text(raw), "directory")
            if follow:
                return _info(self._followed(tree, raw)[0])
        raise self._no_path(raw)

    def ls(self, path: str = "") -> list[Info]:
        """Return the entries of a folder, by name; for a file, only the file. Raises `NotFound`."""
        raw = _raw(path)
        with self._opened.explaining():
            found = [
                Info(_text(path), "directory") if entry is None else _info(entry)
                for path, entry, _ in self._tree.children(raw)
            ]
        if found or not raw:
            return found
        here = self.info(path)
        return [] if here.kind == "directory" else [here]

    def walk(self, path: str = "") -> Iterator[tuple[str, list[str], list[str]]]:
        """Yield each folder with the names of its folders and files, like `os.walk`: a folder that the caller
        removes from the list is not entered. Symlinks count as files. Raises `NotFound`.
        """
        if self.info(path).kind != "directory":
            raise UsageError(f"{path} is not a folder", subject=path)
        waiting = [_text(_raw(path))]
        while waiting:
            here = waiting.pop()
            names = [(posixpath.basename(entry.path), entry.kind == "directory") for entry in self.ls(here)]
            folders = [name for name, is_folder in names if is_folder]
            yield here, folders, [name for name, is_folder in names if not is_folder]
            waiting += [posixpath.join(here, name) for name in reversed(folders)]

    def glob(self, pattern: str) -> list[str]:
        """Return matching paths, also folders, in tree order. `*`, `?` match no slash, `**/` any folders."""
        raw, tree = _raw(pattern), self._tree
        if not is_pattern(raw):
            with self._opened.explaining():
                return [_text(raw)] if tree.entry(raw) or next(tree.below(raw), None) else []
        matcher = PathPattern(raw, folders_only=pattern.endswith("/"))
        with self._opened.explaining():
            if b"**" not in raw:
                return [_text(path) for path in _matching(tree, matcher, b"")]
            verdicts: dict[bytes, bool] = {}
            for entry, _ in tree.starting_with(matcher.start):
                for folder in reversed([*folders_above(entry.path)]):
                    if folder not in verdicts:
                        verdicts[folder] = matcher.matches(folder, folder=True)
                verdicts[entry.path] = matcher.matches(entry.path, folder=entry.kind is Kind.EMPTY_DIRECTORY)
            return [_text(path) for path, matches in verdicts.items() if matches]

    def open(self, path: str, *, buffer_size: int = 1 << 17) -> io.BufferedReader:
        """Open a seekable file to read its bytes; symlinks within the commit are followed. Only needed chunks
        (about 1 MiB) are fetched, some MB ahead if sequential. Raises `NotFound`, and `UsageError` for a
        folder. A pickle of the file has its commit, path and position.
        """
        from dsv.api.open_commits import CommitFile

        size = self._layout(path).entry.size
        file = _File(CommitFile(path, size, partial(self._chunks, path)), buffer_size)
        file._opened_by = self, path, buffer_size
        return file

    def read_bytes(self, path: str, start: int = 0, stop: int | None = None) -> bytes:
        """Return a file's bytes `[start:stop]`; negative numbers count from the end. Raises like `open`."""
        return self.read_ranges([(path, start, stop)])[0]

    def read_many(self, paths: Iterable[str]) -> dict[str, bytes]:
        """Return the bytes of many files, by path, in the order given. Files stored side by side are read
        with one request, in any order. Raises like `open`, with nothing returned.
        """
        wanted = dict.fromkeys(paths)
        return dict(zip(wanted, self.read_ranges([(path, 0, None) for path in wanted]), strict=True))

    def read_ranges(self, ranges: Sequence[tuple[str, int, int | None]]) -> list[bytes]:
        """Return bytes like `read_bytes` for each `(path, start, stop)`; few requests, like `read_many`."""
        layouts = self._layouts([path for path, _, _ in ranges])
        asked: list[tuple[Layout, int, int]] = []
        for layout, (_, start, stop) in zip(layouts, ranges, strict=True):
            first, last, _ = slice(start, stop).indices(layout.entry.size)
            asked.append((layout, first, max(first, last)))
        return self._opened.read(asked, self._resolved.dataset)

    def samples(self, *patterns: str, window: int = 4 << 30, cache: bool | Literal["fill"] = True) -> Samples:
        """Return files for training: at and below paths, or matching patterns as in `glob`; by default all.
        Symlinks and erased files are left out.

        window: bytes of memory that all processes on a host share. cache: read the cache's files if the
        commit is cached; `fill`: a loader also fills it. Raises `NotFound` if a path is missing, or if there is
        no such file.
        """
        from dsv.api.open_commits import CommitSource, open_samples

        chosen = open_samples(CommitSource(self._connection, self._resolved), patterns, window, cache)
        for pattern in patterns:
            if not is_pattern(_raw(pattern)):
                self.info(pattern)
        return chosen

    def _chunks(self, path: str, start: int, stop: int) -> tuple[int, bytes]:
        """Return the chunks with the bytes from `start` to `stop`, and the offset of the first chunk."""
        layout = self._layout(path)
        parts = [*layout.parts(start, stop)]
        if not parts:
            return start, b""
        first, last = parts[0].start, parts[-1].start + parts[-1].length
        with as_read_errors():
            return first, self._opened.read([(layout, first, last)], self._resolved.dataset)[0]

    @property
    def _resolved(self) -> Resolved:
        known = self.__dict__.get("_found")
        if known is None:
            from dsv.api.open_commits import opened

            context = self._connection.reading
            found = opened(context, self._target).resolve(context, self._target)
            known = self.__dict__.setdefault("_found", found)  # the first thread decides for all
        return cast("Resolved", known)

    @property
    def _opened(self) -> OpenRepository:
        from dsv.api.open_commits import opened

        return opened(self._connection.reading, self._pinned())

    @property
    def _tree(self) -> KeptTree:
        return self._opened.tree(self._resolved.commit)

    @property
    def _record(self) -> CommitRecord:
        known = self.__dict__.get("_read")
        if known is None:
            known = self._read = self._opened.repository.objects.commit(self._resolved.commit)
        return cast("CommitRecord", known)

    def _pinned(self, path: str = "") -> Target:
        found = self._resolved
        return Target(found.dataset, Rev(str(found.commit)), _raw(path) or None)

    def _other(self, commit: CommitId) -> Commit:
        from dsv.repo.resolve import Resolved

        dataset = self._resolved.dataset
        return Commit(self._connection, Target(dataset, Rev(str(commit))), Resolved(dataset, commit))

    def _layout(self, path: str) -> Layout:
        return self._layouts([path])[0]

    def _layouts(self, paths: Iterable[str]) -> list[Layout]:
        """Return the chunk locations of these files, in the order of the paths."""
        from dsv.repo.tree.reader import find_entries

        opened, tree = self._opened, self._tree
        raw = [_raw(path) for path in paths]
        with opened.explaining():
            known = find_entries(tree, raw)
            rows = [known.get(path) for path in raw]
            files = [
                row if row is not None and row[0].is_file else self._followed(tree, path)
                for path, row in zip(raw, rows, strict=True)
            ]
            return [opened.layout(entry, location) for entry, location in files]

    def _followed(self, tree: KeptTree, path: bytes) -> tuple[Entry, Location | None]:
        """Return the file that a path leads to by symlinks. Raises like `open`."""
        from dsv.repo.tree.reader import find_paths

        at = path
        for _ in range(_LINKS):
            [(_, found)] = find_paths(tree, [at])
            link = found.entry or found.above
            if link is None or link.kind is not Kind.SYMLINK:
                break
            behind = at[len(link.path) + 1 :]
            at = os.path.normpath(os.path.join(os.path.dirname(link.path), link.target or b"", behind))  # noqa: PTH118, PTH120
            if at.startswith((b"/", b"../")) or at in (b"..", b"."):
                break
        if found.entry is not None and found.entry.is_file:
            return found.entry, found.location
        if found.below or (found.entry is not None and found.entry.kind is Kind.EMPTY_DIRECTORY) or not path:
            raise IsFolder(f"{show(path) or 'the root'} is a folder", subject=_text(path))
        if found.entry is not None:
            raise NotFound(f"the symlink {show(path)} leads to no file of its commit", subject=_text(path))
        raise self._no_path(path)

    def _no_path(self, path: bytes) -> NotFound:
        return self._resolved.no_path(show(path), _text(path))


class _File(io.BufferedReader):
    _opened_by: tuple[Commit, str, int]
    """Its commit, path and buffer size."""

    def __reduce_ex__(self, _: object) -> tuple[Any, ...]:
        return _reopened, (*self._opened_by, self.tell()), self.__dict__


def _reopened(commit: Commit, path: str, buffer_size: int, position: int) -> io.BufferedReader:
    file = commit.open(path, buffer_size=buffer_size)
    file.seek(position)
    return file


class Edits:
    """Changes of a dataset without its files. Each sees the results of those before it.

    They become one commit when the `with` block ends; nothing is published if it raises, or without changes.
    """

    def __init__(
        self, connection: Connection, target: Target, message: str, create: bool, allow_removals: bool
    ) -> None:
        self._connection = connection
        self._target = target
        self._message, self._create, self._allow_removals = message, create, allow_removals
        self._edits: list[Edit] = []
        self._streams: set[int] = set()
        self._done: Edited | None = None
        self._state: Literal["new", "begun", "failed", "ended"] = "new"

    def _add(self, *edits: Edit) -> None:
        if self._state != "begun":
            raise Conflict(f"edits of {self._target} are made in its `with` block", subject=str(self._target))
        self._edits += edits

    def put(self, path: str, content: bytes | os.PathLike[str] | BinaryIO, *, replace: bool = True) -> None:
        """Put bytes, a local file, an open file, or a local folder, which is merged into an existing one.

        Content that is not bytes is read when the block ends. path: with a trailing slash, a folder that gets
        the content under its own name. replace: if false, existing paths are left unchanged.
        """
        from dsv.api.edits import Put

        if isinstance(content, bytes):
            self._add(Put(path, content, replace))
        elif isinstance(content, os.PathLike):
            self._add(Put(path, Path(content), replace))
        elif hasattr(content, "readinto"):
            if id(content) in self._streams:
                raise UsageError("an open file is read once, and so put once", subject=path)
            self._streams.add(id(content))
            self._add(Put(path, content.readinto, replace))
        else:
            raise TypeError(
                f"bytes, a Path or a file opened to read bytes can be put, not {type(content).__name__}"
            )

    def remove(self, *paths: str) -> None:
        """Remove files, folders with all below them, and paths that match patterns."""
        from dsv.api.edits import Remove

        self._add(Remove(paths))

    def move(self, path: str, to: str, *, replace: bool = False) -> None:
        """Move a file or folder, or paths that match a pattern. replace: replace existing files."""
        from dsv.api.edits import Move

        self._add(Move(path, to, replace))

    @property
    def commit(self) -> Commit:
        """The published commit, or the branch's if nothing changed. Raises `Conflict` before publication."""
        from dsv.repo.resolve import Resolved

        if self._state == "ended" and self._done is None:  # there were no edits
            return Commit(self._connection, self._target)
        if self._done is None or self._done.commit is None:
            raise Conflict(f"no commit of {self._target} was published yet", subject=str(self._target))
        found = Resolved(self._done.dataset, self._done.commit)
        return Commit(self._connection, Target(found.dataset, Rev(str(found.commit))), found)

    def __enter__(self) -> Self:
        if self._state != "new":
            raise Conflict(f"the block of these edits of {self._target} was begun", subject=str(self._target))
        self._state = "begun"
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        self._state = "failed"
        if kind is None and self._edits:
            from dsv.api.edits import EditRequest, edit

            request = EditRequest(self._message, create=self._create, allow_removals=self._allow_removals)
            self._done = edit(self._connection.context, self._target, self._edits, request)
        if kind is None:
            self._state = "ended"


def _target(text: str) -> Target:
    parsed = Target.parse(text)
    if parsed.path is not None or not text:
        what = "names a path" if text else "is empty"
        hint = "DATASET@REV without a path"
        raise UsageError(f"a commit or a branch is needed, and {text!r} {what}", subject=text, hint=hint)
    return parsed


def _matching(tree: KeptTree, pattern: PathPattern, folder: bytes) -> Iterator[bytes]:
    for path, entry, _ in tree.children(folder):
        is_folder = entry is None or entry.kind is Kind.EMPTY_DIRECTORY
        if pattern.matches(path, folder=is_folder):
            yield path
        if entry is None and pattern.may_match_below(path):
            yield from _matching(tree, pattern, path)


def _raw(path: str) -> bytes:
    return clean_path(path.encode("utf-8", "surrogateescape"))


def _text(path: bytes) -> str:
    return path.decode("utf-8", "surrogateescape")


def _info(entry: Entry) -> Info:
    return Info(
        _text(entry.path),
        entry.kind.word,
        entry.size,
        None if entry.file_id is None else str(entry.file_id),
        None if entry.target is None else _text(entry.target),
    )
