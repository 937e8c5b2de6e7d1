"""One process's work on a fill: claim parts, link what others have, fetch and write the rest, mark them done.

Parts are a stream: while one part's files are written, the next ones are already claimed and fetched.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator

from dsv.cache.fill.directory import FillDirectory
from dsv.cache.fill.files import LARGE_PIECE, FileState, WriteBack
from dsv.cache.fill.parts import BLOCK, Claim, ClaimTable, block_drafts, blocks, read_ahead
from dsv.cache.fill.place_files import PartJob, PartWriter
from dsv.cache.fill.source import FillContents, FillEntry, LinkRun, StoreSource
from dsv.cache.fill.workers import Worker
from dsv.cache.record import Extent
from dsv.errors import IntegrityError, Unreachable
from dsv.files import system
from dsv.format.recipe import SINGLE_CHUNK_MAX
from dsv.format.tree import Entry, Kind
from dsv.transfer.download import WantedFile

_TICK_EVERY = 64  # small files; a larger one counts as several
_FIRST = 2  # parts
_TURN = 5.0  # seconds
_SHARE = 3  # on a file server a turn takes at most one in so many of the parts that are left
_ROUNDS = 8
_PAUSE = 0.1  # seconds after the first round; each further pause is longer by the same amount


class PartWorker:
    """Fills parts of one fill in one thread, and calls `tick` between files from time to time."""

    def __init__(
        self,
        directory: FillDirectory,
        source: StoreSource,
        table: ClaimTable,
        tally: Worker,
        kind: system.FileSystem,
        tick: Callable[[], None],
    ) -> None:
        """Open the fill's folders. Raises `OSError` if one can't be opened: perhaps the fill has ended."""
        self._directory = directory
        self._source = source
        self._table = table
        self._tally = tally
        self._kind = kind
        self._tick = tick
        self._fetched_before = source.fetched_bytes
        self._jobs: list[PartJob] = []
        self._asked: deque[PartJob] = deque()
        self._since_tick = 0
        self._ahead = read_ahead(directory.plan)
        # What the smallest file takes shows what the file system allocates at least.
        self._block = (directory.workers / tally.owner.id).stat().st_blocks * 512 or BLOCK
        self.damaged: dict[bytes, IntegrityError] = {}
        """By path, what the store can't give. Parts with these files stay undone; the others are done."""
        self._write_back: WriteBack | None = None  # if each part is synced by itself
        self._stack = contextlib.ExitStack()
        self.unplanned = 0
        """Bytes of disk used for files that the plan expected to be linked."""
        self.small = 0
        """Bytes of disk written in files that are too small to be sent to the disk one by one."""
        try:
            self._contents = FillContents(directory, source)
            self._placer = PartWriter(directory, kind)
            self._stack.callback(self._placer.close)
            if kind.remote and not kind.sync_each:
                self._write_back = WriteBack(directory)
                self._stack.callback(self._write_back.close)
        except BaseException:
            self._stack.close()
            raise

    def close(self) -> None:
        for job in self._jobs:
            self._placer.end(job)
        self._stack.close()

    def run_free(self, stop: Callable[[], bool] = lambda: False) -> None:
        """Do all free parts, until there are none left or `stop` returns True. Raises as `run`.

        Parts that are fetched ahead are claimed ahead, although others could help with them. On a file server, where
        writing takes the time, a batch is some seconds' worth of parts and at most a third of what is left, so that all
        processes of the fill end at about the same time. Nothing is claimed for the next batch before this one is done.
        """
        table, remote = self._table, self._kind.remote
        most, claimed = _FIRST if remote else table.count, 0

        def batch() -> Iterator[Claim]:
            nonlocal claimed
            while claimed < most and not stop() and (claim := table.claim_free()) is not None:
                claimed += 1
                yield claim

        while True:
            claimed = 0
            began = time.monotonic()
            self.run(batch())
            if not claimed:
                return
            if remote:
                took = max(time.monotonic() - began, 0.01)
                most = max(_FIRST, min(round(_TURN * claimed / took), table.free // _SHARE))

    def run(self, claims: Iterable[Claim]) -> None:
        """Do these parts; the iterable may claim each one only when asked for it. Raises `OSError` (full
        disk, silent server, ended fill), and what the source raises, except for `damaged` files.
        """
        for job in self._jobs:
            self._placer.end(job)
        self._jobs.clear()
        self._asked.clear()
        try:
            self._write_all(self._orders(claims))
        finally:
            self._placer.pool.clear()  # a part with an error in there is not done either
            self._count_fetched()

    def _write_all(self, wanted: Iterator[WantedFile]) -> None:
        with contextlib.closing(self._source.files(wanted, ahead=self._ahead)) as files:
            for one, pieces in files:
                job = self._asked.popleft()
                entry = one.entry
                try:
                    if entry.size <= SINGLE_CHUNK_MAX:
                        self._placer.write(job, entry, pieces)
                        self._count(entry)
                    else:
                        self._placer.write(job, entry, self._counted(entry, pieces))
                except IntegrityError as error:
                    self.damaged[entry.path] = error
                    job.damaged = True
                job.open -= 1
                if job.passed and not job.open:
                    self._finish(job)

    def _orders(self, claims: Iterable[Claim]) -> Iterator[WantedFile]:
        """Yield what must be fetched for the parts; do everything else on the way."""
        for claim in claims:
            job = PartJob(claim, claim.generation > 1)
            self._jobs.append(job)
            if claim.done:
                block_drafts(self._directory.drafts, claim.part, claim.generation)
                self._table.finish(claim)
                self._drop(job)
                continue
            yield from self._orders_of(job)
            job.passed = True
            if not job.open:
                self._finish(job)

    def _orders_of(self, job: PartJob) -> Iterator[WantedFile]:
        for wanted in self._prepare(job):
            job.open += 1
            self._asked.append(job)
            yield wanted

    def _prepare(self, job: PartJob) -> Iterator[WantedFile]:
        placer, contents = self._placer, self._contents
        part = self._directory.plan.parts[job.claim.part]
        states: dict[bytes, FileState] = {}
        if job.check:
            block_drafts(self._directory.drafts, job.claim.part, job.claim.generation)
            states = placer.examine(job, contents.of(part), self._pace)
        plain = not job.check and not self._directory.plan.has_source_map
        for item in contents.of(part) if job.check else contents.in_runs(part):
            if isinstance(item, LinkRun):
                placer.take_run(job, item)
                self._count_linked(len(item.names), sum(item.sizes))
                continue
            entry = item.entry
            if plain and entry.size:
                yield WantedFile(entry, item.where)
                continue
            self._pace()
            state = states.get(entry.path, FileState.MISSING)
            if entry.kind is Kind.EMPTY_DIRECTORY:
                placer.make_folder(job, entry.path)
            elif entry.kind is Kind.SYMLINK:
                placer.make_symlink(job, entry)
            elif state is FileState.BROKEN:
                job.replace.add(entry.path)
                broken = self._directory.tree / os.fsdecode(entry.path)
                yield WantedFile(entry, item.where, contents.same_version(item, broken))
                continue
            elif state is FileState.WHOLE:
                if not self._is_link(item):
                    job.made.append(entry.size)
                self._count(entry, written=False)
                continue
            elif not entry.size:
                placer.make_empty(job, entry)
            elif item.reference is not None:
                placer.take(job, item)
                self._count_linked(1, entry.size)
                continue
            else:
                yield WantedFile(entry, item.where, contents.older_version(item))
                continue
            self._count(entry)
        placer.pool.drain()
        self._count_copies(job)
        yield from self._not_linked(job)

    def _not_linked(self, job: PartJob) -> Iterator[WantedFile]:
        """Yield files that a reference no longer has, and other users' large files that can't share blocks."""
        for item in job.failed:
            assert item.reference is not None
            self._count_linked(-1, -item.entry.size)
            self.unplanned += blocks(item.entry.size)
            reference = self._contents.same_version(
                item, self._contents.reference_file(item.reference, item.reference_path)
            )
            yield WantedFile(item.entry, item.where, reference)
        job.failed.clear()

    def _finish(self, job: PartJob) -> None:
        """Make sure that all files of a part, which were handed out, are whole; then mark it as done."""
        self._placer.settle(job)
        if job.damaged:
            self._drop(job)
            return
        for round_ in range(_ROUNDS):
            if not job.again:
                break
            time.sleep(_PAUSE * round_)
            self._table.refresh()
            if self._table.overtaken(job.claim):
                self._drop(job)
                return
            self._look_through(job)
        else:
            raise Unreachable(
                f"files of {self._directory.place} keep vanishing from {self._directory.tree}",
                subject=str(self._directory.place),
                hint="check what else deletes files there, then try again",
            )
        if self._write_back is not None:
            self._write_back.finish()
        self._report_links(job)
        size = sum(blocks(one, self._block) for one in job.made) - sum(job.holes)
        self._table.finish(job.claim, Extent(size, len(job.made)))
        self._drop(job)

    def _look_through(self, job: PartJob) -> None:
        """Do the part again, after traces of another process were found in it."""
        self._placer.forget_folders()
        self._placer.end(job)
        again = PartJob(job.claim, check=True)
        asked, self._asked = self._asked, deque()
        with contextlib.closing(self._source.files(self._orders_of(again), ahead=self._ahead)) as files:
            for one, pieces in files:
                self._placer.write(again, one.entry, pieces)
        self._placer.settle(again)
        self._placer.end(again)
        self._asked = asked
        job.again, job.symlinks, job.made, job.holes = again.again, again.symlinks, again.made, again.holes

    def _report_links(self, job: PartJob) -> None:
        """Report the symlinks to the publisher, which checks that none leads out of the tree."""
        if job.symlinks:
            folder = self._directory.links
            self._directory.make_folder(folder)
            self._directory.root.write_once(folder / str(job.claim.part), b"\0".join(job.symlinks))

    def _drop(self, job: PartJob) -> None:
        self._placer.end(job)
        self._jobs.remove(job)

    def _count_copies(self, job: PartJob) -> None:
        for item in job.copied:
            size = blocks(item.entry.size)
            self._tally.written += size
            self._tally.made += 1
            job.made.append(item.entry.size)
            if self._is_link(item):
                self.unplanned += size
        job.copied.clear()

    def _is_link(self, item: FillEntry) -> bool:
        return item.reference is not None and self._directory.plan.references[item.reference].way == "link"

    def _counted(self, entry: Entry, pieces: Iterator[bytes]) -> Iterator[bytes]:
        tally = self._tally
        for piece in pieces:
            yield piece
            tally.bytes += len(piece)
            tally.written += len(piece)
            self._pace(max(1, len(piece) >> 14))
        tally.entries += 1
        tally.made += 1
        tally.written += blocks(entry.size) - entry.size

    def _count(self, entry: Entry, *, written: bool = True) -> None:
        tally = self._tally
        tally.entries += 1
        tally.bytes += entry.size
        if written:
            size = blocks(entry.size)
            tally.written += size
            tally.made += 1
            if size < LARGE_PIECE:
                self.small += size
        self._since_tick += 1 + (entry.size >> 14)
        if self._since_tick >= _TICK_EVERY:
            self._pace(0)

    def _count_linked(self, files: int, size: int) -> None:
        """Count linked files; negative numbers take back those that could not be linked."""
        self._tally.entries += files
        self._tally.bytes += size
        self._tally.linked += files
        self._pace(abs(files))

    def _count_fetched(self) -> None:
        self._tally.fetched = self._source.fetched_bytes - self._fetched_before

    def _pace(self, steps: int = 1) -> None:
        self._since_tick += steps
        if self._since_tick >= _TICK_EVERY:
            self._since_tick = 0
            self._count_fetched()
            self._tick()
