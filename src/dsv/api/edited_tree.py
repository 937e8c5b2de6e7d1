"""A tree after edits that are not written yet.

Only segments that have, or would have, one of the paths are read. Memory is proportional to the edits.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

from dsv.errors import Conflict, NotFound, UsageError
from dsv.format.locator import Location
from dsv.format.tree import Entry, Kind
from dsv.repo.tree.reader import NOTHING, TreeLookup, TreeReader, find_paths
from dsv.transfer.save import NewContent
from dsv.transfer.upload import StoredContent
from dsv.values.paths import check_path, folders_above, show, sort_key


class EditedTree:
    """The tree of `base` (None: an empty tree) with edits.

    A folder exists while it has entries. The placeholder of an empty folder is removed when it gets an entry.
    """

    def __init__(self, base: TreeReader | None) -> None:
        self._base = base
        self._found: dict[bytes, TreeLookup] = {}  # in the base
        self._void: set[bytes] = set()  # folders that the base does not have
        self._edits: dict[bytes, NewContent | None] = {}  # None: a path of the base that is removed
        self._filled: Counter[bytes] = Counter()  # how many edits put an entry below each folder
        self._touched: Counter[bytes] = Counter()  # how many paths of the base below each folder are edited

    def look_up(self, paths: Iterable[bytes]) -> None:
        """Read at once the base's entries at paths that will be needed soon."""
        self._found.update(find_paths(self._base, [one for one in paths if one not in self._found]))

    def look_up_below(self, folder: bytes, paths: Iterable[bytes]) -> None:
        """Look up paths below a folder. If the base has no such folder, read nothing else."""
        if not folder or self._in_base(folder).below:
            self.look_up(paths)
        elif self._in_base(folder) == NOTHING:
            self._void.add(folder)

    def find(self, path: bytes) -> NewContent | None:
        """Return the entry at exactly this path: a file, a symlink, or an empty folder."""
        if path in self._edits:
            return self._edits[path]
        found = self._in_base(path)
        return None if found.entry is None else as_source(found.entry, found.location)

    def is_folder(self, path: bytes) -> bool:
        """Return whether the path is the whole tree, an empty folder, or has entries below it."""
        here = self.find(path) if path else None
        return not path or (here is not None and here.kind is Kind.EMPTY_DIRECTORY) or self._has_below(path)

    def below(self, path: bytes) -> Iterator[tuple[bytes, NewContent]]:
        """Yield all entries at and below the path, in any order. Do not edit the tree while iterating."""
        prefix = path + b"/" if path else b""
        yield from (item for item in self._placed() if item[0] == path or item[0].startswith(prefix))
        yield from self._staying(() if self._base is None else self._base.below(path))

    def starting_with(self, prefix: bytes) -> Iterator[tuple[bytes, NewContent]]:
        """Like `below`, for all paths that begin with these bytes."""
        yield from (item for item in self._placed() if item[0].startswith(prefix))
        yield from self._staying(() if self._base is None else self._base.starting_with(prefix))

    def _placed(self) -> Iterator[tuple[bytes, NewContent]]:
        return ((path, what) for path, what in self._edits.items() if what is not None)

    def _staying(self, found: Iterable[tuple[Entry, Location | None]]) -> Iterator[tuple[bytes, NewContent]]:
        for entry, location in found:
            if entry.path not in self._edits:
                yield entry.path, as_source(entry, location)

    def keep(self, found: Iterable[tuple[bytes, NewContent]]) -> None:
        """Remember entries of `below` or `starting_with` that will be edited, to avoid reading them again."""
        for path, what in found:
            if path not in self._edits:
                self._found[path] = TreeLookup(
                    what.entry(path), None if what.stored is None else what.stored.location
                )

    def remove(self, path: bytes) -> None:
        """Remove exactly this path. Raises `NotFound`."""
        if self.find(path) is None:
            raise NotFound(f"{show(path)} is not there", subject=as_text(path))
        self._set(path, None)

    def place(self, path: bytes, what: NewContent, *, replace: bool = True) -> None:
        """Put an entry at a path. An empty folder where a folder exists changes nothing.

        Raises `UsageError` for an invalid path, and `Conflict` if a folder or (without `replace`) anything
        would be replaced, or a file by a folder.
        """
        try:
            check_path(path)
        except ValueError as error:
            raise UsageError(
                f"{show(path)} can't be a path of a dataset: {error}", subject=as_text(path)
            ) from None
        if self.is_folder(path):
            if what.kind is Kind.EMPTY_DIRECTORY:
                return
            raise Conflict(f"{show(path)} is a folder, which a file can't replace", subject=as_text(path))
        here = self.find(path)
        if here is not None and what.kind is Kind.EMPTY_DIRECTORY:
            raise Conflict(
                f"{show(path)} is a {_word(here.kind)}, which a folder can't replace", subject=as_text(path)
            )
        if here is not None and not replace:
            raise Conflict(
                f"{show(path)} already exists", subject=as_text(path), hint="--replace replaces it"
            )
        self._make_way(path)
        self._set(path, what)

    def changes(self) -> list[tuple[bytes, NewContent | None]]:
        """Return the differences from the base, in tree order; None is a removed path."""
        edits = sorted(self._edits.items(), key=lambda edit: sort_key(edit[0]))
        return [
            (path, what)
            for path, what in edits
            if what is None or what.entry(path) is None or what.entry(path) != self._in_base(path).entry
        ]

    def had(self, path: bytes) -> bool:
        """Return whether the base has exactly this path."""
        return self._in_base(path).entry is not None

    def _set(self, path: bytes, what: NewContent | None) -> None:
        before, had = self._edits.get(path), self.had(path)
        if had and path not in self._edits:
            self._touched.update(folders_above(path))
        if what is not None and before is None:
            self._filled.update(folders_above(path))
        if what is None and before is not None:
            self._filled.subtract(folders_above(path))
        if what is None and not had:
            del self._edits[path]
        else:
            self._edits[path] = what

    def _make_way(self, path: bytes) -> None:
        """Check that the paths above are folders, and remove the placeholder of an empty folder."""
        for folder in folders_above(path):
            if self._filled[folder] > 0:
                return  # the first entry placed there was checked
            if self._edits.get(folder) is not None:
                break
        else:
            above = self._in_base(path).above
            if above is None or above.path in self._edits:
                return
            folder = above.path
        here = self.find(folder)
        assert here is not None
        if here.kind is not Kind.EMPTY_DIRECTORY:
            raise Conflict(
                f"{show(folder)} is a {_word(here.kind)}, so {show(path)} can't lie below it",
                subject=as_text(path),
            )
        self.remove(folder)

    def _has_below(self, path: bytes) -> bool:
        if self._filled[path] > 0:
            return True
        if not self._in_base(path).below:
            return False
        if not self._touched[path]:
            return True
        assert self._base is not None
        return any(entry.path not in self._edits for entry, _ in self._base.below(path))

    def _in_base(self, path: bytes) -> TreeLookup:
        found = self._found.get(path)
        if found is None:
            if self._void and any(folder in self._void for folder in folders_above(path)):
                return NOTHING
            [(_, found)] = find_paths(self._base, [path])
            self._found[path] = found
        return found


def as_text(path: bytes) -> str:
    """Return a path as the subject of an error."""
    return path.decode("utf-8", "backslashreplace")


def as_source(entry: Entry, location: Location | None) -> NewContent:
    if entry.file_id is None:
        return NewContent(entry.kind, target=entry.target)
    stored = StoredContent(entry.size, entry.file_id, entry.recipe_id, location)
    return NewContent(entry.kind, entry.size, stored=stored)


def _word(kind: Kind) -> str:
    return "symlink" if kind is Kind.SYMLINK else "file"
