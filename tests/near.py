"""Runs the tests that can notice a change of some files, nearest first: `python -m tests.near src/dsv/api/edits.py`.

A test is near if few imports lie between its file and the changed one. A test of the command line imports the commands
that it types. One in a file named like a command or a module is nearest.
"""

from __future__ import annotations

import argparse
import ast
import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from dsv.cli.catalogue import COMMANDS

ROOT = Path(__file__).parents[1]
WORKERS, FILES = 2, 30
"""More of either would cost more time to import than to run."""


@dataclass
class Imports:
    """Which file imports which others, by the paths of both from the root."""

    files: dict[str, Path] = field(default_factory=dict)
    """By the module's name."""
    imported_by: dict[Path, set[Path]] = field(default_factory=dict)

    @classmethod
    def read(cls) -> Imports:
        graph = cls()
        for top in (ROOT / "src", ROOT / "tests"):
            base = top if top.name == "src" else ROOT
            for path in sorted(top.rglob("*.py")):
                name = ".".join(path.relative_to(base).with_suffix("").parts)
                graph.files[name.removesuffix(".__init__")] = path
        for path in graph.files.values():
            for name in graph._named_in(path):
                if (there := graph.files.get(name)) is not None and there != path:
                    graph.imported_by.setdefault(there, set()).add(path)
        return graph

    def _named_in(self, path: Path) -> Iterator[str]:
        """Yield the modules that a file imports, inside functions too, and those of the commands that it types."""
        is_test = path.name.startswith("test_")
        for node in ast.walk(ast.parse(path.read_bytes())):
            match node:
                case ast.Import(names=names):
                    yield from (alias.name for alias in names)
                case ast.ImportFrom(module=str(module), names=names):
                    whole = [f"{module}.{alias.name}" for alias in names]
                    yield from (name if name in self.files else module for name in whole)
                case ast.Call(args=[ast.Constant(value=str(word)), *_]) if is_test and word in COMMANDS:
                    yield f"dsv.cli.commands.{word}"

    def tests_near(self, changed: Iterable[Path]) -> dict[Path, int]:
        """Return the files of tests that can notice a change, nearest first, each with its distance in imports."""
        distance = dict.fromkeys(changed, 0)
        stems = {path.stem.removeprefix("test_") for path in distance}
        waiting = deque(distance)
        while waiting:
            path = waiting.popleft()
            for user in self.imported_by.get(path, ()):
                if user not in distance:
                    distance[user] = distance[path] + 1
                    waiting.append(user)

        def order(path: Path) -> tuple[bool, int, int, Path]:
            return path.stem.removeprefix("test_") not in stems, distance[path], path.stat().st_size, path

        tests = [path for path in distance if path.name.startswith("test_")]
        return {path: distance[path] for path in sorted(tests, key=order)}


class Limit:
    """A plugin of pytest that begins no further test after some seconds."""

    def __init__(self, seconds: float) -> None:
        self._until = time.monotonic() + seconds
        self.done: set[str] = set()
        """The files of which a test has ended."""
        self.failed = False

    def pytest_sessionstart(self, session: pytest.Session) -> None:
        self._session = session.config.pluginmanager.getplugin("dsession") or session

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.done.add(report.nodeid.partition("::")[0])
        self.failed |= report.failed
        if time.monotonic() > self._until:
            self._session.shouldstop = "the time is over"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.near", description=__doc__)
    parser.add_argument("files", nargs="*", help="changed files (default: what git says that is changed)")
    parser.add_argument(
        "--seconds", type=float, default=20, help="begin no test after this time (default 20)"
    )
    parser.add_argument(
        "--list", action="store_true", help="print the files with their distances, run nothing"
    )
    options = parser.parse_args()
    named = options.files or _changed()
    near = Imports.read().tests_near(Path(name).resolve() for name in named)
    names = [str(path.relative_to(ROOT)) for path in near]
    if options.list or not names:
        print("\n".join(f"{distance} {name}" for name, distance in zip(names, near.values(), strict=True)))
        return 0 if names else 5
    limit = Limit(options.seconds)
    code = int(pytest.main(["-q", "-m", "not real", "-n", str(WORKERS), *names[:FILES]], plugins=[limit]))
    print(f"ran tests of {len(limit.done)} of the {len(names)} files that can notice a change, nearest first")
    return int(limit.failed) if code == pytest.ExitCode.INTERRUPTED else code


def _changed() -> list[str]:
    said = subprocess.run(
        ["git", "diff", "--name-only", "HEAD", "--", "*.py"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    return [str(ROOT / name) for name in said.stdout.split() if (ROOT / name).exists()]


if __name__ == "__main__":
    sys.exit(main())
