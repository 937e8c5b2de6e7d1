"""Branches of one dataset as dicts and in a store, for tests that make histories without a workspace."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from dsv.api.context import Context
from dsv.repo.repository import Repository
from dsv.repo.tree.read import TreeReader
from dsv.store.base import Store
from dsv.store.memory import MemoryStore
from dsv.transfer.commit import Committed, Draft, commit_changes
from dsv.transfer.upload import Uploader
from dsv.values.ids import CommitId
from dsv.values.names import MAIN, BranchName, DatasetName, Target
from dsv.values.paths import sort_key
from tests.api.people import SCANS, Files, Person, every_store_is, read_commit
from tests.repo.worlds import change
from tests.repo.worlds import create as create_store

Edit = Mapping[str, bytes | None]
"""Name as in `Files` -> content; None for a path that goes."""


@dataclass(frozen=True)
class Dataset:
    """A dataset in a store in memory, which every context opens."""

    store: Store
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
def dataset(folder: Path, store: Store | None = None, name: DatasetName = SCANS) -> Iterator[Dataset]:
    """A new store with an empty dataset; contexts made meanwhile use the store."""
    store = store or MemoryStore()
    create_store(store)
    person = Person(folder, "/nowhere")
    folder.mkdir(parents=True, exist_ok=True)
    with every_store_is(store):
        yield Dataset(store, person.context(folder), name)


__all__ = ["MAIN", "Dataset", "Edit", "dataset"]
