"""Making cached commits without a store, for tests of claims and eviction."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest

from dsv.cache import evict as eviction
from dsv.cache import leases
from dsv.cache.policy import Need
from dsv.cache.record import Filled, write_record
from dsv.cache.root import FILE_TIME, CachePlace, CacheRoot
from dsv.cache.settings import CacheSettings, prepare_cache


class Clock:
    """The file server's clock and this machine's, as `CacheRoot.now` and leases see them. A test moves them on."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._ahead = 0.0
        server, here = CacheRoot.now, leases.boot_clock
        monkeypatch.setattr(CacheRoot, "now", lambda root, folder=None: server(root, folder) + self._ahead)
        monkeypatch.setattr(leases, "boot_clock", lambda: here() + self._ahead)

    def move(self, seconds: float) -> None:
        self._ahead += seconds


def make_root(path: Path) -> CacheRoot:
    root = CacheRoot(path)
    prepare_cache(root)
    return root


def place(number: int = 0, dataset: str = "xrays") -> CachePlace:
    return CachePlace(dataset, hashlib.sha256(f"{dataset}/{number}".encode()).hexdigest())


def publish(
    root: CacheRoot,
    where: CachePlace,
    files: dict[str, bytes],
    *,
    age: float = 0.0,
    links: Path | None = None,
    error: int = 0,
) -> Path:
    """Makes a commit appear as a fill does, used `age` seconds ago; files that `links` has are linked from
    there. error: bytes by which the account is wrong.
    """
    draft = root.temporary / os.urandom(8).hex()
    root.make_directory(draft)
    own_bytes = own_files = 0
    for name, content in files.items():
        root.make_directory((draft / name).parent)
        path = (draft / name).path
        if links is not None and (links / name).exists():
            os.link(links / name, path)
            continue
        path.write_bytes(content)
        path.chmod(root.rights.file)
        os.utime(path, (FILE_TIME, FILE_TIME))
        own_files += 1
        own_bytes += path.stat().st_blocks * 512
    visible = root.visible(where)
    root.make_directory(visible.parent)
    draft.rename(visible)
    record = Filled(
        fill=os.urandom(16).hex(), store="00" * 16, commit=str(where.commit), files=len(files),
        bytes=sum(map(len, files.values())), entries=len(files), own_files=own_files, own_bytes=own_bytes + error,
        counted=not error, linked=() if links is None else ("another/commit",), user="ann", host="gpu1",
        time=root.now() - age,
    )  # fmt: skip
    write_record(root, where, record)
    return visible.path


def everything_below(path: Path) -> list[str]:
    return sorted(str(one.relative_to(path)) for one in path.rglob("*"))


def ensure_room(root: CacheRoot, settings: CacheSettings, need: Need) -> eviction.EvictionResult:
    """Do as `RoomMaker` does the first time, with these settings."""
    remembered = eviction.remember(root)
    inventory = eviction.look(root, remembered)
    if not eviction.planner_of(root, settings, eviction.EvictionRequest(need=need), inventory).exceeded():
        return eviction.EvictionResult()
    return eviction.evict_for(root, settings, need, remembered)
