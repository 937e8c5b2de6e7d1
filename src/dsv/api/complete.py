"""Find names for the shell's completion, such as datasets, commits, paths and runs that this machine knows.

No bucket is asked, and nothing raises: names that can't be read in time are left out.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TypeVar

from dsv.api.connection import make_context
from dsv.api.environment import gather
from dsv.cache.root import CachePlace, CacheRoot, dataset_of, folder_name, is_dataset
from dsv.files.folders import open_folder
from dsv.files.shared_path import AnyPath
from dsv.files.small_files import list_names
from dsv.repo.refs.branches import Refs
from dsv.repo.tracking import Tracking, file_of, read, tracked_datasets
from dsv.values.names import DatasetName
from dsv.values.progress import NoProgress
from dsv.workspace.workspace import Workspace

_T = TypeVar("_T")
Row = tuple[str, str]
"""A word and its short description."""
Rows = Iterator[Row]
SECONDS = 0.3
"""The time to wait for folders: a file server that does not answer would block the shell."""


def in_time(
    find: Callable[[Names], Rows],
    environ: Mapping[str, str],
    cwd: Path,
    flags: Mapping[str, str | None],
    seconds: float,
) -> list[Row]:
    """Return what is found in time. A read that hangs ends with the process. flags: --store and --cache."""
    found: dict[str, str] = {}

    def work() -> None:
        with suppress(Exception):
            for word, about in find(Names(environ, cwd, flags)):
                found.setdefault(word, about)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(seconds)
    return list(found.copy().items())


class Names:
    """The names that are known in a working folder. Slow sources are yielded last."""

    def __init__(self, environ: Mapping[str, str], cwd: Path, flags: Mapping[str, str | None]) -> None:
        self._settings = gather(environ, cwd, flags)
        self._context = partial(make_context, self._settings, environ, "", NoProgress())
        self._workspace: Workspace | None = None
        with suppress(Exception):
            self._workspace = Workspace.find(cwd)

    def datasets(self) -> Rows:
        """Yield those of the workspace, of stores asked before, of the cache, and of a folder store."""
        if self._workspace is not None:
            yield str(self._workspace.dataset), ""
        for folder in self._store_folders:
            yield from _rows(map(str, _listed(tracked_datasets, folder)), "")
        names = _listed(list_names, self._cache.dot / "datasets")
        yield from _rows((str(dataset_of(name)) for name in names if is_dataset(name)), "")
        yield from _rows(map(str, self._ask(lambda refs: refs.datasets()) or ()), "")

    def revisions(self, text: str) -> Rows:
        """Yield branches, tags, then commits by 12 digits. An empty text means the workspace's dataset."""
        yield from self.branches(text)
        yield from self.tags(text)
        dataset = self._dataset(text)
        for commit, message in self._tracking(dataset).commits.items():
            yield commit[:12], message
        yield from _rows((str(place.commit)[:12] for place in self._places(dataset)), "cached")

    def branches(self, text: str = "") -> Rows:
        return _rows(self._refs(text)[0], "branch")

    def tags(self, text: str = "") -> Rows:
        return _rows(self._refs(text)[1], "tag")

    def paths(self, text: str, revision: str, typed: str) -> Rows:
        """Yield files and folders of a cached commit, or else of the workspace, that begin with `typed`."""
        folder, slash, start = typed.rpartition("/")
        for tree in self._trees(text, revision):
            names = _listed(_entries, tree / folder)
            found = [name for name in names if name.startswith(start) and name != ".dsv/"]
            if found:
                yield from _rows((f"{folder}{slash}{name}" for name in found), "")
                return

    def runs(self) -> Rows:
        """Yield the runs of this machine, newest first, then its sweeps."""
        state = self._settings.state
        running = {name for name in list_names(state / "running") if not name.endswith(".stop")}
        kept = [run for each in list_names(state / "runs") for run in list_names(state / "runs" / each)]
        for run in sorted(running.union(kept), reverse=True):
            yield run, "under way" if run in running else ""
        yield from _rows(sorted(list_names(state / "sweeps"), reverse=True), "")

    def keys(self) -> Rows:
        yield from _rows(["store", "cache", "author"], "")
        for table, part in (("stores", "url"), ("caches", "path")):
            yield from _rows((f"{table}.{name}.{part}" for name in self._settings.names(table)), "")

    def configured(self, table: str, part: str) -> Rows:
        """Yield the names in a table of the settings, each with one of its settings."""
        for name in self._settings.names(table):
            setting = self._settings.get(f"{table}.{name}.{part}")
            yield name, "" if setting is None else setting.value

    @property
    def _cache(self) -> CacheRoot:
        return CacheRoot(self._settings.cache().path)

    @property
    def _store_folders(self) -> list[AnyPath]:
        """The folders with past answers, here and in the cache: of the workspace's store, or else of all."""
        own = None if self._workspace is None else [str(self._workspace.store_id)]
        above: list[AnyPath] = [self._context().metadata / "stores", self._cache.dot / "stores"]
        return [folder / each for folder in above for each in own or _listed(list_names, folder)]

    def _dataset(self, text: str) -> DatasetName:
        """Return the given dataset, or the workspace's. Raises if there is none."""
        if text or self._workspace is None:
            return DatasetName.parse(text)
        return self._workspace.dataset

    def _refs(self, text: str) -> tuple[list[str], list[str]]:
        """Return the branches and tags of a dataset: from the store if it is a folder, else as last known."""
        dataset = self._dataset(text)
        found = self._ask(lambda refs: refs.names(dataset))
        if found is not None and any(found):
            return [str(head.branch) for head in found[0]], [str(tag) for tag, _ in found[1]]
        known = self._tracking(dataset)
        return list(known.there("branches")), list(known.there("tags"))

    def _ask(self, question: Callable[[Refs], _T]) -> _T | None:
        """Return the current store's answer, if it and its names are in folders; None without an answer."""
        choice = self._settings.store()
        places = (choice.url, choice.names or "")
        if any("://" in place and not place.startswith("file://") for place in places):
            return None
        with suppress(Exception), self._context().store() as store:
            return question(Refs(store))
        return None

    def _tracking(self, dataset: DatasetName) -> Tracking:
        found = Tracking()
        for folder in self._store_folders:
            with suppress(Exception):
                found = found.newest(read(file_of(folder, dataset)))
        return found

    def _places(self, dataset: DatasetName) -> list[CachePlace]:
        name = folder_name(dataset)
        places = (CachePlace.parse(name, commit) for commit in _listed(list_names, self._cache.top / name))
        return [place for place in places if place is not None]

    def _trees(self, text: str, revision: str) -> Iterator[AnyPath]:
        """Yield folders that hold the files of a commit, the likeliest first."""
        dataset = self._dataset(text)
        if text or revision:
            known, name = self._tracking(dataset), revision or "main"
            tracked = known.there("tags").get(name) or known.there("branches").get(name)
            commit = name if tracked is None or tracked.commit is None else tracked.commit
            for place in self._places(dataset):
                if len(commit) >= 8 and place.name.startswith(commit):
                    yield self._cache.visible(place)
        if self._workspace is not None and dataset == self._workspace.dataset:
            yield self._workspace.root


def _rows(names: Iterable[str], about: str) -> Rows:
    return ((name, about) for name in names)


def _listed(read: Callable[[AnyPath], list[_T]], folder: AnyPath) -> list[_T]:
    """Return the entries of a folder; none if it can't be read."""
    with suppress(Exception):
        return read(folder)
    return []


def _entries(folder: AnyPath) -> list[str]:
    """Return the sorted names in a folder; names of folders end with a slash."""
    with open_folder(folder) as descriptor, os.scandir(descriptor) as entries:
        return sorted(f"{entry.name}/" if entry.is_dir() else entry.name for entry in entries)
