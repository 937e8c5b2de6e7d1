#!/usr/bin/env python3
"""Restore a dataset from a dsv store in a directory. It imports nothing of dsv.

    python reader.py [--names DIR] STORE_DIR DATASET[@REV] OUT

DIR has the names of a store that keeps them elsewhere; a whole commit id, of 64 digits, does not need it. REV
is a branch, a tag, or at least 8 hex digits of a commit id, with ~N for the N-th first parent; the default is
the head of `main`. OUT must not exist. Python 3.11 and the packages blake3, zstandard, and msgpack or msgspec
are required. Every byte is checked against its id before it is written, and every path before it is used. OUT
appears when it is complete. docs/internals/format.md of dsv's repository describes the format; this file is a
second description, which deliberately shares no code with the writer of stores.

Files that were erased from the store are left out, and named on stderr. The exit code is 0, or 1 with the
reason in one sentence, or 2 for wrong arguments.
"""

from __future__ import annotations

import importlib
import itertools
import mmap
import os
import re
import shutil
import struct
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

decode_msgpack: Callable[[bytes], Any]
MsgpackError: type[Exception]
try:
    import zstandard
    from blake3 import blake3

    try:
        decode_msgpack, MsgpackError = importlib.import_module("msgpack").unpackb, ValueError
    except ImportError:
        msgspec = importlib.import_module("msgspec")
        decode_msgpack, MsgpackError = msgspec.msgpack.decode, msgspec.DecodeError
except ImportError as error:
    if __name__ != "__main__":
        raise
    sys.exit(
        f"reader: a package that it needs can't be imported: {error}\n"
        f"hint: {sys.executable} -m pip install blake3 zstandard msgpack"
    )

CHUNK, RECIPE, SEGMENT, NODE = 1, 2, 3, 4
KINDS = {CHUNK: "chunk", RECIPE: "recipe", SEGMENT: "segment", NODE: "node"}
CONTEXTS = {RECIPE: "dsv 2026-11 recipe v1", SEGMENT: "dsv 2026-11 segment v1", NODE: "dsv 2026-11 node v1"}
COMMIT_CONTEXT = "dsv 2026-11 commit v1"
SINGLE_CHUNK_MAX = 1 << 20
PATHS_MAX = (1 << 20) + 4096
OBJECT_MAX = {
    CHUNK: 4 << 20,
    RECIPE: 64 + 65536 * 40,
    SEGMENT: 64 + PATHS_MAX + 4096 * (73 + 4096),
    NODE: 64 + PATHS_MAX + 4096 * 56,
}
FRAME_SLACK = 1 << 16  # a compressed frame may be larger than its content
RECORD_MAX = 1 << 20
ERASURE_MAX = (1 << 19) + 72 * (1 << 18)
EXTERNAL_MAX = 64 << 20
# All moves of a branch are listed and sorted here, so a listing needs no order.
# Objects are looked up in the index, so locators are not needed either.
KNOWN_FEATURES = (
    "named-records",
    "node-locators",
    "expired-commits",
    "erased-contents",
    "external-contents",
    "unordered-listing",
    "unconditional-writes",
    "names-elsewhere",
    "names-moving",
    "names-moved",
    "data-elsewhere",
)
MOST_MOVES = 64  # of the names of a store, from one location to the next
ID, ID_OR_NIL, TEXT_OR_NIL = "an id of 32 bytes", "an id or nil", "text or nil"
FILE, EXECUTABLE, SYMLINK, EMPTY_DIRECTORY = 0, 1, 2, 3


class StoreError(Exception):
    """A fault of the store or of the request, in one sentence."""


class Entry(NamedTuple):
    """One path of a tree."""

    path: bytes
    kind: int
    size: int = 0
    file_id: bytes = b""
    recipe_id: bytes = b""
    target: bytes = b""


class Child(NamedTuple):
    """A node's row about a node or segment below it, with the totals of everything below."""

    last: bytes
    """The last path below."""
    id: bytes
    entries: int
    files: int
    bytes: int


# --- the store as named bytes


class StoreFolder:
    """A store in a directory. Keys are paths below it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._packs: dict[bytes, int] = {}  # open packs, the oldest first

    def get(self, key: str, limit: int = RECORD_MAX) -> bytes | None:
        try:
            with (self.folder / key).open("rb") as file:
                data = file.read(limit + 1)
        except FileNotFoundError:
            return None
        if len(data) > limit:
            raise StoreError(f"{key} is larger than {limit} bytes")
        return data

    def names(self, prefix: str, digits: int = 0) -> list[str]:
        """Return the sorted names in one folder. digits: only names of so many hex digits."""
        try:
            names = sorted(path.name for path in (self.folder / prefix).iterdir())
        except FileNotFoundError:
            return []
        return [name for name in names if not digits or re.fullmatch(f"[0-9a-f]{{{digits}}}", name)]

    def read_pack(self, pack: bytes, offset: int, length: int) -> bytes:
        """Return a part of a pack: less than asked for if the pack is shorter, nothing without the pack."""
        if pack not in self._packs:
            if len(self._packs) >= 64:
                os.close(self._packs.pop(next(iter(self._packs))))
            name = pack.hex()
            try:
                self._packs[pack] = os.open(self.folder / "packs" / name[:2] / name, os.O_RDONLY)
            except FileNotFoundError:
                return b""
        return os.pread(self._packs[pack], length, offset)


def derived(context: str, data: bytes) -> bytes:
    return blake3(data, derive_key_context=context).digest()


def body_of(data: bytes, kind: str, version: int = 1) -> bytes:
    """Return the data after the line that names the kind and version of the object."""
    line = f"dsv {kind} {version}\n".encode()
    if data.startswith(line):
        return data[len(line) :]
    if re.match(rb"dsv %b [0-9]+\n" % kind.encode(), data):
        raise StoreError(f"a {kind} is of a newer version of the format: use a newer reader")
    raise StoreError(f"a {kind} is damaged: it does not begin as one")


def record(data: bytes | None, kind: str, *expected: object, names: tuple[type, ...] = ()) -> list[Any]:
    """Return the fields of a record, each of its type: a Python type, `ID`, `ID_OR_NIL` or `TEXT_OR_NIL`.
    names: the types of the fields that version 2 of this kind of record has after those of version 1."""
    version = 1
    if names and (data or b"").startswith(f"dsv {kind} 2\n".encode()):
        version, expected = 2, (*expected, *names)
    try:
        body = body_of(data or b"", kind, version)[:-8]
        if data is None or blake3(data[:-8]).digest(8) != data[-8:]:
            raise StoreError(f"a {kind} is damaged: its check is not that of its bytes")
        fields = decode_msgpack(body)
    except (MsgpackError, RecursionError) as error:
        raise StoreError(f"a {kind} is damaged: {error}") from None
    if not isinstance(fields, list) or len(fields) != len(expected):
        raise StoreError(f"a {kind} is damaged: it does not have {len(expected)} fields")
    if not all(map(fits, fields, expected)):
        raise StoreError(f"a {kind} is damaged: a field is not what it should be")
    return fields


def check_names(kind: str, carried: list[Any], *expected: object) -> None:
    """Check that an entry of version 2 was written for the key under which it was found."""
    if carried and carried != list(expected):
        raise StoreError(f"a {kind} is damaged: it was written for {carried}, not for {list(expected)}")


def fits(value: object, expected: object) -> bool:
    if value is None:
        return expected in (ID_OR_NIL, TEXT_OR_NIL)
    if expected in (ID, ID_OR_NIL):
        return isinstance(value, bytes) and len(value) == 32
    return type(value) is (str if expected is TEXT_OR_NIL else expected)


# --- index files and objects


class Index:
    """One index file, mapped into memory."""

    def __init__(self, path: Path) -> None:
        if path.stat().st_size < 1040 + 32:
            raise StoreError(f"index {path.name} is damaged: it is cut short")
        with path.open("rb") as file:
            self.data = data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        if data[:8] != b"dsvindx1":
            raise StoreError(f"index {path.name} is damaged, or newer than this reader")
        packs, self.rows = struct.unpack_from("<II", data, 8)
        self.fanout = struct.unpack_from("<256I", data, 16)
        self.packs_at, self.rows_at, self.packs = 1040, 1040 + 16 * packs, packs
        if len(data) != self.rows_at + 56 * self.rows + 32:
            raise StoreError(f"index {path.name} is damaged: its length is not what it says")
        if blake3(memoryview(data)[:-32]).digest() != data[-32:]:
            raise StoreError(f"index {path.name} is damaged: its hash is another")
        self.any_outside = 1 in data[self.rows_at + 33 : self.rows_at + 56 * self.rows : 56]

    def find(self, kind: int, object_id: bytes) -> tuple[int, int, bytes, int, int, int] | None:
        """Return an object's where (1: outside, 2: erased), codec, pack, offset, stored length and length."""
        key = object_id + bytes([kind])
        first = object_id[0]
        low, high = self.fanout[first - 1] if first else 0, self.fanout[first]
        while low < high:
            middle = (low + high) // 2
            at = self.rows_at + 56 * middle
            found = self.data[at : at + 33]
            if found == key:
                where, codec, _, pack, offset, stored, length, _ = struct.unpack_from(
                    "<BBBIIIII", self.data, at + 33
                )
                if pack >= self.packs:
                    raise StoreError("an index names a pack that it does not list")
                pack_at = self.packs_at + 16 * pack
                return where, codec, self.data[pack_at : pack_at + 16], offset, stored, length
            if found < key:
                low = middle + 1
            else:
                high = middle
        return None


class Objects:
    """Chunks, recipes, segments and nodes by their ids."""

    def __init__(self, store: StoreFolder) -> None:
        self.store = store
        folder = store.folder / "index"
        self.indexes = [Index(folder / name) for name in store.names("index", 32)]
        self.any_outside = any(index.any_outside for index in self.indexes)
        self.external: dict[bytes, dict[int, str]] = {}

    def _rows(self, kind: int, object_id: bytes) -> list[tuple[int, int, bytes, int, int, int]]:
        return [row for index in self.indexes if (row := index.find(kind, object_id)) is not None]

    def url_of(self, chunk: bytes) -> str | None:
        """Return the URL of a chunk that only a file outside the store has, or None if there is none."""
        rows = self._rows(CHUNK, chunk)
        if any(row[0] != 1 for row in rows):
            return None
        for _, _, pack, offset, _, _ in rows:
            if pack not in self.external:
                self.external[pack] = read_external(self.store, pack)
            if offset in self.external[pack]:
                return self.external[pack][offset]
        return None

    def read(self, kind: int, object_id: bytes) -> bytes:
        """Return the object's bytes, checked against the id. If a copy is damaged, the next one is tried."""
        rows = self._rows(kind, object_id)
        if any(row[0] == 2 for row in rows):
            raise StoreError(f"{KINDS[kind]} {object_id.hex()} was erased from the store")
        for where, codec, pack, offset, stored, length in rows:
            if where != 0 or length > OBJECT_MAX[kind] or stored > OBJECT_MAX[kind] + FRAME_SLACK:
                continue
            data = unpacked(codec, self.store.read_pack(pack, offset, stored), stored, length)
            if data is None:
                continue
            made = blake3(data).digest() if kind == CHUNK else derived(CONTEXTS[kind], data)
            if made == object_id:
                return data
        what = "damaged in every copy" if rows else "in no index"
        raise StoreError(f"{KINDS[kind]} {object_id.hex()} is {what}")


def read_external(store: StoreFolder, pack: bytes) -> dict[int, str]:
    """Return the URLs of the files that have an external pack's chunks, by the offsets of the chunks."""
    name = pack.hex()
    data = store.get(f"packs/{name[:2]}/{name}", EXTERNAL_MAX) or b""
    if data[:8] != b"dsvpack2" or data[-8:] != b"dsvpack2" or blake3(data[:-40]).digest() != data[-40:-8]:
        raise StoreError(f"external pack {name} is gone or damaged")
    length = zstandard.frame_content_size(data[8:-40])
    plain = unpacked(1, data[8:-40], len(data) - 48, length) if 0 < length <= EXTERNAL_MAX else None
    columns = Columns(plain or b"", "external")
    sources, rows = columns.number(65536), columns.number(65536)
    texts = columns.strings(columns.take(columns.number(16 << 20)), 4 * sources)
    columns.numbers("Q", sources)
    columns.ids(rows)
    places, _, lengths = columns.numbers("I", rows), columns.numbers("Q", rows), columns.numbers("I", rows)
    columns.end()
    if any(place >= sources for place in places):
        raise StoreError(f"external pack {name} is damaged: it names a file that it does not list")
    offsets = itertools.accumulate(lengths, initial=0)
    return {
        at: texts[4 * place].decode("utf-8", "replace") for at, place in zip(offsets, places, strict=False)
    }


def unpacked(codec: int, data: bytes, stored: int, length: int) -> bytes | None:
    """Return the object in these stored bytes, or None if they are damaged."""
    if len(data) != stored or codec not in (0, 1):
        return None
    if codec == 0:
        return data if stored == length else None
    try:
        if zstandard.frame_content_size(data) != length:
            return None
        decompressor = zstandard.ZstdDecompressor(max_window_size=32 << 20)
        plain = decompressor.decompress(data, max_output_size=length, allow_extra_data=False)
    except zstandard.ZstdError:
        return None
    return plain if len(plain) == length else None


# --- names


class Format(NamedTuple):
    """The last entry of the log of features."""

    store_id: bytes
    features: tuple[str, ...]
    names: str | None
    """The location of the names, if they have moved or are being moved."""


def check_format(store: StoreFolder) -> Format:
    """Check that this reader understands the store, and return the last entry of its log of features."""
    seq = 0
    fields: list[Any] = []
    while (data := store.get(f"format/{seq:016x}")) is not None:
        fields = record(data, "format", bytes, str, list, list, bool, bytes, int, str, str, names=(str,))
        if fields[1] != "blake3":
            raise StoreError(f"the store hashes with {fields[1]}, which this reader does not know")
        seq += 1
    if not seq:
        raise StoreError(f"{store.folder} is not a dsv store")
    for feature in fields[3]:
        if not isinstance(feature, list) or len(feature) != 2:
            raise StoreError("a format is damaged: a feature is not a name and a rule")
        if feature[0] not in KNOWN_FEATURES and feature[1] not in ("ignore", "read-only"):
            raise StoreError(f"the store uses {feature!r}, which this reader does not know")
    return Format(fields[0], tuple(name for name, _ in fields[3]), (fields[9:] or [None])[0])


def find_names(store: StoreFolder, given: Path | None) -> StoreFolder:
    """Return where the store's names are: follow their moves from the given or the recorded location on."""
    data = check_format(store)
    if "names-elsewhere" not in data.features:
        if "data-elsewhere" in data.features:
            raise StoreError(f"{store.folder} has the names of a store whose data is elsewhere")
        if given is not None:
            raise StoreError(f"{store.folder} keeps its names itself, and not in {given}")
        return store
    place = given or place_of(store, data)
    for _ in range(MOST_MOVES):
        if place is None:
            raise StoreError(f"{store.folder} keeps its names elsewhere: --names DIR says where")
        found = StoreFolder(place)
        log = check_format(found)
        if log.store_id != data.store_id or "data-elsewhere" not in log.features:
            raise StoreError(f"{place} has the names of another store than {store.folder}")
        if "names-moved" not in log.features:
            return found
        place = place_of(store, log)
    raise StoreError(f"the names of {store.folder} have moved more than {MOST_MOVES} times")


def place_of(store: StoreFolder, log: Format) -> Path | None:
    """Return the folder of the names according to a log of features, or None if they are with the data. `./`
    at its beginning means relative to the data. Raises `StoreError` if the location is not a folder."""
    if log.names is None:
        return None
    if log.names.startswith("./"):
        return store.folder / log.names[2:]
    if not log.names.startswith("/"):
        raise StoreError(f"the names are at {log.names}: --names DIR says where a copy of them is")
    return Path(log.names)


def refuse_erased(names: StoreFolder, dataset: str) -> None:
    """Raises `StoreError` if a dataset was erased: its tombstone is stored under a hash of its name."""
    erased = derived("dsv 2026-11 erased dataset v1", check_format(names).store_id + dataset.encode())
    data = names.get(f"refs/{erased.hex()}/erased")
    if data is None:
        return
    _, _, successor, message = record(data, "dataset-erased", bytes, int, TEXT_OR_NIL, str)
    follows = f"; what could stay is in {successor}" if successor else ""
    raise StoreError(f"dataset {dataset} was erased from the store: {message}{follows}")


def component(name: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*(/[A-Za-z0-9][A-Za-z0-9._-]*)*", name) or ".." in name:
        raise StoreError(f"{name!r} is not a name")
    return name.replace("/", "%2F")


def last_move(store: StoreFolder, dataset: str, branch: str) -> tuple[bytes | None, bool, str] | None:
    """Return the commit of a branch's last move, whether it is deleted, and the action; None without one."""
    prefix = f"refs/{component(dataset)}/branches/{component(branch)}"
    seqs = store.names(prefix, 16)
    if not seqs:
        return None
    data = store.get(f"{prefix}/{seqs[0]}")
    fields = record(data, "ref", ID_OR_NIL, bool, bytes, int, str, str, names=(str, str, int))
    check_names("ref", fields[6:], dataset, branch, 0xFFFF_FFFF_FFFF_FFFF - int(seqs[0], 16))
    commit, deleted, _, _, _, action = fields[:6]
    return None if commit is None else bytes(commit), deleted, action


def branch_head(store: StoreFolder, dataset: str, branch: str) -> bytes | None:
    """Return the commit that the branch names, or None if there is no such branch."""
    commit, deleted, _ = last_move(store, dataset, branch) or (None, True, "")
    if commit is None and not deleted:
        raise StoreError(f"branch {branch} of {dataset} names no commit yet")
    return commit


def renamed(store: StoreFolder, dataset: str, way: str) -> str | None:
    """Return the dataset to or from which this one was renamed, if that was its last move and deleted it."""
    _, deleted, action = last_move(store, dataset, "main") or (None, False, "")
    match = re.match(rf"rename dataset(?: \(forced\))?: {way} ([^;]*)", action)
    return match[1] if deleted and match else None


def current_name(store: StoreFolder, dataset: str) -> str:
    """Return the current name of a dataset, under which its expiry log is."""
    seen: set[str] = set()
    while dataset not in seen:
        seen.add(dataset)
        to = renamed(store, dataset, "to")
        if to is not None and renamed(store, to, "from") != dataset:
            dataset = to
    return dataset


def tag_commit(store: StoreFolder, dataset: str, tag: str) -> bytes | None:
    prefix = f"refs/{component(dataset)}/tags/{component(tag)}"
    data = store.get(f"{prefix}/value")
    if data is None or store.get(f"{prefix}/deleted") is not None:
        return None
    fields = record(data, "tag", ID, bytes, int, str, str, names=(str, str))
    check_names("tag", fields[5:], dataset, tag)
    commit: bytes = fields[0]
    return commit


def refuse_expired(names: StoreFolder, dataset: str, commit: bytes) -> None:
    """Raises `StoreError` if a commit is expired: its content may be gone. The log is read from its first entry on."""
    prefix = f"refs/{component(dataset)}/expired"
    seqs = names.names(prefix, 16)
    said: tuple[str, str, int] | None = None  # action, author and time of the entry by which it expired
    freed = False
    for number, seq in enumerate(reversed(seqs)):
        if int(seq, 16) != 0xFFFF_FFFF_FFFF_FFFF - number:
            raise StoreError(f"the expiry log of {dataset} lacks its entry {number}")
        fields = record(names.get(f"{prefix}/{seq}"), "expiry", str, list, bytes, int, str, str, str, int)
        action, commits, _, time_ms, author, _, *key = fields
        check_names("expiry", key, dataset, number)
        if action not in ("expire", "delete", "undo", "free"):
            raise StoreError(f"an expiry is damaged: it has an unknown action, {action}")
        if commit not in commits or freed:
            continue
        if action == "undo":
            said = None
        elif action == "free":
            freed = said is not None
        elif said is None:
            said = action, author, time_ms
    if said is not None:
        how = "expired with its whole dataset" if said[0] == "delete" else "expired"
        when = time.strftime("%Y-%m-%d", time.gmtime(said[2] / 1000))
        gone = ", and its content was removed" if freed else ""
        raise StoreError(f"commit {commit.hex()} of {dataset} was {how} on {when} by {said[1]}{gone}")


def resolve(store: StoreFolder, target: str, given: Path | None = None) -> bytes:
    """Return the id of the commit that DATASET[@REV] names. given: where the names are, if elsewhere."""
    dataset, _, rev = target.partition("@")
    match = re.fullmatch(r"([^~]+)(?:~([0-9]{1,6}))?", rev or "main")
    if match is None:
        raise StoreError(f"{rev!r} is not a revision")
    name, back = match[1], int(match[2] or 0)
    whole = re.fullmatch("[0-9a-fA-F]{64}", name) is not None
    names = find_names(store, given) if given is not None or not whole else store
    if not whole and not names.names(f"refs/{component(dataset)}"):
        refuse_erased(names, dataset)
        known = ", ".join(dataset_name.replace("%2F", "/") for dataset_name in names.names("refs"))
        raise StoreError(f"there is no dataset {dataset}; there are: {known or 'none'}")
    commit: bytes | None
    is_head = False
    if re.fullmatch("[0-9a-fA-F]{8,64}", name):
        ids = [commit_id for commit_id in store.names("commits") if commit_id.startswith(name.lower())]
        if len(ids) != 1:
            raise StoreError(f"{len(ids)} commits begin with {name}")
        commit = bytes.fromhex(ids[0])
        made_for = read_commit(store, commit)[9:]
        if (
            made_for
            and made_for[0] != dataset
            and current_name(find_names(store, given), made_for[0]) != dataset
        ):
            raise StoreError(f"commit {name} is none of dataset {dataset}, but of {made_for[0]}")
    else:
        commit = branch_head(names, dataset, name)
        is_head = commit is not None and not back
        commit = commit or tag_commit(names, dataset, name)
    if commit is None:
        to = renamed(names, dataset, "to")
        if to is not None:
            raise StoreError(f"dataset {dataset} was renamed to {to}")
        raise StoreError(f"dataset {dataset} has no branch or tag {name}")
    for _ in range(back):
        parents = read_commit(store, commit)[2]
        if not parents:
            raise StoreError(f"{rev} goes back further than the history")
        commit = parents[0]
    if not is_head:
        refuse_expired(names, current_name(names, dataset), commit)
    return commit


def read_commit(store: StoreFolder, commit_id: bytes) -> list[Any]:
    """Return root, level, parents, author, time, message, files, bytes, entries [, dataset, branch]."""
    data = store.get(f"commits/{commit_id.hex()}")
    if data is None or derived(COMMIT_CONTEXT, data) != commit_id:
        was, data = data, copied_commit(store, commit_id)
        if derived(COMMIT_CONTEXT, data) != commit_id:
            name = f"commit {commit_id.hex()}"
            raise StoreError(f"there is no {name}" if was is None else f"{name} is damaged")
    fields = record(data, "commit", ID, int, list, str, int, str, int, int, int, names=(str, str))
    if not all(fits(parent, ID) for parent in fields[2]):
        raise StoreError(f"commit {commit_id.hex()} is damaged: a parent is not an id")
    return fields


def copied_commit(store: StoreFolder, commit_id: bytes) -> bytes:
    """Return the copy of a commit in the empty blocks of its locator's frame, unchecked; b"" without one."""
    frame = store.get(f"locators/{commit_id.hex()}", OBJECT_MAX[NODE] << 6) or b""
    try:
        blocks = re.match(rb"(?:\x02\0\0.)*", frame[zstandard.frame_header_size(frame) :], re.DOTALL)
        packed = blocks[0][3::4] if blocks else b""
        length = zstandard.frame_content_size(packed)
    except zstandard.ZstdError:
        return b""
    return unpacked(1, packed, len(packed), length) or b"" if 0 < length <= RECORD_MAX else b""


# --- trees


class Columns:
    """Reads columns from the front of an object's bytes."""

    def __init__(self, data: bytes, kind: str) -> None:
        self.kind = kind
        self.rest = body_of(data, kind)

    def take(self, length: int) -> bytes:
        if length > len(self.rest):
            raise StoreError(f"a {self.kind} is damaged: it is cut short")
        taken, self.rest = self.rest[:length], self.rest[length:]
        return taken

    def number(self, largest: int) -> int:
        value: int = struct.unpack("<I", self.take(4))[0]
        if value > largest:
            raise StoreError(f"a {self.kind} is damaged: a count of {value} is over the limit of {largest}")
        return value

    def numbers(self, code: str, count: int) -> tuple[int, ...]:
        return struct.unpack(f"<{count}{code}", self.take(count * (8 if code == "Q" else 4)))

    def ids(self, count: int) -> list[bytes]:
        column = self.take(32 * count)
        return [column[at : at + 32] for at in range(0, len(column), 32)]

    def strings(self, column: bytes, count: int) -> list[bytes]:
        found = column.split(b"\0")
        if found.pop() != b"" or len(found) != count:
            raise StoreError(f"a {self.kind} is damaged: it does not have {count} paths or targets")
        return found

    def end(self) -> None:
        if self.rest:
            raise StoreError(f"a {self.kind} is damaged: something follows its end")


def decode_node(data: bytes) -> tuple[int, list[Child]]:
    columns = Columns(data, "node")
    level, count = columns.number(8), columns.number(4096)
    paths = columns.take(columns.number(PATHS_MAX))
    ids = columns.ids(count)
    totals = [columns.numbers("Q", count) for _ in range(3)]
    columns.end()
    return level, list(map(Child, columns.strings(paths, count), ids, *totals))


def decode_segment(data: bytes) -> list[Entry]:
    columns = Columns(data, "segment")
    count = columns.number(4096)
    paths = columns.strings(columns.take(columns.number(PATHS_MAX)), count)
    kinds = columns.take(count)
    files = [kind in (FILE, EXECUTABLE) for kind in kinds]
    sizes = columns.numbers("Q", sum(files))
    file_ids = columns.ids(len(sizes))
    recipes = iter(columns.ids(sum(size > SINGLE_CHUNK_MAX for size in sizes)))
    targets = iter(columns.strings(columns.take(len(columns.rest)), kinds.count(SYMLINK)))
    contents = zip(sizes, file_ids, strict=True)
    entries = []
    for path, kind, is_file in zip(paths, kinds, files, strict=True):
        if is_file:
            size, file_id = next(contents)
            recipe = next(recipes) if size > SINGLE_CHUNK_MAX else b""
            entries.append(Entry(path, kind, size, file_id, recipe))
        elif kind == SYMLINK:
            entries.append(Entry(path, kind, target=next(targets)))
        elif kind == EMPTY_DIRECTORY:
            entries.append(Entry(path, kind))
        else:
            raise StoreError("a segment is damaged: it has an entry of an unknown kind")
    return entries


def segments(objects: Objects, node: Child, level: int) -> Iterator[Child]:
    """Yield the segments below a node. It must match its parent's row before anything below it is read."""
    own_level, children = decode_node(objects.read(NODE, node.id))
    if own_level != level or not 1 <= level <= 8:
        raise StoreError(f"node {node.id.hex()} has level {own_level} where {level} belongs")
    totals = [sum(column) for column in zip(*(child[2:] for child in children), strict=True)] or [0, 0, 0]
    last = children[-1].last if children else b""
    if totals != list(node[2:]) or node.last not in (b"", last):
        raise StoreError(f"node {node.id.hex()} is not what is said of it above")
    keys = [child.last.replace(b"/", b"\0") for child in children]
    if any(key >= other for key, other in itertools.pairwise(keys)):
        raise StoreError(f"node {node.id.hex()} is damaged: its children are out of order")
    for child in children:
        if level == 1:
            yield child
        else:
            yield from segments(objects, child, level - 1)


def tree(objects: Objects, commit: list[Any]) -> Iterator[Entry]:
    """Yield every entry of a tree. Each path is checked: safe, in order, once, and below no other path."""
    root, level, _, _, _, _, files, size, entries_in_all = commit[:9]
    previous: bytes | None = None
    for child in segments(objects, Child(b"", root, entries_in_all, files, size), level):
        entries = decode_segment(objects.read(SEGMENT, child.id))
        sizes = [entry.size for entry in entries if entry.kind in (FILE, EXECUTABLE)]
        if not entries or (entries[-1].path, len(entries), len(sizes), sum(sizes)) != (child[0], *child[2:]):
            raise StoreError(f"segment {child.id.hex()} is not what its node says")
        for entry in entries:
            check_path(entry.path)
            key = entry.path.replace(b"/", b"\0")
            if previous is not None and (key <= previous or key.startswith(previous + b"\0")):
                raise StoreError(f"path {entry.path!r} is twice in the tree, below a file, or out of order")
            previous = key
            yield entry


def check_path(path: bytes) -> None:
    parts = path.split(b"/")
    reserved = (b"", b".", b"..", b".dsv", b".git")
    try:
        path.decode("utf-8")
    except UnicodeDecodeError:
        raise StoreError(f"path {path!r} is not UTF-8") from None
    if len(path) > 4096 or b"\0" in path or any(len(part) > 255 for part in parts):
        raise StoreError(f"path {path!r} may not be in a tree")
    if any(part.lower().replace("ſ".encode(), b"s") in reserved for part in parts):
        raise StoreError(f"path {path!r} may not be in a tree")


def check_links(links: dict[bytes, bytes]) -> None:
    """Check that every symlink stays in the tree, resolved through the tree's own links."""
    for path, target in links.items():
        if not target or len(target) > 4095 or b"\0" in target or leaves(path, target, links):
            raise StoreError(f"symlink {path!r} leaves the tree")


def leaves(path: bytes, target: bytes, links: dict[bytes, bytes]) -> bool:
    here = path.split(b"/")[:-1]
    following, hops = [path], 0
    ahead: list[bytes | None] = [*reversed(target.split(b"/"))]  # None: the end of a followed link's target
    if target.startswith(b"/"):
        return True
    while ahead:
        part = ahead.pop()
        if part is None:
            following.pop()
        elif part == b"..":
            if not here:
                return True
            here.pop()
        elif part not in (b"", b"."):
            here.append(part)
            link = b"/".join(here)
            if link in following:  # a cycle: no path leads through it, so the rest is taken literally
                links = {}
            elif link in links:
                hops += 1
                if hops > 40 or links[link].startswith(b"/"):
                    return True
                here.pop()
                following.append(link)
                ahead += [None, *reversed(links[link].split(b"/"))]
    return False


# --- contents


def chunks(
    objects: Objects, recipe_id: bytes, size: int, level: int | None = None
) -> Iterator[tuple[bytes, int]]:
    """Yield the chunks of a recipe of `size` bytes, and of recipes nested in it, with their lengths."""
    columns = Columns(objects.read(RECIPE, recipe_id), "recipe")
    found, count = columns.number(4), columns.number(65536)
    ids, lengths = columns.ids(count), columns.numbers("Q" if found else "I", count)
    columns.end()
    if level is not None and found != level:
        raise StoreError(f"recipe {recipe_id.hex()} has level {found} where {level} belongs")
    if sum(lengths) != size or not all(lengths):
        raise StoreError(f"recipe {recipe_id.hex()} does not have the {size} bytes that are said of it")
    for child, length in zip(ids, lengths, strict=True):
        if found == 0:
            yield child, length
        else:
            yield from chunks(objects, child, length, found - 1)


def contents(objects: Objects, entry: Entry) -> Iterator[tuple[bytes, int]]:
    """Return the chunks of a file with their lengths."""
    if entry.size > SINGLE_CHUNK_MAX:
        return chunks(objects, entry.recipe_id, entry.size)
    return iter([(entry.file_id, entry.size)] if entry.size else [])


def content(objects: Objects, entry: Entry) -> Iterator[bytes]:
    """Yield the file's bytes in pieces. Raises `StoreError` at the end if they do not match the file's id."""
    whole, size = blake3(), 0
    for chunk, length in contents(objects, entry):
        data = objects.read(CHUNK, chunk)
        size += len(data)
        if len(data) != length or size > entry.size:
            break
        whole.update(data)
        yield data
    if size != entry.size or whole.digest() != entry.file_id:
        raise StoreError(f"the id or the recipe of {entry.path!r} is not its file")


def read_erased(store: StoreFolder) -> dict[bytes, str]:
    """Return when, by whom and why something was erased, by the ids of files, chunks and recipes."""
    reasons: dict[bytes, str] = {}
    for name in store.names("erased", 32):
        data = store.get(f"erased/{name}", ERASURE_MAX)
        fields = record(data, "erasure", list, list, bytes, int, str, str, str)
        files, objects, _, at, author, reason, _ = fields
        when = time.strftime("%Y-%m-%d", time.gmtime(at / 1000))
        for object_id in (*files, *(object_id for _, object_id in objects)):
            reasons.setdefault(object_id, f"was erased on {when} by {author}: {reason}")
    return reasons


def why_erased(objects: Objects, entry: Entry, erased: dict[bytes, str]) -> str | None:
    """Return why a file can't be restored, or None if nothing of it was erased."""
    if not erased or not entry.size:
        return None
    whole = erased.get(entry.file_id) or erased.get(entry.recipe_id)
    if whole is not None:
        return whole
    parts = (erased.get(chunk) for chunk, _ in contents(objects, entry))
    return next((f"has lost a part, which {why}" for why in parts if why is not None), None)


def why_outside(objects: Objects, entry: Entry) -> str | None:
    """Return why a file can't be restored that the store only refers to; None if the store has all of it."""
    if not objects.any_outside:
        return None
    urls = (url for chunk, _ in contents(objects, entry) if (url := objects.url_of(chunk)) is not None)
    return next((f"is not in the store, but at {url}, which this reader can't reach" for url in urls), None)


def restore(store_dir: Path, target: str, out: Path, names: Path | None = None) -> tuple[bytes, int, int]:
    """Write the files of a commit to `out`, which must not exist, and return the commit's id, entries and bytes.

    Files that were erased from the store, or that it only refers to, are left out, and named on stderr. For
    the latter, a `StoreError` is raised once the rest is written."""
    if os.path.lexists(out):
        raise StoreError(f"{out} already exists")
    store = StoreFolder(store_dir)
    check_format(store)
    commit_id = resolve(store, target, names)
    commit = read_commit(store, commit_id)
    objects, erased = Objects(store), read_erased(store)
    links: dict[bytes, bytes] = {}
    count = total = outside = 0
    without = set[bytes]()
    for entry in tree(objects, commit):  # the whole tree is checked before anything is written
        why = why_erased(objects, entry, erased)
        if why is None and (why := why_outside(objects, entry)) is not None:
            outside += 1
        if why is not None:
            print(f"reader: {os.fsdecode(entry.path)} {why}", file=sys.stderr)
            without.add(entry.path)
            continue
        count, total = count + 1, total + entry.size
        if entry.kind == SYMLINK:
            links[entry.path] = entry.target
    check_links(links)
    partial = out.with_name(f".{out.name}.partial-{os.getpid()}-{time.time_ns()}")
    partial.mkdir(parents=True)
    try:
        kept = (entry for entry in tree(objects, commit) if entry.path not in without)
        write_tree(objects, kept, partial)
        partial.rename(out)
    except BaseException:
        with suppress(RecursionError):  # of a folder that is very deep, which stays
            shutil.rmtree(partial, ignore_errors=True)
        raise
    if outside:
        raise StoreError(f"{outside} files lie outside the store and were left out; the rest is in {out}")
    return commit_id, count, total


def write_tree(objects: Objects, entries: Iterator[Entry], folder: Path) -> None:
    links: list[Entry] = []
    made = {folder}
    for entry in entries:
        place = folder / os.fsdecode(entry.path)
        above = place if entry.kind == EMPTY_DIRECTORY else place.parent
        missing = []
        while above not in made:
            missing.append(above)
            made.add(above)
            above = above.parent
        for one in reversed(missing):
            one.mkdir()
        if entry.kind == SYMLINK:
            links.append(entry)
        elif entry.kind in (FILE, EXECUTABLE):
            with place.open("xb") as file:
                for piece in content(objects, entry):
                    file.write(piece)
            if entry.kind == EXECUTABLE:
                place.chmod(place.stat().st_mode | (place.stat().st_mode & 0o444) >> 2)
    for entry in links:  # last, so that no file is written through a link
        (folder / os.fsdecode(entry.path)).symlink_to(os.fsdecode(entry.target))


def main(arguments: list[str]) -> int:
    names = Path(arguments[1]) if arguments[:1] == ["--names"] and len(arguments) > 1 else None
    wanted = arguments if names is None else arguments[2:]
    if len(wanted) != 3 or wanted[0].startswith("-"):
        print("usage: python reader.py [--names DIR] STORE_DIR DATASET[@REV] OUT", file=sys.stderr)
        return 2
    store, target, out = wanted
    try:
        commit, count, total = restore(Path(store), target, Path(out), names)
    except (StoreError, OSError) as error:
        print(f"reader: {error}", file=sys.stderr)
        return 1
    print(f"{commit.hex()}: {count} entries, {total} bytes in {out}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
