"""`python -m dsv.api.bench_feed_process`: one round of `bench_feed`.

It reads a `Round` from stdin, and writes its result, or the parts of an error, to stdout as JSON. It forks
the workers; each reads one batch for each message in its pipe. Accelerators only wait and compute, so this
process plays all of them. It ends when its stdin is closed, and a worker when its pipe is.
"""

from __future__ import annotations

import json
import os
import resource
import select
import signal
import sys
import time
from bisect import bisect_right
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from itertools import accumulate, count, product
from multiprocessing.connection import Connection, Pipe
from random import Random
from typing import NamedTuple

from dsv.api.bench_feed import AcceleratorLoad, FeedRequest, Round
from dsv.errors import Conflict, DsvError, Unreachable, made
from dsv.files.descriptors import Opened
from dsv.files.errors import as_error
from dsv.files.process import read_order

Range = tuple[int, int, int]
"""The index of a file, and the start and end of a byte range in it."""
_SEED = 20
_PIECE = 4 << 20
"""Bytes of one read of a file."""
_TOGETHER = 32 << 20
"""Bytes that are read from a store at once, to bound the memory for a batch of large samples."""


def main() -> None:
    what: Round = read_order()
    try:
        said: object = _Accelerators(what).run()
    except OSError as error:
        said = as_error(error, "a worker").parts()
    except DsvError as error:
        said = error.parts()
    sys.stdout.write(json.dumps(said))


def batches(
    sizes: Sequence[int], load: AcceleratorLoad, accelerators: int, *, by_bytes: bool, seed: int
) -> Callable[[int, int], list[Range]]:
    """Return a function from an accelerator and a step to the ranges to read, in an endless random order of
    files.

    Each accelerator has its own part of that order. sizes: of the files. by_bytes: see `FeedRequest`.
    """
    order = list(range(len(sizes)))
    Random(seed).shuffle(order)
    ends = list(accumulate(sizes[file] for file in order))

    def of_files(accelerator: int, number: int) -> list[Range]:
        first = number * load.batch
        places = (accelerator + accelerators * at for at in range(first, first + load.batch))
        return [(file, 0, sizes[file]) for file in (order[place % len(order)] for place in places)]

    def of_bytes(accelerator: int, number: int) -> list[Range]:
        """Read the files as one endless run of bytes."""
        begin = ends[-1] * accelerator // accelerators + number * load.batch_bytes
        end, found = begin + load.batch_bytes, list[Range]()
        while begin < end:
            place = bisect_right(ends, begin % ends[-1])
            file = order[place]
            start = begin % ends[-1] - (ends[place] - sizes[file])
            stop = min(sizes[file], start + end - begin)
            found.append((file, start, stop))
            begin += stop - start
        return found

    return of_bytes if by_bytes else of_files


Received = dict[tuple[int, int], tuple[float, Sequence[int]]]
"""By accelerator and step: when a batch arrived, and what was counted while it was read."""


class Trained(NamedTuple):
    """The result of a training, without its warm-up steps."""

    utilization: float
    """From 0 to 1: the mean of all accelerators, as in DLIO. Each one's time begins after its first measured step."""
    steps: int
    """Measured steps, including the first."""
    seconds: float
    used: list[int]
    """Sums of the counts."""


def train(
    request: FeedRequest,
    accelerators: int,
    begin: float,
    receive: Callable[[float | None], Received],
    order: Callable[[int, int], None],
    begin_to_measure: Callable[[], None] = lambda: None,
) -> Trained:
    """Simulate a training: each accelerator takes its next batch, computes, and waits for the others.

    All times are of one clock. A step computes for exactly the seconds of the load, even if a batch is noticed late.

    receive: waits for a batch, or, given a time, until then at most, and returns nothing at that time. The
    batches of an accelerator may arrive in any order. order: makes a worker of an accelerator read its next
    batch. begin_to_measure: is called at the end of the first measured step.
    """
    load = request.load
    for worker, accelerator, _ in product(range(load.workers), range(accelerators), range(load.depth)):
        order(accelerator, worker)
    warm = load.workers * load.depth  # steps that use up the batches read ahead at the start
    there: Received = {}
    used, first, first_over = [0, 0, 0], 0.0, list[float]()
    for step in count():
        taken: dict[int, float] = {}
        while True:
            for accelerator in range(accelerators):
                if accelerator not in taken and (accelerator, step) in there:
                    at, counts = there.pop((accelerator, step))
                    taken[accelerator] = max(begin, at)
                    if step > warm:
                        used = [sum(pair) for pair in zip(used, counts, strict=True)]
                    order(accelerator, step % load.workers)
            if len(taken) == accelerators:
                break
            there |= receive(None)
        end = max(taken.values()) + load.seconds
        while received := receive(end):
            there |= received
        if step == warm:
            first, first_over = end, [at + load.seconds for at in taken.values()]
            begin_to_measure()
        if step > warm and (step - warm + 1 >= request.steps or end - first >= request.seconds):
            shares = [(step - warm) * load.seconds / (end - over) for over in first_over]
            return Trained(min(1.0, sum(shares) / len(shares)), step - warm + 1, end - first, used)
        begin = end
    raise AssertionError("unreachable")


class _Accelerators:
    def __init__(self, what: Round) -> None:
        self._what = what
        self._batch = batches(
            what.sizes, what.request.load, what.accelerators, by_bytes=what.request.by_bytes, seed=_SEED
        )
        self._workers: dict[tuple[int, int], Connection] = {}
        """By accelerator and worker."""
        self._processes: list[int] = []
        self._readable = select.epoll()
        self._before = (0.0, 0.0)

    def run(self) -> dict[str, object]:
        _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
        what = self._what
        try:
            for number in product(range(what.accelerators), range(what.request.load.workers)):
                self._fork(*number)
            self._pipes = {pipe.fileno(): pipe for pipe in self._workers.values()}
            for descriptor in (0, *self._pipes):
                self._readable.register(descriptor, select.EPOLLIN)
            begin = time.monotonic()
            found = train(what.request, what.accelerators, begin, self._receive, self._order, self._measure)
            return self._result(found)
        finally:
            for pid in self._processes:  # not waited for: a worker may be in a read that never ends
                os.kill(pid, signal.SIGKILL)

    def _fork(self, accelerator: int, worker: int) -> None:
        ours, theirs = Pipe()
        self._workers[accelerator, worker] = ours
        pid = os.fork()
        if pid:
            theirs.close()
            self._processes.append(pid)
            return
        try:
            os.close(0)
            self._readable.close()
            for other in self._workers.values():
                other.close()  # or the pipes of other workers would stay open after the parent ends
            with suppress(EOFError, OSError):
                self._work(accelerator, worker, theirs)
        finally:
            os._exit(0)

    def _work(self, accelerator: int, worker: int, pipe: Connection) -> None:
        """Read every `workers`-th batch of an accelerator, each when ordered, and report when it arrived."""
        what = self._what
        read = _files_reader(what) if what.commit is None else partial(_read_commit, what)
        for number in count(worker, what.request.load.workers):
            pipe.recv_bytes()
            asked = self._batch(accelerator, number)
            try:
                files, warm = read(asked)
            except DsvError as error:
                pipe.send(error.parts())
                return
            size = sum(stop - start for _, start, stop in asked)
            pipe.send(((accelerator, number), (time.monotonic(), (size, files, warm))))

    def _order(self, accelerator: int, worker: int) -> None:
        with suppress(ConnectionError):  # the worker has ended: `_receive` reports why
            self._workers[accelerator, worker].send_bytes(b"")

    def _receive(self, until: float | None) -> Received:
        """Wait as `train` describes. Raises the error of a worker."""
        # select waits in microseconds, epoll itself only in milliseconds.
        select.select([self._readable], [], [], None if until is None else max(0.0, until - time.monotonic()))
        received: Received = {}
        for descriptor, _ in self._readable.poll(0):
            if descriptor == 0:
                raise SystemExit(1)
            try:
                said = self._pipes[descriptor].recv()
            except (EOFError, OSError):
                raise Unreachable("a process that reads was killed") from None
            if isinstance(said[0], str):
                raise made(*said)
            received |= [said]
        return received

    def _measure(self) -> None:
        self._before = self._processor()

    def _result(self, found: Trained) -> dict[str, object]:
        after, (size, files, warm) = self._processor(), found.used
        own, all_of_them = (now - before for now, before in zip(after, self._before, strict=True))
        return {
            "au": found.utilization,
            "passed": found.utilization >= self._what.request.load.mark,
            "steps": found.steps,
            "seconds": found.seconds,
            "bytes": size,
            "bytes_per_second": size / found.seconds,
            "cpu_per_gb": own / size * 1e9 if size else None,
            "host_cpu_per_gb": all_of_them / size * 1e9 if size else None,
            "page_cache": warm / files if files else None,
        }

    def _processor(self) -> tuple[float, float]:
        """Return the processor seconds of this process and the workers, and of all processes of this host."""
        own = [_ticks(f"/proc/{pid}/stat", b") ", (11, 12)) for pid in (os.getpid(), *self._processes)]
        busy = _ticks("/proc/stat", b"cpu ", (0, 1, 2, 5, 6))
        each = os.sysconf("SC_CLK_TCK")
        return sum(own) / each, busy / each


def _ticks(path: str, behind: bytes, places: Sequence[int]) -> int:
    """Return the sum of some numbers in a file of /proc; `places` are counted after `behind`."""
    with open(path, "rb") as file:  # noqa: PTH123
        words = file.read().partition(behind)[2].split()
    return sum(int(words[place]) for place in places)


def _read_commit(what: Round, asked: Sequence[Range]) -> tuple[int, int]:
    """Read ranges from the store, `_TOGETHER` bytes at once, verified. Return like `_files_reader`."""
    assert what.commit is not None
    group, size = list[tuple[str, int, int]](), 0
    for file, start, stop in asked:
        for at in range(start, stop, _TOGETHER):
            end = min(at + _TOGETHER, stop)
            if size + end - at > _TOGETHER:
                what.commit.read_ranges(group)
                group, size = [], 0
            group.append((what.paths[file], at, end))
            size += end - at
    what.commit.read_ranges(group)
    return 0, 0


def _files_reader(what: Round) -> Callable[[Sequence[Range]], tuple[int, int]]:
    """Return a function that reads ranges of files into a reused buffer.

    It returns of how many files the page cache state is known, and how many were in the page cache.
    """
    buffer = memoryview(bytearray(_PIECE))

    def forget(file: int) -> None:
        if what.request.drop:
            os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)

    def is_warm(file: int, at: int) -> bool | None:
        """Return whether the next byte is in the page cache; None if the file system can't report it."""
        try:
            return os.preadv(file, [buffer[:1]], at, os.RWF_NOWAIT) > 0 or None
        except BlockingIOError:
            return False
        except OSError:
            return None

    def read(path: str, start: int, stop: int) -> bool | None:
        try:
            with Opened(os.open(path, os.O_RDONLY | os.O_CLOEXEC)) as file:
                forget(file)
                warm = is_warm(file, start)
                at = start
                while at < stop:
                    count = os.preadv(file, [buffer[: stop - at]], at)
                    if not count:
                        raise Conflict(f"{path} has become shorter while it was read", subject=path)
                    at += count
                forget(file)
        except OSError as error:
            raise as_error(error, path) from error
        return warm

    def read_all(asked: Sequence[Range]) -> tuple[int, int]:
        states = [read(what.paths[file], start, stop) for file, start, stop in asked]
        known = [state for state in states if state is not None]
        return len(known), sum(known)

    return read_all


if __name__ == "__main__":
    main()
