"""The search for where data comes from and what was made of it: from a commit to the runs that made or read its tree,
and on to their commits. Trees are joined, not commits, because equal results of several runs have one tree."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial, wraps
from itertools import chain, islice, repeat
from typing import Any, TypeVar, cast

from dsv.api.log import changes_between
from dsv.diff.paths import Summary
from dsv.errors import DsvError, IntegrityError, NotFound, Unsupported
from dsv.format.keys import lineage_prefix, parse_lineage_key
from dsv.format.records import CommitRecord
from dsv.repo import history
from dsv.repo.expiry import explained
from dsv.repo.history import PathHistory
from dsv.repo.repository import Repository
from dsv.repo.tree.hashing import root_of
from dsv.repo.tree.reader import TreeReader
from dsv.run.edges import How, with_roots
from dsv.run.lineage import (
    BranchState,
    DatasetRun,
    Lineage,
    LineageEdge,
    LineageNode,
    Linked,
    RawChange,
    covers,
    inputs_of,
    results_of,
    started_in,
)
from dsv.run.record import OUTPUT_OF_RUN, RunRecord, tree_of_run
from dsv.run.record_store import RunStore
from dsv.stores.base import together
from dsv.values.ids import CommitId, NodeId
from dsv.values.names import MAIN, BranchName, DatasetName
from dsv.values.paths import PathSet
from dsv.values.trailers import made_by, parse_run

_T = TypeVar("_T")
_Read = TypeVar("_Read", bound=Callable[..., Any])
_PUT = re.compile(rf"{OUTPUT_OF_RUN}(\S+) in (.+)", re.DOTALL)
"""The message of a commit that has the output of a run at a path."""
_MAKERS = {"output", "part", "made"}


def _once(read: _Read) -> _Read:
    """Let a method remember its answers in its object: a cache of a method would be a cycle."""

    @wraps(read)
    def answer(self: LineageSearch, *about: object) -> object:
        key = (read, *about)
        if key not in self.answers:
            self.answers[key] = read(self, *about)
        return self.answers[key]

    return cast(_Read, answer)


class LineageSearch:
    """A graph that grows by the commits of one step at a time. The store is asked for each thing once."""

    def __init__(self, repository: Repository) -> None:
        self.repository, self.runs = repository, RunStore(repository.store)
        self.nodes: dict[str, LineageNode] = {}
        self.edges: dict[LineageEdge, None] = {}
        self.problems: dict[str, DsvError] = {}
        self.answers: dict[tuple[object, ...], Any] = {}
        self._heads: dict[tuple[DatasetName | None, BranchName | None], CommitId | None] = {}
        """Of the branches that could be read."""

    @_once
    def commit(self, commit: CommitId) -> CommitRecord | None:
        return self.tried(lambda: self.repository.objects.commit_or_none(commit))

    def _root(self, commit: CommitId) -> str | None:
        record = self.commit(commit)
        return None if record is None else record.root.hex()

    @_once
    def _stored(self, key: DatasetRun) -> RunRecord | None:
        record = self.tried(lambda: self.runs.ended(*key))
        return None if record is None else with_roots(record, self._root)

    def record(self, key: DatasetRun) -> RunRecord | None:
        """Read a record; that of a run that was not repeated with the output of the run whose result it has."""
        record = self._stored(key)
        of = None if record is None else record.hit_of
        result = None if of is None else self._stored(of)
        if record is None or record.output is None or result is None or result.output is None:
            return record
        return replace(record, output=replace(record.output, tree=result.output.tree))

    @_once
    def _linked(self, root: str, how: How | None) -> list[tuple[str, DatasetRun]]:
        """Return what the edges of a tree say, and the runs to which they lead. how: None for both at once"""
        listed = self.repository.store.list(lineage_prefix(NodeId.parse(root), how))
        parsed = (parse_lineage_key(item.key) for item in listed)
        return [(edge[1], edge[2:]) for edge in parsed if edge is not None]

    @_once
    def part(self, commit: CommitId, path: bytes) -> frozenset[str]:
        """Return the roots of trees of a part alone, with its whole paths and without the folders above it; empty if
        there is no such part."""
        tree = self.tried(lambda: list(TreeReader(self.repository.objects, commit).below(path)))
        entries = [entry for entry, _ in tree or ()]
        cut = path.rfind(b"/") + 1 if [entry.path for entry in entries] == [path] else len(path) + 1
        trees = (entries, [entry._replace(path=entry.path[cut:]) for entry in entries])
        return frozenset(root_of(part).hex() for part in trees if part)

    @_once
    def _history(self, path: bytes) -> PathHistory:
        return PathHistory(self.repository.objects, PathSet.of([path]))

    def tried(self, read: Callable[[], _T]) -> _T | None:
        """Return what is read. If it is damaged or newer, note that and return None; an expired commit is neither."""
        try:
            return read()
        except (IntegrityError, Unsupported) as error:
            why = explained(self.repository, error) if isinstance(error, IntegrityError) else error
            if not isinstance(why, NotFound):
                self.problems[why.message] = why
            return None

    def grown(
        self, start: str, down: bool = False, depth: int | None = None, changes: bool = False
    ) -> Lineage:
        reached, waiting = set[str](), [start]
        while waiting and depth != 0:
            reached.update(waiting)
            steps = self._down(waiting) if down else self._up(waiting)
            waiting = [node_id for node_id in dict.fromkeys(steps) if node_id not in reached]
            depth = None if depth is None else depth - 1
        self._look_at_branches()
        raw = [node for node in self.nodes.values() if node.raw] if changes else []
        changed = tuple(filter(None, together([partial(self._change, node) for node in raw])))
        nodes, problems = tuple(self.nodes.values()), tuple(self.problems.values())
        return Lineage(
            start, nodes, tuple(self.edges), down, bool(waiting), problems, changed if changes else None
        )

    def add(self, linked: Linked) -> str:
        """Add the node of a commit and return its id."""
        _, dataset, commit, roots, path, rev, _ = linked
        node_id = f"{dataset}@{commit}{f':{path}' if path else ''}"
        if node_id not in self.nodes:
            about = self.commit(commit)
            self.nodes[node_id] = LineageNode(
                kind="commit" if about else "missing", id=node_id, dataset=dataset, commit=commit, path=path,
                root=about.root.hex() if about else next(iter(roots), None), rev=rev,
                branch=about.branch or MAIN if about and not tree_of_run(about) else None, about=about,
            )  # fmt: skip
        return node_id

    def link(self, source: str, target: str, name: str) -> None:
        self.edges[LineageEdge(source, target, name)] = None

    def _add_run(self, key: DatasetRun) -> str:
        node_id, record = "/".join(key), self.record(key)
        if node_id not in self.nodes:
            run = LineageNode(kind="run", id=node_id, dataset=key[0], run=key[1], record=record)
            self.nodes[node_id] = run if record else replace(run, kind="missing")
        return node_id

    def joined(
        self,
        how: How,
        node: LineageNode,
        roots: Collection[str],
        more: Iterable[DatasetRun] = (),
        *,
        both: bool = False,
    ) -> dict[DatasetRun, str]:
        """Return the runs that read or made a commit, each with the name of the edge: those to which edges of these
        roots lead, and more. both: ask for what read and for what made it at once"""
        edges = chain.from_iterable(self._linked(root, None if both else how) for root in sorted(roots))
        keys = dict.fromkeys((*(key for said, key in edges if said == how), *more))
        records = zip(keys, together([partial(self.record, key) for key in keys]), strict=True)
        names = {key: "said" if run is None else self._how(how, run, node, roots) for key, run in records}
        return {key: name for key, name in names.items() if name}

    def _how(self, how: How, run: RunRecord, node: LineageNode, roots: Collection[str]) -> str:
        """Return the name of the edge between a run and a commit; nothing if the record does not agree. A run that
        began after the commit was made can't have made it, only an equal tree; but clocks differ."""
        own = inputs_of(run) if how == "read" else chain(self._put(run, node), results_of(run, folder=True))
        for linked in own:
            if not linked.agrees(node.commit, roots, self._root):
                continue
            if how == "read" and (covers(linked.path, node.path) or covers(node.path, linked.path)):
                return linked.name
            if how == "made" and covers(linked.path, node.path):
                if node.about is None or run.started_ms <= node.about.time_ms:
                    return linked.name
                said = linked.name == "output" or f"{run.dataset}/{run.run}" in made_by(node.about.message)
                return linked.name if said and linked.is_new and linked.commit == node.commit else "again"
            if how == "made" and covers(node.path, linked.path):
                return "part"
        return ""

    def _put(self, run: RunRecord, node: LineageNode) -> Iterator[Linked]:
        """Yield a commit that has the output of a run at a path, as its message says: the record is as it was before if
        `dsv runs ID --into` made the commit, or a dsv that was killed then."""
        put, output = None if node.about is None else _PUT.fullmatch(node.about.message), run.output
        if put is None or node.commit is None or output is None or put[1] != f"{run.dataset}/{run.run}":
            return
        if output.root in self.part(node.commit, _raw(put[2])):
            yield Linked("output", run.dataset, node.commit, (self._root(node.commit),), put[2])

    def _up(self, ids: Sequence[str]) -> list[str]:
        """Add the runs that made these commits, and what they read; return the ids of that."""
        keys, inputs = dict[DatasetRun, None](), list[tuple[Linked, str]]()
        origins = together([partial(self._origin, self.nodes[node_id]) for node_id in ids])
        for node_id, (makers, raw) in zip(ids, origins, strict=True):
            node = self.nodes[node_id]
            for commit in dict.fromkeys((*makers, *raw)):
                own = node_id
                if commit != node.commit and node.dataset is not None:
                    own = self.add(Linked("history", node.dataset, commit, (), node.path))
                    self.link(own, node_id, "history")
                for key, name in makers.get(commit, {}).items():
                    self.link(self._add_run(key), own, name)
                    keys[key] = None
                self.nodes[own] = replace(self.nodes[own], raw=commit in raw)
        waiting = list(keys)
        for key in waiting:  # grows by the runs around these
            node_id, record = self._add_run(key), self.record(key)
            if record is None:
                continue
            inputs += [(linked, node_id) for linked in inputs_of(record)]
            if (around := started_in(record, self.record)) is not None:
                self.link(self._add_run(around), node_id, "within")
                waiting += [] if around in waiting else [around]
        together([partial(self.commit, linked.commit) for linked, _ in inputs])
        for linked, node_id in inputs:
            self.link(self.add(linked), node_id, linked.name)
        return [self.add(linked) for linked, _ in inputs]

    def _origin(self, node: LineageNode) -> tuple[dict[CommitId, dict[DatasetRun, str]], set[CommitId]]:
        """Return the runs that made a commit, and those that made the commits before it, on each line up to one that a
        run made as a whole; and the commits from which a line without runs begins."""
        makers, raw = dict[CommitId, dict[DatasetRun, str]](), set[CommitId]()
        assert node.commit is not None
        if node.about is None:
            return {node.commit: self._makers(node, node.commit, None)}, raw
        walked = history.walk(self.repository.objects, [node.commit])
        lines, last = {node.commit: node.commit}, set[CommitId]()

        def walk() -> None:
            for count in chain((1, 4, 16), repeat(64)):
                batch = list(islice(walked, count)) if len(last) < len(lines) else []
                runs_of_each = together([partial(self._makers, node, *one) for one in batch])
                for (commit, record), runs in zip(batch, runs_of_each, strict=True):
                    if commit not in lines:
                        continue
                    last.add(commit)
                    is_made = bool(_MAKERS & {*runs.values()})
                    makers.update({commit: runs} if is_made or commit == node.commit else {})
                    if "output" in runs.values():
                        continue
                    for parent in record.parents:
                        lines.setdefault(parent, parent if is_made else lines[commit])
                    raw.update([] if is_made or record.parents else [lines[commit]])
                if not batch:
                    return

        self.tried(walk)
        return makers, raw

    def _makers(
        self, node: LineageNode, commit: CommitId, record: CommitRecord | None
    ) -> dict[DatasetRun, str]:
        """Return the runs that made a commit of a node's history, or its part, each with the name of the edge. With a
        path, only commits that changed it count."""
        path, named, roots = _raw(node.path), tuple[str, ...](), set[str]()
        if record is None:
            roots.update([node.root] if node.root else [])
        elif not path or self.tried(lambda: self._changed(commit, record, path)):
            put = _PUT.fullmatch(record.message)
            roots, named = {record.root.hex()}, (*made_by(record.message), *([put[1]] if put else []))
        if record is not None and path and (roots or commit == node.commit):
            roots |= self.part(commit, path)
        more = filter(None, map(parse_run, named))
        return self.joined("made", replace(node, commit=commit, about=record), roots, more)

    def _changed(self, commit: CommitId, record: CommitRecord, path: bytes) -> bool:
        return all(self._history(path).differs(parent, commit) for parent in record.parents or (None,))

    def _down(self, ids: Sequence[str]) -> list[str]:
        """Add the runs that read these commits, and what they made; return the ids of that."""
        runs, users = (
            dict[DatasetRun, None](),
            together([partial(self._users, self.nodes[one]) for one in ids]),
        )
        for node_id, names in zip(ids, users, strict=True):
            for key, name in sorted(names.items()):
                self.link(node_id, self._add_run(key), name)
                runs[key] = None
        known = [(key, record) for key in runs if (record := self.record(key)) is not None]
        results = [(one, "/".join(key)) for key, record in known for one in results_of(record, folder=False)]
        together([partial(self.commit, result.commit) for result, _ in results])
        true = [row for row in results if self._root(row[0].commit) in (None, row[0].roots[0])]
        for result, run_id in true:
            self.link(run_id, self.add(result), result.name)
        return [self.add(result) for result, _ in true]

    def _users(self, node: LineageNode) -> dict[DatasetRun, str]:
        part = self.part(node.commit, _raw(node.path)) if node.path and node.commit else frozenset[str]()
        return self.joined("read", node, part | {*filter(None, [node.root])})

    def _look_at_branches(self) -> None:
        """Say of each commit where its branch is now."""
        refs, nodes = self.repository.refs, [*self.nodes.values()]

        def look(dataset: DatasetName, branch: BranchName) -> None:
            head = refs.head_or_none(refs.home(dataset), branch)
            self._heads[dataset, branch] = None if head is None else head.commit

        named = {(node.dataset, node.branch) for node in nodes if node.dataset and node.branch}
        together([partial(self.tried, partial(look, *one)) for one in named])
        for node in nodes:
            if (branch := (node.dataset, node.branch)) in self._heads:
                head = self._heads[branch]
                at: BranchState = "gone" if head is None else "head" if head == node.commit else "moved"
                self.nodes[node.id] = replace(node, branch_state=at)

    def _change(self, node: LineageNode) -> RawChange | None:
        """Return what has changed since a commit of raw data, if it is of a branch."""
        if node.dataset is None or node.commit is None or node.branch is None:
            return None
        head, of = self._heads.get((node.dataset, node.branch)), (node.commit, node.path)
        counts = None if head is None else self.tried(partial(self._counts, head, *of))
        return RawChange(node.dataset, *of, node.branch, head, *(counts or ()))

    def _counts(self, head: CommitId, commit: CommitId, path: str | None) -> tuple[int, int, int, int]:
        objects = self.repository.objects
        trees = TreeReader(objects, commit), TreeReader(objects, head)
        sums = Summary(changes_between(objects, *trees, PathSet.of([_raw(path)])).differences).total
        ahead = history.ahead_behind(objects, head, commit).ahead
        return ahead, sums.added, sums.removed, sums.changed + sums.renamed


def _raw(path: str | None) -> bytes:
    return (path or "").encode("utf-8", "surrogateescape")


def text(path: bytes) -> str | None:
    return path.decode("utf-8", "surrogateescape") or None
