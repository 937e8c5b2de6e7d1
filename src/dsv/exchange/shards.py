"""Shards for WebDataset: tars of whole samples. A sample is the files of one folder whose names are equal up to the
first dot. All positions are planned before anything is written, so the size of a shard is exact, and a shuffled export
too reads the store in the order of the paths."""

from __future__ import annotations

import json
import os
import re
import tarfile
from array import array
from collections import Counter, deque
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import BinaryIO

from blake3 import blake3
from msgspec.structs import replace

from dsv.errors import Conflict, NotFound, Unsupported
from dsv.exchange.export import Exported, tar_info
from dsv.exchange.export_folder import put
from dsv.files.descent import remove_tree
from dsv.files.lock import Lock
from dsv.files.small_files import put_file, read_small
from dsv.format.locator import Location
from dsv.format.tree import Entry
from dsv.repo.objects.erasures import lacks_erased
from dsv.repo.tree.reader import TreeReader
from dsv.transfer.download import Fetcher, WantedFile
from dsv.values.names import Target, clean_path
from dsv.values.paths import show
from dsv.values.progress import Progress

_NUMBER = re.compile(r"%(?:0[1-9])?d")
_SAMPLE = re.compile(r"((?:.*/|)[^.]+)[.]([^/]*)$")  # the key of the sample and the suffix, as in WebDataset
_PASSED_OVER = re.compile(r"__[^/]*__($|/)")
_RENAME = "dsv mv renames files; dsv export DATASET:FOLDER takes one folder"
_END = 2 * tarfile.BLOCKSIZE
ShardOptions = tuple[int | None, int | None]
_Sample = tuple[str, list[tuple[str, Entry, Location | None]]]  # its key, and its files by name


def names_shards(to: str) -> bool:
    """Return whether a path is one of shards. Raises `Unsupported` if dsv can't write them."""
    name = to.rpartition("/")[2]
    is_one = _NUMBER.search(name) is not None
    if is_one and ("://" in to or name.count("%") > 1 or not name.endswith(".tar")):
        hint = "dsv export TARGET 'DIR/NAME-%05d.tar', and then copy DIR"
        raise Unsupported(f"shards are .tar files in a folder here, not {name}", subject=name, hint=hint)
    return is_one


class Shards:
    """The samples of a target, and the place of each in a shard."""

    def __init__(self, tree: TreeReader, target: Target, how: ShardOptions, *, strict: bool) -> None:
        """how: the most bytes of a shard, unless one sample has more, and the seed of the order; None for 1 GB, and for
        the order of paths. Raises `Unsupported` for names that WebDataset would not read as they are, `NotFound`."""
        size, seed = how[0] or 10**9, how[1]
        self._tree, self._above, self._seed = tree, clean_path(target.path), seed
        self.files = self.bytes = self.left_out = self.erased = 0
        sizes, marks = array("Q"), array("Q")
        for key, files in self._samples():
            if len({name.lower() for name, _, _ in files}) < len(files):
                raise Unsupported(f"suffixes of {key!r} differ in case alone", subject=key, hint=_RENAME)
            sizes.append(sum(self._size(name, entry) for name, entry, _ in files))
            self.files += len(files)
            self.bytes += sum(entry.size for _, entry, _ in files)
            marks.append(int.from_bytes(blake3(f"{seed} {key}".encode()).digest(length=8), "big"))
        if strict and self.erased:
            raise lacks_erased(str(target), self.erased)
        if not sizes:
            raise NotFound(f"{target} has no file", subject=str(target), hint="dsv ls lists the paths")
        order = range(len(sizes)) if seed is None else sorted(range(len(sizes)), key=marks.__getitem__)
        self._shard, self._start, self._sizes = array("Q", sizes), array("Q", sizes), list[int]()
        for sample in order:
            if not self._sizes or self._sizes[-1] + sizes[sample] > size:
                self._sizes.append(_END)
            self._shard[sample], self._start[sample] = len(self._sizes) - 1, self._sizes[-1] - _END
            self._sizes[-1] += sizes[sample]

    def _samples(self) -> Iterator[_Sample]:
        """Yield the samples in the order of paths, in which a folder `KEY.x` may be between the files of one."""
        self.left_out = self.erased = 0
        begun: list[_Sample] = []
        for entry, location in self._tree.below(self._above):
            if not entry.is_file or self._tree.objects.erasures.of(entry) is not None:
                self.left_out, self.erased = self.left_out + (not entry.is_file), self.erased + entry.is_file
                continue
            path = entry.path[len(self._above) :].lstrip(b"/") or entry.path.rpartition(b"/")[2]
            name, match = path.decode(), _SAMPLE.match(path.decode())
            if match is None or _PASSED_OVER.match(name) or match[2].startswith("__"):
                raise Unsupported(f"WebDataset passes over the name {show(path)}", subject=name, hint=_RENAME)
            while begun and not name.startswith(begun[-1][0] + "."):
                yield begun.pop()
            if not begun or begun[-1][0] != match[1]:
                begun.append((match[1], []))
            begun[-1][1].append((name, entry, location))
        while begun:
            yield begun.pop()

    def write(self, to: Path, progress: Progress) -> Exported:
        """Write the shards that are not there, each under its name when it is whole, and the last one last. Raises
        `Conflict` if others are there, or if another export writes them."""
        stem = _NUMBER.sub("", to.name[:-4]).rstrip("-_.") or "shards"
        paths = [to.with_name(to.name % shard) for shard in range(len(self._sizes))]
        drafts = to.with_name(f".{stem}.part")
        drafts.mkdir(parents=True, exist_ok=True)
        lock = Lock.take(drafts / "lock", "dsv export")
        if not isinstance(lock, Lock):
            raise lock.refusal(to.parent)
        try:
            with lock:
                self._count(paths, to, to.with_name(f"{stem}.json"))
                progress.start(self.files, self.bytes)
                self._write_missing(paths, drafts, progress)
        finally:
            remove_tree(drafts)
        done = Exported(self._tree.commit_id, self.files, self.files, self.bytes, erased=self.erased)
        return replace(done, left_out=self.left_out, shards=len(paths), samples=len(self._shard))

    def _count(self, paths: list[Path], to: Path, note: Path) -> None:
        """Write the file `note` that counts the samples of each shard, which also says of which export they are."""
        rows, counts = enumerate(zip(paths, self._sizes, strict=True)), Counter(self._shard)
        listed = [{"url": path.name, "nsamples": counts[at], "filesize": size} for at, (path, size) in rows]
        of = {"commit": str(self._tree.commit_id), "path": self._above.decode(), "seed": self._seed}
        index = {"__kind__": "wids-shard-index-v1", "wids_version": 1, **of, "shardlist": listed}
        content = json.dumps(index, indent=1).encode()
        named = re.compile("[0-9]+".join(map(re.escape, _NUMBER.split(to.name))))
        there = {path for path in to.parent.iterdir() if path == note or named.fullmatch(path.name)}
        there -= {note, *paths} if read_small(note, len(content)) == content else set()
        if there:
            raise Conflict(f"{min(there)} is of another export", subject=str(to), hint="choose another DIR")
        put_file(note, content)

    def _write_missing(self, paths: list[Path], drafts: Path, progress: Progress) -> None:
        there = {path: path.stat().st_size for path in paths if path.is_file()}
        left = {at: size - _END for at, size in enumerate(self._sizes) if there.get(paths[at]) != size}
        places: deque[tuple[int, int, str]] = deque()
        fetcher = Fetcher(self._tree.objects, self._tree.commit.dataset)
        with ExitStack() as opened:
            files: dict[int, BinaryIO] = {}
            for wanted, pieces in fetcher.files(self._wanted({*left}, places)):
                shard, start, name = places.popleft()
                if shard not in files:
                    files[shard] = opened.enter_context((drafts / str(shard)).open("wb"))
                    files[shard].truncate(self._sizes[shard])
                file = files[shard]
                file.seek(start) if file.tell() != start else None
                file.write(self._header(name, wanted.entry))
                file.writelines(pieces)
                file.write(bytes(-file.tell() % tarfile.BLOCKSIZE))
                left[shard] -= file.tell() - start
                progress.advance(1, wanted.entry.size, wanted.entry.size)
                if not left[shard]:
                    file.flush()
                    os.fsync(file.fileno())
                    files.pop(shard).close()
                    if shard != len(paths) - 1:
                        put(drafts / str(shard), paths[shard], replace=True)
        if len(paths) - 1 in left:
            put(drafts / str(len(paths) - 1), paths[-1], replace=True)

    def _wanted(self, shards: set[int], places: deque[tuple[int, int, str]]) -> Iterator[WantedFile]:
        """Yield the files of these shards, and add the shard, the position in it and the name of each to `places`."""
        for number, (_, files) in enumerate(self._samples()):
            shard, start = self._shard[number], self._start[number]
            for name, entry, location in files if shard in shards else ():
                places.append((shard, start, name))
                yield WantedFile(entry, location)
                start += self._size(name, entry)

    def _size(self, name: str, entry: Entry) -> int:
        is_plain = name.isascii() and len(name) <= tarfile.LENGTH_NAME and entry.size < 8**11
        header = tarfile.BLOCKSIZE if is_plain else len(self._header(name, entry))
        return header + entry.size + -entry.size % tarfile.BLOCKSIZE

    def _header(self, name: str, entry: Entry) -> bytes:
        return tar_info(name, entry, self._tree.commit).tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape")
