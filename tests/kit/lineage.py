"""A store with commits and records of runs made by hand, for what lineage says of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from dsv.api.lineage_search import LineageSearch
from dsv.format.records import CommitRecord, RefEntry
from dsv.repo.refs.branches import Head
from dsv.repo.repository import Repository
from dsv.repo.session import Session
from dsv.repo.tree.writer import write_tree
from dsv.run.lineage import Lineage, Linked
from dsv.run.record import (
    IntoBranch,
    OutputFile,
    RunCommit,
    RunData,
    RunId,
    RunOutput,
    RunRecord,
    RunState,
)
from dsv.run.record_store import RunStore
from dsv.stores.base import StoreBackend
from dsv.transfer.upload import Uploader
from dsv.values.ids import CommitId, FileId, Nonce
from dsv.values.names import MAIN, DatasetName
from dsv.values.paths import sort_key
from tests.kit.repositories import WRITER, change, create

START_MS = 1_800_000_000_000
RAW, RESIZED, MODELS = (DatasetName.parse(name) for name in ("raw", "resized", "models"))


class Lab:
    """Whose clock goes on by a minute with each commit and each run."""

    def __init__(self, store: StoreBackend) -> None:
        self.store = store
        self.repository: Repository = create(store)
        self.runs = RunStore(store)
        self.now_ms = START_MS
        self.number = 0

    def later(self) -> int:
        self.now_ms += 60_000
        return self.now_ms

    def commit(
        self,
        dataset: DatasetName,
        files: Mapping[str, bytes],
        *parents: CommitId,
        message: str = "by hand",
        branch: bool = True,
    ) -> CommitId:
        """A commit with exactly these files, which its branch then names."""
        repository = self.repository
        with Session.open(repository, WRITER) as session, Uploader(session) as uploader:
            names = sorted(files, key=lambda name: sort_key(name.encode()))
            tree = write_tree(uploader, None, [change(uploader, name, files[name]) for name in names])
            uploader.finish()
            made = CommitRecord(
                root=tree.root, level=tree.level, parents=parents, author="ann", time_ms=self.later(),
                message=message, files=tree.files, bytes=tree.bytes, entries=tree.entries,
            )  # fmt: skip
            commit = session.put_commit(repository.named(made, dataset, MAIN), tree.locator)
            if branch:
                head = repository.refs.head_or_none(dataset, MAIN)
                entry = RefEntry(commit, False, Nonce.random(), self.now_ms, "ann", "sync")
                assert isinstance(session.publish(dataset, MAIN, head, entry), Head)
        return commit

    def root(self, commit: CommitId) -> str:
        return self.repository.objects.commit(commit).root.hex()

    def data(
        self, dataset: DatasetName, commit: CommitId, name: str = "", path: str | None = None
    ) -> RunData:
        root = self.root(commit)
        return RunData(name, dataset, commit, path, 1, 1, None if path else root, root)

    def record(self, *data: RunData, target: str = "", **fields: object) -> RunRecord:
        """A run that has ended; its id tells its place among the others."""
        self.number += 1
        started = self.later()
        main = data[0]
        record = RunRecord(
            run=RunId.parse(f"20261128-{100000 + self.number:06d}-{self.number:08x}"), dataset=main.dataset,
            commit=main.commit, target=target or str(main.dataset), data=data, state=RunState.ENDED,
            engine="process", params={}, out="/o", host="gpu3", user="ann", started_ms=started,
            ended_ms=started + 41 * 60_000, exit_code=0,
        )  # fmt: skip
        return replace(record, **fields)  # type: ignore[arg-type]

    def end(self, record: RunRecord) -> RunRecord:
        return self.runs.add_end(record, None)

    def output(self, record: RunRecord, files: Mapping[str, bytes]) -> RunOutput:
        """The output of a run as a commit that no branch names."""
        commit = self.commit(record.dataset, files, message=f"output of run {record.run}", branch=False)
        rows = [OutputFile(name, len(data), FileId.hash(data).hex()) for name, data in files.items()]
        return RunOutput(commit.hex(), len(files), 1, root=self.root(commit), largest=tuple(rows))

    def into(
        self, dataset: DatasetName, commit: CommitId, *, path: str | None = None, new: bool = True
    ) -> IntoBranch:
        return IntoBranch(dataset, MAIN, commit, self.root(commit), path, new)

    def step(
        self,
        dataset: DatasetName,
        files: Mapping[str, bytes],
        *data: RunData,
        parents: Sequence[CommitId] = (),
        **fields: Any,
    ) -> tuple[RunRecord, CommitId]:
        """A run whose output became a commit of a branch."""
        record = self.record(*data, **fields)
        output = self.output(record, files)
        commit = self.commit(dataset, files, *parents)
        record = replace(record, output=replace(output, into=self.into(dataset, commit)))
        return self.end(record), commit

    def made(self, dataset: DatasetName, commit: CommitId) -> RunCommit:
        return RunCommit(dataset, commit, self.root(commit))

    def lineage(
        self,
        dataset: DatasetName,
        commit: CommitId,
        path: str | None = None,
        *,
        down: bool = False,
        depth: int | None = None,
    ) -> Lineage:
        search = LineageSearch(self.repository)
        return search.grown(search.add(Linked("", dataset, commit, (), path)), down=down, depth=depth)


def edges(found: Lineage, names: Mapping[object, str]) -> set[tuple[str, str, str]]:
    """The edges of a lineage, with the names that a test gives the commits and runs."""

    def name(node_id: str) -> str:
        for key, text in names.items():
            if node_id.endswith((f"@{key}", f"/{key}")) or f"@{key}:" in node_id:
                return text + (":" + node_id.rpartition(":")[2] if f"@{key}:" in node_id else "")
        return node_id

    return {(name(edge.source), edge.name, name(edge.target)) for edge in found.edges}
