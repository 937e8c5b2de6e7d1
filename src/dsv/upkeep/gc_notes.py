"""A file that saves the next garbage collection requests: it has what was read of records that never change.

These are the commits that moves of branches name, and the hashes of index files. A store that was put back from a
backup may get other moves with the same numbers. So the moves of a branch count only while the last one that was noted
is the store's (`known_moves`).
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import TypeAlias

import msgspec
from blake3 import blake3

from dsv.format import keys
from dsv.format.columns import cut
from dsv.fs.files import replace_file
from dsv.repo.repository import Repository
from dsv.store.base import ask_each
from dsv.upkeep.roots import Known
from dsv.values.ids import CommitId, IndexId
from dsv.values.names import BranchName, DatasetName

Branches: TypeAlias = list[tuple[str, str, bytes, bytes]]
"""Dataset, branch, the nonce of the last move, and the commit of each move from the first one on: 32 bytes each, zeros
for none."""
_NONE = bytes(32)
_HASH = 32
_DECODER = msgspec.msgpack.Decoder(tuple[Branches, dict[bytes, bytes]])


def read_notes(path: Path) -> tuple[Branches, dict[IndexId, bytes]]:
    """Return branches, and the last 32 bytes of index files. Nothing if there is no such file, if it is damaged, or if
    others can write it: garbage is deleted by what it says."""
    with suppress(OSError, msgspec.DecodeError, ValueError):
        with path.open("rb") as file:
            status = os.fstat(file.fileno())
            data = file.read()
        mine = status.st_uid == os.geteuid() and not status.st_mode & 0o022
        if mine and blake3(data[:-_HASH]).digest() == data[-_HASH:]:
            branches, ends = _DECODER.decode(data[:-_HASH])
            return branches, {IndexId(one): end for one, end in ends.items()}
    return [], {}


def write_notes(path: Path, known: Known, ends: dict[IndexId, bytes]) -> None:
    """Write what is known of branches and index files. A failure is none: the next one asks the store."""
    numbers: dict[tuple[DatasetName, BranchName], int] = {}
    for key in known.nonces:
        if (parsed := keys.parse_branch_key(key)) is not None:
            numbers[parsed[:2]] = max(numbers.get(parsed[:2], 0), parsed[2])
    branches: Branches = []
    for where, last in numbers.items():
        named = [known.get(keys.branch_key(*where, number)) for number in range(last + 1)]
        ids = [one[0][1] if one else _NONE for one in named if one is not None]
        if len(ids) == last + 1:
            nonce = known.nonces[keys.branch_key(*where, last)]
            branches.append((str(where[0]), str(where[1]), bytes(nonce), b"".join(ids)))
    data = msgspec.msgpack.encode((branches, {bytes(one): end for one, end in ends.items()}))
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, data + blake3(data).digest(), mode=0o600, sync=False)


def known_moves(repository: Repository, branches: Branches) -> Known:
    """Return the moves that were noted, without those of branches whose last noted move is another one by now."""
    known = Known()
    wanted = [
        (DatasetName.parse(dataset), BranchName.parse(branch), nonce, cut(ids, 32))
        for dataset, branch, nonce, ids in branches
    ]
    last = ask_each(lambda one: repository.refs.entry(one[0], one[1], len(one[3]) - 1), wanted)
    for (dataset, branch, nonce, ids), entry in last:
        if entry is None or entry.nonce != nonce:
            continue
        for number, one in enumerate(ids):
            key = keys.branch_key(dataset, branch, number)
            known[key] = [] if one == _NONE else [(dataset, CommitId(one))]
        known.nonces[key] = entry.nonce
    return known
