"""Readers have no session: a gc may delete packs between any two of their requests."""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from dsv.api import environment
from dsv.format.records import ExpiryAction
from dsv.repo.expiry import append
from dsv.repo.repository import Repository
from dsv.stores.directory import DirectoryStore
from dsv.values.ids import CommitId
from dsv.values.names import DatasetName
from tests.exhaustive import numbers
from tests.kit.dsv import Dsv, Result, write_files
from tests.kit.repositories import WRITER
from tests.upkeep.gc_world import Meanwhile, collect

PETS = DatasetName.parse("pets")


class Pets:
    """Four commits, of which the first two are expired. Most of their packs goes, and the rest is copied."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.dsv = Dsv.of(folder / "home", folder / "work", DSV_STORE=str(folder / "store"))
        chance = random.Random(4)
        self.files: dict[str, bytes] = {"stream.bin": chance.randbytes(3 << 20)}
        self.dsv.ok("init", "pets")
        for number in range(4):
            self.files |= {
                "changes.bin": chance.randbytes(7 << 20 if number < 2 else 9000),
                f"kept/{number}": chance.randbytes(20_000),
            }
            write_files(self.dsv.cwd, self.files)
            self.dsv.ok("sync", "-m", f"number {number}")
        items = self.dsv.ok("log", "pets", "--json").json["items"]
        self.ids = [item["commit"] for item in reversed(items)]
        self.dsv.ok("expire", "pets", "--keep-last", "2")
        self.before = {
            name: data for name, data in self.files.items() if name not in ("changes.bin", "kept/3")
        }
        """Of what the third commit has, all but what the fourth one changed."""
        shutil.copytree(folder / "store", folder / "as it was")

    def again(self) -> None:
        """Put the store back to how it was, and forget all local copies."""
        shutil.rmtree(self.folder / "store")
        shutil.copytree(self.folder / "as it was", self.folder / "store", copy_function=os.link)
        for gone in (self.folder / "home/.cache", self.folder / "cache", self.folder / "out"):
            shutil.rmtree(gone, ignore_errors=True)

    def collect(self, *more: str) -> None:
        """Let these commits expire too, and collect."""
        store = DirectoryStore(self.folder / "store")
        gone = [CommitId.parse(one) for one in more]
        repository = Repository.open(store, None)
        append(repository, WRITER, PETS, ExpiryAction.EXPIRE, lambda _: gone)
        assert collect(store, self.folder / "ids").deleted
        shutil.rmtree(self.folder / "ids", ignore_errors=True)

    def run(self, kind: str, commit: str) -> tuple[Result, dict[str, bytes]]:
        """Return what the command said, and the files that it gave."""
        if kind == "cat":
            done = self.dsv("cat", f"pets@{commit}:stream.bin")
            return done, {"stream.bin": done.out.encode("utf-8", "surrogateescape")}
        if kind == "export":
            done, top = self.dsv("export", f"pets@{commit}", str(self.folder / "out")), self.folder / "out"
        else:
            cache = self.dsv.at(self.dsv.cwd, DSV_CACHE=str(self.folder / "cache"))
            done = cache("cache", f"pets@{commit}")
            top = Path(done.out.strip() or self.folder / "nothing")
        files = [path for path in top.rglob("*") if path.is_file()]
        return done, {str(path.relative_to(top)): path.read_bytes() for path in files}


@pytest.fixture(scope="module")
def pets(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pets]:
    top = tmp_path_factory.mktemp("readers")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(environment, "SYSTEM_CONFIG", top / "etc/config.toml")
        yield Pets(top)


@pytest.mark.parametrize("kind", ["cat", "export", "cache"])
def test_what_is_kept_is_read_while_its_packs_are_written_anew(kind: str, pets: Pets) -> None:
    head = pets.ids[-1]
    for number in numbers(every=3):
        pets.again()
        with pytest.MonkeyPatch.context() as patch:
            meanwhile = Meanwhile(patch, number, pets.collect)
            done, files = pets.run(kind, head)
        assert done.code == 0, (number, done)
        assert files == ({"stream.bin": pets.files["stream.bin"]} if kind == "cat" else pets.files)
        if not meanwhile.called:
            assert number > 5
            break


@pytest.mark.parametrize(
    "command",
    [
        *("du --json", "gc --dry-run --grace 0s --json", "verify --full --json"),
        *(
            pytest.param(part, marks=pytest.mark.exhaustive)
            for part in ("du pets@main --json", "verify --json", "verify pets --json")
        ),
    ],
)
def test_who_looks_at_the_whole_store_meanwhile_finds_nothing_missing(command: str, pets: Pets) -> None:
    for number in numbers(every=11):
        pets.again()
        with pytest.MonkeyPatch.context() as patch:
            meanwhile = Meanwhile(patch, number, pets.collect)
            done = pets.dsv(*command.split())
        assert done.code == 0, (number, done)
        if not meanwhile.called:
            assert number > 20
            break


@pytest.mark.parametrize("kind", ["cat", "export", "cache"])
def test_a_commit_that_expires_meanwhile_is_read_or_reported_as_expired(kind: str, pets: Pets) -> None:
    commit = pets.ids[2]
    told = read = 0
    for number in numbers(every=2):
        pets.again()
        with pytest.MonkeyPatch.context() as patch:
            meanwhile = Meanwhile(patch, number, lambda: pets.collect(commit))
            done, files = pets.run(kind, commit)
        if done.code == 0:
            read += 1
            wanted = {"stream.bin": pets.files["stream.bin"]} if kind == "cat" else pets.before
            assert wanted.items() <= files.items(), number
        else:
            told += 1
            assert done.code == 3 and "was expired on" in done.err, (number, done)
            assert "damage" not in done.err
        if not meanwhile.called:
            break
    assert read and told
