"""The order of samples: a pure function of a `TrainingPlan` and the epoch.

Adjacent samples form a block, which is read as a whole. Blocks begin in an order in which each stretch is
spread evenly over all paths, because the paths of a dataset are often sorted by class. Each sample has a
place: the start of its block plus a random part of the window. Samples are delivered in the order of their
places, so the blocks needed at a time take no more memory than the window.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import msgspec
import numpy as np

VERSION = 1
"""Is increased when an order changes."""
Numbers = Any
"""A numpy array of integers."""
Run = tuple[Numbers, Numbers]
"""Samples, and the lane of each: a number that all samples of a block share in an epoch. Ranks take samples
by lane, so that few ranks need the same block."""

_BLOCK, _LARGEST = 4 << 20, 8 << 20
"""Bytes of a block: on average, unless its samples are very large or very small; and at most, unless it is
one sample."""
_MOST, _FEW = 256, 16
"""Samples of a block: at most, and at least if it is not too large."""
_STEP = 1 << 18
"""Samples handled at a time, in addition to those of a window."""


class Shape(NamedTuple):
    """How the samples of one commit, numbered in the order of their paths, are cut into blocks."""

    starts: Numbers
    """The first sample of each block, and last the number of all samples."""
    volumes: Numbers
    """Bytes of each block."""

    @classmethod
    def of(cls, sizes: Numbers) -> Shape:
        """sizes: bytes of each sample. Blocks have about equally many samples, so that large and small
        samples mix."""
        count = len(sizes)
        ends = np.concatenate(([0], np.cumsum(sizes, dtype=np.int64)))
        many = min(_MOST, max(_FEW, count * _BLOCK // max(1, int(ends[-1]))))
        groups = np.arange(count) // many
        parts = (ends[:-1] - ends[groups * many]) // _LARGEST
        new = (np.diff(groups, prepend=-1) != 0) | (np.diff(parts, prepend=-1) != 0)
        starts = np.append(np.flatnonzero(new), count)
        return cls(starts, np.diff(ends[starts]))

    @property
    def samples(self) -> int:
        return int(self.starts[-1])

    def block_of(self, samples: Numbers) -> Numbers:
        """Return the block of each sample."""
        return np.searchsorted(self.starts, samples, "right") - 1


class TrainingPlan(msgspec.Struct, frozen=True):
    """Everything that determines the order of a training on one commit, or on a mixture of several."""

    shapes: Sequence[Shape]
    weights: Sequence[float]
    """The share of each in the samples, relative to their sum."""
    seed: int
    window: int
    """Bytes. A commit that is smaller than its share of them is shuffled as a whole."""
    shuffle: bool
    length: int
    """Samples of an epoch. In a mixture, a commit starts again when all of its samples were delivered."""

    def sequence(self, epoch: int, start: int = 0) -> Iterator[Run]:
        """Yield the samples of an epoch from a position on, any number at a time. The numbers of a second
        commit follow those of the first."""
        first, end = epoch * self.length + start, (epoch + 1) * self.length
        streams = [_Stream(self, at, taken) for at, taken in enumerate(self._taken(first))]
        offsets = np.cumsum([0, *(shape.samples for shape in self.shapes)])
        for chosen in self._choices(first, end):
            samples, lanes = np.empty(len(chosen), np.int64), np.empty(len(chosen), np.int64)
            for at, stream in enumerate(streams):
                here = chosen == at
                found, lanes[here] = stream.take(int(here.sum()))
                samples[here] = found + offsets[at]
            yield samples, lanes

    def batches(
        self, epoch: int, start: int, size: int, rank: int = 0, world: int = 1, drop_last: bool = False
    ) -> Iterator[tuple[int, Numbers]]:
        """Yield the batches of one rank from a position on, each with the position of the next step.

        size: of a batch. A step takes the next samples for all ranks. If the last step has fewer, the ranks
        share them evenly, and the step before it leaves one for each rank; drop_last drops that step."""
        sequence, held = self.sequence(epoch, start), (np.empty(0, np.int64), np.empty(0, np.int64))
        for count in self.steps(start, size, world, drop_last):
            while len(held[0]) < count:
                samples, lanes = next(sequence)
                held = np.concatenate((held[0], samples)), np.concatenate((held[1], lanes))
            samples, lanes = held[0][:count], held[1][:count]
            held, start = (held[0][count:], held[1][count:]), start + count
            if world > 1:
                samples = samples[np.argsort(lanes, kind="stable")]
                samples = samples[count * rank // world : count * (rank + 1) // world]
            if len(samples):
                yield start, samples

    def steps(self, start: int, size: int, world: int, drop_last: bool) -> Iterator[int]:
        """Yield how many samples each step from a position on takes, for all ranks together."""
        left = self.length - start
        while left >= size * world or (left > 0 and not drop_last):
            count = min(left, size * world)
            short = world - (left - count)
            if 0 < left - count < world <= count - short and not drop_last:
                count -= short
            yield count
            left -= count

    def of_one(self, at: int, epoch: int, start: int) -> Iterator[Run]:
        """Yield the samples of one commit, from a position in one of its own epochs on."""
        shape = self.shapes[at]
        if not self.shuffle:
            for first in range(start, shape.samples, _STEP):
                samples = np.arange(first, min(first + _STEP, shape.samples))
                yield samples, np.zeros(len(samples), np.int64)
            return
        key = _key(self.seed, at, epoch)
        yield from _shuffled(shape, int(self.window * self.weights[at] / sum(self.weights)), key, start)

    def _taken(self, first: int) -> list[int]:
        """Return how many samples of each commit precede a position of the training."""
        if len(self.shapes) == 1:
            return [first]
        counts = np.zeros(len(self.shapes), np.int64)
        for chosen in self._choices(0, first):
            counts += np.bincount(chosen, minlength=len(counts))
        return [int(count) for count in counts]

    def _choices(self, first: int, end: int) -> Iterator[Numbers]:
        """Yield the commit of the sample at each position of the training."""
        bounds = np.cumsum(np.asarray(self.weights, np.float64)) / sum(self.weights)
        key = np.uint64(_key(self.seed, len(self.shapes), 0))
        for at in range(first, end, _STEP):
            places = np.arange(at, min(at + _STEP, end), dtype=np.uint64)
            if len(bounds) == 1:
                yield np.zeros(len(places), np.int64)
                continue
            chance = (_mixed(places ^ key) >> np.uint64(11)) / float(1 << 53)
            yield np.minimum(np.searchsorted(bounds, chance, "right"), len(bounds) - 1)


class _Stream:
    """The samples of one commit, epoch after epoch."""

    def __init__(self, plan: TrainingPlan, at: int, taken: int) -> None:
        self._plan, self._at = plan, at
        self._epoch, start = divmod(taken, max(1, plan.shapes[at].samples))
        self._runs = plan.of_one(at, self._epoch, start)
        self._held: Run = (np.empty(0, np.int64), np.empty(0, np.int64))

    def take(self, count: int) -> Run:
        parts: list[Run] = [(np.empty(0, np.int64), np.empty(0, np.int64))]
        while count:
            while not len(self._held[0]):
                found = next(self._runs, None)
                if found is None:
                    self._epoch += 1
                    self._runs = self._plan.of_one(self._at, self._epoch, 0)
                else:
                    self._held = found
            samples, lanes = self._held
            parts.append((samples[:count], lanes[:count]))
            self._held = samples[count:], lanes[count:]
            count -= len(parts[-1][0])
        samples, lanes = map(np.concatenate, zip(*parts, strict=True))
        return samples, lanes


def _shuffled(shape: Shape, window: int, key: int, start: int) -> Iterator[Run]:
    starts = shape.starts
    blocks = _block_order(len(shape.volumes), key)
    lane = np.empty(len(blocks), np.int64)
    lane[blocks] = np.arange(len(blocks), dtype=np.int64) * 2654435769 & 0xFFFFFFFF
    volumes = shape.volumes[blocks]
    begins = np.cumsum(volumes) - volumes
    # At first the window grows, so that the first samples need not wait for all of it.
    spread = np.minimum(begins + window // 4, window)
    whole = int(volumes.sum()) <= window
    if whole:
        begins, spread = np.zeros_like(begins), np.full_like(begins, window)
    last = len(blocks)
    samples, places, lots = (np.empty(0, kind) for kind in (np.int64, np.uint64, np.uint64))
    at = 0
    while at < last:
        reach = int(np.searchsorted(begins, int(begins[at]) + window // 16, "right"))
        end = last if whole else min(last, max(at + 1, min(reach, at + _STEP // _MOST)))
        chosen = blocks[at:end]
        counts = starts[chosen + 1] - starts[chosen]
        new = np.repeat(starts[chosen], counts) + _counting(counts)
        lot = _mixed(new.astype(np.uint64) ^ np.uint64(key))
        place = _places(begins[at:end], spread[at:end], counts, lot)
        samples, places, lots = map(np.concatenate, ((samples, new), (places, place), (lots, lot)))
        at = end
        ready = np.ones(len(places), bool) if at == last else places < np.uint64(begins[at])
        count = int(ready.sum())
        if start < count:
            found = samples[ready][np.lexsort((lots[ready], places[ready]))][start:]
            yield found, lane[shape.block_of(found)]
        start = max(0, start - count)
        samples, places, lots = samples[~ready], places[~ready], lots[~ready]


def _places(begins: Numbers, spread: Numbers, counts: Numbers, lot: Numbers) -> Numbers:
    """Return the place of each sample: a block divides its spread evenly among its samples, at random."""
    block = np.repeat(np.arange(len(counts)), counts)
    turn = np.empty(len(lot), np.int64)
    turn[np.lexsort((lot, block))] = _counting(counts)
    within = turn.astype(np.uint64) << np.uint64(16) | _mixed(lot) >> np.uint64(48)
    room, many = (np.repeat(each, counts).astype(np.uint64) for each in (spread, counts))
    return np.repeat(begins, counts).astype(np.uint64) + within * room // (many << np.uint64(16))


def _block_order(count: int, key: int) -> Numbers:
    """Return the numbers below `count` in an order in which each stretch is spread evenly over all of them: a
    van der Corput sequence, scrambled by the key."""
    bits = max(1, (count - 1).bit_length())
    counter = np.arange(1 << bits, dtype=np.uint64)
    value = np.zeros_like(counter)
    one = np.uint64(1)
    for bit in range(bits):
        # The bits so far are the upper ones of the result, and decide whether the next one is flipped.
        path = value | np.uint64(1 << bit)
        flip = _mixed(path ^ np.uint64(key)) >> np.uint64(63)
        value = value << one | ((counter >> np.uint64(bit)) & one) ^ flip
    return value[value < np.uint64(count)].astype(np.int64)


def _key(seed: int, source: int, epoch: int) -> int:
    found = np.zeros(1, np.uint64)
    for word in (seed & 0xFFFFFFFFFFFFFFFF, source, epoch):
        found = _mixed(found ^ np.uint64(word))
    return int(found[0])


def _mixed(values: Numbers) -> Numbers:
    """Return a random number of 64 bits for each value: SplitMix64."""
    bits = values + np.uint64(0x9E3779B97F4A7C15)
    bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return bits ^ (bits >> np.uint64(31))


def _counting(counts: Numbers) -> Numbers:
    """Return the numbers below each count, one count after the other."""
    return np.arange(int(counts.sum()), dtype=np.int64) - np.repeat(np.cumsum(counts) - counts, counts)
