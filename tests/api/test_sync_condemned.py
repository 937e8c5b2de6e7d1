"""Syncs while gc is about to remove packs."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from dsv.errors import Conflict
from dsv.format.locator import ObjectKind
from dsv.repo.repository import Repository
from dsv.values.names import BranchName
from tests.kit.packs import verify
from tests.kit.people import Person
from tests.kit.repositories import condemn, packs


def test_a_new_branch_names_no_content_that_goes(tmp_path: Path) -> None:
    """Where the base itself would be kept by no branch that gc has seen, all of it is looked at."""
    ann = Person(tmp_path / "ann", str(tmp_path / "store"))
    ann.init()
    ann.write({"large": random.Random(1).randbytes(3 << 20), "small": b"small"})
    ann.sync()
    with ann.context().store() as store:
        repository = Repository.open(store, None)
        of_chunks = [key for key in packs(repository) if ObjectKind.CHUNK in verify(store.get(key)).kinds]
        condemn(repository, 0, of_chunks)
    ann.write({"new": b"new", "small": b"changed"})
    with pytest.raises(Conflict, match="being removed"):
        ann.sync(branch=BranchName.parse("other"), new_branch=True)
    ann.sync()  # gc has to keep what the head of a branch names
    assert ann.read(ann.sync(branch=BranchName.parse("main")).commit) == ann.files()
