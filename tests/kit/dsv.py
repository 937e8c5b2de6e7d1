"""Runs a command line, here or in a process of its own, in surroundings that are the test's."""

from __future__ import annotations

import io
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from contextlib import chdir, suppress
from dataclasses import dataclass, field
from functools import wraps
from pathlib import Path
from typing import Any

from dsv.cli.app import run
from dsv.cli.declare import load
from dsv.cli.terminal import Surroundings
from tests.waiting import PATIENCE

PROGRAM = (sys.executable, "-m", "dsv.cli.main")


@dataclass(frozen=True)
class Result:
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    @property
    def lines(self) -> list[str]:
        return self.out.splitlines()


@dataclass(frozen=True)
class Dsv:
    """`dsv("ls", "x@v1")` runs in this process; `dsv.process(...)` in a new one."""

    home: Path
    cwd: Path
    environ: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, home: Path, work: Path | None = None, **environ: str) -> Dsv:
        """Somebody with these variables, whose home and folder to work in (`work` in the home) are made."""
        work = work or home / "work"
        for folder in (home, work):
            folder.mkdir(parents=True, exist_ok=True)
        return cls(home, work, {**plain_environment(home), **environ})

    def __call__(self, *arguments: str, terminal: bool = False, width: int | None = None) -> Result:
        stdout, stderr = io.BytesIO(), io.StringIO()
        around = Surroundings(self.environ, stdout, stderr, terminal, terminal, width)
        with chdir(self.cwd):
            code = run(arguments, around)
        return Result(code, stdout.getvalue().decode("utf-8", "surrogateescape"), stderr.getvalue())

    def ok(self, *arguments: str) -> Result:
        result = self(*arguments)
        assert result.code == 0, result
        return result

    def at(self, cwd: Path, **environ: str) -> Dsv:
        """The same in another folder, with more variables set."""
        return Dsv(self.home, cwd, {**self.environ, **environ})

    def start(self, *arguments: str, **options: Any) -> subprocess.Popen[bytes]:
        options = {
            "stdout": subprocess.PIPE,
            "stderr": subprocess.PIPE,
            "stdin": subprocess.DEVNULL,
            **options,
        }
        return subprocess.Popen([*PROGRAM, *arguments], cwd=self.cwd, env=dict(self.environ), **options)

    def process(self, *arguments: str, timeout: float = PATIENCE, **options: Any) -> Result:
        with self.start(*arguments, **options) as process:
            out, err = process.communicate(timeout=timeout)
        return Result(process.returncode, (out or b"").decode(), (err or b"").decode())


def made_once(make: Callable[[Dsv], Dsv]) -> Callable[[Dsv], Dsv]:
    """Have commands make what each test gets, in a person's folders, once for each worker; a test gets a copy.

    Only for stores and workspaces: a cache and runs note more of where they are than this renews.
    """
    kept: dict[Path, Dsv] = {}

    @wraps(make)
    def copied(dsv: Dsv) -> Dsv:
        place = dsv.cwd.parents[1] / f"made-{make.__module__}.{make.__name__}"
        if place not in kept:
            kept[place] = make(Dsv.of(place / "home", place / "work"))
        top, made = dsv.cwd.parent, kept[place]
        shutil.copytree(place, top, symlinks=True, dirs_exist_ok=True)
        for file in (*top.rglob("*.toml"), *top.rglob("*.json")):
            file.write_bytes(file.read_bytes().replace(bytes(place), bytes(top)))
        environ = {name: value.replace(str(place), str(top)) for name, value in made.environ.items()}
        return Dsv(dsv.home, top / made.cwd.relative_to(place), {**dsv.environ, **environ})

    return copied


def plain_environment(home: Path) -> dict[str, str]:
    """A person's environment with nothing in it that could reach out of `home`."""
    return {
        "HOME": str(home),
        "PATH": os.environ["PATH"],
        "DSV_COMPLETION_SECONDS": str(PATIENCE),
        "GIT_CONFIG_GLOBAL": os.devnull,
        "GIT_CONFIG_SYSTEM": os.devnull,
        "AWS_EC2_METADATA_DISABLED": "true",
        "LANG": "C.UTF-8",
    }


def assert_documented(command: str, document: Mapping[str, Any], without: str | tuple[str, ...] = "") -> None:
    """The document has the keys that the command documents, and no others; `items.path` is one of the items'.

    `without` begins the keys that another option is asked for.
    """
    documented = {key for key in load(command).result.dotted() if not (without and key.startswith(without))}
    assert document["schema"] == 1
    found: set[str] = set()
    for key, value in document.items():
        below = {name for name in documented if name.startswith(f"{key}.")}
        if below and not value:
            found |= below
        elif below:
            found |= {
                f"{key}.{inner}"
                for item in ([value] if isinstance(value, Mapping) else value)
                for inner in item
            }
        elif key != "schema":
            found.add(key)
    assert found == documented


def write_files(folder: Path, files: Mapping[str, bytes]) -> None:
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


def name_of(path: str | Path) -> str:
    """Return how a line of text names the commit at this path."""
    commit = Path(path).name
    return f"pets@{commit[:12]}{'+' if '+' in commit else ''}"


def full_pipe() -> tuple[int, int, int]:
    """Its ends, of which the writing one does not block, and how many bytes are in it."""
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    size = 0
    with suppress(BlockingIOError):
        while True:
            size += os.write(writing, b"x" * 4096)
    return reading, writing, size
