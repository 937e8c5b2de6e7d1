"""What all pages of a site are made from, read once: names, histories, runs, and which pages there will be."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice

import msgspec

from dsv.api.context import Context
from dsv.api.log import names_by_commit
from dsv.api.runs import Runs
from dsv.errors import DsvError, IntegrityError
from dsv.format.locator import Location
from dsv.format.records import CommitRecord, TagValue
from dsv.format.tree import Entry
from dsv.repo import history
from dsv.repo.damage import read_damage
from dsv.repo.expiry import ExpiryState, read_expiry
from dsv.repo.history import KeptParents
from dsv.repo.refs.branches import Head
from dsv.run.listing import RunQuery, RunView, each_run
from dsv.run.record import RunRecord, RunState
from dsv.run.result import result_text
from dsv.site import blocks as show
from dsv.site import drawings
from dsv.site.blocks import Cell, Picture, cells, name, took, when
from dsv.site.decode_process import SIDE, Order
from dsv.site.decoding import Decoder
from dsv.site.folder import MOST_FILES, Images, SiteFolder
from dsv.transfer.download import Fetcher, WantedFile
from dsv.values.ids import CommitId
from dsv.values.names import MAIN, DatasetName, TagName
from dsv.values.units import format_bytes

MOST_COMMITS, MOST_COMMIT_PAGES, NEWEST = 1_000, 500, 30
"""Commits of a dataset that are listed, pages of commits in a site, and newest commits of a dataset with a page."""
MOST_RUNS, MOST_THUMBNAILS = 10_000, 3_000
LARGEST_IMAGE = 32 << 20
"""Bytes of a file that is decoded as an image."""
RUN_HEADS = ("run", "data", "started", "took>", "result", "user?")
Located = tuple[Entry, Location | None]


class DatasetHistory(msgspec.Struct):
    """A dataset, with its newest commits, children before their parents. cut: it has more."""

    dataset: DatasetName
    heads: list[Head]
    tags: list[tuple[TagName, TagValue]]
    names: dict[CommitId, list[str]]
    expired: dict[CommitId, ExpiryState]
    commits: dict[CommitId, CommitRecord] = {}
    cut: bool = False

    @property
    def main(self) -> CommitId | None:
        return next(
            (head.commit for head in self.heads if head.branch == MAIN and head.commit in self.commits), None
        )

    def is_freed(self, commit: CommitId) -> bool:
        return commit in self.expired and self.expired[commit].freed

    def with_pages(self) -> list[CommitId]:
        """Return named commits, and the newest ones."""
        wanted = dict.fromkeys([*self.names, *islice(self.commits, NEWEST)])
        return [commit for commit in wanted if commit in self.commits and not self.is_freed(commit)]

    def named(self, commit: CommitId) -> str:
        """Return the last of its names, or else its id."""
        return self.names[commit][-1] if self.names.get(commit) else str(commit)[:12]


def share_cell(count: int, whole: int, most: int) -> Cell:
    """Return a part of the whole in per cent, with a bar that is full for `most`."""
    return Cell(f"{count / (whole or 1):.1%}", sort=count, drawing=drawings.bar(count / (most or 1)))


def result_cell(record: RunRecord) -> Cell:
    text = result_text(record)
    failed = record.state.is_terminal and text != "ok"
    return Cell(text, look="bad" if failed else "good" if record.state is RunState.ENDED else "going")


class Source:
    def __init__(
        self,
        context: Context,
        opened: Runs,
        folder: SiteFolder | Images,
        decoder: Decoder,
        only: Sequence[DatasetName],
    ) -> None:
        self.context, self.opened, self.folder, self.decoder = context, opened, folder, decoder
        self.repository, self.objects = opened.repository, opened.repository.objects
        self.only, self.problems, refs = only, list[DsvError](), self.repository.refs
        for dataset in only:
            refs.require(dataset)
        datasets = [
            dataset
            for dataset in refs.datasets()
            if (not only or dataset in only) and refs.head_or_none(dataset, MAIN)
        ]
        self.histories = {dataset: self._history(dataset) for dataset in datasets}
        early, skipped = opened.marks.known(), self.problems.append
        views = each_run(opened.runs, opened.spool, None, early=early, skipped=skipped)
        chosen = [view for view in RunQuery().choose(views) if view.record.dataset in self.histories]
        self.all_runs, self.runs = len(chosen), chosen[:MOST_RUNS]
        self.runs_on = dict[CommitId, list[RunView]]()
        for view in self.runs:
            for commit in dict.fromkeys(data.commit for data in view.record.data):
                self.runs_on.setdefault(commit, []).append(view)
        self.damage = read_damage(self.repository)
        self.thumbnails = 0
        self.planned = {show.dataset_page(dataset) for dataset in datasets} | {
            show.run_page(view.record) for view in self.runs
        }
        commits = ((of.dataset, commit) for of in self.histories.values() for commit in of.with_pages())
        self.commits = list(islice(commits, min(MOST_COMMIT_PAGES, (MOST_FILES - len(self.planned)) // 8)))
        self.planned |= {show.commit_page(*commit) for commit in self.commits}

    def _history(self, dataset: DatasetName) -> DatasetHistory:
        heads, tags = self.repository.refs.names(dataset)
        expired = read_expiry(self.repository.refs, dataset).states
        of = DatasetHistory(dataset, heads, tags, names_by_commit(heads, tags), dict(expired))
        try:
            for commit, record in history.walk(self.objects, of.names):
                of.cut = len(of.commits) == MOST_COMMITS
                if of.cut:
                    break
                of.commits[commit] = record
        except IntegrityError as error:
            self.problems.append(error)
        return of

    def state(self) -> tuple[object, ...]:
        """Return what may change of contents, which do not change: some are erased or damaged now, or are repaired."""
        return len(self.objects.erasures.known), None if self.damage is None else self.damage.nonce.hex()

    def parent(self, dataset: DatasetName, commit: CommitId) -> CommitId | None:
        """Return the first parent, or its nearest ancestor whose content is left."""
        freed = {commit_id for commit_id, state in self.histories[dataset].expired.items() if state.freed}
        parents = KeptParents(self.objects, freed).of(self.objects.commit(commit), first_only=True)
        return parents[0] if parents else None

    def to_page(self, page: str, text: str) -> Cell:
        """Return a link, if there will be such a page."""
        return Cell(text, page if page in self.planned else None)

    def to_dataset(self, dataset: DatasetName) -> Cell:
        return self.to_page(show.dataset_page(dataset), str(dataset))

    def to_commit(self, dataset: DatasetName, commit: CommitId, names: Sequence[str] = ()) -> Cell:
        return self.to_page(show.commit_page(dataset, commit), ", ".join((*names, str(commit)[:12])))

    def to_difference(self, dataset: DatasetName, before: CommitId, after: CommitId, text: str) -> Cell:
        return self.to_page(show.difference_page(dataset, before, after), text)

    def to_run(self, view: RunView, text: str = "") -> Cell:
        return self.to_page(show.run_page(view.record), text or view.record.name or view.record.run[-8:])

    def run_rows(self, views: Iterable[RunView]) -> Iterator[tuple[Cell, ...]]:
        for view in views:
            record = view.record
            rev, commit = record.target.partition(":")[0].partition("@")[2], str(record.commit)
            text = f"{record.dataset}{'' if commit.startswith(rev) else f'@{rev}'} {commit[:8]}"
            data = self.to_page(show.commit_page(record.dataset, record.commit), text)
            began, lasted = when(record.started_ms), took(view.took_seconds)
            yield cells(self.to_run(view), data, began, lasted, result_cell(record), name(record.user))

    def read(self, files: Iterable[Located], most: int) -> Iterator[tuple[Entry, bytes | None]]:
        """Yield files with at most the first bytes of each; None for one that is erased, or can't be read."""
        wanted, erasures = list(files), self.objects.erasures
        there = [WantedFile(*file) for file in wanted if erasures.of(file[0]) is None]
        contents = Fetcher(self.objects, connections=4).files(there)
        for entry, _ in wanted:
            data: bytearray | None = None
            try:
                if erasures.of(entry) is None:
                    data = bytearray()
                    for piece in next(contents)[1]:
                        data += piece
                        if len(data) >= most:
                            break
            except IntegrityError as error:
                self.problems.append(error)
                data = None
            yield entry, None if data is None else bytes(data[:most])

    def pictures(self, files: Iterable[Located]) -> Iterator[Picture]:
        """Decode images, unless the site has them already."""
        waiting = list(files)
        unknown = [
            file for file in waiting if self._thumbnail(file[0]) is None and file[0].size <= LARGEST_IMAGE
        ]
        contents = self.read(unknown[: max(0, MOST_THUMBNAILS - self.thumbnails)], LARGEST_IMAGE)
        faults = {entry.file_id: self._decoded(entry, data) for entry, data in contents}
        for entry, _ in waiting:
            file = self._thumbnail(entry)
            self.thumbnails += file is not None
            fault = "too large" if entry.size > LARGEST_IMAGE else "too many images"
            note = faults.get(entry.file_id, fault) if file is None else format_bytes(entry.size)
            yield Picture(name(entry.path), note, file, bool(file and file.endswith("-small.webp")))

    def _thumbnail(self, entry: Entry) -> str | None:
        """Return the thumbnail that the site has."""
        if entry.file_id is None or self.objects.erasures.of(entry) is not None:
            return None
        names = (show.image_file(entry.file_id, small=small) for small in (True, False))
        return next(filter(self.folder.has, names), None)

    def _decoded(self, entry: Entry, data: bytes | None) -> str:
        """Write a thumbnail, or return why there is none."""
        if data is None or entry.file_id is None:
            return "erased, or can't be read"
        answer = self.decoder.ask(Order("thumbnail", entry.path, data))
        if answer.thumbnail is not None:
            small = max(answer.thumbnail.width, answer.thumbnail.height) <= SIDE // 2
            self.folder.file(show.image_file(entry.file_id, small=small), answer.thumbnail.data)
        return answer.error
