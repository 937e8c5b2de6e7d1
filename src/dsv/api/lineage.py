"""Where data comes from, what was made of it, and which runs had to do with it."""

from __future__ import annotations

import os
from dataclasses import replace
from itertools import islice

from dsv.api.context import Context
from dsv.api.lineage_file import find_file
from dsv.api.lineage_search import LineageSearch, text
from dsv.errors import UsageError
from dsv.repo import history
from dsv.repo.repository import Repository
from dsv.repo.resolve import resolve
from dsv.run.lineage import DatasetRun, Lineage, LineageNode, Linked
from dsv.run.listing import RunView, newest_first
from dsv.stores.base import ask_each
from dsv.values.names import DatasetName, Target, clean_path
from dsv.values.paths import show

_FILE_BEGINS = ("./", "../", "/", "~")
"""The beginnings of words that mean a file of this machine, and no target."""


def lineage(
    context: Context, named: str, *, down: bool = False, changes: bool = False, depth: int | None = None
) -> Lineage:
    """Return what a target, or a file of this machine, comes from, or with `down` what was made of it.

    changes: also say what has changed since in each of the raw datasets. depth: the most steps from a commit over a run
    to other commits. Raises `NotFound`, and `UsageError` for what is no file.
    """
    target = None if named.startswith(_FILE_BEGINS) else Target.parse(named)
    with context.repository(target) as repository:
        search, found, looked = LineageSearch(repository), None, None
        if target is None:
            start, found, looked = find_file(search, context.cwd / os.path.expanduser(named))  # noqa: PTH111 (Path raises for ~nobody)
        else:
            resolved = context.resolve(repository, target, expired_too=True)
            path, rev = clean_path(target.path), resolved.branch or resolved.tag
            if path and not search.part(resolved.commit, path):
                raise resolved.no_path(show(path), show(path))
            start = search.add(
                Linked("", resolved.dataset, resolved.commit, (), text(path), rev and str(rev))
            )
        return replace(search.grown(start, down, depth, changes), found=found, looked=looked)


def runs_of(repository: Repository, target: Target, bound: DatasetName | None = None) -> list[RunView]:
    """Return the runs that read or made a commit or a part of it, newest first; if the target names no revision, those
    of any commit of the dataset. bound: the dataset of a target without one. Raises `NotFound`, `UsageError`."""
    dataset, search = target.dataset or bound, LineageSearch(repository)
    if dataset is None:
        raise UsageError(f"{target} names no dataset", subject=str(target), hint=f"DATASET{target}")
    start = resolve(repository.refs, repository.objects, dataset, target.rev, expired_too=True)
    path, starts = text(clean_path(target.path)), [start.commit]
    if target.rev is None:
        heads, tags = repository.refs.names(start.dataset)
        starts += [head.commit for head in heads if head.commit] + [value.commit for _, value in tags]
    walked = islice(history.walk(repository.objects, starts), None if target.rev is None else 1)
    commits = {about.root.hex(): commit for commit, about in walked}
    nodes = [search.nodes[search.add(Linked("", start.dataset, one, (), path))] for one in commits.values()]

    def joined(node: LineageNode) -> set[DatasetRun]:
        roots = [node.root or ""]
        return {key for how in ("read", "made") for key in search.joined(how, node, roots, both=True)}

    keys = {key: search.record(key) for _, some in ask_each(joined, nodes) for key in some}
    return newest_first(RunView(record, sent=True) for record in keys.values() if record is not None)
