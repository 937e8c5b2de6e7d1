"""Samples of commits for PyTorch 1.13 and later: two datasets and a loader. See docs/guide/training.md."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch.distributed
import torch.utils.data

from dsv.errors import Conflict, UsageError
from dsv.training.order import VERSION, TrainingPlan
from dsv.training.samples import Sample, Samples

Data = Samples | Sequence[tuple[Samples, float]]
"""Samples, or a mixture of samples with weights."""
Transform = Callable[[Sample], Any]

_ORDERED = 0.75
"""The part of a window in which samples are shuffled. The rest is for blocks read ahead or just used."""
_AHEAD = 0.125


class MapDataset(torch.utils.data.Dataset):  # type: ignore[misc]
    """Samples by number, for a `DataLoader` with any sampler. PyTorch 2 reads a batch with few requests."""

    def __init__(self, samples: Samples, transform: Transform | None = None) -> None:
        self.samples, self._transform = samples, transform

    def __len__(self) -> int:
        return len(self.samples)

    def __getitem__(self, number: int) -> Any:
        return self.__getitems__([number])[0]

    def __getitems__(self, numbers: Sequence[int]) -> list[Any]:
        return _transformed(self.samples.__getitems__(numbers), self._transform)


class StreamDataset(torch.utils.data.IterableDataset):  # type: ignore[misc]
    """The samples of one epoch, in the order of `Loader`. If `batch_size` is that of the `DataLoader`, the
    order is the same for any number of workers."""

    def __init__(
        self,
        data: Data,
        *,
        batch_size: int = 1,
        seed: int = 0,
        shuffle: bool = True,
        epoch: int = 0,
        rank: int | None = None,
        world_size: int | None = None,
        transform: Transform | None = None,
    ) -> None:
        """See `Loader`. Call `set_epoch` before each epoch."""
        self._sources, self._plan = _planned(data, seed, shuffle, None)
        self._batch_size, self._epoch, self._transform = batch_size, epoch, transform
        self._rank, self._world = _own_rank(rank, world_size)

    def set_epoch(self, epoch: int) -> None:
        """Set the next epoch. Persistent workers do not see it."""
        self._epoch = epoch

    def __iter__(self) -> Iterator[Any]:
        worker = torch.utils.data.get_worker_info()
        first, every = (0, 1) if worker is None else (worker.id, worker.num_workers)
        batches = self._plan.batches(self._epoch, 0, self._batch_size, self._rank, self._world)
        own = (batch for at, batch in enumerate(batches) if at % every == first)
        read = _Batches(self._sources, self._transform)
        for asked in _asked(self._sources, self._plan, own):
            yield from read[asked]


class Loader:
    """Batches of samples, epoch after epoch. The order depends on the samples, the window, the seed and the
    epoch, not on the number of workers and ranks. `state_dict` returns the position in it."""

    def __init__(
        self,
        data: Data,
        batch_size: int,
        *,
        seed: int = 0,
        shuffle: bool = True,
        drop_last: bool = False,
        rank: int | None = None,
        world_size: int | None = None,
        transform: Transform | None = None,
        length: int | None = None,
        **options: Any,
    ) -> None:
        """batch_size: samples for one rank. rank, world_size: by default those of `torch.distributed`.
        transform: is called with each sample, in the workers. length: samples in an epoch of a mixture.
        options: of a `DataLoader`, such as `num_workers`, `collate_fn` and `pin_memory`."""
        refused = {"batch_sampler", "dataset", "sampler"} & options.keys()
        if refused or batch_size < 1:
            raise UsageError(
                f"{', '.join(sorted(refused)) or f'the batch size {batch_size}'} can't be used here",
                hint="dsv.torch.MapDataset goes into a DataLoader of your own",
            )
        self._sources, self._plan = _planned(data, seed, shuffle, length)
        self._batch_size, self._drop_last = batch_size, drop_last
        self._rank, self._world = _own_rank(rank, world_size)
        self._ends: deque[int] = deque()
        self._epoch = self._place = 0
        collate = options.pop("collate_fn", None) or torch.utils.data.default_collate
        self._asks = _Asks()
        self._loader = torch.utils.data.DataLoader(
            _Batches(self._sources, transform), None, sampler=self._asks, collate_fn=collate, **options
        )

    @property
    def epoch(self) -> int:
        """The epoch that is under way, or the next one."""
        return self._epoch

    def set_epoch(self, epoch: int) -> None:
        """Go to the beginning of an epoch."""
        self._epoch, self._place = epoch, 0

    def __len__(self) -> int:
        """Return the number of this rank's batches in a whole epoch."""
        rank, world = self._rank, self._world
        steps = self._plan.steps(0, self._batch_size, world, self._drop_last)
        return sum(count * (rank + 1) // world > count * rank // world for count in steps)

    def __iter__(self) -> Iterator[Any]:
        """Yield the batches of this epoch that were not delivered yet, then advance to the next epoch."""
        self._ends.clear()
        rank, drop = (self._rank, self._world), self._drop_last
        batches = self._plan.batches(self._epoch, self._place, self._batch_size, *rank, drop)
        self._asks.asked = _asked(self._sources, self._plan, batches, self._ends)
        windows = [source.ready() for source in self._sources] if self._loader.num_workers else []
        for batch in self._loader:
            while windows:
                if (window := windows.pop()) is not None:
                    window.close()  # the workers have it open
            self._place = self._ends.popleft()
            yield batch
        self._epoch, self._place = self._epoch + 1, 0

    def state_dict(self) -> dict[str, Any]:
        """Return how far the samples were delivered to all ranks together, in a few hundred bytes."""
        return {**self._identity(), "epoch": self._epoch, "place": self._place}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue after the samples delivered when the state was taken, with any number of workers and
        ranks. Raises `Conflict` for the state of other samples or of another order."""
        own = self._identity()
        different = [key for key, value in own.items() if state.get(key) != value]
        if different:
            said = ", ".join(f"{key}: {state.get(key)} there, {own[key]} here" for key in different)
            raise Conflict(
                f"the state is of another order of samples ({said})",
                subject="state",
                hint="the same commits, patterns, seed, shuffle, window and weights are needed; or files were erased "
                "since then, and set_epoch begins an epoch of those that are left",
            )
        self._epoch, self._place = int(state["epoch"]), int(state["place"])

    def _identity(self) -> dict[str, Any]:
        plan = self._plan
        return {
            "version": VERSION,
            "samples": [one.name for one in self._sources],
            "weights": list(plan.weights),
            "seed": plan.seed,
            "shuffle": plan.shuffle,
            "window": plan.window,
            "length": plan.length,
        }


class _Ask(NamedTuple):
    """A worker's task for a batch: samples, numbered across sources, and blocks to read ahead, by source."""

    samples: Any
    ahead: list[tuple[int, list[int]]]


class _Asks(torch.utils.data.Sampler):  # type: ignore[misc]
    """A sampler that yields what to read for the batches of an epoch. It does not know its loader: no cycle keeps
    that, and the connections to its windows."""

    def __init__(self) -> None:
        self.asked: Iterator[_Ask] = iter(())

    def __iter__(self) -> Iterator[_Ask]:
        return self.asked

    def __reduce__(self) -> tuple[Any, ...]:
        return _Asks, ()


class _Batches(torch.utils.data.Dataset):  # type: ignore[misc]
    """The samples that a worker reads for an `_Ask`."""

    def __init__(self, sources: Sequence[Samples], transform: Transform | None) -> None:
        self._sources, self._transform = sources, transform
        self._offsets = np.cumsum([0, *map(len, sources)])

    def __getitem__(self, asked: _Ask) -> list[Any]:
        samples: list[Sample | None] = [None] * len(asked.samples)
        ahead = dict(asked.ahead)
        of = np.searchsorted(self._offsets, asked.samples, "right") - 1
        for at in sorted({*map(int, of), *ahead}):
            source, places = self._sources[at], np.flatnonzero(of == at)
            numbers = asked.samples[places] - self._offsets[at]
            contents = source.read_ahead(numbers, ahead.get(at, ()))
            for place, number, data in zip(places, numbers, contents, strict=True):
                samples[place] = Sample(source.path(number), data)
        return _transformed([sample for sample in samples if sample is not None], self._transform)


def _transformed(samples: list[Sample], transform: Transform | None) -> list[Any]:
    return list(samples) if transform is None else [transform(one) for one in samples]


def _planned(data: Data, seed: int, shuffle: bool, length: int | None) -> tuple[list[Samples], TrainingPlan]:
    """Return the sources, which share one window, and the plan of their order."""
    chosen = [(data, 1.0)] if isinstance(data, Samples) else list(data)
    if not chosen or any(weight <= 0 for _, weight in chosen):
        raise UsageError("a mixture needs samples, each with a weight above 0", hint="[(samples, 0.7), …]")
    weights = [weight / sum(weight for _, weight in chosen) for _, weight in chosen]
    window = max(samples.window for samples, _ in chosen)
    sources = [
        samples.with_window(max(1 << 20, int(window * weight)))
        for (samples, _), weight in zip(chosen, weights, strict=True)
    ]
    count = sum(map(len, sources)) if length is None else length
    shapes = [samples.shape for samples in sources]
    return sources, TrainingPlan(shapes, weights, seed, int(window * _ORDERED), shuffle, count)


def _own_rank(rank: int | None, world: int | None) -> tuple[int, int]:
    there = torch.distributed.is_available() and torch.distributed.is_initialized()
    if world is None:
        world = torch.distributed.get_world_size() if there else 1
    if rank is None:
        rank = torch.distributed.get_rank() if there else 0
    if not 0 <= rank < world:
        raise UsageError(f"there is no rank {rank} in a world of {world}", hint="ranks count from 0")
    return rank, world


def _asked(
    sources: Sequence[Samples],
    plan: TrainingPlan,
    batches: Iterator[tuple[int, Any]],
    ends: deque[int] | None = None,
) -> Iterator[_Ask]:
    """Yield what to read for each batch, with the blocks that later batches need for the first time.
    ends: receives the position after each batch."""
    offsets = np.cumsum([0, *map(len, sources)])
    known: list[set[int]] = [set() for _ in sources]
    waiting: deque[tuple[int, Any, int]] = deque()
    room, held = plan.window / _ORDERED * _AHEAD, 0
    new: dict[int, list[int]] = {}
    more = True
    while more or waiting:
        while more and (held < room or not waiting):
            found = next(batches, None)
            if found is None:
                more = False
                break
            samples, size = found[1], 0
            of = np.searchsorted(offsets, samples, "right") - 1
            for at in map(int, np.unique(of)):
                numbers = samples[of == at] - offsets[at]
                for block in map(int, plan.shapes[at].block_of(numbers)):
                    if block not in known[at]:
                        known[at].add(block)
                        new.setdefault(at, []).append(block)
                        size += int(plan.shapes[at].volumes[block])
            held += size
            waiting.append((found[0], samples, size))
        if waiting:
            end, samples, size = waiting.popleft()
            held -= size
            if ends is not None:
                ends.append(end)
            yield _Ask(samples, list(new.items()))
            new = {}
