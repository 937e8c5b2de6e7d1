"""People who use dsv from Python: `Person` at a machine with folders of their own, `Dataset` without a workspace.

`tests.kit.dsv` has those who type commands.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

from dsv.api.clone import init
from dsv.api.context import Context
from dsv.api.settings import Settings, SettingsSource
from dsv.api.sync import SyncRequest, sync
from dsv.format.records import WriterIdentity
from dsv.repo.repository import Repository
from dsv.repo.tree.reader import TreeReader
from dsv.stores import open as opening
from dsv.stores.base import StoreBackend
from dsv.stores.memory import MemoryStore
from dsv.stores.open import OpenStore
from dsv.stores.options import StoreOptions
from dsv.transfer.commit import Committed, Draft, commit_changes
from dsv.transfer.upload import Uploader
from dsv.values.ids import CommitId
from dsv.values.names import BranchName, DatasetName, Target
from dsv.values.paths import sort_key
from dsv.workspace.publish import Synced
from tests.kit.repositories import Files, change, create, read

SCANS = DatasetName.parse("scans")


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
        sources = [SettingsSource("test", {"store": self.store, "cache": str(self.home / "cache")})]
        here = cwd or self.workspace
        return Context(
            settings=Settings(sources, here, self.home, self.home / "state"),
            options=StoreOptions(),
            writer=WriterIdentity(f"{self.name}@lab", "lab", "dsv test"),
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
        """Return the files of the workspace, except dsv's own."""
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


def read_commit(store: StoreBackend, commit: CommitId) -> Files:
    return read(Repository.open(store, None), commit)


class Kept(OpenStore):
    """A store that stays open for others."""

    def __init__(self, store: StoreBackend) -> None:
        if isinstance(store, OpenStore):
            super().__init__(store.data, store.names, store._open_names)
            self._counts, self._lock = (
                store._counts,
                store._lock,
            )  # what all contexts ask for is counted there
        else:
            super().__init__(store)

    def close(self) -> None:
        while self.before_close:
            self.before_close.pop()()


@contextmanager
def every_store_is(store: StoreBackend) -> Iterator[None]:
    """Contexts open this store, whatever they ask for, and do not close it."""
    before = opening.open_store
    opening.open_store = lambda *_, **__: Kept(store)
    try:
        yield
    finally:
        opening.open_store = before


Edit = Mapping[str, bytes | None]
"""Name as in `Files` -> content; None for a path that goes."""


@dataclass(frozen=True)
class Dataset:
    """A dataset in a store in memory, which every context opens."""

    store: StoreBackend
    context: Context
    name: DatasetName = SCANS

    def repository(self) -> Repository:
        return Repository.open(self.store, None)

    def commit(self, edit: Edit, branch: str = "main", *parents: CommitId, message: str = "edit") -> CommitId:
        """Edits the branch; with parents, a branch that is made begins there, or a merge commit has them."""
        repository = self.repository()
        name = BranchName.parse(branch)
        after = repository.refs.newest(self.name, name)
        if not parents and after is not None and after.commit is not None:
            parents = (after.commit,)
        names = sorted(edit, key=lambda one: sort_key(one.removesuffix("@").encode()))

        def changes(uploader: Uploader) -> Iterable[object]:
            return [change(uploader, one, edit[one], edit[one] is None) for one in names]

        base = TreeReader(repository.objects, parents[0]) if parents else None
        draft = Draft(self.name, name, after, parents, message, "put")
        done = commit_changes(repository, self.context.writer, draft, base, changes)  # type: ignore[arg-type]
        assert isinstance(done, Committed), done
        return done.id

    def head(self, branch: str = "main") -> CommitId:
        head = self.repository().refs.head(self.name, BranchName.parse(branch))
        assert head.commit is not None
        return head.commit

    def files(self, branch: str = "main") -> Files:
        return read_commit(self.store, self.head(branch))

    def target(self, rev: str) -> Target:
        return Target.parse(f"{self.name}@{rev}")


@contextmanager
def dataset(folder: Path, store: StoreBackend | None = None, name: DatasetName = SCANS) -> Iterator[Dataset]:
    """A new store with an empty dataset; contexts made meanwhile use the store."""
    store = store or MemoryStore()
    create(store)
    person = Person(folder, "/nowhere")
    folder.mkdir(parents=True, exist_ok=True)
    with every_store_is(store):
        yield Dataset(store, person.context(folder), name)
