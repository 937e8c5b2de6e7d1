"""Runs the tests that can notice a change of some files, nearest first: `python -m tests.near src/dsv/api/edits.py`.

A test is near if few imports lie between its file and the changed one. A test of the command line imports the commands
that it types, and every test the conftest of its folder. One in a file named like a command or a module is nearest;
of those equally near, the tests of the same room come first, and small files.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from dsv.cli.catalogue import COMMANDS
from dsv.cli.declare import SIBLINGS

ROOT = Path(__file__).parents[1]
WORKERS, FILES = 2, 15
"""More of either would cost more time to import than to run."""
FOR_ALL_TESTS = ROOT / "tests/conftest.py"
"""All tests are near if it is changed. What it imports is as near to all, which says nothing, so that is left out."""
BEGUN = time.monotonic()
# Lines of imports, those in the text of a program for another process too. To parse all files takes ten times as long.
_IMPORT = re.compile(r"\bfrom +([\w.]+) +import +(\([^)]*\)|[^\n;]*)|\bimport +([\w., ]+)")
_TYPED = re.compile(r"""(?:\(|(?<![\w)\]])\[)\s*"([\w-]+)\"""")  # the first word of a call or a list


@dataclass
class Imports:
    """Which file imports which others, by the paths of both from the root."""

    files: dict[str, Path] = field(default_factory=dict)
    """By the module's name."""
    imported_by: dict[Path, set[Path]] = field(default_factory=dict)

    @classmethod
    def read(cls) -> Imports:
        graph = cls()
        for top in (ROOT / "src", ROOT / "tests", ROOT / "benchmarks"):
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
        text = path.read_text()
        for module, names, plain in _IMPORT.findall(text):
            yield from re.findall(r"[\w.]+", plain)
            whole = [f"{module}.{name}" for name in re.findall(r"\w+", names)]
            yield from (name if name in self.files else module for name in whole)
        if not path.name.startswith(("test_", "conftest")):
            return
        for word in COMMANDS.keys() & set(_TYPED.findall(text)):
            yield f"dsv.cli.commands.{SIBLINGS.get(word, word)}"
        for folder in path.relative_to(ROOT).parents:
            yield ".".join((*folder.parts, "conftest"))

    def tests_near(self, changed: Iterable[Path]) -> dict[Path, int]:
        """Return the files of tests that can notice a change, nearest first, each with its distance in imports."""
        distance = dict.fromkeys(changed, 0)
        stems = {path.stem.removeprefix("test_") for path in distance}
        stems |= {f"{path.parent.name}_{path.stem}" for path in distance}  # test_fill_plan of fill/plan.py
        rooms = {_room(path) for path in distance}
        waiting = deque(distance)
        while waiting:
            path = waiting.popleft()
            if path == FOR_ALL_TESTS and distance[path]:
                continue
            for user in self.imported_by.get(path, ()):
                if user not in distance:
                    distance[user] = distance[path] + 1
                    waiting.append(user)

        def order(path: Path) -> tuple[bool, int, bool, int, Path]:
            is_other = distance[path] > 2 or path.stem.removeprefix("test_") not in stems
            return is_other, distance[path], _room(path) not in rooms, path.stat().st_size, path

        tests = [path for path in distance if path.name.startswith("test_")]
        return {path: distance[path] for path in sorted(tests, key=order)}


def _room(path: Path) -> str:
    """Return `cache` for src/dsv/cache/evict.py and for tests/cache/test_evict.py."""
    top, *below = path.relative_to(ROOT).parts
    return below[top == "src"] if len(below) > (top == "src") else top


class Limit:
    """A plugin of pytest that begins no further test some seconds after this process began, but ends one at least."""

    def __init__(self, seconds: float) -> None:
        self._until = BEGUN + seconds
        self.done: set[str] = set()
        """The files of which a test has ended."""
        self.failed = False
        self.over = False

    @pytest.hookimpl(tryfirst=True)
    def pytest_xdist_make_scheduler(self, config: pytest.Config, log: object) -> object:
        from tests.scheduling import NearestFirst  # pytest has to import xdist first

        return NearestFirst(config, log)

    def pytest_sessionstart(self, session: pytest.Session) -> None:
        self._session = session.config.pluginmanager.getplugin("dsession") or session

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "teardown":
            self.done.add(report.nodeid.partition("::")[0])
        self.failed |= report.failed
        if time.monotonic() > self._until and self.done:
            self.over = True
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
    changed = [Path(name).resolve() for name in options.files or _changed()]
    graph = Imports.read()
    for path in changed:
        if path not in graph.files.values():
            parser.error(f"{path} is not a Python file of src, tests or benchmarks")
    near = graph.tests_near(changed)
    names = [str(path.relative_to(ROOT)) for path in near]
    if not names:
        print("no test can notice a change of these files" if changed else "git says that no file is changed")
        return int(pytest.ExitCode.NO_TESTS_COLLECTED)
    if options.list:
        print("\n".join(f"{distance} {name}" for name, distance in zip(names, near.values(), strict=True)))
        return 0
    limit = Limit(options.seconds)
    code = int(pytest.main(["-q", "-m", "not real", "-n", str(WORKERS), *names[:FILES]], plugins=[limit]))
    print(f"ran tests of {len(limit.done)} of the {len(names)} files that can notice a change, nearest first")
    # An interrupt from the keyboard and a module that can't be imported end pytest with the same code.
    return int(limit.failed) if limit.over and code == pytest.ExitCode.INTERRUPTED else code


def _changed() -> list[str]:
    """Return what differs from the last commit, and files that git does not know yet."""
    names: list[str] = []
    for command in (["diff", "--name-only", "HEAD"], ["ls-files", "--others", "--exclude-standard"]):
        said = subprocess.run(
            ["git", *command, "--", "*.py"], cwd=ROOT, capture_output=True, text=True, check=True
        )
        names += said.stdout.splitlines()
    return [str(ROOT / name) for name in names if (ROOT / name).exists()]


if __name__ == "__main__":
    sys.exit(main())
