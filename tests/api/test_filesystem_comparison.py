"""Random calls of `dsv://`, and the same of `file://` and `memory://`: what they return, raise and leave behind.

Where the two agree, dsv does the same; where they don't, it does as one of them. `REASONS` says where not, and why.
"""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from glob import has_magic
from pathlib import Path
from typing import Any

import pytest
from fsspec.implementations.local import LocalFileSystem
from fsspec.implementations.memory import MemoryFileSystem

from dsv.filesystem import DsvFileSystem
from tests.api.pets_in_python import close_all, environ_of, make_store
from tests.exhaustive import examples

_COUNT = iter(range(1_000_000))
FOLDERS = ["m", "m/d", "q", "q r/é", "100%"]
NAMES = ["a", "b.csv", "b.txt", "x", "@v1:c"]
PATTERNS = ["*", "m/*", "m/**", "**/x", "m/[ab]*", "?", "*/b.*", "nothing*", "m*"]
REASONS = {
    "maxdepth": "rm and mv reach the files down to it. file:// ignores it or raises; memory:// moves what it reaches, "
    "and removes the rest too.",
    "by a pattern or a list": "file:// moves one path. memory:// removes what it does not copy; dsv moves it, or "
    "refuses.",
    "a call that fails": "It publishes nothing; file:// and memory:// keep what they have written or removed by then.",
    "two sources": "Two files with one new name in a call are refused; file:// and memory:// keep the last.",
    "to itself": "What moves to where it is stays, and a folder into itself is refused; memory:// removes both.",
}


def reason(call: Call, results: list[Any]) -> str | None:
    """Return why dsv may differ from both. results: what the three returned."""
    if results[2] is Exception and Exception in results[:2]:
        return "a call that fails"
    if results[2] is Exception and call.name in ("cp", "put") and isinstance(call.arguments[0], list):
        return "two sources"
    if call.name in ("mv", "rm") and "maxdepth" in call.options:
        return "maxdepth"
    if call.name != "mv":
        return None
    source, to = call.arguments
    if not isinstance(source, str) or has_magic(source):
        return "by a pattern or a list"
    source, to = source.rstrip("/"), to.rstrip("/")
    return "to itself" if to in (source, os.path.dirname(source)) or to.startswith(f"{source}/") else None


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    home = tmp_path_factory.mktemp("ann")
    make_store(home, DSV_STORE=f"memory://comparison-{home.name}")
    yield home
    close_all()


def dsv_of(home: Path, **options: Any) -> DsvFileSystem:
    environ = environ_of(home) | {"DSV_STORE": f"memory://comparison-{home.name}"}
    more = {"create": True, "allow_removals": True, "skip_instance_cache": True}
    return DsvFileSystem(environ=environ, cwd=home, **more, **options)


@dataclass
class Place:
    """A folder of a file system."""

    fs: Any
    root: str
    folder: Path
    """On this machine, for get and put."""

    def at(self, path: Any) -> Any:
        if isinstance(path, list):
            return [self.at(one) for one in path]
        return f"{self.root}/{path}" if path else self.root

    def shown(self, found: Any) -> Any:
        """Return a result without what names the file system."""
        if isinstance(found, dict) and "type" in found:
            size = found["size"] if found["type"] == "file" else 0
            return self.shown(found["name"]), size, found["type"]
        if isinstance(found, dict):
            return {self.shown(key): self.shown(value) for key, value in found.items()}
        if isinstance(found, list | tuple | set):
            return sorted(map(self.shown, found), key=repr)
        if isinstance(found, str):
            return found.removeprefix(self.root).removeprefix("/")
        return found

    def state(self) -> dict[str, bytes]:
        return self.shown(self.fs.cat(self.fs.find(self.root))) if self.fs.find(self.root) else {}

    def tidy(self) -> None:
        """Remove empty folders."""
        if isinstance(self.fs, LocalFileSystem):
            for here, _, _ in os.walk(self.root, topdown=False):
                if here != self.root and not os.listdir(here):
                    os.rmdir(here)
        elif isinstance(self.fs, MemoryFileSystem):
            self.fs.pseudo_dirs[:] = [
                one for one in self.fs.pseudo_dirs if not one.startswith(f"{self.root}/")
            ]

    def become(self, state: dict[str, bytes]) -> None:
        if isinstance(self.fs, LocalFileSystem):
            shutil.rmtree(self.root)
            os.mkdir(self.root)
        else:
            for one in [*self.fs.store]:
                if one.startswith(f"{self.root}/"):
                    del self.fs.store[one]
        for path, data in state.items():
            self.fs.pipe_file(self.at(path), data)

    def run(self, call: Call) -> Any:
        """Return the kind of an error, or the result."""
        try:
            return self.shown(call.run(self))
        except Exception as error:  # noqa: BLE001
            kind = (
                FileNotFoundError if isinstance(error, FileNotFoundError | NotADirectoryError) else Exception
            )
            return kind if call.reads else Exception


@dataclass
class Call:
    name: str
    arguments: tuple[Any, ...]
    options: dict[str, Any] = field(default_factory=dict)
    reads: bool = False

    def run(self, place: Place) -> Any:
        return CALLS[self.name](place, *self.arguments, **self.options)


def write(place: Place, path: str, data: bytes, mode: str, compression: str | None = None) -> None:
    with place.fs.open(place.at(path), mode, compression=compression) as file:
        file.write(data if "b" in mode else data.decode("latin-1"))


def read(place: Place, path: str, mode: str, start: int) -> Any:
    with place.fs.open(place.at(path), mode) as file:
        file.seek(start)
        first = file.read(3)
        return first, file.tell(), file.read(), file.closed


def get(place: Place, path: Any, to: str, **options: Any) -> Any:
    local = place.folder / "got"
    shutil.rmtree(local, ignore_errors=True)
    (local / "there").mkdir(parents=True)
    place.fs.get(place.at(path), str(local / to) + ("/" if to.endswith("/") else ""), **options)
    return {str(one.relative_to(local)): one.read_bytes() for one in local.rglob("*") if one.is_file()}


def put(place: Place, path: str, to: str, **options: Any) -> None:
    local = place.folder / "given"
    if not local.exists():
        for name in ("a", "m/x", "m/d/b.csv", "m/d/x"):
            (local / name).parent.mkdir(parents=True, exist_ok=True)
            (local / name).write_bytes(b"put " + name.encode())
    place.fs.put(f"{local}/{path}", place.at(to) + ("/" if to.endswith("/") else ""), **options)


def two(name: str) -> Callable[..., None]:
    def call(place: Place, path: Any, to: Any, **options: Any) -> None:
        getattr(place.fs, name)(place.at(path), place.at(to), **options)

    return call


def one(name: str) -> Callable[..., Any]:
    return lambda place, path, *rest, **options: getattr(place.fs, name)(place.at(path), *rest, **options)


CALLS: dict[str, Callable[..., Any]] = {
    "write": write,
    "read": read,
    "get": get,
    "put": put,
    "pipe": lambda place, paths, data: place.fs.pipe({place.at(path): data for path in paths}),
    "walk": lambda place, path, **options: {one[0]: one[1:] for one in place.fs.walk(place.at(path), **options)},
    "cat_ranges": lambda place, paths, *ranges: place.fs.cat_ranges(place.at(paths), *ranges, on_error="raise"),
    **{name: two(name) for name in ("mv", "cp")},
    **{
        name: one(name)
        for name in (
            "pipe_file", "touch", "rm", "rm_file", "cat", "cat_file", "find", "ls", "info", "glob", "expand_path",
            "exists", "isfile", "isdir", "du", "size", "head", "tail", "read_block",
        )
    },
}  # fmt: skip


def any_path(chance: random.Random) -> str:
    folder = chance.choice(["", *FOLDERS])
    return "/".join(filter(None, [folder, chance.choice(NAMES)]))


def any_call(chance: random.Random) -> Call:
    folder, path, pattern = chance.choice(FOLDERS), any_path(chance), chance.choice(PATTERNS)
    data = chance.randbytes(chance.choice([0, 3, 20]))
    some = sorted({any_path(chance) for _ in range(chance.randint(1, 3))})
    deep = {"recursive": True, **chance.choice([{}, {}, {"maxdepth": 1}, {"maxdepth": 2}])}
    depth = chance.choice([{}, {"maxdepth": 1}, {"maxdepth": 2}])
    to = chance.choice([folder, f"{folder}/", path, any_path(chance), "new/", "new"])
    source, options = chance.choice(
        [(path, {}), (path, {}), (folder, {}), (folder, deep), (folder, deep), (f"{folder}/", deep), (pattern, {}),
         (pattern, deep), (some, {}), ([folder, path], deep)]
    )  # fmt: skip
    anything: Any = chance.choice([path, folder, pattern])
    return chance.choice(
        [
            lambda: Call("pipe_file", (path, data)),
            lambda: Call("pipe_file", (path, data), {"mode": "create"}),
            lambda: Call("pipe", (some, data)),
            lambda: Call("write", (path, data, chance.choice(["wb", "xb", "w", "wt"]))),
            lambda: Call("write", (path, data, "wb", chance.choice(["bz2", "xz"]))),
            lambda: Call("touch", (path,)),
            lambda: Call("rm", (source,), options),
            lambda: Call("rm_file", (chance.choice([path, path, pattern, folder]),)),
            lambda: Call("mv", (source, to), options),
            lambda: Call("mv", (source, to), options),
            lambda: Call("cp", (source, to), options),
            lambda: Call("put", (chance.choice(["a", "m", "m/", "m/*", "no"]), to), deep),
            lambda: Call("get", (source, chance.choice(["out", "there", "there/", "out/"])), options, True),
            lambda: Call("read", (path, chance.choice(["rb", "r"]), chance.randint(0, 9)), {}, True),
            lambda: Call("cat", (chance.choice([anything, some]),), {}, True),
            lambda: Call("cat_file", (path, chance.choice([None, 1, -2]), chance.choice([None, 2, -1])), {}, True),
            lambda: Call("cat_ranges", (some, 1, 3), {}, True),
            lambda: Call("find", (chance.choice(["", anything]),), depth | {"withdirs": chance.random() < 0.5}, True),
            lambda: Call("walk", (chance.choice(["", folder]),), depth | {"topdown": chance.random() < 0.5}, True),
            lambda: Call("ls", (chance.choice(["", path, folder]),), {"detail": chance.random() < 0.5}, True),
            lambda: Call("glob", (anything,), {"detail": chance.random() < 0.5}, True),
            lambda: Call("expand_path", (chance.choice([anything, some]),), options, True),
            lambda: Call(chance.choice(["info", "exists", "isfile", "isdir", "du"]), (path,), {}, True),
            lambda: Call(chance.choice(["info", "exists", "isfile", "isdir", "du"]), (folder,), {}, True),
            lambda: Call("size", (path,), {}, True),
            lambda: Call(chance.choice(["head", "tail"]), (path, 2), {}, True),
            lambda: Call("read_block", (path, 1, 2), {}, True),
        ]
    )()  # fmt: skip


@pytest.mark.parametrize("seed", range(examples(60)))
def test_random_calls_do_the_same(seed: int, home: Path, tmp_path: Path) -> None:
    chance = random.Random(seed)
    (tmp_path / "root").mkdir()
    local = Place(LocalFileSystem(auto_mkdir=True), str(tmp_path / "root"), tmp_path / "1")
    memory = Place(MemoryFileSystem(), f"/{tmp_path.name}-{seed}", tmp_path / "2")
    mine = Place(dsv_of(home), f"c{seed}-{next(_COUNT)}", tmp_path / "3")
    places = [local, memory, mine]
    state = {any_path(chance): chance.randbytes(5) for _ in range(12)}
    mine.fs.pipe({mine.at(path): data for path, data in state.items()})
    for number in range(60):
        state = mine.state()
        for place in (local, memory):
            place.become(state)
        call = any_call(chance)
        results = []
        for place in places:
            result = place.run(call)
            place.tidy()
            results.append((result, place.state()))
        result, after = results[2]
        told = f"seed {seed}, call {number}: {call}, {result}"
        if results[2] not in results[:2]:
            assert reason(call, [result for result, _ in results]) in REASONS, (told, results)
        if result is Exception or call.reads:
            assert after == state, told
        if call.name == "mv":  # whatever the others do, nothing is lost but what was replaced
            kept = set(after.values())
            assert all(data in kept or path in after for path, data in state.items()), (told, state, after)
