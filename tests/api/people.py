"""Somebody at a machine: a context with its own folders, on a store that tests can look into."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

from dsv.api import context as context_module
from dsv.api.context import Context
from dsv.api.init import init
from dsv.api.settings import Settings, Source
from dsv.api.sync import Synced, SyncRequest, sync
from dsv.format.tree import Kind
from dsv.repo.repository import Repository
from dsv.repo.session import Writer
from dsv.repo.tree.read import TreeReader
from dsv.store.base import Store
from dsv.store.options import StoreOptions
from dsv.transfer.download import Fetcher, Wanted
from dsv.values.ids import CommitId
from dsv.values.names import DatasetName

SCANS = DatasetName.parse("scans")
Files = dict[str, bytes | None]
"""Path -> content; None is an empty folder; a key that ends in '@' is a symlink, one in '.sh' is executable."""


@dataclass(frozen=True)
class Person:
    """`home` is their own folder; `workspace` the one they work in."""

    home: Path
    store: str
    name: str = "ann"

    @classmethod
    def who_synced(cls, folder: Path, files: Files) -> Self:
        """Ann, with these files as the first commit of `scans` in a new store below the folder."""
        person = cls(folder / "ann", str(folder / "store"))
        person.init()
        person.write(files)
        person.sync("first")
        return person

    @property
    def workspace(self) -> Path:
        return self.home / "work"

    def context(self, cwd: Path | None = None) -> Context:
        sources = [Source("test", {"store": self.store, "cache": str(self.home / "cache")})]
        here = cwd or self.workspace
        return Context(
            settings=Settings(sources, here, self.home, self.home / "state"),
            options=StoreOptions(),
            writer=Writer(f"{self.name}@lab", "lab", "dsv test"),
            metadata=self.home / "metadata",
            cwd=here,
        )

    def init(self, dataset: DatasetName = SCANS) -> None:
        self.workspace.mkdir(parents=True, exist_ok=True)
        init(self.context(), self.workspace, dataset)

    def sync(self, message: str = "", **options: object) -> Synced:
        return sync(self.context(), replace(SyncRequest(message=message), **options))  # type: ignore[arg-type]

    def write(self, files: Files) -> None:
        for name, content in files.items():
            path = self.workspace / name.removesuffix("@")
            path.parent.mkdir(parents=True, exist_ok=True)
            if content is None:
                path.mkdir(exist_ok=True)
            elif name.endswith("@"):
                path.unlink(missing_ok=True)
                path.symlink_to(os.fsdecode(content))
            else:
                path.write_bytes(content)
                path.chmod(0o755 if name.endswith(".sh") else 0o644)

    def files(self) -> Files:
        """What is in the workspace, but for dsv's own."""
        return read_folder(self.workspace)

    def read(self, commit: CommitId) -> Files:
        """A whole commit, read by somebody who has no local copies of anything."""
        with self.context().store() as store:
            return read_commit(store, commit)


def read_folder(root: Path) -> Files:
    found: Files = {}
    for folder, names, files in os.walk(root):
        here = Path(folder)
        if ".dsv" in names:
            names.remove(".dsv")
        for name in [*names, *files]:
            path = here / name
            relative = str(path.relative_to(root))
            if path.is_symlink():
                found[relative + "@"] = os.fsencode(path.readlink())
            elif path.is_file():
                assert bool(path.stat().st_mode & 0o100) == relative.endswith(".sh")
                found[relative] = path.read_bytes()
        if not names and not files and here != root:
            found[str(here.relative_to(root))] = None
    return found


def read_commit(store: Store, commit: CommitId) -> Files:
    repository = Repository.open(store, None)
    found: Files = {}
    wanted = []
    for entry, where in TreeReader(repository.objects, commit).below(b""):
        name = entry.path.decode()
        if entry.kind is Kind.EMPTY_DIRECTORY:
            found[name] = None
        elif entry.kind is Kind.SYMLINK:
            found[name + "@"] = entry.target
        else:
            assert (entry.kind is Kind.EXECUTABLE) == name.endswith(".sh")
            wanted.append(Wanted(entry, where))
    for file, pieces in Fetcher(repository.objects).files(wanted):
        found[file.entry.path.decode()] = b"".join(pieces)
    return found


@contextmanager
def every_store_is(store: Store) -> Iterator[None]:
    """Contexts open this store, whatever they ask for, and do not close it."""

    class Kept:
        inner = store

        def __getattr__(self, name: str) -> object:
            return getattr(store, name)

        def __setattr__(self, name: str, value: object) -> None:
            setattr(store, name, value)

        def close(self) -> None:
            pass

    before = context_module.open_store
    context_module.open_store = lambda *_, **__: Kept()  # type: ignore[assignment,misc]
    try:
        yield
    finally:
        context_module.open_store = before
