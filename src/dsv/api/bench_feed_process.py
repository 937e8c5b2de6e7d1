"""`python -m dsv.api.bench_feed_process`: one round of `bench_feed`.

It reads a `Round`, and writes its result, or the parts of an error, to stdout as JSON. It forks the
workers, each of which reads a batch for each message in its pipe. The accelerators only wait and compute, so that this
process is all of them. It ends when its stdin does, and the workers when their pipes do.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import sys
import time
from bisect import bisect_right
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from itertools import accumulate, count
from multiprocessing.connection import Connection, Pipe
from random import Random
from selectors import EVENT_READ, DefaultSelector

from dsv.api.bench_feed import Load, Round
from dsv.errors import Conflict, DsvError, Unreachable, made
from dsv.fs.errors import as_error
from dsv.fs.process import read_order

Range = tuple[int, int, int]
"""The number of a file, and the bytes of it from a start up to a stop."""
_SEED = 20
_PIECE = 4 << 20
"""Bytes of a read of a file."""
_TOGETHER = 32 << 20
"""Bytes that are read from a store at once: a batch of large samples would take too much memory."""


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
    sizes: Sequence[int], load: Load, accelerators: int, *, by_bytes: bool, seed: int
) -> Callable[[int, int], list[Range]]:
    """Return a function from an accelerator and a step to what is read then: files in a random order, again and again.

    Each accelerator has its own part of that order. sizes: of the files. by_bytes: a batch has as many bytes as the
    model's, and not as many files.
    """
    order = list(range(len(sizes)))
    Random(seed).shuffle(order)
    ends = list(accumulate(sizes[file] for file in order))

    def of_files(accelerator: int, number: int) -> list[Range]:
        first = number * load.batch
        places = (accelerator + accelerators * at for at in range(first, first + load.batch))
        files = [order[place % len(order)] for place in places]
        return [(file, 0, sizes[file]) for file in files]

    def of_bytes(accelerator: int, number: int) -> list[Range]:
        """Read the files one behind the other, without an end."""
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


class Training:
    """Accelerators that train together: each takes its next batch when it is there, computes, and waits for the others.

    Times are those of one clock. The computation of a step takes exactly the seconds of the load: whoever drives this
    may be late, and no step is longer for that.
    """

    def __init__(self, load: Load, accelerators: int, begin: float) -> None:
        self._load = load
        self._there: list[dict[int, float]] = [{} for _ in range(accelerators)]
        self._taken: dict[int, float] = {}
        self._warm = load.workers * load.depth
        """Steps before those that count: what was read ahead in the beginning has to be used up."""
        self._first_over: list[float] = []
        self.step = 0
        self.begins = [begin]
        """When each step began, and the last one that is not over."""

    @property
    def counted(self) -> int:
        """Steps that are over and count, the first of which is left out of the sums."""
        return max(0, self.step - self._warm)

    def ready(self, accelerator: int, number: int, at: float) -> None:
        """A batch was read. Those of one accelerator may come in any order."""
        self._there[accelerator][number] = at

    def take(self) -> list[int]:
        """Return the accelerators that take their batch of this step now."""
        found = [
            number
            for number, there in enumerate(self._there)
            if number not in self._taken and self.step in there
        ]
        for number in found:
            self._taken[number] = max(self.begins[-1], self._there[number].pop(self.step))
        return found

    def end(self) -> float | None:
        """Return when this step is over for all, or None if some wait for their batch."""
        if len(self._taken) < len(self._there):
            return None
        return max(self._taken.values()) + self._load.seconds

    def advance(self) -> None:
        """Begin the next step, which `end` has named the time of."""
        end = self.end()
        assert end is not None
        if self.step == self._warm:
            self._first_over = [at + self._load.seconds for at in self._taken.values()]
        self._taken = {}
        self.begins.append(end)
        self.step += 1

    @property
    def measured(self) -> tuple[float, float]:
        """Return between which times bytes count: from the end of the first step that counts to now."""
        return self.begins[self._warm + 1], self.begins[-1]

    def utilization(self) -> float:
        """Return the share of their time in which the accelerators computed, without the first step that counts.

        As DLIO does, it is the mean of all accelerators, and for each the time begins when its own first step is over.
        """
        computing = (self.counted - 1) * self._load.seconds
        shares = [computing / (self.begins[-1] - over) for over in self._first_over]
        return min(1.0, sum(shares) / len(shares))


class _Accelerators:
    def __init__(self, what: Round) -> None:
        self._what = what
        self._batch = batches(
            what.sizes, what.request.load, what.accelerators, by_bytes=what.request.by_bytes, seed=_SEED
        )
        self._workers: dict[int, Connection] = {}
        """By process; those of the first accelerator come first."""
        self._selector = DefaultSelector()
        self._read: dict[tuple[int, int], list[int]] = {}
        self._used = [0, 0, 0]
        """Bytes, files of which it is known if they were in the page cache, and how many were, of steps that count."""

    def run(self) -> dict[str, object]:
        """Start the workers, train, and end them."""
        _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
        try:
            for accelerator in range(self._what.accelerators):
                for worker in range(self._what.request.load.workers):
                    self._fork(accelerator, worker)
            self._selector.register(0, EVENT_READ)
            for pipe in self._workers.values():
                self._selector.register(pipe, EVENT_READ)
            return self._train()
        finally:
            for pid in self._workers:  # which may be in a read that does not end, so nobody waits for them
                os.kill(pid, signal.SIGKILL)

    def _fork(self, accelerator: int, worker: int) -> None:
        ours, theirs = Pipe()
        pid = os.fork()
        if pid:
            theirs.close()
            self._workers[pid] = ours
            return
        try:
            os.close(0)
            self._selector.close()
            for other in (*self._workers.values(), ours):
                other.close()  # or the pipes of others would not end with this process's parent
            with suppress(EOFError, OSError):
                self._work(accelerator, worker, theirs)
        finally:
            os._exit(0)

    def _work(self, accelerator: int, worker: int, pipe: Connection) -> None:
        """Read every `workers`-th batch of an accelerator, each when it is ordered, and say when it was there."""
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
            pipe.send((accelerator, number, time.monotonic(), size, files, warm))

    def _train(self) -> dict[str, object]:
        what, load = self._what.request, self._what.request.load
        training = Training(load, self._what.accelerators, time.monotonic())
        workers = [*self._workers.values()]
        for _ in range(load.depth):
            for worker in workers:
                worker.send_bytes(b"")
        before = self._processor()
        while True:
            for accelerator in training.take():
                counts = self._read.pop((accelerator, training.step))
                if training.counted:  # which leaves out the first one
                    self._used = [sum(pair) for pair in zip(self._used, counts, strict=True)]
                workers[accelerator * load.workers + training.step % load.workers].send_bytes(b"")
            end, now = training.end(), time.monotonic()
            if end is None or now < end:
                self._listen(training, None if end is None else end - now)
                continue
            training.advance()
            if training.counted == 1:
                before = self._processor()
            if training.counted >= 2:
                first, last = training.measured
                if training.counted >= what.steps or last - first >= what.seconds:
                    return self._result(training, before)

    def _listen(self, training: Training, seconds: float | None) -> None:
        """Take what workers have read until then. Raises what one of them has raised."""
        for key, _ in self._selector.select(seconds):
            if not isinstance(key.fileobj, Connection):
                raise SystemExit(1)
            try:
                said = key.fileobj.recv()
            except (EOFError, OSError):
                raise Unreachable("a process that reads was killed") from None
            if isinstance(said[0], str):
                raise made(*said)
            accelerator, number, at, *counts = said
            training.ready(accelerator, number, at)
            self._read[accelerator, number] = counts

    def _result(self, training: Training, before: tuple[float, float]) -> dict[str, object]:
        after = self._processor()
        first, last = training.measured
        size, files, warm = self._used
        utilization = training.utilization()
        return {
            "au": utilization,
            "passed": utilization >= self._what.request.load.mark,
            "steps": training.counted,
            "seconds": last - first,
            "bytes": size,
            "bytes_per_second": size / (last - first),
            "cpu_per_gb": (after[0] - before[0]) / size * 1e9 if size else None,
            "host_cpu_per_gb": (after[1] - before[1]) / size * 1e9 if size else None,
            "page_cache": warm / files if files else None,
        }

    def _processor(self) -> tuple[float, float]:
        """Return the processor seconds of this process and the workers, and of all processes of this host."""
        own = [_ticks(f"/proc/{pid}/stat", b") ", (11, 12)) for pid in (os.getpid(), *self._workers)]
        busy = _ticks("/proc/stat", b"cpu ", (0, 1, 2, 5, 6))
        each = os.sysconf("SC_CLK_TCK")
        return sum(own) / each, busy / each


def _ticks(path: str, behind: bytes, places: Sequence[int]) -> int:
    """Return the sum of some numbers of a file in /proc, counted from what they follow."""
    with open(path, "rb") as file:  # noqa: PTH123
        words = file.read().partition(behind)[2].split()
    return sum(int(words[place]) for place in places)


def _read_commit(what: Round, asked: Sequence[Range]) -> tuple[int, int]:
    """Read ranges from the store, some MB at once, each byte checked against its id. Returns as `_files_reader`."""
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
    """Return what reads ranges of files into memory that it has.

    It returns of how many files it is known if they were in the page cache, and how many of them were.
    """
    buffer = memoryview(bytearray(_PIECE))

    def forget(file: int) -> None:
        if what.request.drop:
            os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)

    def is_warm(file: int, at: int) -> bool | None:
        """Return whether the next byte is in the page cache; None if the file system does not tell."""
        try:
            return os.preadv(file, [buffer[:1]], at, os.RWF_NOWAIT) > 0 or None
        except BlockingIOError:
            return False
        except OSError:
            return None

    def read(path: str, start: int, stop: int) -> bool | None:
        try:
            file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                forget(file)
                warm = is_warm(file, start)
                at = start
                while at < stop:
                    count = os.preadv(file, [buffer[: stop - at]], at)
                    if not count:
                        raise Conflict(f"{path} has become shorter while it was read", subject=path)
                    at += count
                forget(file)
            finally:
                os.close(file)
        except OSError as error:
            raise as_error(error, path) from error
        return warm

    def read_all(asked: Sequence[Range]) -> tuple[int, int]:
        found = [read(what.paths[file], start, stop) for file, start, stop in asked]
        known = [one for one in found if one is not None]
        return len(known), sum(known)

    return read_all


if __name__ == "__main__":
    main()
