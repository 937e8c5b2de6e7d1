"""Sets of many ids, sorted, in files: tens of millions of ids take tens of megabytes of memory."""

from __future__ import annotations

import shutil
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from dsv.format.envelope import Buffer

Heads: TypeAlias = NDArray[np.uint64]
"""The first 8 bytes of ids, as numbers whose order is that of the ids."""

_HELD = 1 << 20
"""Ids that are held in memory before they are written to the files."""
_SLACK = 1 << 14
"""Ids by which a file grows beyond twice its sorted part before it is sorted again."""


def heads_of(ids: Buffer) -> Heads:
    """Return the heads of concatenated 32-byte ids. Raises `ValueError` for an incomplete id."""
    if len(ids) % 32:
        raise ValueError(f"{len(ids)} bytes are not ids of 32 bytes each")
    return np.frombuffer(ids, ">u8")[::4].astype(np.uint64)


def is_in(heads: Heads, among: Heads) -> NDArray[np.bool_]:
    """Return for each head whether it is in `among`, which is sorted."""
    if not len(among):
        return np.zeros(len(heads), np.bool_)
    found = np.searchsorted(among, heads)
    found[found == len(among)] = 0
    same: NDArray[np.bool_] = among[found] == heads
    return same


class IdSet(AbstractContextManager["IdSet"]):
    """Many ids, in 256 files of a folder by their first byte, each a sorted array of unsigned 64-bit numbers.

    A number is the first 8 bytes of an id, big-endian. Two of 50 million ids share them with a probability of
    about 1 in 15,000; an id then counts as in the set though it is not, which a caller must tolerate.
    """

    def __init__(self, folder: Path) -> None:
        """folder: created here, and removed with its content by `__exit__`."""
        self._folder = folder
        self._folder.mkdir(parents=True)
        self._held: list[Heads] = []
        self._count = 0
        self._sorted = [0] * 256
        """How many numbers at the beginning of each file are sorted and unique."""
        self._written = [0] * 256

    def __exit__(self, *_: object) -> None:
        self._held.clear()
        shutil.rmtree(self._folder, ignore_errors=True)

    def add(self, ids: Buffer) -> None:
        """Add concatenated 32-byte ids."""
        self.add_heads(heads_of(ids))

    def add_heads(self, heads: Heads) -> None:
        """Add the numbers of ids, in any order."""
        self._held.append(heads)
        self._count += len(heads)
        if self._count >= _HELD:
            self._write()

    def bucket(self, first: int) -> Heads:
        """Return the numbers of the ids that begin with this byte, sorted, each once."""
        self._write()
        found = self._read(first)
        if self._sorted[first] < len(found):
            found = self._sort(first, found)
        return found

    def __len__(self) -> int:
        return sum(len(self.bucket(first)) for first in range(256))

    def _write(self) -> None:
        if not self._held:
            return
        heads = np.unique(np.concatenate(self._held))
        self._held.clear()
        self._count = 0
        ends = np.searchsorted(heads, np.arange(1, 256, dtype=np.uint64) << np.uint64(56))
        for first, part in enumerate(np.split(heads, ends)):
            if len(part):
                with self._path(first).open("ab") as file:
                    file.write(part.data)
                self._written[first] += len(part)
                if self._written[first] > 2 * self._sorted[first] + _SLACK:
                    self._sort(first, self._read(first))

    def _sort(self, first: int, heads: Heads) -> Heads:
        found = np.unique(heads)
        self._path(first).write_bytes(found.data)
        self._sorted[first] = self._written[first] = len(found)
        return found

    def _read(self, first: int) -> Heads:
        if not self._written[first]:
            return np.zeros(0, np.uint64)
        return np.fromfile(self._path(first), np.uint64)

    def _path(self, first: int) -> Path:
        return self._folder / f"{first:02x}"


class Seen:
    """Ids that were seen, in memory: 16 bytes of each, which no two ids share."""

    def __init__(self) -> None:
        self._levels: list[tuple[Heads, Heads]] = []
        """Sorted by the first number; each level has less than half as many as the one before it."""

    def __len__(self) -> int:
        return sum(len(firsts) for firsts, _ in self._levels)

    def add(self, ids: Buffer) -> NDArray[np.bool_]:
        """Add 32-byte ids; return for each whether it is new. Of equal new ids only the first is."""
        words = np.frombuffer(ids, ">u8").reshape(-1, 4)
        firsts, seconds = words[:, 0].astype(np.uint64), words[:, 1].astype(np.uint64)
        order = np.lexsort((seconds, firsts))
        firsts, seconds = firsts[order], seconds[order]
        new = np.ones(len(order), np.bool_)
        new[1:] = (firsts[1:] != firsts[:-1]) | (seconds[1:] != seconds[:-1])
        for level in self._levels:
            new &= ~_pairs_in(firsts, seconds, *level)
        if new.any():
            self._keep(firsts[new], seconds[new])
        found = np.zeros(len(order), np.bool_)
        found[order] = new
        return found

    def _keep(self, firsts: Heads, seconds: Heads) -> None:
        while self._levels and 2 * len(firsts) >= len(self._levels[-1][0]):
            other = self._levels.pop()
            firsts, seconds = (np.concatenate(pair) for pair in zip(other, (firsts, seconds), strict=True))
            order = np.argsort(firsts, kind="stable")
            firsts, seconds = firsts[order], seconds[order]
        self._levels.append((firsts, seconds))


def _pairs_in(firsts: Heads, seconds: Heads, among: Heads, their: Heads) -> NDArray[np.bool_]:
    at = np.searchsorted(among, firsts)
    found = np.zeros(len(firsts), np.bool_)
    left = np.flatnonzero(at < len(among))
    while len(left):  # once, except for different ids with an equal first number
        left = left[among[at[left]] == firsts[left]]
        found[left] = their[at[left]] == seconds[left]
        left = left[~found[left]]
        at[left] += 1
        left = left[at[left] < len(among)]
    return found
