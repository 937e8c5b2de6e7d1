"""A file of this machine, sought in what runs and branches have."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from dsv.api.lineage_search import LineageSearch
from dsv.errors import NotFound, UsageError
from dsv.files.descriptors import Opened
from dsv.files.errors import about
from dsv.format.tree import Entry
from dsv.repo.tree.reader import TreeReader
from dsv.run.lineage import LineageNode, Linked, results_of
from dsv.run.record import RECORD
from dsv.stores.base import ask_each
from dsv.transfer.stable_read import hash_content
from dsv.values.ids import CommitId, FileId
from dsv.values.units import format_count

_MOST_RUNS: Final = 4096
_MOST_TREES: Final = 256


def find_file(search: LineageSearch, path: Path) -> tuple[str, str, str]:
    """Add the nodes of a file and of a commit that has it. Return the id of the commit, where it has the file, and how
    far the search went: in the largest files of outputs, then in the trees of outputs and branches, newest first.
    Raises `NotFound`."""
    file_id = _hashed(path)
    search.nodes[file_id.hex()] = LineageNode(kind="file", id=file_id.hex(), path=str(path))
    runs, read = [run for run in search.runs.listing() if RECORD in run.parts][::-1], 0
    refs = search.repository.refs
    heads = [head for dataset in refs.datasets() for head in refs.heads(dataset)]
    trees = [Linked("", one.dataset, one.commit, (), None, str(one.branch)) for one in heads if one.commit]
    for _, record in ask_each(lambda run: search.record((run.dataset, run.run)), runs[:_MOST_RUNS]):
        read, output = read + 1, None if record is None else record.output
        if record is None or output is None or output.tree is None:
            continue
        tree, result = CommitId.parse(output.tree), next(results_of(record, folder=False))
        for at in (file.path for file in output.largest if file.id == file_id.hex()):
            if search.commit(tree) is None or _entry(search, tree, file_id, at) is not None:
                where = f"{at} of run {record.run} ({_name(result)})"
                return _added(search, result, file_id), where, _in_runs(read, len(runs))
        if output.files > len(output.largest):
            trees.append(Linked("output", record.dataset, tree, ()))
    abouts = (
        (about, tree) for tree, about in ask_each(lambda one: search.commit(one.commit), trees) if about
    )
    newest = [*{row.root: tree for row, tree in sorted(abouts, key=lambda pair: pair[0].time_ms)}.values()][
        ::-1
    ]
    looked, of = _in_runs(read, len(runs)), format_count(len(newest), "tree")
    for number, one in enumerate(newest[:_MOST_TREES], 1):
        if (entry := _entry(search, one.commit, file_id)) is not None:
            at = entry.path.decode("utf-8", "surrogateescape")
            start = _added(search, one._replace(path=at), file_id)
            return start, f"{at} of {_name(one)}", f"{looked}, and {number:,} of {of}"
    raise NotFound(
        f"{path} was not found in {looked}, and in {min(len(newest), _MOST_TREES):,} of {of}",
        subject=str(path),
        hint="dsv lineage DATASET@REV:PATH, if you know a commit that has it",
    )


def _in_runs(read: int, runs: int) -> str:
    return f"the largest files of {read:,} of {format_count(runs, 'run')}, newest first"


def _hashed(path: Path) -> FileId:
    with about(path):
        if not path.is_file():
            raise NotFound(
                f"{path} is not a file", subject=str(path), hint="dsv lineage DATASET@REV is for commits"
            )
        with Opened(os.open(path, os.O_RDONLY)) as descriptor:
            file_id, size = hash_content(descriptor, path.stat().st_size)
    if not size:
        raise UsageError(
            f"{path} is empty, and so are many files", subject=str(path), hint="dsv lineage DATASET@REV:PATH"
        )
    return file_id


def _entry(search: LineageSearch, commit: CommitId, file_id: FileId, at: str = "") -> Entry | None:
    """Return the first entry of a file's content, at a path or in the whole tree; None also if it can't be read."""

    def read() -> Entry | None:
        entries = TreeReader(search.repository.objects, commit).below(at.encode("utf-8", "surrogateescape"))
        return next((entry for entry, _ in entries if entry.file_id == file_id), None)

    return search.tried(read)


def _name(linked: Linked) -> str:
    return f"{linked.dataset}@{linked.rev or str(linked.commit)[:12]}"


def _added(search: LineageSearch, linked: Linked, file_id: FileId) -> str:
    commit = search.add(linked)
    search.link(commit, file_id.hex(), "file")
    return commit
