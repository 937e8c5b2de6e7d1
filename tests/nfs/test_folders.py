"""Folders that other hosts make and remove while one has them open, or remembers them as missing."""

from __future__ import annotations

import sys

import pytest

from dsv.cache.removal import Remover
from dsv.files.shared_path import SharedPath
from tests.nfs.crew import SEARCHED, Crew
from tests.waiting import until

# What a host does whose user's umask, or group, makes it rename folders into place.
REMEMBERS = """
import os, sys, time
from pathlib import Path
from dsv.cache.fill.files import Folders, FillRights
top, marks = Path(sys.argv[1]), Path(sys.argv[2])
rights = FillRights(file=0o444, executable=0o555, given=0o777, mend=True)
tree, drafts = (os.open(top / name, os.O_RDONLY | os.O_DIRECTORY) for name in ("tree", "drafts"))
try:
    os.stat("a", dir_fd=tree)
except FileNotFoundError:
    (marks / "remembered").touch()
while not (marks / "made").exists():
    time.sleep(0.05)
folder = Folders(tree, rights, drafts).open(b"a/b")
os.close(os.open("mine", os.O_CREAT | os.O_EXCL | os.O_WRONLY, dir_fd=folder))
"""


def test_a_folder_that_another_host_has_just_made_is_found(crew: Crew) -> None:
    one, other = crew.up(0, 1)
    top, marks = f"/mnt/nfs/{crew.name}", f"/mnt/out/{crew.name}"
    assert other.run("mkdir", f"{top}/tree", f"{top}/drafts").status == 0
    task = one.start(sys.executable, "-c", REMEMBERS, top, marks, **SEARCHED)
    until(lambda: (crew.marks / "remembered").exists(), "a look at the missing folder")
    made = other.run("sh", "-c", f"mkdir -p {top}/tree/a/b && echo other > {top}/tree/a/b/others")
    assert made.status == 0, made
    (crew.marks / "made").touch()
    found = task.answer()
    assert found.status == 0, found.err
    assert sorted(path.name for path in (crew.lab.export / crew.name / "tree/a/b").iterdir()) == [
        "mine",
        "others",
    ]


REMOVES = """
import sys, time
from pathlib import Path
from dsv.cache.removal import Remover
from dsv.files.shared_path import SharedPath
tree, marks = Path(sys.argv[1]), Path(sys.argv[2])
class Overtaken(Remover):
    def _empty(self, folder, shown, pool):
        if shown == sys.argv[3]:
            (marks / "open").touch()
            while not (marks / "gone").exists():
                time.sleep(0.05)
        return super()._empty(folder, shown, pool)
    def _files(self, folder, shown, names):
        if shown + "*" == sys.argv[3] and names:
            (marks / "open").touch()
            while not (marks / "gone").exists():
                time.sleep(0.05)
        return super()._files(folder, shown, names)
print(Overtaken().remove(SharedPath(tree.parent) / tree.name).files)
"""


@pytest.mark.parametrize("where", ["", "*", "a/", "a/*", "a/b/", "a/b/*"])
def test_a_tree_that_another_host_removes_meanwhile_is_gone(crew: Crew, where: str) -> None:
    [one] = crew.up(0)
    top, marks = crew.lab.export / crew.name / "trash", f"/mnt/out/{crew.name}"
    for folder in (top / "tree", top / "tree/a", top / "tree/a/b"):
        folder.mkdir(parents=True)
        for number in range(3):
            (folder / f"f{number}").touch()
    task = one.start(
        sys.executable, "-c", REMOVES, f"/mnt/nfs/{crew.name}/trash/tree", marks, where, **SEARCHED
    )
    until(lambda: (crew.marks / "open").exists(), "an open folder")
    Remover().remove(SharedPath(top) / "tree")  # shutil.rmtree would stop where the other host is quicker
    (crew.marks / "gone").touch()
    found = task.answer()
    assert found.status == 0, found.err
    assert int(found.out) < 9
    assert [*top.iterdir()] == []
