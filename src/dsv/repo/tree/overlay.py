"""A tree as it will be after some edits, none of which is written yet: what planning an edit asks and changes.

Only segments that have one of the paths, or would have it, are read. What is kept in memory is in proportion to the
edits.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Generic, NamedTuple, TypeVar

from dsv.errors import Conflict, NotFound, UsageError
from dsv.format.locator import Location
from dsv.format.tree import Entry, Kind
from dsv.repo.tree.read import NOTHING, Found, TreeReader, find_paths
from dsv.values.paths import check_path, folders_above, show, sort_key

Source = TypeVar("Source")


class Placed(NamedTuple, Generic[Source]):
    """What a path has: content that is stored already, or a source of what is yet to be stored.

    entry: as it was found, perhaps at another path. source: None if there is an entry.
    """

    kind: Kind
    entry: Entry | None = None
    location: Location | None = None
    source: Source | None = None


class EditedTree(Generic[Source]):
    """The tree of `base` (None: an empty one) with edits.

    A folder is there as long as something lies in it; the last path that goes takes its folder with it. A placeholder
    of an empty folder goes when something is put into the folder.
    """

    def __init__(self, base: TreeReader | None) -> None:
        self._base = base
        self._found: dict[bytes, Found] = {}
        self._void: set[bytes] = set()  # folders that the base does not have
        self._placed: dict[bytes, Placed[Source]] = {}
        self._gone: set[bytes] = set()  # paths of the base that go, or are replaced
        self._filled: Counter[bytes] = Counter()  # how many placed paths lie below each folder
        self._thinned: Counter[bytes] = Counter()  # how many paths that go lie below each folder

    def look_up(self, paths: Iterable[bytes]) -> None:
        """Reads what the base has at these paths, all at once: each of them is asked for soon."""
        self._found.update(find_paths(self._base, [one for one in paths if one not in self._found]))

    def look_up_below(self, folder: bytes, paths: Iterable[bytes]) -> None:
        """As `look_up` of paths below a folder. If the base has no such folder, it is asked no more than that."""
        if not folder or self._ask(folder).below:
            self.look_up(paths)
        elif self._ask(folder) == NOTHING:
            self._void.add(folder)

    def find(self, path: bytes) -> Placed[Source] | None:
        """Return what is at exactly this path: a file, a symlink, or an empty folder."""
        placed = self._placed.get(path)
        if placed is not None or path in self._gone:
            return placed
        found = self._ask(path)
        return None if found.entry is None else Placed(found.entry.kind, found.entry, found.location)

    def is_folder(self, path: bytes) -> bool:
        """Return whether the path is the whole tree, an empty folder, or has something below it."""
        here = self.find(path) if path else None
        return not path or (here is not None and here.kind is Kind.EMPTY_DIRECTORY) or self._has_below(path)

    def below(self, path: bytes) -> Iterator[tuple[bytes, Placed[Source]]]:
        """Everything at and below the path, in no particular order. Nothing may be edited meanwhile."""
        prefix = path + b"/" if path else b""
        for name, placed in self._placed.items():
            if name == path or name.startswith(prefix):
                yield name, placed
        yield from self._staying(() if self._base is None else self._base.below(path))

    def starting_with(self, prefix: bytes) -> Iterator[tuple[bytes, Placed[Source]]]:
        """Everything whose path begins with these bytes, as `below`."""
        for name, placed in self._placed.items():
            if name.startswith(prefix):
                yield name, placed
        yield from self._staying(() if self._base is None else self._base.starting_with(prefix))

    def _staying(
        self, entries: Iterable[tuple[Entry, Location | None]]
    ) -> Iterator[tuple[bytes, Placed[Source]]]:
        for entry, location in entries:
            if entry.path not in self._gone and entry.path not in self._placed:
                yield entry.path, Placed(entry.kind, entry, location)

    def keep(self, found: Iterable[tuple[bytes, Placed[Source]]]) -> None:
        """Takes what `below` or `starting_with` gave, so that it is not read again: it is to be edited."""
        for path, what in found:
            if path not in self._placed and what.entry is not None:
                self._found[path] = Found(what.entry, what.location)

    def remove(self, path: bytes) -> None:
        """Takes away exactly this path. Raises `NotFound`."""
        if self.find(path) is None:
            raise NotFound(f"{show(path)} is not there", subject=path.decode("utf-8", "backslashreplace"))
        if self._placed.pop(path, None) is not None:
            self._filled.subtract(folders_above(path))
        if path not in self._gone and self._ask(path).entry is not None:
            self._gone.add(path)
            self._thinned.update(folders_above(path))

    def place(self, path: bytes, what: Placed[Source], *, replace: bool = True) -> None:
        """Puts something at a path. An empty folder where a folder is changes nothing.

        Raises `Conflict` if a folder would be replaced, or a file by a folder, or (without `replace`) anything;
        `UsageError` for a path that no tree may hold.
        """
        try:
            check_path(path)
        except ValueError as error:
            raise UsageError(
                f"{show(path)} can't be a path of a dataset: {error}", subject=_text(path)
            ) from None
        if self.is_folder(path):
            if what.kind is Kind.EMPTY_DIRECTORY:
                return
            raise Conflict(f"{show(path)} is a folder, and no file replaces it", subject=_text(path))
        here = self.find(path)
        if here is not None and what.kind is Kind.EMPTY_DIRECTORY:
            raise Conflict(
                f"{show(path)} is a {_word(here.kind)}, and no folder replaces it", subject=_text(path)
            )
        if here is not None and not replace:
            raise Conflict(
                f"{show(path)} is there already", subject=_text(path), hint="--replace replaces it"
            )
        self._make_way(path)
        if here is not None:
            self.remove(path)
        self._placed[path] = what
        self._filled.update(folders_above(path))

    def changes(self) -> list[tuple[bytes, Placed[Source] | None]]:
        """Return what differs from the base in tree order; None is a path that goes."""
        found: dict[bytes, Placed[Source] | None] = dict.fromkeys(self._gone)
        found.update(self._placed)
        return [
            (path, what) for path, what in sorted(found.items(), key=_order) if not self._is_same(path, what)
        ]

    def had(self, path: bytes) -> bool:
        """Return whether the base has exactly this path."""
        return self._ask(path).entry is not None

    def _is_same(self, path: bytes, what: Placed[Source] | None) -> bool:
        if what is None or what.entry is None:
            return False
        return what.entry._replace(path=path) == self._ask(path).entry

    def _make_way(self, path: bytes) -> None:
        """Whatever the path would lie below has to be a folder; if that is empty, it is so no longer."""
        for folder in folders_above(path):
            if self._filled[folder] > 0:
                return  # what was placed there first has looked
            if folder in self._placed:
                self._enter(folder, self._placed[folder].kind, path)
                return
        above = self._ask(path).above
        if above is not None and above.path not in self._gone:
            self._enter(above.path, above.kind, path)

    def _enter(self, folder: bytes, kind: Kind, path: bytes) -> None:
        if kind is not Kind.EMPTY_DIRECTORY:
            raise Conflict(
                f"{show(folder)} is a {_word(kind)}, so {show(path)} can't lie below it", subject=_text(path)
            )
        self.remove(folder)

    def _has_below(self, path: bytes) -> bool:
        if self._filled[path] > 0:
            return True
        if not self._ask(path).below:
            return False
        if not self._thinned[path]:
            return True
        assert self._base is not None
        return any(entry.path not in self._gone for entry, _ in self._base.below(path))

    def _ask(self, path: bytes) -> Found:
        found = self._found.get(path)
        if found is None:
            if self._void and any(folder in self._void for folder in folders_above(path)):
                return NOTHING
            [(_, found)] = find_paths(self._base, [path])
            self._found[path] = found
        return found


def _word(kind: Kind) -> str:
    return "symlink" if kind is Kind.SYMLINK else "file"


def _order(item: tuple[bytes, object]) -> bytes:
    return sort_key(item[0])


def _text(path: bytes) -> str:
    return path.decode("utf-8", "backslashreplace")
