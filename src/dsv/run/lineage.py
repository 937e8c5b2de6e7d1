"""The graph of a lineage, and what the record of a run must say for an edge to count."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Literal, NamedTuple

from dsv.errors import DsvError, UsageError
from dsv.format.records import CommitRecord
from dsv.run.record import RunRecord
from dsv.run.result import result_text
from dsv.values import notebook
from dsv.values.ids import CommitId
from dsv.values.json import params_text
from dsv.values.names import BranchName, DatasetName, Target
from dsv.values.trailers import imported_from, parse_run
from dsv.values.units import format_bytes, format_count, format_duration, utc

BranchState = Literal["head", "moved", "gone"]
_STATES = {"head": "head of {}", "moved": "{} has moved", "gone": "{} is gone", None: ""}
DatasetRun = tuple[DatasetName, str]


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class LineageNode:
    kind: Literal["commit", "run", "file", "missing"]
    """`missing`: a commit or a run of which the store has nothing that can be read."""
    id: str
    """`DATASET@COMMIT[:PATH]`, `DATASET/RUN`, or the id of a file's content."""
    dataset: DatasetName | None = None
    commit: CommitId | None = None
    path: str | None = None
    """The part of the commit; of a file, where it is on this machine."""
    root: str | None = None
    rev: str | None = None
    """The branch or tag by which a person named the commit."""
    branch: BranchName | None = None
    branch_state: BranchState | None = None
    """The branch is now at this commit, elsewhere, or nowhere."""
    raw: bool = False
    """It has content that no run is known to have made."""
    run: str | None = None
    about: CommitRecord | None = None
    record: RunRecord | None = None

    def __repr__(self) -> str:
        return f"<{self.kind} {self.id}>"

    @property
    def name(self) -> str:
        """For people: `raw@v1 bb0a28496cbe` or `raw@bb0a28496cbe`, with the path; or the run."""
        if self.commit is None:
            return f"run {self.run}" if self.record else f"run {self.id}"
        commit, path = str(self.commit)[:12], f":{self.path}" if self.path else ""
        return f"{self.dataset}@{self.rev}{path} {commit}" if self.rev else f"{self.dataset}@{commit}{path}"

    def facts(self, *, is_start: bool) -> Iterator[str]:
        """Yield what is known of it, the most important first, for people. Some are empty."""
        record, about = self.record, self.about
        if record is not None:
            took = format_duration(((record.ended_ms or record.started_ms) - record.started_ms) / 1000)
            yield f"{result_text(record)}, {took}, {record.user}@{record.host}"
            yield params_text(record.params)
        elif about is not None:
            size = format_count(about.files, "file") + (f", {format_bytes(about.bytes)}" if is_start else "")
            yield "" if self.path else size
            yield "" if is_start else _STATES[self.branch_state].format(self.branch)
            url, first = imported_from(about.message), about.message.partition("\n")[0]
            said = f"{about.author.partition(' <')[0]}: {first}" if url is None else f"imported from {url}"
            yield said if self.raw else ""
        elif self.commit is not None:
            yield "not in this store, or can't be read"


class LineageEdge(NamedTuple):
    """From what was first to what came of it. name: `data`, `data NAME` or `read` (undeclared) of a run's inputs;
    `output`, `again` (equal, but after that commit), `part` or `made` of its results; `said` if no record confirms it;
    `history`, `within`, `file`."""

    source: str
    target: str
    name: str


@dataclass(frozen=True, slots=True)
class RawChange:
    """What has changed since a commit of raw data; None for what can't be told."""

    dataset: DatasetName
    commit: CommitId
    path: str | None
    branch: BranchName
    head: CommitId | None
    commits: int | None = None
    added: int | None = None
    removed: int | None = None
    changed: int | None = None
    """Paths, also renamed ones."""


@dataclass(frozen=True, slots=True)
class Lineage:
    start: str
    nodes: tuple[LineageNode, ...]
    edges: tuple[LineageEdge, ...]
    down: bool
    cut: bool
    """It goes on beyond the depth."""
    problems: tuple[DsvError, ...]
    """What could not be read."""
    changes: tuple[RawChange, ...] | None = None
    found: str | None = None
    """The place in which a file was found."""
    looked: str | None = None
    """How far the search for it went."""

    def __repr__(self) -> str:
        raw = [node.id for node in self.raw]
        return f"<lineage of {self.start}: {len(self.nodes)} nodes, raw data {raw}>"

    def _repr_html_(self) -> str | None:
        return notebook.html(self)

    def edge_items(self) -> list[dict[str, str]]:
        return [{"from": edge.source, "to": edge.target, "name": edge.name} for edge in self.edges]

    @property
    def raw(self) -> tuple[LineageNode, ...]:
        return tuple(node for node in self.nodes if node.raw)

    @property
    def moved(self) -> bool:
        """The branch of an input is elsewhere now, or gone."""
        inputs = {edge.source for edge in self.edges if edge.name.startswith(("data", "read"))}
        return any(node.id in inputs and node.branch_state in ("moved", "gone") for node in self.nodes)


class Linked(NamedTuple):
    """A commit that the record of a run names, with the name of the edge and the roots of its tree and of its part."""

    name: str
    dataset: DatasetName
    commit: CommitId
    roots: tuple[str | None, ...]
    path: str | None = None
    rev: str | None = None
    is_new: bool = True

    def agrees(
        self, commit: CommitId | None, roots: Collection[str], root_of: Callable[[CommitId], str | None]
    ) -> bool:
        """Return whether it is this commit, or has one of these roots and its own commit does not deny that; of an
        output, only the root counts."""
        same = any(root in roots for root in self.roots if root is not None)
        is_true = self.commit == commit or (same and root_of(self.commit) in (None, self.roots[0]))
        return is_true and (same or self.name != "output")


def started_in(record: RunRecord, read: Callable[[DatasetRun], RunRecord | None]) -> DatasetRun | None:
    """Return the run whose job started this one; None if it had ended: its variables live on in its terminals."""
    key = parse_run(record.within or "")
    outer = None if key is None else read(key)
    ended = None if outer is None or outer.ended_ms is None else f"{utc(outer.ended_ms):%Y%m%d-%H%M%S}"
    return None if ended is not None and record.run[: len(ended)] > ended else key


def inputs_of(record: RunRecord) -> Iterator[Linked]:
    rev = None
    with suppress(UsageError):
        named = Target.parse(record.target).rev
        rev = None if named is None or named.commit_prefix else str(named)
    for data in record.data:
        name, roots = f"data {data.name}".rstrip(), (data.commit_root, data.root)
        yield Linked(name, data.dataset, data.commit, roots, data.path or None, None if data.name else rev)
    for read in record.read:
        yield Linked("read", read.dataset, read.commit, (read.root,))


def results_of(record: RunRecord, *, folder: bool) -> Iterator[Linked]:
    """folder: yield the commit of the output folder also if a branch got it."""
    output = record.output
    into = None if output is None or output.into is None or output.into.commit is None else output.into
    if into is not None and into.commit is not None:
        rev = str(into.branch)
        yield Linked("output", into.dataset, into.commit, (into.root,), into.path or None, rev, into.new)
    if output is not None and output.tree is not None and (folder or into is None):
        dataset, _ = record.hit_of or (record.dataset, None)
        yield Linked("output", dataset, CommitId.parse(output.tree), (output.root,))
    for made in record.made:
        yield Linked("made", made.dataset, made.commit, (made.root,))


def covers(path: str | None, other: str | None) -> bool:
    """Return whether a path (None: the whole tree) has all of another one."""
    return not path or (other is not None and f"{other}/".startswith(f"{path}/"))
