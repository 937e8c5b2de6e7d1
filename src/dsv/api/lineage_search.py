"""The search for where data comes from and what was made of it: from a commit to the runs that made or read its tree,
and on to their commits. Trees are joined, not commits, because equal results of several runs have one tree."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import chain, islice, repeat
from typing import Any, TypeVar

from dsv.api.log import changes_between
from dsv.diff.paths import Summary
from dsv.errors import DsvError, IntegrityError, NotFound, Unsupported, UsageError
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
    Lineage,
    LineageEdge,
    LineageNode,
    Linked,
    RawChange,
    covers,
    inputs_of,
    results_of,
)
from dsv.run.record import OUTPUT_OF_RUN, RECORD, IntoBranch, RunId, RunRecord, tree_of_run
from dsv.run.record_store import RunStore, StoredRun
from dsv.stores.base import together
from dsv.values.ids import CommitId, NodeId
from dsv.values.names import MAIN, BranchName, DatasetName
from dsv.values.paths import PathSet
from dsv.values.trailers import made_by, parse_run
from dsv.values.units import utc

_T = TypeVar("_T")
_Key = tuple[DatasetName, str]
_Heads = dict[tuple[DatasetName, BranchName], CommitId | None]
_PUT = re.compile(rf"{OUTPUT_OF_RUN}(\S+) in (.+)", re.DOTALL)
"""The message of a commit that has the output of a run at a path."""
_MAKERS = {"output", "part", "made"}


class LineageSearch:
    """A graph that grows by the commits of one step at a time. The store is asked for each thing once."""

    def __init__(self, repository: Repository) -> None:
        self.repository, self.runs = repository, RunStore(repository.store)
        self.nodes: dict[str, LineageNode] = {}
        self.edges: dict[LineageEdge, None] = {}
        self.problems: dict[str, DsvError] = {}
        self._answers: dict[tuple[object, ...], Any] = {}

    def _once(self, read: Callable[..., _T], *about: object) -> _T:
        """Return what is read, and remember it: in no cycle, as a cache of a method of this object would be."""
        key = (read.__name__, *about)
        if key not in self._answers:
            self._answers[key] = read(*about)
        known: _T = self._answers[key]
        return known

    def commit(self, commit: CommitId) -> CommitRecord | None:
        return self._once(self._commit, commit)

    def record(self, key: _Key) -> RunRecord | None:
        return self._once(self._record, key)

    def linked(self, root: str, how: How) -> list[_Key]:
        """Return the runs to which the edges of a tree lead."""
        return self._once(self._linked, root, how)

    def part(self, commit: CommitId, path: bytes) -> frozenset[str]:
        """Return the roots of trees of a part alone, with its whole paths and without the folders above it; empty if
        there is no such part."""
        return self._once(self._part, commit, path)

    def grown(
        self, start: str, *, down: bool = False, depth: int | None = None, changes: bool = False
    ) -> Lineage:
        reached, waiting = set[str](), [start]
        while waiting and depth != 0:
            reached.update(waiting)
            steps = self._down(waiting) if down else self._up(waiting)
            waiting = [node_id for node_id in dict.fromkeys(steps) if node_id not in reached]
            depth = None if depth is None else depth - 1
        heads = self._look_at_branches()
        raw = [node for node in self.nodes.values() if node.raw] if changes else []
        changed = filter(None, together([partial(self._changes, node, heads) for node in raw]))
        nodes, problems = tuple(self.nodes.values()), tuple(self.problems.values())
        made = Lineage(start, nodes, tuple(self.edges), down, bool(waiting), problems)
        return replace(made, changes=tuple(changed)) if changes else made

    def tried(self, read: Callable[[], _T]) -> _T | None:
        """Return what is read. If it is damaged or newer, note that and return None; an expired commit is neither."""
        try:
            return read()
        except (IntegrityError, Unsupported) as error:
            why = explained(self.repository, error) if isinstance(error, IntegrityError) else error
            if not isinstance(why, NotFound):
                self.problems[why.message] = why
            return None

    def _commit(self, commit: CommitId) -> CommitRecord | None:
        return self.tried(partial(self.repository.objects.commit_or_none, commit))

    def _root(self, commit: CommitId) -> str | None:
        record = self.commit(commit)
        return None if record is None else record.root.hex()

    def _record(self, key: _Key) -> RunRecord | None:
        def read() -> RunRecord | None:
            with suppress(NotFound, UsageError):
                record = self.runs.read(StoredRun(key[0], RunId.parse(key[1]), frozenset((RECORD,))))
                return with_roots(record, self._root)
            return None

        return self.tried(read)

    def _linked(self, root: str, how: How) -> list[_Key]:
        listed = self.repository.store.list(lineage_prefix(NodeId.parse(root), how))
        return [parsed[2:] for item in listed if (parsed := parse_lineage_key(item.key)) is not None]

    def _part(self, commit: CommitId, path: bytes) -> frozenset[str]:
        tree = self.tried(lambda: list(TreeReader(self.repository.objects, commit).below(path)))
        entries = [entry for entry, _ in tree or ()]
        cut = path.rfind(b"/") + 1 if [entry.path for entry in entries] == [path] else len(path) + 1
        trees = (entries, [entry._replace(path=entry.path[cut:]) for entry in entries])
        return frozenset(root_of(part).hex() for part in trees if part)

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

    def _add_run(self, key: _Key) -> str:
        node_id, record = "/".join(key), self.record(key)
        made = partial(LineageNode, id=node_id, dataset=key[0], run=key[1], record=record)
        self.nodes.setdefault(node_id, made(kind="run") if record else made(kind="missing"))
        return node_id

    def link(self, source: str, target: str, name: str) -> None:
        self.edges[LineageEdge(source, target, name)] = None

    def _up(self, ids: Sequence[str]) -> list[str]:
        """Add the runs that made these commits, and what they read; return the ids of that."""
        keys, inputs = dict[_Key, None](), list[tuple[Linked, str]]()
        for node_id, (makers, raw) in zip(
            ids, together([partial(self._origin, one) for one in ids]), strict=True
        ):
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
            inputs += [] if record is None else [(linked, node_id) for linked in inputs_of(record)]
            around = None if record is None else self._around(record)
            if around is not None:
                self.link(self._add_run(around), node_id, "within")
                waiting += [] if around in waiting else [around]
        together([partial(self.commit, linked.commit) for linked, _ in inputs])
        for linked, node_id in inputs:
            self.link(self.add(linked), node_id, linked.name)
        return [self.add(linked) for linked, _ in inputs]

    def _around(self, record: RunRecord) -> _Key | None:
        """Return the run whose job started this one; None if it had ended: its variables live on in its terminals."""
        outer = None if (key := parse_run(record.within or "")) is None else self.record(key)
        ended = None if outer is None or outer.ended_ms is None else f"{utc(outer.ended_ms):%Y%m%d-%H%M%S}"
        return None if ended is not None and record.run[:15] > ended else key

    def _origin(self, node_id: str) -> tuple[dict[CommitId, dict[_Key, str]], set[CommitId]]:
        """Return the runs that made a commit, and those that made the commits before it, on each line up to one that a
        run made as a whole; and the commits from which a line without runs begins."""
        node, makers, raw = self.nodes[node_id], dict[CommitId, dict[_Key, str]](), set[CommitId]()
        assert node.commit is not None and node.dataset is not None
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

    def _makers(self, node: LineageNode, commit: CommitId, record: CommitRecord | None) -> dict[_Key, str]:
        """Return the runs that made a commit of a node's history, or its part, each with the name of the edge. With a
        path, only commits that changed it count."""
        roots, path, named, put = set[str](), _raw(node.path), tuple[str, ...](), None
        if record is None:
            roots = {node.root} if node.root else roots
        elif not path or self.tried(lambda: self._changed(commit, record, path)):
            put = _PUT.fullmatch(record.message)
            roots, named = {record.root.hex()}, (*made_by(record.message), *([put[1]] if put else []))
        if record is not None and path and (roots or commit == node.commit):
            roots |= self.part(commit, path)
        keys = dict.fromkeys(chain.from_iterable(self.linked(root, "made") for root in sorted(roots)))
        names, now = dict[_Key, str](), replace(node, commit=commit, about=record)
        for key in (*keys, *filter(None, map(parse_run, named))):
            run = self.record(key)
            if run is not None and put is not None and "/".join(key) == put[1]:
                run = self._with_put(run, now, put[2])
            names[key] = "said" if run is None else self.how("made", run, now, roots)
        return {key: name for key, name in names.items() if name}

    def _with_put(self, run: RunRecord, node: LineageNode, at: str) -> RunRecord:
        """Return the record with the commit that has its output at a path, as the message says: the record is as it was
        before if `dsv runs ID --into` made the commit, or a dsv that was killed then."""
        output, about, commit = run.output, node.about, node.commit
        assert about is not None and commit is not None  # it has the message
        is_known = output is None or (output.into is not None and output.into.commit == commit)
        if output is None or is_known or output.root not in self.part(commit, _raw(at)):
            return run
        into = IntoBranch(run.dataset, MAIN, commit, about.root.hex(), at, new=True)
        return replace(run, output=replace(output, into=into))

    def _looked(self, path: bytes) -> PathHistory:
        return PathHistory(self.repository.objects, PathSet.of([path]))

    def _changed(self, commit: CommitId, record: CommitRecord, path: bytes) -> bool:
        looked = self._once(self._looked, path)
        return all(looked.differs(parent, commit) for parent in record.parents or (None,))

    def how(self, how: How, run: RunRecord, node: LineageNode, roots: set[str]) -> str:
        """Return the name of the edge between a run and a commit; nothing if the record does not agree. A run that
        began after the commit was made can't have made it, only an equal tree; but clocks differ."""
        for linked in inputs_of(run) if how == "read" else results_of(run, folder=True):
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

    def _down(self, ids: Sequence[str]) -> list[str]:
        """Add the runs that read these commits, and what they made; return the ids of that."""
        runs, results = dict[_Key, None](), list[tuple[Linked, str]]()
        roots = dict(
            zip(ids, together([partial(self._roots_of, self.nodes[one]) for one in ids]), strict=True)
        )
        together([partial(self.linked, root, "read") for root in {*chain.from_iterable(roots.values())}])
        linked = {one: {key for root in roots[one] for key in self.linked(root, "read")} for one in ids}
        together([partial(self.record, key) for key in {*chain.from_iterable(linked.values())}])
        for node_id, key in [(one, key) for one in ids for key in sorted(linked[one])]:
            record, node = self.record(key), self.nodes[node_id]
            name = "said" if record is None else self.how("read", record, node, roots[node_id])
            if name:
                self.link(node_id, self._add_run(key), name)
                runs[key] = None
        for key in runs:
            record = self.record(key)
            results += [(one, "/".join(key)) for one in (results_of(record, folder=False) if record else ())]
        together([partial(self.commit, result.commit) for result, _ in results])
        true = [row for row in results if self._root(row[0].commit) in (None, row[0].roots[0])]
        for result, run_id in true:
            self.link(run_id, self.add(result), result.name)
        return [self.add(result) for result, _ in true]

    def _roots_of(self, node: LineageNode) -> set[str]:
        roots = {node.root} if node.root else set[str]()
        return roots | (self.part(node.commit, _raw(node.path)) if node.path and node.commit else frozenset())

    def _look_at_branches(self) -> _Heads:
        """Say of each commit where its branch is now. Return the heads of the branches that could be read."""
        refs, heads = self.repository.refs, _Heads()
        nodes = [(node, node.dataset, node.branch) for node in self.nodes.values()]
        named = list({(dataset, branch) for _, dataset, branch in nodes if dataset and branch})

        def look(dataset: DatasetName, branch: BranchName) -> None:
            head = refs.head_or_none(refs.home(dataset), branch)
            heads[dataset, branch] = None if head is None else head.commit

        together([partial(self.tried, partial(look, *one)) for one in named])
        for node, dataset, branch in nodes:
            if dataset and branch and (dataset, branch) in heads:
                head = heads[dataset, branch]
                state: BranchState = "gone" if head is None else "head" if head == node.commit else "moved"
                self.nodes[node.id] = replace(node, branch_state=state)
        return heads

    def _changes(self, node: LineageNode, heads: _Heads) -> RawChange | None:
        """Return what has changed since a commit of raw data, if it is of a branch."""
        dataset, commit, branch, objects = node.dataset, node.commit, node.branch, self.repository.objects
        if dataset is None or commit is None or branch is None:
            return None
        head = heads.get((dataset, branch))
        change = RawChange(dataset, commit, node.path, branch, head)

        def counted() -> RawChange:
            trees = TreeReader(objects, commit), None if head is None else TreeReader(objects, head)
            sums = Summary(changes_between(objects, *trees, PathSet.of([_raw(node.path)])).differences).total
            ahead = 0 if head is None else history.ahead_behind(objects, head, commit).ahead
            return replace(
                change,
                commits=ahead,
                added=sums.added,
                removed=sums.removed,
                changed=sums.changed + sums.renamed,
            )

        return change if head is None else self.tried(counted) or change


def _raw(path: str | None) -> bytes:
    return (path or "").encode("utf-8", "surrogateescape")


def text(path: bytes) -> str | None:
    return path.decode("utf-8", "surrogateescape") or None
