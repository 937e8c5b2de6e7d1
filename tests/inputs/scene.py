"""People around one store that something is wrong with, and what each command of theirs must then do."""

from __future__ import annotations

import itertools
import random
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from dsv.stores.directory import DirectoryStore
from tests.kit.dsv import Dsv, Result
from tests.kit.people import Files, read_folder

_numbers = itertools.count()

FILES: Files = {
    "a.bin": random.Random(1).randbytes(5000),
    "b/large.bin": random.Random(2).randbytes(3 << 20),
    "empty": b"",
    "link@": b"a.bin",
    "text.txt": b"the same line\n" * 3000,
}
"""Kept as it is, in chunks by a recipe, not at all, in the tree, and compressed."""


@dataclass
class Scene:
    """`store` is a folder. Whoever `newcomer` gives has seen nothing of it: no copies, no cache, no workspace."""

    folder: Path
    store: Path = field(init=False)

    def __post_init__(self) -> None:
        self.store = self.folder / "store"

    def newcomer(self, **environ: str) -> Dsv:
        home = self.folder / f"home-{next(_numbers)}"
        around = {"DSV_STORE": str(self.store), "DSV_CACHE": str(home / "cache"), **environ}
        return Dsv.of(home, home / "here", **around)

    def contents(self) -> dict[str, bytes]:
        """Everything in the store."""
        store = DirectoryStore(self.store)
        try:
            return {item.key: store.get(item.key) for item in store.list("")}
        finally:
            store.close()

    def put(self, key: str, data: bytes) -> None:
        """Behind the store's back: what is there is replaced."""
        path = self.store / key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        path.write_bytes(data)

    def put_all(self, keys: Mapping[str, bytes]) -> None:
        for key, data in keys.items():
            self.put(key, data)

    def remove(self, key: str) -> None:
        (self.store / key).unlink()

    def reset(self, keys: Mapping[str, bytes]) -> None:
        """The store as it was, or as it should be."""
        shutil.rmtree(self.store, ignore_errors=True)
        self.store.mkdir(parents=True)
        self.put_all(keys)


def refused(result: Result, code: int, *said: str) -> None:
    """One sentence, perhaps with a list, that has all of these words, a hint, this exit code, and nothing else."""
    assert result.code == code, result
    assert result.out == "", result
    assert "Traceback" not in result.err
    told = result.err.splitlines()
    *before, hint = told
    listed = list[str]()
    while before and before[-1].startswith("  "):
        listed.insert(0, before.pop())
    error = "\n".join([before.pop(), *listed])
    assert error.startswith("error: "), result
    assert hint.startswith("hint: "), result
    assert not any(line.startswith(("error:", "hint:")) for line in before), result
    assert not error.endswith("."), result
    for words in said:
        assert words in error, (words, error)


def shown_in(cache: Path) -> list[str]:
    """Return the names that a person sees in a cache: everything outside the dot folder."""
    if not cache.exists():
        return []
    return sorted(
        str(path.relative_to(cache))
        for path in cache.rglob("*")
        if path.relative_to(cache).parts[0] not in (".dsv", "dsv-cache.toml") and not path.is_dir()
    )


def write(folder: Path, files: Files) -> None:
    for name, content in files.items():
        path = folder / name.removesuffix("@")
        path.parent.mkdir(parents=True, exist_ok=True)
        if name.endswith("@"):
            path.symlink_to((content or b"").decode())
        else:
            path.write_bytes(content or b"")


def nothing_partial(dsv: Dsv, files: Files | None = None) -> None:
    """The cache shows no file. A clone may have got some paths of `files` whole, and knows that it is no commit."""
    assert shown_in(dsv.home / "cache") == []
    clone = dsv.cwd / "clone"
    if clone.exists():
        there = read_folder(clone)
        folders = {name for name, content in there.items() if content is None}
        assert all(any(name.startswith(f"{folder}/") for name in files or {}) for folder in folders)
        assert {name: there[name] for name in there.keys() - folders}.items() <= (files or {}).items()
        assert not (clone / ".dsv/base").exists()


@dataclass(frozen=True)
class Use:
    """One way to read a commit whole. code: what a failure with this exit code of dsv's comes out as."""

    name: str
    arguments: Callable[[str], Sequence[str]]
    result: Callable[[Dsv, str], Files]
    in_process: bool = True
    launches: bool = False

    def __call__(self, dsv: Dsv, target: str) -> Result:
        arguments = self.arguments(target)
        return dsv(*arguments) if self.in_process else dsv.process(*arguments)

    def code(self, code: int) -> int:
        return 125 if self.launches else code


def _in_cache(dsv: Dsv, target: str) -> Files:
    commit = dsv.ok("resolve", target).out.strip()
    return read_folder(dsv.home / "cache" / target.partition("@")[0] / commit)


CACHE = Use("cache", lambda target: ["cache", target, "-q"], _in_cache)
CLONE = Use("clone", lambda target: ["clone", target, "clone"], lambda dsv, _: read_folder(dsv.cwd / "clone"))
RUN = Use(
    "run", lambda target: ["run", target, "-q", "--", "true"], _in_cache, in_process=False, launches=True
)
WHOLE = (CACHE, CLONE, RUN)


def ben(scene: Scene, shared: Path) -> Dsv:
    return scene.newcomer(DSV_CACHE=str(shared))


def visible(cache: Path) -> Path:
    """The whole commit's folder."""
    (found,) = [path for path in (cache / "set").iterdir() if not path.is_symlink() and "+" not in path.name]
    return found
