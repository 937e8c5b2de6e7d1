"""Somebody with a folder of small files, for whom work is counted."""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping
from pathlib import Path

from tests.kit.dsv import Dsv

FOLDER = 100
"""Files in a folder: as small files come in folders, each of them has a hundredth of one."""


def person(home: Path, store: str, environ: Mapping[str, str] | None = None) -> Dsv:
    """At a machine of their own: no cache, no local copies of anything."""
    own = {"DSV_STORE": store, "DSV_CACHE": str(home / "cache")}
    return Dsv.of(home, home / "data", **own | dict(environ or {}))


def path_of(number: int) -> str:
    return f"{number // FOLDER:03}/{number:05}.bin"


def write(folder: Path, numbers: Iterable[int], size: int, seed: int) -> None:
    """These files, with contents that nobody can compress and that are the same in every run."""
    rng = random.Random(seed)
    for number in numbers:
        path = folder / path_of(number)
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(rng.randbytes(size))
