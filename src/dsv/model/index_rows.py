"""Merging index files: all their rows, each once, in files of a limited size that follow each other by id."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from dsv.model.columns import cut
from dsv.model.ids import PackId
from dsv.model.index import ERASED, PREFIX_SIZE, ROW_SIZE, Index, join, renumber


def merge_all(indexes: Sequence[Index], rows_per_file: int) -> Iterator[bytes]:
    """Index files with all the rows of these.

    An object that lies in several places has a row for each of them, in files of their own, since one of the packs may
    be lost. A row that says that an object was erased takes the place of all others. About `rows_per_file` rows are in
    a file at most: what begins with one byte is not cut.
    """
    packs: dict[PackId, int] = {}
    numbers = [[packs.setdefault(pack, len(packs)) for pack in one.packs] for one in indexes]
    names = list(packs)
    layers: list[_Layer] = []
    for bucket in range(256):
        rows = bytearray()
        for one, numbered in zip(indexes, numbers, strict=True):
            mine = bytearray(one.bucket(bucket))
            renumber(mine, numbered)
            rows += mine
        for depth, layer in enumerate(_layers(bytes(rows))):
            if depth == len(layers):
                layers.append(_Layer(names))
            if layers[depth].rows + len(layer) > rows_per_file and layers[depth].rows:
                yield layers[depth].finish()
            layers[depth].add(bucket, layer)
    for one_layer in layers:
        if one_layer.rows:
            yield one_layer.finish()


class _Layer:
    """A file that is being filled."""

    def __init__(self, packs: list[PackId]) -> None:
        self._packs = packs
        self._buckets: list[list[bytes]] = [[] for _ in range(256)]
        self.rows = 0

    def add(self, bucket: int, rows: list[bytes]) -> None:
        self._buckets[bucket] = rows
        self.rows += len(rows)

    def finish(self) -> bytes:
        """The file; what is added from now on is in the next one."""
        encoded = join(self._packs, self._buckets)
        self._buckets, self.rows = [[] for _ in range(256)], 0
        return encoded


def _layers(bucket: bytes) -> list[list[bytes]]:
    """The rows, sorted and each once: first one of each object, then the second places, and so on."""
    first: dict[bytes, bytes] = {}
    more: dict[bytes, list[bytes]] = {}
    for row in cut(bucket, ROW_SIZE):
        had = first.setdefault(row[:PREFIX_SIZE], row)
        if had != row:
            places = more.setdefault(row[:PREFIX_SIZE], [had])
            if row not in places:
                places.append(row)
    for prefix, places in more.items():
        erased = next((row for row in places if row[PREFIX_SIZE] == ERASED), None)
        if erased is not None:
            first[prefix] = erased
            del places[1:]
    layers = [[first[prefix] for prefix in sorted(first)]] if first else []
    depth = 1
    while level := [more[prefix][depth] for prefix in sorted(more) if depth < len(more[prefix])]:
        layers.append(level)
        depth += 1
    return layers
