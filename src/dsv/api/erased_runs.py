"""The runs that read a file that is erased: their outputs may have what they took from it."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from functools import cache

from dsv.errors import IntegrityError, NotFound, Unsupported
from dsv.repo.repository import Repository
from dsv.repo.tree.reader import TreeReader
from dsv.run.record import RunData, RunId, RunState
from dsv.run.record_store import RunStore
from dsv.values.ids import CommitId, FileId
from dsv.values.names import DatasetName


@dataclass(frozen=True, slots=True)
class ReadingRun:
    dataset: DatasetName
    run: RunId
    output: str | None
    """The commit with the output; None if it is not in the store."""


def runs_that_read(
    repository: Repository, files: Collection[FileId], paths: Iterable[tuple[str, bytes]]
) -> tuple[ReadingRun, ...]:
    """Return the runs whose job saw one of these files, newest first. paths: dataset and path of each place of a file.
    Records and trees that can't be read are left out: `dsv verify` names them."""
    of_dataset: dict[str, set[bytes]] = {}
    for dataset, path in paths:
        of_dataset.setdefault(dataset, set()).add(path)
    home = cache(repository.refs.home)

    @cache
    def has(dataset: str, commit: CommitId, part: str | None) -> bool:
        below = b"" if part is None else part.encode("utf-8", "surrogateescape")
        within = {
            path
            for path in of_dataset[dataset]
            if not below or path == below or path.startswith(below + b"/")
        }
        try:
            tree = TreeReader(repository.objects, commit)
            entries = (tree.entry(path) for path in within)
            return any(entry is not None and entry[0].file_id in files for entry in entries)
        except (IntegrityError, NotFound, Unsupported):
            return False

    runs = RunStore(repository.store)
    found = [
        ReadingRun(record.dataset, record.run, None if record.output is None else record.output.tree)
        for record in runs.read_all(reversed(runs.listing()), lambda _: None)
        if record.state is not RunState.NOT_LAUNCHED
        and any(
            has(str(home(seen.dataset)), seen.commit, seen.path)
            for seen in (*record.data, *(RunData("", noted.dataset, noted.commit) for noted in record.read))
            if str(home(seen.dataset)) in of_dataset
        )
    ]
    return tuple(found)
