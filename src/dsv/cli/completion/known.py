"""What this machine knows of stores, caches, datasets and their names, read with as little work as possible.

Everything here is a suggestion: what can't be read is left out, and nothing raises.
"""

from __future__ import annotations

import json
import os
import re
import threading
import time
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

_T = TypeVar("_T")
Row = tuple[str, str]
"""A word that may stand there, and a few words on what it means."""

_MAX_BYTES = 8 << 20
_HEX = set("0123456789abcdef")
_MOVE = re.compile("[0-9a-f]{16}")
_TOMBSTONE = re.compile(rb"dsv ref [0-9]+\n[\x90-\x9f]\xc0\xc3")
"""How the move that deletes a branch begins: no commit, and true (docs/internals/format.md)."""
_SECONDS = 0.3
"""How long a key press waits for folders in all: a file server that is away would stop the shell. The variable
DSV_COMPLETION_SECONDS names another time."""


@dataclass(slots=True)
class Known:
    """environ, cwd: of the shell. flags: global options that were typed, such as `--store`.

    until: when no folder is waited for any more, from the first that is read; what was not read by then is left out.
    """

    environ: Mapping[str, str]
    cwd: str
    flags: Mapping[str, str] = field(default_factory=dict)
    until: float | None = None

    def datasets(self) -> list[Row]:
        """Those of the workspace, the cache, the store if it is a folder, and of the stores that were read before."""
        workspace = self._workspace()
        found = [workspace["dataset"]] if "dataset" in workspace else []
        found += [name for heard in self._heard() for name in heard]
        found += _decoded(self._list(os.path.join(self._cache(), ".dsv", "datasets")))
        found += _decoded(self._list(os.path.join(self._store(), "refs")))
        return [(name, "") for name in _once(found)]

    def revisions(self, dataset: str) -> list[Row]:
        """Branches, tags, then commits with their message. dataset: empty for that of the workspace."""
        name = dataset or self._workspace().get("dataset", "")
        return [*self.branches(name), *self.tags(name), *self.commits(name)]

    def branches(self, dataset: str) -> list[Row]:
        return [(name, "branch") for name in self._names(dataset, "branches")]

    def tags(self, dataset: str) -> list[Row]:
        return [(name, "tag") for name in self._names(dataset, "tags")]

    def commits(self, dataset: str) -> list[Row]:
        """By their first 12 digits, those that were read last first."""
        name = dataset or self._workspace().get("dataset", "")
        heard = [row for known in self._heard() for row in known.get(name, {}).get("commits", [])]
        rows = [(str(row[0])[:12], str(row[1])) for row in heard if len(row) > 1]
        cached = [(found[:12], "cached") for found in self._list(self._cached(name)) if _is_commit(found)]
        return list({row[0]: row for row in (*cached, *rows)}.values())

    def paths(self, dataset: str, revision: str, prefix: str) -> list[Row]:
        """Files and folders that begin with `prefix`, of a commit that is cached, else of the workspace."""
        folder, _, start = prefix.rpartition("/")
        for root in self._trees(dataset, revision):
            rows = [
                (f"{folder}/{name}" if folder else name, "")
                for name in self._entries(os.path.join(root, folder))
                if name.startswith(start) and name != ".dsv/"
            ]
            if rows:
                return rows
        return []

    def runs(self) -> list[Row]:
        """Those of this machine, the newest first, then its sweeps."""
        state = os.path.join(self._home("XDG_STATE_HOME", ".local/state"), "dsv")
        under_way = {
            name for name in self._list(os.path.join(state, "running")) if not name.endswith(".stop")
        }
        folder = os.path.join(state, "runs")
        kept = {run for dataset in self._list(folder) for run in self._list(os.path.join(folder, dataset))}
        rows = [
            (run, "under way" if run in under_way else "") for run in sorted(under_way | kept, reverse=True)
        ]
        return rows + [
            (sweep, "") for sweep in sorted(self._list(os.path.join(state, "sweeps")), reverse=True)
        ]

    def stores(self) -> list[Row]:
        return self._configured("stores", "url")

    def caches(self) -> list[Row]:
        return self._configured("caches", "path")

    def keys(self) -> list[Row]:
        """The settings that `dsv config` takes."""
        stores = [f"stores.{name}.url" for name, _ in self.stores()]
        caches = [f"caches.{name}.path" for name, _ in self.caches()]
        return [(key, "") for key in ("store", "cache", "author", *stores, *caches)]

    def _trees(self, dataset: str, revision: str) -> Iterator[str]:
        """Folders that hold the files of a commit, the likeliest first."""
        workspace = self._workspace()
        name = dataset or workspace.get("dataset", "")
        cached = self._cached(name)
        commit = self._commit(name, revision or ("" if not dataset else "main"))
        if commit:
            yield from (
                os.path.join(cached, each) for each in self._list(cached) if each[:64].startswith(commit)
            )
        if name and name == workspace.get("dataset"):
            yield workspace["root"]

    def _commit(self, dataset: str, revision: str) -> str:
        """The id of a branch or a tag as the cache knows it, else what may be the beginning of one."""
        stores = os.path.join(self._cache(), ".dsv", "stores")
        for store in self._list(stores):
            for kind in ("tags", "branches"):
                path = os.path.join(stores, store, "refs", _component(dataset), kind, _component(revision))
                if said := str(self._json(path).get("commit", "")):
                    return said
        return revision if len(revision) >= 8 and set(revision) <= _HEX else ""

    def _names(self, dataset: str, kind: str) -> list[str]:
        """Branches or tags: those in the store's folder, and those that were heard of and not deleted since."""
        name = dataset or self._workspace().get("dataset", "")
        part = os.path.join("refs", _component(name), kind)
        stores = os.path.join(self._cache(), ".dsv", "stores")
        heard = self._heard_by_store()
        there: list[str] = []
        for store in {*heard, *self._list(stores)}:
            said = heard.get(store, {}).get(name, {})
            found = [*said.get(kind, []), *_decoded(self._list(os.path.join(stores, store, part)))]
            gone = said.get(f"deleted_{kind}", [])
            there += [each for each in found if each not in gone]
        now, deleted = self._in_folder(os.path.join(self._store(), part) if self._store() else "")
        return _once([*(each for each in there if each not in deleted), *now])

    def _in_folder(self, folder: str) -> tuple[list[str], set[str]]:
        """The branches or the tags that are below a store's folder, and those of them that were deleted. In a folder
        that answers slowly some deleted ones may be taken for ones that are there."""
        found = self._list(folder)
        deleted: set[str] = set()

        def look() -> bool:
            deleted.update(each for each in found if _is_deleted(os.path.join(folder, each)))
            return True

        if found:
            self._in_time(look, False)
        gone = set(_decoded(deleted.copy()))  # which `look` may still add to
        return [each for each in _decoded(found) if each not in gone], gone

    def _heard(self) -> list[dict[str, dict[str, list[Any]]]]:
        return list(self._heard_by_store().values())

    def _heard_by_store(self) -> dict[str, dict[str, dict[str, list[Any]]]]:
        """What was heard of each store by commands before: datasets with their branches, tags and commits."""
        stores = os.path.join(self._home("XDG_CACHE_HOME", ".cache"), "dsv", ".dsv", "stores")
        own = self._workspace().get("store_id")
        names = [own] if own else self._list(stores)
        found = {name: self._json(os.path.join(stores, name, "names.json")).get("datasets") for name in names}
        return {
            store: {name: row for name, row in each.items() if isinstance(row, dict)}
            for store, each in found.items()
            if isinstance(each, dict)
        }

    def _store(self) -> str:
        """The store's folder; empty for a bucket."""
        named = self.flags.get("--store") or self._setting("store")
        url = str(self._config().get("stores", {}).get(named, {}).get("url", named))
        if not url:
            return os.path.join(self._home("XDG_DATA_HOME", ".local/share"), "dsv", "store")
        if "://" in url and not url.startswith("file://"):
            return ""
        return self._folder(url.removeprefix("file://"))

    def _cache(self) -> str:
        named = self.flags.get("--cache") or self._setting("cache")
        path = str(self._config().get("caches", {}).get(named, {}).get("path", named))
        return self._folder(path) if path else os.path.join(self._home("XDG_CACHE_HOME", ".cache"), "dsv")

    def _cached(self, dataset: str) -> str:
        return os.path.join(self._cache(), _component(dataset)) if dataset else ""

    def _folder(self, path: str) -> str:
        home = self.environ.get("HOME", "")
        return os.path.join(self.cwd, home + path[1:] if path == "~" or path.startswith("~/") else path)

    def _setting(self, key: str) -> str:
        bound = self._workspace().get(key, "")
        return str(bound or self.environ.get(f"DSV_{key.upper()}") or self._config().get(key, ""))

    def _configured(self, table: str, key: str) -> list[Row]:
        rows = self._config().get(table, {})
        return [(name, str(row.get(key, ""))) for name, row in rows.items() if isinstance(row, dict)]

    def _config(self) -> dict[str, Any]:
        named = self.environ.get("DSV_CONFIG")
        own = os.path.join(self._home("XDG_CONFIG_HOME", ".config"), "dsv", "config.toml")
        merged = self._toml("/etc/dsv/config.toml")
        for key, value in self._toml(os.path.join(self.cwd, named) if named else own).items():
            is_table = isinstance(value, dict) and isinstance(merged.get(key), dict)
            merged[key] = {**merged[key], **value} if is_table else value
        return merged

    def _workspace(self) -> dict[str, str]:
        """What the workspace around the working folder is bound to, and its `root`; empty if there is none."""
        folder = os.path.realpath(os.path.join(self.cwd, self.flags.get("-C", "")))
        while True:
            bound = self._toml(os.path.join(folder, ".dsv", "config.toml"))
            if bound:
                bound = bound.get("workspace", bound)  # where a sparse one has it
                return {**{key: str(value) for key, value in bound.items()}, "root": folder}
            above = os.path.dirname(folder)
            if above == folder:
                return {}
            folder = above

    def _home(self, variable: str, below: str) -> str:
        named = self.environ.get(variable, "")
        return named if named.startswith("/") else os.path.join(self.environ.get("HOME", "/"), below)

    def _list(self, folder: str) -> list[str]:
        return self._in_time(lambda: _names_in(folder), [])

    def _entries(self, folder: str) -> list[str]:
        """Sorted names in a folder, those of folders with a slash."""
        return self._in_time(lambda: _entries_of(folder), [])

    def _toml(self, path: str) -> dict[str, Any]:
        try:
            return tomllib.loads(self._in_time(lambda: _read(path), b"").decode())
        except ValueError:
            return {}

    def _json(self, path: str) -> dict[str, Any]:
        try:
            found = json.loads(self._in_time(lambda: _read(path), b"") or b"{}")
        except ValueError:
            return {}
        return found if isinstance(found, dict) else {}

    def _in_time(self, read: Callable[[], _T], otherwise: _T) -> _T:
        """What was read, if that ended in time. A read that never ends goes with the process."""
        found: list[_T] = []
        thread = threading.Thread(target=lambda: found.append(read()), daemon=True)
        thread.start()
        if self.until is None:
            self.until = time.monotonic() + _seconds(self.environ)
        thread.join(max(0.0, self.until - time.monotonic()))
        return found[0] if found else otherwise


def _seconds(environ: Mapping[str, str]) -> float:
    try:
        return min(3600.0, float(environ["DSV_COMPLETION_SECONDS"]))
    except (KeyError, ValueError):
        return _SECONDS


def _once(names: Iterable[str]) -> list[str]:
    return sorted(set(names))


def _component(name: str) -> str:
    return name.replace("/", "%2F")


def _decoded(components: Iterable[str]) -> list[str]:
    return [name.replace("%2F", "/") for name in components]


def _is_commit(name: str) -> bool:
    return len(name) >= 64 and set(name[:64]) <= _HEX


def _names_in(folder: str) -> list[str]:
    try:
        return [name for name in os.listdir(folder) if not name.startswith(".")] if folder else []
    except OSError:
        return []


def _is_deleted(folder: str) -> bool:
    """Whether the branch or the tag that a folder of the store is for was deleted."""
    names = _names_in(folder)
    newest = min((name for name in names if _MOVE.fullmatch(name)), default="")
    return "deleted" in names or bool(newest and _TOMBSTONE.match(_read(os.path.join(folder, newest))))


def _entries_of(folder: str) -> list[str]:
    """Sorted names in a folder, those of folders with a slash."""
    try:
        with os.scandir(folder) as found:
            return sorted(f"{each.name}/" if each.is_dir() else each.name for each in found)
    except OSError:
        return []


def _read(path: str) -> bytes:
    try:
        descriptor = os.open(
            path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC
        )  # a pipe must not stop the shell
        with open(descriptor, "rb") as file:
            return file.read(_MAX_BYTES)
    except (OSError, ValueError):
        return b""
