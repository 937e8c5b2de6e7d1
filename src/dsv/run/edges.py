"""The edges between trees and the runs that read or made them: hints in the store, which records confirm."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Literal, NamedTuple, TypeAlias

from dsv.errors import UsageError
from dsv.format.keys import lineage_key
from dsv.run.lineage import Linked, inputs_of, results_of
from dsv.run.record import RunData, RunRecord, RunState
from dsv.values.ids import CommitId, NodeId

How: TypeAlias = Literal["made", "read"]


class Edge(NamedTuple):
    """That a run made or read a tree."""

    root: NodeId
    how: How


def edges_of(record: RunRecord) -> set[Edge]:
    """Return the edges of a run whose job ran: to what it read, whole commits and the parts of them that it saw, and
    to what it made, its output and the commits with it."""
    if not record.state.is_terminal or record.state is RunState.NOT_LAUNCHED:
        return set()
    named: list[tuple[How, Linked]] = [("read", linked) for linked in inputs_of(record)]
    named += [("made", linked) for linked in results_of(record, folder=True)]
    edges = set()
    for how, root in ((how, root) for how, linked in named for root in linked.roots if root is not None):
        with suppress(UsageError):  # an older or newer dsv wrote something else
            edges.add(Edge(NodeId.parse(root), how))
    return edges


def with_roots(record: RunRecord, root: Callable[[CommitId], str | None]) -> RunRecord:
    """Return a record from before edges with the roots of the whole commits that it read and made, as far as `root`
    knows them."""

    def known(data: RunData) -> RunData:
        own = data.commit_root or root(data.commit)
        return replace(data, root=data.root or (own if data.path is None else None), commit_root=own)

    output = record.output
    if output is not None and output.tree is not None and output.root is None:
        output = replace(output, root=root(CommitId.parse(output.tree)))
    return replace(record, data=tuple(map(known, record.data)), output=output)


def edge_keys(record: RunRecord) -> list[str]:
    return [lineage_key(edge.root, edge.how, record.dataset, record.run) for edge in sorted(edges_of(record))]
