"""What all pages of a site are made from, read once: names, histories, runs, and which pages there will be."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import islice

import msgspec

from dsv.api.context import Context
from dsv.api.log import names_by_commit
from dsv.api.runs import Runs
from dsv.errors import DsvError, IntegrityError, Unsupported
from dsv.format.locator import Location
from dsv.format.records import CommitRecord, TagValue
from dsv.format.tree import Entry
from dsv.repo import history
from dsv.repo.expiry import read_expiry
from dsv.repo.history import KeptParents
from dsv.repo.refs.branches import Head
from dsv.run.listing import RunQuery, RunView, each_run
from dsv.run.record import SERIES, RunRecord, RunState
from dsv.run.result import data_text, result_text
from dsv.run.series import Series, series_of
from dsv.site.blocks import Block, Cell, Page, Row, cells, image_of, name, page_of, table, took, when
from dsv.site.decoding import Answer, Decoder, Order
from dsv.site.drawings import bar
from dsv.site.folder import SiteFolder
from dsv.transfer.download import Fetcher, WantedFile
from dsv.values.ids import CommitId
from dsv.values.names import MAIN, DatasetName, TagName
from dsv.values.units import format_bytes

_MOST_RUNS, _MOST_THUMBNAILS, _MOST_COMMITS = 10_000, 3_000, 1_000
"""Of a site, of a site, and of a dataset."""
_LARGEST_IMAGE = 32 << 20
"""Bytes of a file that is decoded as an image."""
_UNREADABLE = "erased, or can't be read"
RUN_HEADS = ("run", "data", "started", "took>", "result", "user?")
Located = tuple[Entry, Location | None]
Folder = SiteFolder | dict[str, bytes]
"""In which thumbnails are: that of a site, or memory."""


class DatasetHistory(msgspec.Struct):
    """A dataset, with its newest commits, children before their parents. expired: those, and whether their content is
    freed."""

    dataset: DatasetName
    heads: list[Head]
    tags: list[tuple[TagName, TagValue]]
    names: dict[CommitId, list[str]]
    expired: dict[CommitId, bool]
    commits: dict[CommitId, CommitRecord] = {}

    @property
    def main(self) -> CommitRecord | None:
        return next(
            (self.commits.get(head.commit) for head in self.heads if head.branch == MAIN and head.commit),
            None,
        )

    @property
    def line(self) -> list[CommitId]:
        """What tags name, by time, and then `main`."""
        tagged = set(self.with_content(tag.commit for _, tag in self.tags))
        mains = self.with_content(head.commit for head in self.heads if head.branch == MAIN and head.commit)
        return [*sorted(tagged, key=lambda commit: self.commits[commit].time_ms), *(set(mains) - tagged)]

    def with_content(self, commits: Iterable[CommitId]) -> list[CommitId]:
        return [commit for commit in commits if commit in self.commits and not self.expired.get(commit)]


def share_cell(count: int, whole: int, most: int) -> Cell:
    """Return a part of the whole in per cent, with a bar that is full for `most`."""
    return Cell(f"{count / (whole or 1):.1%}", sort=count, drawing=bar(count / (most or 1)))


def result_cell(record: RunRecord) -> Cell:
    text, going = result_text(record), not record.state.is_terminal
    good = record.state is RunState.ENDED and text in ("ok", "hit")
    return Cell(text, look="going" if going else "good" if good else "bad")


class PageLinks:
    """Links to pages, if there will be such pages, and rows of tables with these."""

    def __init__(self) -> None:
        self.pages, self.histories = dict[str, Callable[[], Page]](), dict[DatasetName, DatasetHistory]()
        """How each page is made; and what is known of datasets."""

    def names(self, dataset: DatasetName, commit: CommitId) -> list[str]:
        of = self.histories.get(dataset)
        return [] if of is None else of.names.get(commit, [])

    def target(self, dataset: DatasetName, commit: CommitId) -> str:
        """Return a commit by the last of its names, or else by its id."""
        return f"{dataset}@{[str(commit)[:12], *self.names(dataset, commit)][-1]}"

    def link(self, text: str, dataset: DatasetName, *ids: object) -> Cell:
        """Return a link to `page_of`, if there will be such a page."""
        page = page_of(dataset, *ids)
        return Cell(text, page if page in self.pages else None)

    def to_dataset(self, dataset: DatasetName) -> Cell:
        return self.link(str(dataset), dataset)

    def to_commit(self, dataset: DatasetName, commit: CommitId) -> Cell:
        return self.link(", ".join((*self.names(dataset, commit), str(commit)[:12])), dataset, commit)

    def about(self, dataset: DatasetName, commit: CommitId, parent: CommitId | None = None) -> Cell:
        """Return links to lineage, and to what changed since the parent and since the tag before it."""
        links, line = [self.link("lineage", dataset, commit, "lineage")], self.histories[dataset].line
        links += [self.link("what changed", dataset, parent, commit)] if parent else []
        for before in line[line.index(commit) - 1 : line.index(commit)] if commit in line else ():
            since = self.target(dataset, before).partition("@")[2]
            links.append(self.link(f"since {since}", dataset, before, commit))
        return Cell("", more=tuple(link for link in links if link.page))

    def to_run(self, record: RunRecord, text: str = "") -> Cell:
        return self.link(text or record.name or record.run[-8:], record.dataset, "run", record.run)

    def run_rows(self, views: Iterable[RunView]) -> Iterator[Row]:
        for view in views:
            record = view.record
            data = self.link(data_text(record, 8), record.dataset, record.commit)
            began = when(record.started_ms)
            result, by = result_cell(record), name(record.user)
            yield cells(self.to_run(record), data, began, took(view.took_seconds), result, by)

    def run_table(self, title: str, views: Sequence[RunView], most: int) -> list[Block]:
        rows = self.run_rows(views[:most])
        return [table(title, RUN_HEADS, rows, "runs", total=len(views))] if views else []


class Source(PageLinks):
    """only: the datasets of the pages; none: all."""

    def __init__(self, context: Context, opened: Runs, folder: Folder, decoder: Decoder,
                 only: Sequence[DatasetName]) -> None:  # fmt: skip
        super().__init__()
        self.context, self.folder, self.decoder, self.only = context, folder, decoder, only
        self.repository, self.objects = opened.repository, opened.repository.objects
        self.problems, self.thumbnails, refs = list[DsvError](), 0, self.repository.refs
        for dataset in only:
            refs.require(dataset)
        known = (dataset for dataset in only or refs.datasets() if refs.head_or_none(dataset, MAIN))
        self.histories = {dataset: self._history(dataset) for dataset in known}
        early, skipped = opened.marks.known(), self.problems.append
        views = RunQuery().choose(each_run(opened.runs, opened.spool, None, early=early, skipped=skipped))
        views = [view for view in views if view.record.dataset in self.histories]
        self.all_runs, self.runs = len(views), opened.with_series(views[:_MOST_RUNS], ended=False)
        self._measured = {
            (stored.dataset, stored.run) for stored in opened.runs.listing() if SERIES in stored.parts
        }
        self.runs_on = defaultdict[CommitId, list[RunView]](list)
        for view in self.runs:
            for commit in {data.commit for data in view.record.data}:
                self.runs_on[commit].append(view)

    def _history(self, dataset: DatasetName) -> DatasetHistory:
        heads, tags = self.repository.refs.names(dataset)
        states = read_expiry(self.repository.refs, dataset).states
        freed = {commit: state.freed for commit, state in states.items()}
        of = DatasetHistory(dataset, heads, tags, names_by_commit(heads, tags), freed)
        try:
            of.commits = dict(islice(history.walk(self.objects, of.names), _MOST_COMMITS))
        except IntegrityError as error:
            self.problems.append(error)
        return of

    def parent(self, dataset: DatasetName, commit: CommitId) -> CommitId | None:
        """Return the first parent, or its nearest ancestor whose content is left."""
        freed = {commit for commit, is_freed in self.histories[dataset].expired.items() if is_freed}
        kept = KeptParents(self.objects, freed).of(self.objects.commit(commit), first_only=True)
        return kept[0] if kept else None

    def series(self, record: RunRecord) -> Mapping[str, Series]:
        """Return the curves of a run, or of the run whose result it has."""
        run = record.hit_of or (record.dataset, record.run)
        with suppress(IntegrityError, Unsupported):
            if not record.state.is_terminal or run in self._measured:
                return series_of(self.repository.store, *run)
        return {}

    def read(self, files: Iterable[Located], most: int) -> Iterator[tuple[Entry, bytes | None]]:
        """Yield files with at most the first bytes of each; None for one that is erased, or can't be read."""
        wanted, erasures = list(files), self.objects.erasures
        there = [WantedFile(*file) for file in wanted if erasures.of(file[0]) is None]
        contents = Fetcher(self.objects, connections=4).files(there)
        for entry, _ in wanted:
            data: bytearray | None = None if erasures.of(entry) else bytearray()
            try:
                for piece in () if data is None else next(contents)[1]:
                    data = (data or bytearray()) + piece
                    if len(data) >= most:
                        break
            except IntegrityError as error:
                self.problems.append(error)
                data = None
            yield entry, None if data is None else bytes(data[:most])

    def decoded(self, kind: str, sides: Sequence[Located], most: int) -> Answer:
        """Decode the first lines of a file, in `most` bytes, or what differs between two versions."""
        data = [side for _, side in self.read(sides, most) if side is not None]
        if len(data) < len(sides):
            return Answer(error=_UNREADABLE)
        size = sides[0][0].size
        if len(data[0]) < size:
            data = [data[0][: data[0].rfind(b"\n") + 1]]
        return self.decoder.ask(Order(kind, sides[-1][0].path, data, size))

    def pictures(self, files: Sequence[Located]) -> Iterator[Cell]:
        """Decode images, unless the site has them already."""
        new = [file for file in files if file[0].size <= _LARGEST_IMAGE and not self._thumbnail(file[0])]
        contents = self.read(new[: max(0, _MOST_THUMBNAILS - self.thumbnails)], _LARGEST_IMAGE)
        faults = {entry.file_id: self._decoded(entry, data) for entry, data in contents}
        for entry, _ in files:
            image = self._thumbnail(entry)
            self.thumbnails += bool(image)
            fault = "too large" if entry.size > _LARGEST_IMAGE else "too many images"
            note = format_bytes(entry.size) if image else faults.get(entry.file_id, fault)
            yield Cell(name(entry.path), image=image, more=cells(note))

    def _thumbnail(self, entry: Entry) -> str:
        """Return the thumbnail that the site has, or nothing."""
        image = "" if entry.file_id is None or self.objects.erasures.of(entry) else image_of(entry.file_id)
        return image if image and image in self.folder else ""

    def _decoded(self, entry: Entry, data: bytes | None) -> str:
        """Write a thumbnail, or return why there is none."""
        if data is None or entry.file_id is None:
            return _UNREADABLE
        answer = self.decoder.ask(Order("image", entry.path, [data]))
        if answer.image:
            self.folder[image_of(entry.file_id)] = answer.image
        return answer.error
