"""Seeded data: the same bytes on every machine, made once and kept between runs."""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

SEED = 20_260_101
PER_FOLDER = 1000


@dataclass(frozen=True, slots=True)
class Shape:
    """So many files of so many random bytes each, a thousand to a folder."""

    files: int
    size: int

    @property
    def name(self) -> str:
        return f"{self.files}x{self.size}"

    @property
    def bytes(self) -> int:
        return self.files * self.size


SMALL = Shape(50_000, 8 << 10)
LARGE = Shape(8, 128 << 20)
MANY = Shape(627_615, 1 << 10)
ONE_BIG = Shape(1, 1 << 30)


def make(shape: Shape, below: Path) -> Path:
    """The folder of that shape, made now unless it is there."""
    return _once(below / shape.name, lambda folder: write(shape, folder))


def replace(path: Path, content: bytes) -> None:
    """New content under an old name, as a new file."""
    path.unlink()
    path.write_bytes(content)


def some_files(root: Path, count: int) -> list[Path]:
    """Files spread evenly over the tree."""
    paths = sorted(path for path in root.rglob("*") if path.is_file() and ".dsv" not in path.parts)
    return paths[:: max(1, len(paths) // count)][:count]


def _once(folder: Path, fill: Callable[[Path], None]) -> Path:
    if not folder.exists():
        partial = folder.with_name(folder.name + ".partial")
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        fill(partial)
        partial.rename(folder)
    return folder


def write(shape: Shape, folder: Path) -> None:
    """Fill an empty folder with files of that shape."""
    source = random.Random(SEED)
    for number in range(shape.files):
        if number % PER_FOLDER == 0:
            here = folder / f"part-{number // PER_FOLDER:04}"
            here.mkdir()
        with (here / f"file-{number:07}.bin").open("wb") as file:
            for first in range(0, shape.size, 1 << 20):
                file.write(source.randbytes(min(1 << 20, shape.size - first)))
