from __future__ import annotations

import random
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dsv.errors import IntegrityError
from dsv.format import keys, recipe, tree
from dsv.format.locator import ObjectKind
from dsv.repo.repository import Repository
from dsv.repo.tree.reader import TreeReader, reach_tree
from dsv.stores.memory import MemoryStore
from dsv.upkeep import reach as reach_file
from dsv.upkeep.ids import Seen
from dsv.upkeep.reach import reach
from dsv.values.ids import CommitId
from tests.kit import packs
from tests.kit.repositories import commit, create

BIG = random.Random(7).randbytes(12 << 20)
ALIKE = BIG[: 9 << 20] + b"other end"


@pytest.fixture
def repository(monkeypatch: pytest.MonkeyPatch) -> Iterator[Repository]:
    """Small windows, recipes of few rows (so that there are recipes above recipes) and small segments and nodes."""
    monkeypatch.setattr(recipe, "MAX_ROWS", 4)
    monkeypatch.setattr(tree, "MIN_ENTRIES", 4)
    monkeypatch.setattr(tree, "MAX_ENTRIES", 16)
    monkeypatch.setattr(reach_file, "_NODES", 2)
    monkeypatch.setattr(reach_file, "_COMMITS", 3)
    monkeypatch.setattr(reach_file, "_RECIPES", 2)
    yield create(MemoryStore())


def by_tree(repository: Repository, commits: list[CommitId]) -> dict[ObjectKind, set[bytes]]:
    """Return the ids that the slow walk finds, entry by entry."""
    found: dict[ObjectKind, set[bytes]] = {}
    for one in commits:
        for kind, object_id, _ in reach_tree(TreeReader(repository.objects, one)):
            found.setdefault(kind, set()).add(bytes(object_id))
    return found


def by_reach(
    repository: Repository, commits: list[CommitId], seen: Seen | None = None
) -> dict[ObjectKind, set[bytes]]:
    found: dict[ObjectKind, set[bytes]] = {}
    once: list[bytes] = []

    def take(kind: ObjectKind, ids: bytes) -> None:
        assert ids and not len(ids) % 32
        each = [ids[at : at + 32] for at in range(0, len(ids), 32)]
        found.setdefault(kind, set()).update(each)
        if kind is not ObjectKind.CHUNK:
            once.extend(each)

    reach(repository.objects, commits, take, Seen() if seen is None else seen)
    assert len(once) == len(set(once))
    return found


def test_all_that_is_in_a_commit_is_found(repository: Repository) -> None:
    small = {f"d{n % 7}/f{n}": b"%d" % n for n in range(900)}
    others = {
        "big": BIG,
        "copy": BIG,
        "alike": ALIKE,
        "link@": b"big",
        "none": None,
        "empty": b"",
        "run.sh": b"#",
    }
    one = commit(repository, {**small, **others})
    two = commit(repository, {"d1/f8": b"changed", "big2": BIG + b"x"}, removed=("d2/f2", "empty"))
    made = repository.objects.commit(one)
    assert made.level > 2
    assert by_reach(repository, [one]) == by_tree(repository, [one])
    assert by_reach(repository, [two, one]) == by_tree(repository, [one, two])
    seen = Seen()
    first, rest = by_reach(repository, [one], seen), by_reach(repository, [two], seen)
    for kind in (ObjectKind.NODE, ObjectKind.SEGMENT, ObjectKind.RECIPE):
        assert rest[kind] == by_tree(repository, [two])[kind] - first[kind]
    assert by_reach(repository, [one, two], seen) == {}


def test_what_is_reached_is_all_that_the_packs_have(repository: Repository) -> None:
    commits = [
        commit(repository, {f"f{n}": b"%d" % (n * seed) for n in range(seed, 40)}) for seed in range(8)
    ]
    stored: dict[ObjectKind, set[bytes]] = {}
    for item in repository.store.list(keys.PACK_PREFIX):
        pack_id = keys.parse_pack_key(item.key)
        assert pack_id is not None
        for kind, object_id, _ in packs.verify(repository.store.get(item.key)).indexed(pack_id):
            stored.setdefault(kind, set()).add(bytes(object_id))
    assert by_reach(repository, commits) == stored


def test_an_empty_tree_has_its_root(repository: Repository) -> None:
    commit(repository, {"a": b"1"})
    empty = commit(repository, {}, removed=("a",))
    assert by_reach(repository, [empty]) == by_tree(repository, [empty])


contents = st.sampled_from([b"", b"1", b"2", b"3" * 70, None])
edits = st.lists(
    st.dictionaries(st.sampled_from([f"{d}/{f}" for d in "abc" for f in range(12)]), contents), max_size=5
)


@given(edits, st.data())
@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_commits_reach_what_the_slow_walk_finds(
    repository: Repository, rounds: list[dict[str, bytes | None]], data: st.DataObject
) -> None:
    made = create(MemoryStore())
    commits = [commit(made, edit) for edit in rounds]
    chosen = data.draw(st.lists(st.sampled_from(commits), max_size=6)) if commits else []
    assert by_reach(made, chosen) == by_tree(made, chosen)


@pytest.mark.parametrize("kind", [ObjectKind.NODE, ObjectKind.SEGMENT, ObjectKind.RECIPE])
def test_nothing_is_passed_over(repository: Repository, kind: ObjectKind) -> None:
    made = commit(repository, {**{f"f{n:03}": b"%d" % n for n in range(300)}, "big": BIG})
    lost = sorted(by_tree(repository, [made])[kind])[0]
    place = next(repository.objects.indexes.places(kind, lost))  # type: ignore[arg-type]
    key = keys.pack_key(place.pack)
    data = bytearray(repository.store.get(key))
    data[place.offset] ^= 0xFF
    repository.store.delete(key)
    repository.store.put_if_absent(key, data)
    with pytest.raises(IntegrityError, match=lost.hex()):
        by_reach(Repository.open(repository.store, None), [made])


def test_a_commit_that_is_gone_is_an_error(repository: Repository) -> None:
    made = commit(repository, {"a": b"1"})
    repository.store.delete(keys.commit_key(made))
    repository.store.delete(keys.locator_key(made))  # it has a copy
    with pytest.raises(IntegrityError, match="is named, but not in"):
        by_reach(Repository.open(repository.store, None), [made])


def test_many_files_are_read_with_few_requests() -> None:
    """Segments and recipes lie together and are read together."""
    made = create(MemoryStore())
    large = {f"large{n}": BIG[n : n + (1 << 20) + 1] for n in range(6)}
    commit_id = commit(made, {**{f"f{n}": b"%d" % n for n in range(6000)}, **large})
    again = Repository.open(made.store, None)
    asked: list[str] = []
    get_range = again.store.get_range
    again.store.get_range = lambda key, *span: (asked.append(key), get_range(key, *span))[1]  # type: ignore[method-assign]
    found = by_reach(again, [commit_id])
    assert len(found[ObjectKind.SEGMENT]) > 3 and len(found[ObjectKind.RECIPE]) == 6
    assert len(asked) <= 4
