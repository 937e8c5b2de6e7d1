"""What edits cost in a large dataset, and what is left of them if they are killed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from dsv.api.edits import EditRequest, MoveAll, Put, Remove, edit
from dsv.format.tree import Entry, Kind
from dsv.repo.repository import Repository
from dsv.repo.tree.reader import TreeReader
from dsv.repo.tree.writer import TreeChange
from dsv.stores.memory import MemoryStore
from dsv.stores.open import OpenStore, RequestCounts, open_store
from dsv.stores.options import StoreOptions
from dsv.transfer.commit import Committed, Draft, commit_changes
from dsv.values.ids import EMPTY_FILE
from dsv.values.names import MAIN, DatasetName, Target
from dsv.values.paths import sort_key
from tests.killing import run_killed
from tests.kit.people import SCANS, Person, every_store_is, read_commit
from tests.kit.repositories import WRITER

FILES = 60_000
TARGET = Target(SCANS)


def paths(count: int) -> list[bytes]:
    return sorted((b"d%04d/f%07d.png" % (n // 1000, n) for n in range(count)), key=sort_key)


def large(repository: Repository, count: int) -> Committed:
    """A commit of so many empty files."""
    after = repository.refs.newest(SCANS, MAIN)
    draft = Draft(SCANS, MAIN, after, (), "large", "test")
    entries = (TreeChange(one, Entry(one, Kind.FILE, 0, EMPTY_FILE)) for one in paths(count))
    done = commit_changes(repository, WRITER, draft, None, lambda _: entries)
    assert isinstance(done, Committed)
    return done


@pytest.fixture
def counted(tmp_path: Path) -> Iterator[tuple[Person, OpenStore]]:
    """Somebody who has no local copy of anything, and a store with many files."""
    store = OpenStore(MemoryStore())
    with every_store_is(store):
        maker = Person(tmp_path / "maker", "/nowhere")
        maker.init()
        large(Repository.open(store, None), FILES)
        yield Person(tmp_path / "ann", "/nowhere"), store


def cost(person: Person, store: OpenStore, *edits: Put | Remove | MoveAll) -> RequestCounts:
    before = store.counts
    person.home.mkdir(exist_ok=True)
    done = edit(person.context(person.home), TARGET, edits, EditRequest())
    assert done.any_change
    return store.counts - before


def segments(store: OpenStore) -> int:
    repository = Repository.open(store, None)
    head = repository.refs.head(SCANS, MAIN)
    assert head.commit is not None
    return len(TreeReader(repository.objects, head.commit).leaves())


def test_ten_files_are_put_for_the_price_of_the_segments_that_change(
    counted: tuple[Person, OpenStore],
) -> None:
    person, store = counted
    assert segments(store) > 30
    files = [Put(f"d0007/new-{n}.png", b"%d" % n) for n in range(10)]
    spent = cost(person, store, *files)
    # Two of the tree: its node and the one segment. The others are small records, as of any sync.
    assert spent.ranges <= 3, spent
    assert spent.requests <= 40, spent


def test_many_moves_read_each_segment_once(counted: tuple[Person, OpenStore]) -> None:
    person, store = counted
    moves = [(path, path.replace(b"/f", b"/g")) for path in paths(FILES)[::-3]]
    assert cost(person, store, MoveAll(moves)).ranges <= 3 * segments(store)


@pytest.mark.parametrize(
    "edits",
    [[Put("d/x", b"1" * 300_000), Remove("a"), Put("new/y", b"2")]],
)
def test_killed_before_any_step_there_is_nothing_or_all_of_it(
    tmp_path: Path, edits: list[Put | Remove]
) -> None:
    """In a folder as a store, before each file that is made, linked or renamed."""
    ann = Person(tmp_path / "ann", str(tmp_path / "store"))
    ann.init()
    outcomes: list[bool] = []
    step = 0
    ended = False
    while not ended:
        step += 1
        dataset = Target(DatasetName.parse(f"new-{step}"))
        first = edit(ann.context(), dataset, [Put("a", b"0"), Put("d/b", b"0")], EditRequest(create=True))

        def work(target: Target = dataset) -> None:
            edit(ann.context(), target, edits, EditRequest())

        ended = run_killed(work, step, inside=tmp_path) < step
        store = open_store(ann.store, StoreOptions())
        assert dataset.dataset is not None and first.commit is not None
        head = Repository.open(store, None).refs.head(dataset.dataset, MAIN)
        assert head.commit is not None
        outcomes.append(head.commit != first.commit)
        found = read_commit(store, head.commit)
        if outcomes[-1]:
            assert found == {"d/b": b"0", "d/x": b"1" * 300_000, "new/y": b"2"}
        else:
            assert found == {"a": b"0", "d/b": b"0"}
        store.close()
    assert outcomes[0] is False and outcomes[-1] is True and len(outcomes) > 10
