"""Files of this machine that go into a commit without a workspace: found, read and stored.

A folder is taken as `dsv sync` would take it: symlinks as symlinks, of a mode only whether its owner may execute, less
what the `.dsvignore` files in it name, and nothing that is called `.dsv` or `.git`. A file or folder that is named
itself is never ignored, and followed if it is a symlink.
"""

from __future__ import annotations

import io
import os
import stat
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from dsv.errors import Conflict, NotFound, Unsupported
from dsv.format.tree import Kind
from dsv.fs.descent import Descent, split
from dsv.fs.errors import about
from dsv.fs.files import what_it_is
from dsv.fs.process import processors
from dsv.transfer.upload import Stored, Uploader
from dsv.values.ids import FileId
from dsv.values.paths import check_target, show, sort_key
from dsv.values.progress import Progress
from dsv.workspace.scan.file_reader import Problem, Trouble, read_stable
from dsv.workspace.scan.folder import DIRECTORY, ROW, UNSUPPORTED, Relation
from dsv.workspace.scan.ignore import NAME, Rules
from dsv.workspace.scan.ignore import read as read_rules
from dsv.workspace.scan.listing import is_utf8, list_folder
from dsv.workspace.scan.result import Pending
from dsv.workspace.sync.prefetch import Readers, suitable
from dsv.workspace.sync.save import store_content


@dataclass(slots=True, eq=False)
class Source:
    """A content that is yet to be stored, or was stored by an attempt that lost a race.

    root, name: the folder on this machine and the path in it, which no symlink leads to. read: fills a buffer and says
    with how many bytes, 0 at the end, for what is no file and can be read once.
    reopen: gives such a function, each time from the start.
    target: of a symlink. kind, size: as it was found; reading it tells more.
    order: the position in an archive, which is read from its start to its end.
    """

    kind: Kind
    size: int = 0
    root: Path | None = None
    name: bytes = b""
    read: Callable[[memoryview], int] | None = None
    data: bytes | None = None
    target: bytes | None = None
    stored: Stored | None = None
    reopen: Callable[[], Callable[[memoryview], int]] | None = None
    order: int = 0


OnStored = Callable[[Uploader, Source, Stored], None]
"""Told of each content that was read and stored, and is not yet durable."""


@dataclass(slots=True)
class Walk:
    """What lies in a folder. problems: what can't be stored, or not be read.

    start: a folder below the root, to which the walk is limited; paths begin with it. ignoring: the files that name
    what is left out, in the folders from the root on; later ones have the last word.
    """

    root: Path
    start: bytes = b""
    ignoring: tuple[str, ...] = (NAME,)
    problems: list[Problem] = field(default_factory=list)

    def sources(self) -> list[tuple[bytes, Source]]:
        """Every path below the folder that goes into a tree, in tree order."""
        with about(self.root), Descent(self.root) as descent:
            return list(self._below(descent))

    def _below(self, descent: Descent) -> Iterator[tuple[bytes, Source]]:
        stack: list[tuple[bytes, Source | Rules]] = [(self.start, self._rules_above(descent))]
        while stack:
            path, what = stack.pop()
            if isinstance(what, Source):
                yield path, what
                continue
            found = self._folder(descent, path, what)
            if found is None:
                continue
            if not found and path != self.start:
                yield path, Source(Kind.EMPTY_DIRECTORY)
            stack += sorted(found, key=lambda item: sort_key(item[0]), reverse=True)

    def _rules_above(self, descent: Descent) -> Rules:
        """Those in the folders above the start."""
        rules, parts = Rules(), self.start.split(b"/") if self.start else []
        for depth in range(len(parts)):
            above = b"/".join(parts[:depth])
            descriptor = descent.at(above)
            rules = self._enter(rules, above, descriptor, list_folder(descriptor).names)
        return rules

    def _enter(self, rules: Rules, path: bytes, descriptor: int, names: Sequence[str]) -> Rules:
        for name in self.ignoring:
            if name in names:
                text = read_rules(descriptor, _join(path, os.fsencode(name)), name)
                rules = rules.enter(path, text, name)
        return rules

    def _folder(
        self, descent: Descent, path: bytes, rules: Rules
    ) -> list[tuple[bytes, Source | Rules]] | None:
        """What is in a folder: files and symlinks, and folders with the rules that hold in them. None: unreadable."""
        try:
            descriptor = descent.at(path)
            listing = list_folder(descriptor)
            rules = self._enter(rules, path, descriptor, listing.names)
        except OSError as error:
            if path == self.start:
                raise
            self._refuse(path, f"it can't be read: {error.strerror}", Trouble.UNREADABLE)
            return None
        found: list[tuple[bytes, Source | Rules]] = []
        for at, (text, kind) in enumerate(zip(listing.names, listing.kinds, strict=True)):
            name = os.fsencode(text)
            whole = _join(path, name)
            if rules.ignores(whole, directory=kind == DIRECTORY):
                continue
            if not is_utf8(name):
                self._refuse(whole, "its name is not UTF-8")
            elif kind == UNSUPPORTED:
                self._refuse(whole, what_it_is(listing.mode(at)))
            elif kind == DIRECTORY:
                found.append((whole, rules))
            elif kind == Kind.SYMLINK:
                target = os.readlink(name, dir_fd=descriptor)
                found += self._link(whole, target)
            else:
                size = ROW.unpack_from(listing.rows, at * ROW.size)[1]
                found.append((whole, Source(Kind(kind), size, self.root, whole)))
        return found

    def _link(self, path: bytes, target: bytes) -> list[tuple[bytes, Source | Rules]]:
        try:
            check_target(target)
        except ValueError as error:
            self._refuse(path, f"it is a symlink whose target no tree can hold: {error}")
            return []
        return [(path, Source(Kind.SYMLINK, target=target))]

    def _refuse(self, path: bytes, reason: str, trouble: Trouble = Trouble.UNSUPPORTED) -> None:
        self.problems.append(Problem(path, reason, trouble))


def named_file(path: Path) -> Source | None:
    """The source of a file that somebody named; None for a folder. Raises `NotFound`, `Unsupported`, `Denied`."""
    with about(path):
        try:
            whole = Path(os.path.realpath(path))
            info = whole.stat()
        except (FileNotFoundError, NotADirectoryError):
            raise NotFound(
                f"there is no file or folder {show(os.fsencode(path))}", subject=str(path)
            ) from None
    if stat.S_ISDIR(info.st_mode):
        return None
    if not stat.S_ISREG(info.st_mode):
        raise Unsupported(
            f"{show(os.fsencode(path))} can't be stored: {what_it_is(info.st_mode)}",
            subject=str(path),
            hint="to store what a command prints: COMMAND | dsv put - DATASET:PATH",
        )
    kind = Kind.EXECUTABLE if info.st_mode & stat.S_IXUSR else Kind.FILE
    return Source(kind, info.st_size, whole.parent, os.fsencode(whole.name))


def store_sources(
    uploader: Uploader,
    sources: Iterable[Source],
    progress: Progress,
    stored: OnStored = lambda *_: None,
) -> list[Problem]:
    """Stores the contents that are not stored yet, and gives the files that could not be read.

    Those of one folder should follow each other in the order of their names.
    """
    problems: list[Problem] = []
    rest: list[Source] = []
    for source in sources:
        if source.kind in (Kind.SYMLINK, Kind.EMPTY_DIRECTORY) or _stored_before(uploader, source):
            continue
        rest.append(source)
    rest.sort(key=lambda source: source.order)
    progress.start(len(rest), sum(source.size for source in rest))
    start = 0
    while start < len(rest):
        root, end = rest[start].root, start + 1
        while end < len(rest) and rest[end].root == root and root is not None:
            end += 1
        if root is None:
            content = _store_given(uploader, rest[start])
            stored(uploader, rest[start], content)
            progress.advance(files=1, bytes=rest[start].size)
        else:
            problems += _store_files(uploader, root, rest[start:end], progress)
        start = end
    progress.finish()
    return problems


def _stored_before(uploader: Uploader, source: Source) -> bool:
    """Whether an attempt that lost a race has stored it, and the store still has all of it."""
    if source.stored is None:
        return False
    stored = uploader.find(source.stored.size, source.stored.file_id, source.stored.recipe_id)
    source.stored = stored or source.stored
    return stored is not None


def _store_given(uploader: Uploader, source: Source) -> Stored:
    if source.reopen is not None:
        stored = uploader.add_unsized(source.reopen())
    elif source.read is None:
        stored = uploader.add_unsized(io.BytesIO(source.data or b"").readinto)
    elif source.stored is None:
        stored = uploader.add_unsized(source.read)
    else:
        raise Conflict(
            "gc is removing from the store what came from a stream and was just stored there",
            hint="run the same command again",
        )
    source.stored, source.size = stored, stored.size
    return stored


def _store_files(uploader: Uploader, root: Path, sources: list[Source], progress: Progress) -> list[Problem]:
    problems: list[Problem] = []

    def upload(descriptor: int, size: int) -> tuple[Stored, int]:
        return store_content(uploader, descriptor, size)

    with (
        about(root),
        Descent(root) as descent,
        Readers(root, suitable(len(sources), processors())) as readers,
    ):
        number = 0
        for run in readers.over(_pending(source) for source in sources):
            contents = run.contents
            read = contents.read if contents is not None else []
            places = iter(uploader.add_all(contents.packed) if contents is not None and any(read) else [])
            for at in run.at:
                source = sources[number]
                number += 1
                if contents is not None and at >= 0 and read[at]:
                    mode = ROW.unpack(contents.rows[at])[4]
                    _take(source, mode, Stored(source.size, FileId(contents.ids[at]), None, next(places)))
                else:
                    found = read_stable(descent, source.name, upload)
                    if isinstance(found, Problem):
                        problems.append(found)
                    else:
                        _take(source, found.stat.st_mode, found.value)
                progress.advance(files=1, bytes=source.size)
    return problems


def _take(source: Source, mode: int, stored: Stored) -> None:
    source.kind = Kind.EXECUTABLE if mode & stat.S_IXUSR else Kind.FILE
    source.size, source.stored = stored.size, stored


def _pending(source: Source) -> Pending:
    return Pending(
        source.name, source.kind, source.size, Relation.ABSENT, None, None, split(source.name)[0], 0
    )


def _join(folder: bytes, name: bytes) -> bytes:
    return folder + b"/" + name if folder else name
