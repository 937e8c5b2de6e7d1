"""The runs that read a file that is erased: their outputs may have what they took from it."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from functools import cache

from dsv.errors import IntegrityError, NotFound, Unsupported
from dsv.repo.repository import Repository
from dsv.repo.tree.reader import TreeReader
from dsv.run.lineage import inputs_of
from dsv.run.record import RunId, RunState
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
    of_dataset = dict[str, set[bytes]]()
    for dataset, path in paths:
        of_dataset.setdefault(dataset, set()).add(path)
    home = cache(repository.refs.home)

    @cache
    def has(dataset: str, commit: CommitId, part: str | None) -> bool:
        below = (part or "").encode("utf-8", "surrogateescape")
        within = [path for path in of_dataset[dataset] if not below or (path + b"/").startswith(below + b"/")]
        try:
            tree = TreeReader(repository.objects, commit)
            return any(found[0].file_id in files for found in map(tree.entry, within) if found is not None)
        except (IntegrityError, NotFound, Unsupported):
            return False

    def of_runs() -> Iterator[ReadingRun]:
        runs = RunStore(repository.store)
        for record in runs.read_all(reversed(runs.listing()), lambda _: None):
            saw = [(str(home(one.dataset)), one.commit, one.path) for one in inputs_of(record)]
            if record.state is not RunState.NOT_LAUNCHED and any(
                has(*one) for one in saw if one[0] in of_dataset
            ):
                tree = None if record.output is None else record.output.tree
                yield ReadingRun(record.dataset, record.run, tree)

    return tuple(of_runs())
