"""How many accelerators data can feed: the models of MLPerf Storage, who reads which bytes, and the sums. No I/O.

The figures are those of the files `configs/dlio/workload/MODEL_ACCELERATOR.yaml` of github.com/mlcommons/storage.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from random import Random

from dsv.errors import UsageError

Range = tuple[int, int, int]
"""The number of a file, and the bytes of it from a start up to a stop."""
PREFETCH = 2
"""Batches that are read ahead (`prefetch_size` of DLIO). Each worker reads one at least."""


@dataclass(frozen=True, slots=True)
class Load:
    """What one accelerator asks for, by a model of MLPerf Storage."""

    model: str
    accelerator: str
    versions: str
    """Of MLPerf Storage, in which it is measured so."""
    batch: int
    """Samples of a step."""
    seconds: float
    """The computation time of a step."""
    sample: int
    """Bytes of a sample, on average."""
    spread: int
    """The standard deviation of these."""
    workers: int
    """Processes that read for one accelerator (`read_threads`)."""
    mark: float
    """The accelerator utilization that has to be reached."""
    per_file: int = 1
    """Samples in a file. If there are several, a batch is a run of bytes."""

    @property
    def batch_bytes(self) -> int:
        return self.batch * self.sample

    @property
    def depth(self) -> int:
        """Return how many batches a worker reads ahead, as PyTorch's loader under DLIO."""
        return -(-PREFETCH // self.workers)

    def sizes(self, total: int, seed: int) -> Iterator[int]:
        """Yield sizes of files like the model's, until they have `total` bytes: normally distributed, 1 at least."""
        drawn, made = Random(seed), 0
        while made < total:
            size = max(1, round(drawn.gauss(self.sample, self.spread))) * self.per_file
            yield size
            made += size


_UNET3D, _RETINANET = (146_600_628, 68_341_808, 4, 0.90), (322_957, 0, 8, 0.85)
_RESNET50, _COSMOFLOW = (114_660, 0, 8, 0.90, 1251), (2_828_486, 71_311, 4, 0.70)
LOADS = (
    Load("unet3d", "b200", "v3.0", 7, 0.162, *_UNET3D),
    Load("unet3d", "h100", "v1.0 and v2.0", 7, 0.323, *_UNET3D),
    Load("unet3d", "a100", "v1.0 and v2.0", 7, 0.636, *_UNET3D),
    Load("retinanet", "b200", "v3.0", 24, 0.04755, *_RETINANET),
    Load("retinanet", "mi355", "v3.0", 32, 0.0634, *_RETINANET),
    Load("resnet50", "h100", "v1.0 and v2.0", 400, 0.224, *_RESNET50),
    Load("resnet50", "a100", "v1.0 and v2.0", 400, 0.435, *_RESNET50),
    Load("cosmoflow", "h100", "v1.0 and v2.0", 1, 0.0035, *_COSMOFLOW),
    Load("cosmoflow", "a100", "v1.0 and v2.0", 1, 0.00551, *_COSMOFLOW),
)
MODELS = tuple(dict.fromkeys(load.model for load in LOADS))
ACCELERATORS = tuple(dict.fromkeys(load.accelerator for load in LOADS))


def find_load(model: str, accelerator: str | None) -> Load:
    """Return the load of a model on an accelerator; without one, on the first that MLPerf Storage has for it.

    Raises `UsageError` if there is none.
    """
    for load in LOADS:
        if load.model == model and accelerator in (load.accelerator, None):
            return load
    known = [load.accelerator for load in LOADS if load.model == model]
    if not known:
        raise UsageError(f"there is no model {model!r}", subject=model, hint=f"--model {'|'.join(MODELS)}")
    assert accelerator is not None
    raise UsageError(
        f"no version of MLPerf Storage has a computation time of {model} on {accelerator!r}",
        subject=accelerator,
        hint=f"--accelerator {'|'.join(known)}",
    )


class Batches:
    """Which bytes each accelerator reads in each step: the files in a random order, again and again.

    Each accelerator has its own part of that order. It is a pure function of what it is made of, so that any process
    can find out any batch.
    """

    def __init__(
        self, sizes: Sequence[int], load: Load, accelerators: int, *, by_bytes: bool, seed: int
    ) -> None:
        """sizes: of the files. by_bytes: a batch has as many bytes as the model's, and not as many files."""
        self._sizes, self._load, self._accelerators = sizes, load, accelerators
        self._order = list(range(len(sizes)))
        Random(seed).shuffle(self._order)
        self._by_bytes = by_bytes
        self._ends = list(accumulate(sizes[file] for file in self._order)) if by_bytes else []

    def batch(self, accelerator: int, number: int) -> list[Range]:
        """Return what the accelerator reads for a step."""
        if self._by_bytes:
            begin = self._ends[-1] * accelerator // self._accelerators + number * self._load.batch_bytes
            return list(self._run(begin, begin + self._load.batch_bytes))
        first = number * self._load.batch
        places = (accelerator + self._accelerators * at for at in range(first, first + self._load.batch))
        files = [self._order[place % len(self._order)] for place in places]
        return [(file, 0, self._sizes[file]) for file in files]

    def _run(self, begin: int, end: int) -> Iterator[Range]:
        """Yield the ranges of the bytes from `begin` up to `end` of all files one behind the other, without an end."""
        total = self._ends[-1]
        while begin < end:
            place = bisect_right(self._ends, begin % total)
            file = self._order[place]
            start = begin % total - (self._ends[place] - self._sizes[file])
            stop = min(self._sizes[file], start + end - begin)
            yield file, start, stop
            begin += stop - start


class Training:
    """Accelerators that train together: each takes its next batch when it is there, computes, and waits for the others.

    Times are those of one clock. The computation of a step takes exactly the seconds of the load: whoever drives this
    may be late, and no step is longer for that.
    """

    def __init__(self, load: Load, accelerators: int, begin: float) -> None:
        self._load = load
        self._there: list[dict[int, float]] = [{} for _ in range(accelerators)]
        self._taken: list[float | None] = [None] * accelerators
        self.step = 0
        self.begins = [begin]
        """When each step began, and the last one that is not over."""
        self._warm = load.workers * load.depth
        self._first_over: list[float] = []

    @property
    def warm_up(self) -> int:
        """Steps before those that count: what was read ahead in the beginning has to be used up."""
        return self._warm

    @property
    def counted(self) -> int:
        """Steps that are over and count, the first of which is left out of the sums."""
        return max(0, self.step - self._warm)

    def ready(self, accelerator: int, number: int, at: float) -> None:
        """A batch was read. Those of one accelerator may come in any order."""
        self._there[accelerator][number] = at

    def take(self) -> list[int]:
        """Return the accelerators that take their batch of this step now."""
        found = []
        for number, there in enumerate(self._there):
            if self._taken[number] is None and self.step in there:
                self._taken[number] = max(self.begins[-1], there.pop(self.step))
                found.append(number)
        return found

    def end(self) -> float | None:
        """Return when this step is over for all, or None if some wait for their batch."""
        taken = [at for at in self._taken if at is not None]
        return max(taken) + self._load.seconds if len(taken) == len(self._taken) else None

    def advance(self) -> None:
        """Begin the next step, which `end` has named the time of."""
        end = self.end()
        assert end is not None
        if self.step == self._warm:
            self._first_over = [at + self._load.seconds for at in self._taken if at is not None]
        self._taken = [None] * len(self._taken)
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


def most_that_pass(passes: Callable[[int], bool], limit: int) -> int:
    """Return the largest number up to `limit` that passes, where the next one does not. 0 if 1 does not pass.

    passes: is called once for each number that is tried.
    """
    good, tried = 0, 1
    while tried <= limit and passes(tried):
        good = tried
        tried = limit if tried < limit < 2 * tried else 2 * tried
    bad = min(tried, limit + 1)
    while bad - good > 1:
        middle = (good + bad) // 2
        if passes(middle):
            good = middle
        else:
            bad = middle
    return good


__all__ = [
    "ACCELERATORS",
    "LOADS",
    "MODELS",
    "Batches",
    "Load",
    "Range",
    "Training",
    "find_load",
    "most_that_pass",
]
