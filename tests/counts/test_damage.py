"""What commands ask of a store with a damaged object, counted: little more than of the whole store."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from dsv.stores.directory import DirectoryStore
from tests.counts.people import person

FILES = 400
COMMANDS = {
    "cache": ("cache", "scans"),
    "clone": ("clone", "scans", "clone"),
    "export": ("export", "scans", "out", "--skip-damaged"),
    "cat": ("cat", "scans:399/399"),
    "verify": ("verify",),
    "verify --full": ("verify", "--full"),
    "copy": ("copy", "scans", "--to", "./copy", "--create"),
    "gc": ("gc", "--yes", "--grace", "0s"),
    "du": ("du",),
}
READ = {"cache", "clone", "export", "cat", "verify --full", "copy"}
"""The commands that read contents, and so can't end with 0 if one is lost."""
MORE = 25
"""Requests: those that find out what else is there of the lost, once, and that note it."""


def count_requests(patch: pytest.MonkeyPatch) -> Counter[str]:
    """Count the requests to folder stores from now on, by their kind."""
    found: Counter[str] = Counter()

    def counting(name: str, call: Callable[..., object]) -> Callable[..., object]:
        def counted(*arguments: object) -> object:
            found[name] += 1
            return call(*arguments)

        return counted

    for name in ("get", "get_range", "list", "folders", "modified", "put_if_absent"):
        patch.setattr(DirectoryStore, name, counting(name, getattr(DirectoryStore, name)))
    return found


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store of small files, whose contents are in one pack and whose metadata is in a smaller one."""
    folder = tmp_path_factory.mktemp("damage")
    ann = person(folder / "ann", str(folder / "store"))
    for number in range(FILES):
        path = ann.cwd / str(number) / str(number)
        path.parent.mkdir()
        path.write_bytes(b"%06d" % number * 20)
    ann.ok("init", "scans")
    ann.ok("sync", "-q")
    return folder / "store"


def largest(store: Path, prefix: str) -> Path:
    return max(
        (path for path in (store / prefix).rglob("*") if path.is_file()), key=lambda one: one.stat().st_size
    )


def cut(path: Path) -> None:
    data = path.read_bytes()
    path.unlink()
    path.write_bytes(data[: len(data) // 20])


def spoil(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[::7] = bytes(byte ^ 1 for byte in data[::7])
    path.unlink()
    path.write_bytes(data)


DAMAGE: dict[str, tuple[str, Callable[[Path], None]]] = {
    "a pack that is cut short": ("packs", cut),
    "a pack that is gone": ("packs", Path.unlink),
    "a pack of wrong bytes": ("packs", spoil),
    "an index file that is gone": ("index", Path.unlink),
    "an index file that is cut short": ("index", cut),
}


def asked_by(command: str, folder: Path, whole: Path, damage: str | None = None) -> tuple[int, int]:
    """Run a command with a copy of the store, and an empty home. Return its exit code and its requests."""
    store = folder / "store"
    shutil.copytree(whole, store)
    if damage is not None:
        prefix, do = DAMAGE[damage]
        do(largest(store, prefix))
    with pytest.MonkeyPatch.context() as patch:
        requests = count_requests(patch)
        code = person(folder / "home", str(store))(*COMMANDS[command]).code
    return code, requests.total()


@pytest.fixture(scope="module")
def of_the_whole(whole: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, int]:
    """The requests of each command for a store without damage."""
    found = {one: asked_by(one, tmp_path_factory.mktemp("whole"), whole) for one in COMMANDS}
    assert all(code == 0 for code, _ in found.values()), found
    return {one: requests for one, (_, requests) in found.items()}


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("damage", DAMAGE)
def test_damage_costs_few_requests(
    tmp_path: Path, whole: Path, of_the_whole: dict[str, int], damage: str, command: str
) -> None:
    code, requests = asked_by(command, tmp_path, whole, damage)
    must_fail = DAMAGE[damage][0] == "packs" and command in READ
    assert code == 5 or (code == 0 and not must_fail)
    assert requests <= 2 * of_the_whole[command] + MORE


def test_verify_reports_a_part_of_a_tree_that_it_could_not_read(tmp_path: Path, whole: Path) -> None:
    """Its pack has the right size, so nothing else would be noticed without --full."""
    shutil.copytree(whole, tmp_path / "store")
    spoil(min((tmp_path / "store" / "packs").glob("*/*"), key=lambda one: one.stat().st_size))
    who = person(tmp_path / "bob", str(tmp_path / "store"))
    done = who("verify")
    assert done.code == 5 and "has lost" in done.out
