"""A person's home and a folder to work in."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest

from dsv.api import environment
from dsv.cli import catalogue
from dsv.cli.declare import Command
from tests.kit.dsv import Dsv, made_once, write_files

FILES = {"a.txt": b"alpha\n", "train/1.png": b"1", "train/2.png": b"2", "test/1.png": b"3"}
SIGNED_FILES = {
    "a.txt": b"alpha\n",
    "train/cat/1.png": b"\x89PNG1",
    "train/dog/1.png": b"\x89PNG2",
    "big.bin": bytes(2 << 20),
}
UNTAGGED_FILES = {"a.txt": b"alpha\n", "train/1.png": b"1", "train/2.png": b"2"}


@pytest.fixture
def dsv(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Dsv:
    """In an empty folder, with an empty home, on a machine without /etc/dsv/config.toml."""
    monkeypatch.setattr(environment, "SYSTEM_CONFIG", tmp_path / "etc/config.toml")
    return Dsv.of(tmp_path / "home", tmp_path / "work")


@pytest.fixture(scope="module")
def dsv_of_the_file(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Dsv]:
    """As `dsv`, and the same for all tests of a file: they leave it as they found it."""
    top = tmp_path_factory.mktemp("file")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(environment, "SYSTEM_CONFIG", top / "etc/config.toml")
        yield Dsv.of(top / "home", top / "work")


@pytest.fixture
@made_once
def pets(dsv: Dsv) -> Dsv:
    """Dataset `pets` with the tags v1 and v2; the cache is `cache` beside the workspace."""
    here = dsv.at(dsv.cwd, DSV_CACHE=str(dsv.cwd.parent / "cache"))
    write_files(here.cwd, FILES)
    here.ok("init", "pets")
    here.ok("sync")
    here.ok("tag", "v1")
    write_files(here.cwd, {"a.txt": b"beta\n"})
    here.ok("sync")
    here.ok("tag", "v2")
    return here


@pytest.fixture
@made_once
def signed_pets(dsv: Dsv) -> Dsv:
    """Dataset `pets` with one commit of Ann Lee, tagged v1."""
    write_files(dsv.cwd, SIGNED_FILES)
    dsv.ok("init", "pets", "--author", "Ann Lee")
    dsv.ok("sync", "-m", "first\n\nwith a second paragraph", "--author", "Ann Lee")
    dsv.ok("tag", "v1")
    return dsv


@pytest.fixture
@made_once
def untagged_pets(dsv: Dsv) -> Dsv:
    """Dataset `pets` with one commit, which has no tag."""
    write_files(dsv.cwd, UNTAGGED_FILES)
    dsv.ok("init", "pets")
    dsv.ok("sync", "-m", "first")
    return dsv


@pytest.fixture
def add_command(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Command], None]]:
    """Adds a command to the program for the length of a test."""

    def add(command: Command) -> None:
        assert command.name is not None
        module = ModuleType(f"dsv.cli.commands.{command.name}")
        setattr(module, command.name, command)
        monkeypatch.setitem(sys.modules, module.__name__, module)
        monkeypatch.setitem(catalogue.COMMANDS, command.name, "A command of a test")

    yield add
