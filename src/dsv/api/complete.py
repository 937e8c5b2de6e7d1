"""Find names for the shell's completion: datasets, commits, paths, runs, stores and settings that this machine knows.

No bucket is asked. Everything is a suggestion: what can't be read, or not in time, is left out, and nothing raises.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from dsv.api.environment import gather
from dsv.api.settings import Settings
from dsv.errors import DsvError
from dsv.fs.files import list_names
from dsv.values.names import DatasetName

if TYPE_CHECKING:
    from dsv.api.context import Context
    from dsv.cache.root import Place
    from dsv.repo.refs.branches import Refs
    from dsv.repo.tracking import Tracking

_T = TypeVar("_T")
_U = TypeVar("_U")
Row = tuple[str, str]
"""A word, and a few words about it."""
SECONDS = 0.3
"""The time that folders are waited for in all: a file server that is away would stop the shell."""


class Names:
    """The names that are known in one working folder, with the settings in effect there."""

    def __init__(
        self, environ: Mapping[str, str], cwd: Path, flags: Mapping[str, str | None], seconds: float = SECONDS
    ) -> None:
        """`flags` are --store and --cache, if given. The time begins with the first folder that is read."""
        from dsv.workspace.workspace import Workspace

        self._environ = environ
        self._seconds = seconds
        self._until: float | None = None
        self._settings: Settings | None = self._in_time(lambda: gather(environ, cwd, flags), None)
        self._workspace = self._in_time(lambda: Workspace.find(cwd), None)

    def datasets(self) -> list[Row]:
        """Return those of the workspace, of the stores asked before, of the cache, and of a store that is a folder."""
        found = set() if self._workspace is None else {str(self._workspace.dataset)}
        for folder in self._store_folders():
            found.update(self._in_time(partial(_tracked, folder), list[str]()))
        found.update(self._cached_datasets())
        found.update(map(str, self._ask(lambda refs: refs.datasets(), list[DatasetName]())))
        return [(name, "") for name in sorted(found)]

    def revisions(self, dataset: str) -> list[Row]:
        """Return branches, tags, then commits. An empty dataset means that of the workspace."""
        branches, tags = self._refs(dataset)
        return [*_rows(branches, "branch"), *_rows(tags, "tag"), *self._commits(dataset)]

    def branches(self) -> list[Row]:
        return _rows(self._refs("")[0], "branch")

    def tags(self) -> list[Row]:
        return _rows(self._refs("")[1], "tag")

    def paths(self, dataset: str, revision: str, typed: str) -> list[Row]:
        """Return files and folders that begin with `typed`, of a commit that is cached, else of the workspace."""
        folder, slash, start = typed.rpartition("/")
        for tree in self._trees(dataset, revision):
            names = self._in_time(partial(_entries, tree / folder), list[str]())
            found = [name for name in names if name.startswith(start) and name != ".dsv/"]
            if found:
                return [(f"{folder}{slash}{name}", "") for name in found]
        return []

    def runs(self) -> list[Row]:
        """Return the runs of this machine, the newest first, then its sweeps."""
        if self._settings is None:
            return []
        state = self._settings.state
        running = {name for name in self._list(state / "running") if not name.endswith(".stop")}
        kept = [run for each in self._list(state / "runs") for run in self._list(state / "runs" / each)]
        runs = sorted(running.union(kept), reverse=True)
        sweeps = sorted(self._list(state / "sweeps"), reverse=True)
        return [(run, "under way" if run in running else "") for run in runs] + _rows(sweeps, "")

    def keys(self) -> list[Row]:
        """Return the settings that `dsv config` takes."""
        stores = [f"stores.{name}.url" for name, _ in self.configured("stores", "url")]
        caches = [f"caches.{name}.path" for name, _ in self.configured("caches", "path")]
        return _rows(["store", "cache", "author", *stores, *caches], "")

    def configured(self, table: str, part: str) -> list[Row]:
        """Return the names in a table of the settings, each with one of its settings."""
        if self._settings is None:
            return []
        found = ((name, self._settings.get(f"{table}.{name}.{part}")) for name in self._settings.names(table))
        return [(name, "" if setting is None else setting.value) for name, setting in found]

    def _dataset(self, text: str) -> DatasetName | None:
        if not text:
            return None if self._workspace is None else self._workspace.dataset
        try:
            return DatasetName.parse(text)
        except DsvError:
            return None

    def _refs(self, text: str) -> tuple[list[str], list[str]]:
        """Return the branches and the tags of a dataset: as the store's folder has them, else as last known."""
        dataset = self._dataset(text)
        if dataset is None:
            return [], []
        found = self._ask(lambda refs: refs.names(dataset), None)
        if found is not None and any(found):
            return [str(head.branch) for head in found[0]], [str(tag) for tag, _ in found[1]]
        known = self._tracking(dataset)
        return list(known.there("branches")), list(known.there("tags"))

    def _commits(self, text: str) -> list[Row]:
        """Return commits by their first 12 digits: those that are cached, then those that were read last."""
        dataset = self._dataset(text)
        if dataset is None:
            return []
        rows = {str(place.commit)[:12]: self._made_for(place) or "cached" for place in self._places(dataset)}
        rows.update((commit[:12], message) for commit, message in self._tracking(dataset).commits.items())
        return list(rows.items())

    def _made_for(self, place: Place) -> str | None:
        """Return `code of a run` or `output of run ID` for a cached commit that was made for a run."""
        from dsv.cache.record import local_commit
        from dsv.cache.root import CacheRoot
        from dsv.run.record import tree_of_run

        commit = self._in_time(lambda: local_commit(CacheRoot(self._cache()), place), None)
        return None if commit is None else tree_of_run(commit)

    def _trees(self, text: str, revision: str) -> Iterator[Path]:
        """Yield folders that hold the files of a commit, the likeliest first."""
        dataset = self._dataset(text)
        if dataset is None:
            return
        if text or revision:
            commit = self._commit_of(dataset, revision or "main")
            for place in self._places(dataset):
                if commit and place.name.startswith(commit):
                    yield self._cache() / place.dataset / place.name
        if self._workspace is not None and dataset == self._workspace.dataset:
            yield self._workspace.root

    def _context(self) -> Context:
        from dsv.api.connection import make_context
        from dsv.values.progress import NoProgress

        assert self._settings is not None
        return make_context(self._settings, self._environ, "", NoProgress())

    def _ask(self, question: Callable[[Refs], _T], otherwise: _U) -> _T | _U:
        """Return what the store in effect says, if it and its names lie in folders."""
        from dsv.repo.refs.branches import Refs

        def ask() -> _T | _U:
            context = self._context()
            choice = context.settings.store()
            places = (choice.url, choice.names or "")
            if any("://" in place and not place.startswith("file://") for place in places):
                return otherwise
            with context.store() as store:
                return question(Refs(store))

        return self._in_time(ask, otherwise)

    def _list(self, folder: Path) -> list[str]:
        return self._in_time(lambda: list_names(folder), list[str]())

    def _store_folders(self) -> list[Path]:
        """Return the folders of what stores said before, here and in the cache; of the workspace's store in one."""
        if self._settings is None:
            return []
        own = None if self._workspace is None else str(self._workspace.store_id)
        above = dict.fromkeys(
            (self._context().metadata / "stores", self._in_time(self._cache, Path("/")) / ".dsv/stores")
        )
        return [folder / each for folder in above for each in ([own] if own else self._list(folder))]

    def _tracking(self, dataset: DatasetName) -> Tracking:
        """Return the newest answer about each name of a dataset."""
        from dsv.repo.tracking import Tracking, file_of, read

        found = Tracking()
        for folder in self._store_folders():
            found = found.newest(self._in_time(partial(read, file_of(folder, dataset)), Tracking()))
        return found

    def _cache(self) -> Path:
        assert self._settings is not None
        return self._settings.cache().path

    def _cached_datasets(self) -> list[str]:
        from dsv.cache.root import CacheRoot, dataset_of, is_dataset

        names = self._list(CacheRoot(self._cache()).binding(""))
        return [str(dataset_of(name)) for name in names if is_dataset(name)]

    def _places(self, dataset: DatasetName) -> list[Place]:
        """Return the commits of a dataset that are in the cache."""
        from dsv.cache.root import Place, folder_name

        name = folder_name(dataset)
        found = (Place.parse(name, each) for each in self._list(self._cache() / name))
        return [place for place in found if place is not None]

    def _commit_of(self, dataset: DatasetName, revision: str) -> str:
        """Return the id of a branch or a tag as it is known, else what may be the beginning of one."""
        known = self._tracking(dataset)
        found = known.there("tags").get(revision) or known.there("branches").get(revision)
        if found is not None and found.commit is not None:
            return found.commit
        return revision if len(revision) >= 8 else ""

    def _in_time(self, read: Callable[[], _T], otherwise: _U) -> _T | _U:
        """Return what was read, if that ended in time without an error. A read that hangs ends with the process."""
        found: list[_T] = []

        def work() -> None:
            with suppress(Exception):
                found.append(read())

        if self._until is None:
            self._until = time.monotonic() + self._seconds
        thread = threading.Thread(target=work, daemon=True)
        thread.start()
        thread.join(max(0.0, self._until - time.monotonic()))
        return found[0] if found else otherwise


def _rows(names: list[str], about: str) -> list[Row]:
    return [(name, about) for name in names]


def _entries(folder: Path) -> list[str]:
    """Return the sorted names in a folder, those of folders with a slash."""
    with os.scandir(folder) as found:
        return sorted(f"{each.name}/" if each.is_dir() else each.name for each in found)


def _tracked(folder: Path) -> list[str]:
    from dsv.repo.tracking import tracked_datasets

    return list(map(str, tracked_datasets(folder)))
