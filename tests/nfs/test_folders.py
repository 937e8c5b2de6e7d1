"""A folder of a fill's tree that one host remembers as missing while another makes it."""

from __future__ import annotations

import sys

from tests.nfs.crew import SEARCHED, Crew
from tests.waiting import until

# What a host does whose user's umask, or group, makes it rename folders into place.
REMEMBERS = """
import os, sys, time
from pathlib import Path
from dsv.cache.fill.files import Folders, Rights
top, marks = Path(sys.argv[1]), Path(sys.argv[2])
rights = Rights(file=0o444, executable=0o555, folder=0o777, mend=True, group=None)
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
