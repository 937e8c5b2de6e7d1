from __future__ import annotations

import random

from dsv.format.recipe import build_recipe
from dsv.format.tree import Entry, Kind
from dsv.repo.objects import recipes
from dsv.repo.objects.erasures import NONE
from dsv.repo.objects.recipes import count_chunks, read_chunks, shared_bytes
from dsv.repo.repository import Repository
from dsv.repo.tree.reader import TreeReader
from dsv.stores.memory import MemoryStore
from dsv.values.ids import FileId, Id
from tests.kit.repositories import commit, create

MB = 1 << 20


def entry(repository: Repository, name: str) -> Entry:
    head = next(iter(repository.refs.heads(next(iter(repository.refs.datasets())))))
    assert head.commit is not None
    found = TreeReader(repository.objects, head.commit).entry(name.encode())
    assert found is not None
    return found[0]


def test_what_a_changed_file_shares_with_the_one_before() -> None:
    repository = create(MemoryStore())
    old = random.Random(1).randbytes(12 * MB)
    new = old[: 6 * MB] + b"in the middle" + old[6 * MB :]
    commit(repository, {"old": old, "new": new, "small": b"x", "other": random.Random(2).randbytes(3 * MB)})
    before, after = entry(repository, "old"), entry(repository, "new")
    shared = shared_bytes(repository.objects, before, after)
    assert 7 * MB < shared < after.size
    assert shared_bytes(repository.objects, before, entry(repository, "other")) == 0
    assert shared_bytes(repository.objects, before, entry(repository, "small")) == 0
    assert shared_bytes(repository.objects, before, before) == before.size
    chunks = read_chunks(repository.objects, [before, after])
    assert [sum(each.values()) for each in chunks] == [before.size, after.size]
    assert shared == sum(chunks[1][one] for one in chunks[0].keys() & chunks[1].keys())
    assert count_chunks(repository.objects, after) == len(list(chunks[1]))
    assert (count_chunks(repository.objects, entry(repository, "small"))) == 1


class Shelf:
    """Recipes of files so large that they have several levels. read: how many were asked for."""

    def __init__(self) -> None:
        self.recipes: dict[Id, object] = {}
        self.read = 0
        self.erasures = NONE

    def file(self, path: bytes, chunks: list[bytes]) -> Entry:
        made = build_recipe(b"".join(chunks), [MB] * len(chunks))
        self.recipes |= dict(made)
        return Entry(path, Kind.FILE, MB * len(chunks), FileId.hash(path), made[-1][0])

    def recipe(self, recipe_id: Id, *_: object) -> tuple[object, None]:
        self.read += 1
        return self.recipes[recipe_id], None


def test_of_very_large_files_only_recipes_that_one_has_alone_are_read() -> None:
    chunks = [FileId.hash(b"%d" % number) for number in range(150_000)]
    shelf = Shelf()
    before = shelf.file(b"a", chunks)
    after = shelf.file(b"b", [*chunks[:100_000], FileId.hash(b"new"), *chunks[100_000:]])
    levels = len(shelf.recipes)
    assert levels > 4
    shared = shared_bytes(shelf, before, after)  # type: ignore[arg-type]
    assert shared >= MB * 140_000 and shared < after.size
    assert shelf.read < levels
    smaller = shelf.file(b"c", chunks[:60_000])
    assert shared_bytes(shelf, smaller, after) == MB * 60_000  # type: ignore[arg-type]
    assert recipes.count_chunks(shelf, after) == 150_001  # type: ignore[arg-type]
