"""The edges between trees and the runs that read or made them: hints in the store, which records confirm."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Literal, NamedTuple, TypeAlias

from dsv.errors import UsageError
from dsv.format.keys import lineage_key
from dsv.run.record import RunRecord, RunState
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
    output = record.output
    into = None if output is None else output.into
    read = [root for data in record.data for root in (data.root, data.commit_root)]
    read += [each.root for each in record.read]
    made = [each.root for each in record.made]
    made += [] if output is None else [output.root]
    made += [] if into is None or into.commit is None else [into.root]
    edges = set()
    how: How
    for how, roots in (("read", read), ("made", made)):
        for root in filter(None, roots):
            with suppress(UsageError):  # an older or newer dsv wrote something else
                edges.add(Edge(NodeId.parse(root), how))
    return edges


def with_roots(record: RunRecord, root: Callable[[CommitId], str | None]) -> RunRecord:
    """Return a record from before edges with the roots of the whole commits that it read and made, as far as `root`
    knows them."""
    data = tuple(
        replace(
            each,
            root=each.root or (root(each.commit) if each.path is None else None),
            commit_root=root(each.commit),
        )
        if each.commit_root is None
        else each
        for each in record.data
    )
    output = record.output
    if output is not None and output.tree is not None and output.root is None:
        output = replace(output, root=root(CommitId.parse(output.tree)))
    return replace(record, data=data, output=output)


def edge_keys(record: RunRecord) -> list[str]:
    return [lineage_key(edge.root, edge.how, record.dataset, record.run) for edge in sorted(edges_of(record))]
