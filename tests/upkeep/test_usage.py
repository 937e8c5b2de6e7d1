from __future__ import annotations

import random
from collections.abc import Iterable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsv.errors import UsageError
from dsv.format import keys, pack
from dsv.format.index import IndexBuilder
from dsv.repo.repository import Repository
from dsv.repo.session import Session
from dsv.repo.tree.reader import TreeReader, reach_content, reach_tree
from dsv.stores.memory import MemoryStore
from dsv.upkeep import usage
from dsv.upkeep.roots import read_roots
from dsv.upkeep.usage import TREES, Sum, folder_runs, measure, measure_folders
from dsv.values.ids import CommitId
from dsv.values.paths import sort_key
from dsv.values.progress import NoProgress
from tests.kit.packs import verify
from tests.kit.repositories import WRITER, commit, create, packs

BIG = random.Random(3).randbytes(3 << 20)


def objects(repository: Repository) -> dict[bytes, Sum]:
    """Return the size of each object by the tables of the packs, read one by one: also the row of its locator."""
    found: dict[bytes, Sum] = {}
    for key in packs(repository):
        table = verify(repository.store.get(key))
        pack_id = keys.parse_pack_key(key)
        assert pack_id is not None
        for _, object_id, where in table.indexed(pack_id):
            rows = 2 if where.tail else 1
            assert bytes(object_id) not in found
            found[bytes(object_id)] = Sum(1, where.stored + where.tail + rows * pack.ROW_SIZE, where.length)
    return found


def reached(repository: Repository, commits: Iterable[CommitId]) -> set[bytes]:
    return {bytes(one.id) for each in commits for one in reach_tree(TreeReader(repository.objects, each))}


def total(sizes: dict[bytes, Sum], ids: Iterable[bytes]) -> Sum:
    found = Sum()
    for one in ids:
        found.add(sizes[one])
    return found


def world() -> tuple[Repository, list[CommitId]]:
    repository = create(MemoryStore())
    made = [
        commit(
            repository, {**{f"a/{n}": b"%d" % n for n in range(900)}, "big": BIG, "b/c/x": b"1", "empty": b""}
        )
    ]
    made.append(commit(repository, {"a/5": b"other", "b/big": BIG[: 2 << 20], "b/same": b"7"}))
    made.append(commit(repository, {"b/c/y": b"new"}, removed=("big",)))
    made.append(commit(repository, {f"z{n}": b"z%d" % n for n in range(50)}))
    return repository, made


def test_groups_that_overlap_take_what_a_slow_count_finds(tmp_path: Path) -> None:
    repository, made = world()
    sizes, groups = objects(repository), [made[:2], made[1:3], made[3:], made, []]
    found = measure(repository, made, groups, tmp_path / "room", NoProgress(), packs=True)
    for group, part in zip(groups, found.groups, strict=True):
        mine = reached(repository, group)
        others = reached(repository, set(made) - set(group))
        assert part.total == total(sizes, mine)
        assert part.alone == total(sizes, mine - others)
        assert part.shared == total(sizes, mine & others)
    assert found.reached == total(sizes, reached(repository, made))
    assert found.unused == Sum() and found.duplicates == Sum() and found.unlisted == 0
    assert found.packs is not None
    stored = [len(repository.store.get(key)) for key in packs(repository)]
    frame = len(pack.MAGIC) + pack.FOOTER_SIZE
    assert found.packs.bytes == sum(stored) == found.reached.stored + frame * len(stored)
    assert not list(tmp_path.glob("room/*"))


@pytest.mark.parametrize("numbers", [[0, 1], [3], [1, 2]])
def test_what_no_commit_has_is_unused_and_whole_packs_go_at_once(tmp_path: Path, numbers: list[int]) -> None:
    repository, made = world()
    sizes, kept = objects(repository), [made[number] for number in numbers]
    found = measure(repository, kept, [kept], tmp_path / "room", NoProgress(), packs=True)
    needed = reached(repository, kept)
    assert found.unused == total(sizes, set(sizes) - needed)
    free, rewritten, partly = [0, 0], [0, 0], [0, 0]
    frame = len(pack.MAGIC) + pack.FOOTER_SIZE
    for key in packs(repository):
        data = repository.store.get(key)
        pack_id = keys.parse_pack_key(key)
        assert pack_id is not None
        ids = {bytes(object_id) for _, object_id, _ in verify(data).indexed(pack_id)}
        used = total(sizes, ids & needed).stored
        if not used:
            kind, more = free, len(data)
        elif 2 * (used + frame) < len(data):
            kind, more = rewritten, len(data) - used - frame  # what is copied gets a frame, too
        elif ids - needed:
            kind, more = partly, total(sizes, ids - needed).stored
        else:
            continue
        kind[0], kind[1] = kind[0] + 1, kind[1] + more
    assert found.packs is not None and (free[0] or rewritten[0] or partly[0])
    assert [found.packs.free, found.packs.free_bytes] == free
    assert [found.packs.rewritten, found.packs.rewritten_bytes] == rewritten
    assert [found.packs.partly, found.packs.partly_unused_bytes] == partly


def test_packs_in_no_index_are_free_and_lost_ones_are_counted(tmp_path: Path) -> None:
    first, made = world()
    repository = Repository.open(first.store, lambda _: tmp_path / "copies")
    assert reached(repository, made), "of what the lost pack has, there are copies"
    before = packs(repository)
    lone = b"x" * 16
    repository.store.put_if_absent(f"packs/{lone.hex()[:2]}/{lone.hex()}", b"y" * 1000)
    repository.store.delete(before[0])
    found = measure(repository, made, [], tmp_path / "room", NoProgress(), packs=True).packs
    assert found is not None
    assert (found.unindexed, found.unindexed_bytes, found.free, found.free_bytes, found.missing) == (
        1,
        1000,
        1,
        1000,
        1,
    )


def test_an_object_in_two_packs_is_a_duplicate_and_counts_once(tmp_path: Path) -> None:
    repository, made = world()
    sizes, needed = objects(repository), reached(repository, made)
    key = packs(repository)[0]
    table = verify(repository.store.get(key))
    first = keys.parse_pack_key(key)
    assert first is not None
    other = type(first).random()
    builder = IndexBuilder()
    for kind, object_id, where in table.indexed(first):
        builder.add(kind, object_id, where._replace(pack=other))
    repository.store.put_if_absent(keys.pack_key(other), repository.store.get(key))
    with Session.open(repository, WRITER) as session:
        session.put_index(builder.finish())
        session.close()
    found = measure(repository, made, [made], tmp_path / "room", NoProgress(), packs=True)
    assert found.reached == found.groups[0].total == total(sizes, needed)
    assert found.duplicates.objects == len(list(table.indexed(first))) and found.unused == Sum()
    assert found.packs is not None and found.packs.free + found.packs.partly >= 1


def test_objects_that_no_index_lists_are_counted(tmp_path: Path) -> None:
    repository, made = world()
    folder = tmp_path / "copies"
    again = Repository.open(repository.store, lambda _: folder)
    assert reached(again, made)
    [gone] = [item.key for item in repository.store.list(keys.INDEX_PREFIX)][:1]
    repository.store.delete(gone)
    found = measure(
        Repository.open(repository.store, lambda _: folder), made, [], tmp_path / "room", NoProgress()
    )
    assert found.unlisted > 0


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_folders_take_what_a_slow_count_finds(tmp_path: Path, depth: int) -> None:
    repository, made = world()
    sizes, commits = objects(repository), made[:3]
    folders, found = measure_folders(repository, made, commits, depth, tmp_path / "room", NoProgress())
    wanted: dict[bytes, set[bytes]] = {}
    for one in commits:
        for entry, where in TreeReader(repository.objects, one).below(b""):
            ids = {bytes(each.id) for each in reach_content(repository.objects, entry, where)}
            parts = entry.path.split(b"/")[:-1][:depth]
            wanted.setdefault(b"/".join([*parts, b""]) or b"./", set()).update(ids)
    everything = reached(repository, commits)
    wanted[TREES] = everything - set().union(*wanted.values())
    elsewhere = reached(repository, made[3:])
    assert set(folders) == set(wanted)
    for name, part in folders.items():
        others = set().union(elsewhere, *(ids for other, ids in wanted.items() if other != name))
        assert part.total == total(sizes, wanted[name])
        assert part.alone == total(sizes, wanted[name] - others)
    assert found.reached == total(sizes, everything | elsewhere)


def test_too_many_folders_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    repository, made = world()
    monkeypatch.setattr(usage, "MOST_LABELS", 3)
    with pytest.raises(UsageError, match="more than 3 folders"):
        measure_folders(repository, made, made, 3, tmp_path / "room", NoProgress())


def test_too_many_groups_with_commits_in_common_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    repository, made = world()
    monkeypatch.setattr(usage, "MOST_LABELS", 2)
    measure(repository, made, [made[:2]], tmp_path / "room", NoProgress())
    with pytest.raises(UsageError, match="more than 2 groups"):
        measure(repository, made, [made[:2], made[1:3]], tmp_path / "room", NoProgress())


parts = st.sampled_from(["a", "b", "ab", "a-"])
paths = st.lists(parts, min_size=1, max_size=4).map("/".join)


@given(st.sets(paths, min_size=1, max_size=30), st.integers(1, 4))
def test_runs_of_folders_are_those_of_each_path(drawn: set[str], depth: int) -> None:
    chosen = sorted((path.encode() + b"/f" for path in drawn), key=sort_key)
    wanted = [b"/".join(path.split(b"/")[:-1][:depth]) + b"/" for path in chosen]
    found: list[bytes] = []
    for folder, end in folder_runs(chosen, depth):
        assert len(found) < end
        found += [folder] * (end - len(found))
    assert found == wanted


def test_an_empty_store_takes_nothing(tmp_path: Path) -> None:
    repository = create(MemoryStore())
    roots = read_roots(repository)
    found = measure(repository, roots, [roots], tmp_path / "room", NoProgress(), packs=True)
    assert found.reached == found.unused == Sum() and found.packs is not None and found.packs.count == 0
