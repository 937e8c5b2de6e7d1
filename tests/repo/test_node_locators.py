"""Nodes with locators of their own: what a commit costs, and what a reader finds by them alone."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dsv.format import keys
from dsv.format import tree as model_tree
from dsv.format.index import Index, IndexBuilder
from dsv.format.records import FormatEntry
from dsv.repo.format_log import NAMED_RECORDS, features, make_layout
from dsv.repo.history import PathHistory
from dsv.repo.objects.access import Access
from dsv.repo.repository import Repository
from dsv.repo.session import Session
from dsv.repo.tree import writer
from dsv.repo.tree.diff import diff_trees
from dsv.repo.tree.reader import TreeReader, find_paths
from dsv.stores.base import StoreBackend
from dsv.stores.memory import MemoryStore
from dsv.stores.open import OpenStore
from dsv.transfer.upload import Uploader
from dsv.values.ids import CommitId, IndexId, Nonce, PackId, StoreId
from dsv.values.paths import PathSet
from tests.kit import repositories
from tests.kit.repositories import DATASET, MAIN, WRITER, commit, create, packs, publish, read

FILES = 600


@pytest.fixture(autouse=True)
def small_nodes(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Segments of about 8 entries and nodes of about 8 children, so that a small tree has several levels."""
    monkeypatch.setattr(model_tree, "MIN_ENTRIES", 4)
    yield


def name(number: int) -> str:
    return f"d{number // 50:02}/f{number:05}"


def everything(count: int = FILES) -> dict[str, bytes]:
    return {name(number): b"x%d" % number for number in range(count)}


def older(store: StoreBackend) -> Repository:
    """A store as it was made before nodes had locators."""
    made = FormatEntry(StoreId.random(), Nonce.random(), 0, "", "", features=features(NAMED_RECORDS))
    make_layout(store, made)
    return create(store)


def opened(store: StoreBackend) -> Repository:
    return Repository.open(store, None, Access(lambda: next(repositories.TIME)))


def without_index(store: StoreBackend) -> Repository:
    """A reader for whom no index file exists."""
    for item in list(store.list(keys.INDEX_PREFIX)):
        store.delete(item.key)
    return opened(store)


@pytest.mark.parametrize("make", [create, older])
def test_a_whole_commit_is_read_without_an_index_file(make: type[Repository]) -> None:
    store = MemoryStore()
    repository = make(store)
    commit(repository, everything())
    head = commit(repository, {name(300): b"changed", "zzz": b"new"})
    assert repository.objects.commit(head).level > 2
    expected = {**everything(), name(300): b"changed", "zzz": b"new"}
    assert read(without_index(store), head) == expected


def test_a_commits_locator_names_its_root_alone() -> None:
    repository = create(MemoryStore())
    head = commit(repository, everything())
    locator = repository.objects.commit_locator(head)
    assert locator is not None and len(locator) == 1
    found = next(repository.objects.nodes([(repository.objects.commit(head).root, None)]))
    assert found.locator is not None and len(found.locator) == len(found.value.children)


def test_an_older_store_is_written_as_it_was_made() -> None:
    repository = older(MemoryStore())
    head = commit(repository, everything())
    locator = repository.objects.commit_locator(head)
    tree = TreeReader(repository.objects, head)
    assert locator is not None and len(locator) == len(list(tree.nodes())) + len(tree.leaves())
    assert {where.tail for _, _, where in tree.nodes() if where is not None} == {0}


def test_a_commit_stores_the_nodes_above_what_it_changed_and_no_other() -> None:
    """And reads no other: what it writes and reads is as much for ten times the files, but for another level."""
    stored = []
    for count in (1_000, 10_000):
        store = OpenStore(MemoryStore())
        commit(create(store), everything(count))
        repository = opened(store)
        level = repository.objects.commit(repository.refs.head(DATASET, MAIN).commit or CommitId(b"")).level
        before = set(packs(repository))
        ranges = store.counts.ranges
        commit(repository, {name(300): b"changed"})
        (pack,) = [key for key in set(packs(repository)) - before if len(store.get(key)) > 400]
        assert store.counts.ranges - ranges <= level + 1, "the nodes down to the segment, and the segment"
        stored.append(len(store.get(pack)) / level)
    assert stored[1] < 2 * stored[0]


edits = st.lists(
    st.dictionaries(
        st.tuples(st.integers(0, FILES - 1), st.sampled_from(["", "", "-new"])),
        st.one_of(st.none(), st.none(), st.binary(min_size=1, max_size=2)),
        max_size=30,
    ),
    max_size=3,
)
spans = st.lists(st.tuples(st.integers(0, FILES), st.integers(0, FILES)), max_size=3)


@settings(max_examples=25, deadline=None)
@given(edits, spans, st.booleans())
def test_edits_of_a_deep_tree_give_the_tree_of_their_sum(
    rounds: list[dict[tuple[int, str], bytes | None]], gone: list[tuple[int, int]], old: bool
) -> None:
    """Whole folders and levels go too: the root is then a lower one."""
    model = everything()
    repository = older(MemoryStore()) if old else create(MemoryStore())
    head = commit(repository, model)
    for edit in rounds:
        changed = {name(number) + more: content for (number, more), content in edit.items()}
        removed = tuple(path for path, content in changed.items() if content is None)
        added = {path: content for path, content in changed.items() if content is not None}
        head = commit(repository, added, removed)
        model = {path: content for path, content in {**model, **added}.items() if path not in removed}
    for first, last in gone:
        removed = tuple(path for path in map(name, range(first, last)) if path in model)
        head = commit(repository, {}, removed)
        model = {path: content for path, content in model.items() if path not in removed}
    other = create(MemoryStore())
    one, two = other.objects.commit(commit(other, model)), repository.objects.commit(head)
    assert (one.root, one.level) == (two.root, two.level)
    assert (one.entries, one.files, one.bytes) == (two.entries, two.files, two.bytes)
    assert read(without_index(repository.store), head) == model


@pytest.mark.parametrize("kept", [1, 2, 7, 8, 64, 300])
def test_what_is_left_of_a_tree_has_the_lowest_root(kept: int) -> None:
    """The last entries, so that the nodes that stay are those at the end of their levels."""
    repository = create(MemoryStore())
    commit(repository, everything())
    head = commit(repository, {}, tuple(map(name, range(FILES - kept))))
    other = create(MemoryStore())
    alone = commit(other, {name(number): b"x%d" % number for number in range(FILES - kept, FILES)})
    one, two = other.objects.commit(alone), repository.objects.commit(head)
    assert (one.root, one.level) == (two.root, two.level)


def test_stale_locators_of_nodes_cost_requests_and_nothing_else() -> None:
    """As after gc has moved segments: rows name packs that are gone, and the index names other places."""
    store = MemoryStore()
    repository = create(store)
    head = commit(repository, everything())
    moved = _moved(store)
    assert read(opened(store), head) == everything()
    assert moved


def _moved(store: MemoryStore) -> list[str]:
    """Each pack of the store under another id, and the index files that say so."""
    renamed = {}
    for key in packs(opened(store)):
        pack = keys.parse_pack_key(key)
        assert pack is not None
        renamed[pack] = PackId.random()
        store.put_if_absent(keys.pack_key(renamed[pack]), store.get(key))
        store.delete(key)
    builder = IndexBuilder()
    for item in list(store.list(keys.INDEX_PREFIX)):
        for kind, object_id, where in Index.parse(store.get(item.key)).rows():
            builder.add(kind, object_id, where._replace(pack=renamed[where.pack]))
        store.delete(item.key)
    store.put_if_absent(keys.index_key(IndexId.random()), builder.finish())
    return [keys.pack_key(one) for one in renamed.values()]


def test_two_writers_of_one_segment_name_different_packs_and_both_are_right() -> None:
    store = MemoryStore()
    one, two = create(store), opened(store)
    head = one.refs.head(DATASET, MAIN)
    with (
        Session.open(one, WRITER) as first,
        Session.open(two, WRITER) as second,
        Uploader(first) as left,
        Uploader(second) as right,
    ):
        trees = []
        for uploader in (left, right):  # neither has an index file of the other
            changes = [repositories.change(uploader, path, data) for path, data in everything().items()]
            trees.append(repositories.write_tree(uploader, None, changes))
        left.finish()
        right.finish()
        assert trees[0].root == trees[1].root and trees[0].locator != trees[1].locator
        made = []
        for session, tree in zip((first, second), trees, strict=True):
            record = repositories.CommitRecord(
                root=tree.root, level=tree.level, parents=(), author="", time_ms=next(repositories.TIME), message="",
                files=tree.files, bytes=tree.bytes, entries=tree.entries,
            )  # fmt: skip
            made.append(session.put_commit(one.named(record, DATASET, MAIN), tree.locator))
        publish(first, head, made[0])
    reader = without_index(store)
    assert read(reader, made[0]) == read(reader, made[1]) == everything()


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 2**32))
def test_a_damaged_locator_of_a_node_costs_requests_and_nothing_else(seed: int) -> None:
    """Its bytes are in a pack, where a bad disk may change them."""
    noise = random.Random(seed)
    store = MemoryStore()
    repository = create(store)
    head = commit(repository, everything(200))
    for _, _, where in TreeReader(repository.objects, head).nodes():
        assert where is not None
        key = keys.pack_key(where.pack)
        data = bytearray(store.get(key))
        at = where.offset + where.stored + noise.randrange(where.tail)
        data[at] ^= 1 << noise.randrange(8)
        store.delete(key)
        store.put_if_absent(key, bytes(data))
    assert read(opened(store), head) == everything(200)


def test_the_history_of_a_path_is_found_without_an_index_file() -> None:
    store = MemoryStore()
    repository = create(store)
    one = commit(repository, everything())
    two = commit(repository, {name(17): b"changed"})
    reader = without_index(store)
    assert PathHistory(reader.objects, PathSet.of([name(17).encode()])).differs(one, two)
    assert not PathHistory(reader.objects, PathSet.of([name(500).encode()])).differs(one, two)


def test_an_older_store_takes_a_tree_that_is_too_large_for_a_commits_locator(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(writer, "MAX_ROWS", 20)
    repository = older(MemoryStore())
    head = commit(repository, everything())
    assert repository.objects.commit_locator(head) is None
    assert read(repository, head) == everything()


def nodes_read(
    store: StoreBackend, folder: Path, head: CommitId, read_something: Callable[[TreeReader], object]
) -> int:
    """Return how many nodes somebody without local copies has read after that."""
    repository = Repository.open(store, lambda _: folder)
    read_something(TreeReader(repository.objects, head))
    return len(list((folder / "node").glob("*/[!.]*")))


def test_what_is_asked_of_a_tree_reads_the_nodes_that_lead_to_it(tmp_path: Path) -> None:
    """One node of each level for a path, however large the tree is, and about as many for a folder."""
    store = MemoryStore()
    repository = create(store)
    head = commit(repository, everything(10_000))
    other = commit(repository, {name(300): b"changed"})
    level = repository.objects.commit(head).level
    everywhere = nodes_read(store, tmp_path / "all", head, lambda tree: tree.leaves())
    assert level >= 4 and everywhere > 100

    def compare(tree: TreeReader) -> None:
        later = TreeReader(tree.objects, other)
        assert [change.path for change in diff_trees(tree, later)] == [name(300).encode()]

    def look_up(tree: TreeReader) -> None:
        paths = [name(300).encode(), b"nothing"]
        assert [found.entry is not None for _, found in find_paths(tree, paths)] == [True, False]

    folder = PathSet((b"d06",))
    questions: dict[str, tuple[Callable[[TreeReader], object], int]] = {
        "a path": (lambda tree: tree.entry(name(300).encode()), level),
        "a path that is not there": (lambda tree: tree.entry(b"zzz"), level),
        "paths": (look_up, 2 * level),
        "a folder": (lambda tree: list(tree.below(b"d06")), 3 * level),
        "a selection": (lambda tree: list(tree.within(folder)), 3 * level),
        "what differs": (compare, 2 * level),
    }
    for what, (question, most) in questions.items():
        assert nodes_read(store, tmp_path / what, head, question) <= most, what


@settings(max_examples=25, deadline=None)
@given(edits, st.lists(st.integers(-1, FILES), min_size=1, max_size=6), st.booleans())
def test_what_is_looked_up_is_what_the_whole_tree_has(
    rounds: list[dict[tuple[int, str], bytes | None]], asked: list[int], old: bool
) -> None:
    """Paths, folders, and what differs, of trees that share some nodes; in a store of before, too."""
    store = MemoryStore()
    repository = (older if old else create)(store)
    model, commits = everything(), [commit(repository, everything())]
    for changes in rounds:
        made = {name(number) + suffix: content for (number, suffix), content in changes.items()}
        made = {path: content for path, content in made.items() if content is not None or path in model}
        model = {path: content for path, content in {**model, **made}.items() if content is not None}
        if made:
            commits.append(commit(repository, made))
    first, last = (TreeReader(opened(store).objects, each) for each in (commits[0], commits[-1]))
    whole = {
        entry.path: (entry, where) for entry, where in TreeReader(repository.objects, commits[-1]).below(b"")
    }
    for path in [name(number).encode() for number in asked] + [b"a", b"zzz"]:
        assert (last.entry(path) or (None, None))[0] == whole.get(path, (None, None))[0]
    folder = name(asked[0]).partition("/")[0].encode()
    assert [entry.path for entry, _ in last.below(folder)] == sorted(
        path for path in whole if path.startswith(folder + b"/")
    )
    before = {entry.path: entry for entry, _ in TreeReader(repository.objects, commits[0]).below(b"")}
    differs = {
        path for path in before.keys() | whole.keys() if before.get(path) != whole.get(path, (None,))[0]
    }
    assert {change.path for change in diff_trees(first, last)} == differs
