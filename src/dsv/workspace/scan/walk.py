"""Finding files of this machine that go into a commit without a workspace.

A folder is taken as `dsv sync` would take it: symlinks as symlinks, of a mode only whether its owner may execute, less
what the `.dsvignore` files in it name, and nothing that is called `.dsv` or `.git`. A file or folder that is named
itself is never ignored, and followed if it is a symlink.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from dsv.errors import NotFound, Unsupported
from dsv.format.tree import Kind
from dsv.fs.descent import Descent
from dsv.fs.errors import about
from dsv.fs.files import what_it_is
from dsv.transfer.file_reader import Problem, Trouble
from dsv.transfer.save import Source
from dsv.values.paths import check_target, show, sort_key
from dsv.workspace.scan.folder import DIRECTORY, UNSUPPORTED, Folder, is_utf8, list_folder
from dsv.workspace.scan.ignore import NAME, Rules
from dsv.workspace.scan.ignore import read as read_rules


@dataclass(slots=True)
class Walk:
    """The files of a folder that is not a workspace, or of one below it."""

    root: Path
    start: bytes = b""
    """A folder below the root, to which the walk is limited. All paths are from the root."""
    ignoring: tuple[str, ...] = (NAME,)
    """Names of the files that say what is left out, in the folders from the root on; later ones have the last word."""
    problems: list[Problem] = field(default_factory=list)
    """Paths that can't be stored or can't be read."""

    def sources(self) -> list[tuple[bytes, Source]]:
        """Return every path below the folder that goes into a tree, in tree order."""
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
        rules, parts = Rules(), self.start.split(b"/") if self.start else []
        for depth in range(len(parts)):
            above = b"/".join(parts[:depth])
            descriptor = descent.at(above)
            rules = self._enter(rules, list_folder(descriptor, above)[0], descriptor)
        return rules

    def _enter(self, rules: Rules, folder: Folder, descriptor: int) -> Rules:
        for name in self.ignoring:
            if folder.find(name.encode()) is not None:
                text = read_rules(descriptor, folder.path_of(name.encode()), name)
                rules = rules.enter(folder.path, text, name)
        return rules

    def _folder(
        self, descent: Descent, path: bytes, rules: Rules
    ) -> list[tuple[bytes, Source | Rules]] | None:
        """List a folder: files and symlinks, and folders with the rules that hold in them. None if it can't be read."""
        try:
            descriptor = descent.at(path)
            folder, _ = list_folder(descriptor, path)
            rules = self._enter(rules, folder, descriptor)
        except OSError as error:
            if path == self.start:
                raise
            self._refuse(path, f"it can't be read: {error.strerror}", Trouble.UNREADABLE)
            return None
        found: list[tuple[bytes, Source | Rules]] = []
        for at, (name, kind) in enumerate(zip(folder.name_list(), folder.kinds, strict=True)):
            whole = folder.path_of(name)
            if rules.ignores(whole, directory=kind == DIRECTORY):
                continue
            if not is_utf8(name):
                self._refuse(whole, "its name is not UTF-8")
            elif kind == UNSUPPORTED:
                self._refuse(whole, what_it_is(folder.mode(at)))
            elif kind == DIRECTORY:
                found.append((whole, rules))
            elif kind == Kind.SYMLINK:
                target = os.readlink(name, dir_fd=descriptor)
                try:
                    check_target(target)
                except ValueError as error:
                    self._refuse(whole, f"it is a symlink whose target no tree can hold: {error}")
                else:
                    found.append((whole, Source(Kind.SYMLINK, target=target)))
            else:
                found.append((whole, Source(Kind(kind), folder.size_on_disk(at), self.root, whole)))
        return found

    def _refuse(self, path: bytes, reason: str, trouble: Trouble = Trouble.UNSUPPORTED) -> None:
        self.problems.append(Problem(path, reason, trouble))


def named_file(path: Path) -> Source | None:
    """Return a file that somebody named; None for a folder. Raises `NotFound`, `Unsupported`, `Denied`."""
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
