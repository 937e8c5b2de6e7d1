from __future__ import annotations

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from dsv.repo.repository import Repository
from dsv.repo.tree.reader import TreeReader
from dsv.stores.memory import MemoryStore
from dsv.values.paths import sort_key
from tests.kit.repositories import commit, create, read


def test_what_was_committed_is_read_back(repository: Repository) -> None:
    rng = random.Random(1)
    files = {
        "empty": b"",
        "a/one": b"1",
        "a/two.sh": b"#!/bin/sh\n",
        "a/link@": b"one",
        "b/nothing": None,
        "big": rng.randbytes(5 << 20),
        "text": b"the same line again\n" * 90_000,
    }
    assert read(repository, commit(repository, files)) == files


def test_an_edit_rewrites_only_what_it_touches(repository: Repository) -> None:
    names = [f"d{n // 500:03}/f{n:06}" for n in range(20_000)]
    first = commit(repository, {name: name.encode() for name in names})
    second = commit(repository, {"d007/f003777": b"changed"})
    before = {leaf.id for leaf in TreeReader(repository.objects, first).leaves()}
    after = {leaf.id for leaf in TreeReader(repository.objects, second).leaves()}
    assert len(before) > 10
    assert len(after - before) == 1


def test_paths_are_found_without_reading_the_rest(repository: Repository) -> None:
    names = [f"d{n // 500:03}/f{n:06}" for n in range(5_000)]
    tree = TreeReader(repository.objects, commit(repository, {name: name.encode() for name in names}))
    found = tree.entry(b"d003/f001999")
    assert found is not None and found[0].size == len("d003/f001999")
    assert tree.entry(b"d003") is None
    assert tree.entry(b"zzz") is None
    below = [entry.path.decode() for entry, _ in tree.below(b"d003")]
    assert below == [name for name in names if name.startswith("d003/")]
    assert [entry.path for entry, _ in tree.below(b"d003/f001999")] == [b"d003/f001999"]
    assert list(tree.below(b"d00")) == []


paths = st.lists(st.sampled_from(["a", "b", "c", "a-", "a.b", "ä"]), min_size=1, max_size=3).map("/".join)
edits = st.lists(st.dictionaries(paths, st.one_of(st.none(), st.binary(max_size=3)), max_size=8), max_size=5)


@settings(max_examples=40, deadline=None)
@given(edits)
def test_edits_in_a_row_give_the_tree_of_their_sum(rounds: list[dict[str, bytes | None]]) -> None:
    """None removes. The same tree written at once has the same root: a tree depends on nothing but its entries."""
    repository = create(MemoryStore())
    model: dict[str, bytes] = {}
    head = commit(repository, {})
    for edit in rounds:
        removed, files = [], {}
        for name, content in edit.items():
            if content is None:
                removed.append(name)
                model.pop(name, None)
            elif not any(_clash(name, other) for other in model):
                model[name] = files[name] = content
        head = commit(repository, files, tuple(name for name in removed if name not in files))
    assert read(repository, head) == model
    other = create(MemoryStore())
    at_once = commit(other, model)
    assert other.objects.commit(at_once).root == repository.objects.commit(head).root


@settings(max_examples=5, deadline=None)
@given(st.sets(st.integers(0, 9_999), max_size=300), st.sets(st.integers(0, 9_999), max_size=300))
def test_large_edits_in_a_row_give_the_tree_of_their_sum(gone: set[int], new: set[int]) -> None:
    def name(number: int, suffix: str = "") -> str:
        return f"d{number // 700:02}/f{number:05}{suffix}"

    model = {name(number): b"x" for number in range(10_000)}
    repository = create(MemoryStore())
    commit(repository, model)
    added = {name(number, "-new"): b"y" for number in new}
    head = commit(repository, added, tuple(map(name, gone)))
    for number in gone:
        del model[name(number)]
    model.update(added)
    other = create(MemoryStore())
    assert other.objects.commit(commit(other, model)).root == repository.objects.commit(head).root


def _clash(name: str, other: str) -> bool:
    one, two = sort_key(name.encode()), sort_key(other.encode())
    return one != two and (one.startswith(two + b"\0") or two.startswith(one + b"\0"))
