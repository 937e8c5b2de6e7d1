"""Trees that nobody should write out: paths that leave, that collide, or that lead elsewhere."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from dsv import reader
from dsv.errors import IntegrityError
from dsv.format.locator import Location, ObjectKind
from dsv.format.tree import Entry
from dsv.reader import StoreError
from dsv.repo.repository import Repository
from dsv.repo.tree.reader import TreeReader, find_entries, find_paths
from dsv.stores.memory import MemoryStore
from dsv.values.ids import ChunkId, CommitId, NodeId, SegmentId
from dsv.values.names import MAIN, DatasetName
from tests.inputs.hostile import SMALL, Below, Maker, file, link, named, node_bytes, segment_bytes, tree
from tests.inputs.scene import CACHE, CLONE, RUN, WHOLE, Scene, Use, nothing_partial, refused
from tests.kit.dsv import Dsv

Segments = Sequence[Sequence[Entry]]
GOOD: Segments = [[file(b"a"), file(b"b/c"), link(b"d", b"b/c")], [file(b"e/f")]]
GOOD_FILES = {"a": SMALL, "b/c": SMALL, "d@": b"b/c", "e/f": SMALL}

LEAVING: Mapping[str, Segments] = {
    "up and out": [[file(b"../../etc/passwd"), file(b"z")]],
    "up and out, as a node says": [[file(b"a"), file(b"x/../../../etc/passwd")]],
    "absolute": [[file(b"/etc/passwd"), file(b"z")]],
    "absolute, as a node says": [[file(b"/etc/passwd")]],
    "git's own": [[file(b"a/.GIT/hooks/post-checkout"), file(b"z")]],
    "dsv's own": [[file(".dſv/config".encode()), file(b"z")]],
    "an empty name": [[file(b"a//b"), file(b"z")]],
    "no text": [[file(b"\xff"), file(b"\xff\xff")]],
    "an absolute symlink": [[link(b"d/l", b"/etc")]],
}
MEETING: Mapping[str, Segments] = {
    "twice in a segment": [[file(b"a"), file(b"a"), file(b"b")]],
    "twice in two segments": [[file(b"a"), file(b"b")], [file(b"b"), file(b"c")]],
    "out of order": [[file(b"b"), file(b"a"), file(b"c")]],
    "out of order in two segments": [[file(b"b")], [file(b"a"), file(b"c")]],
    "a file where a folder is": [[file(b"a"), file(b"a/b"), file(b"c")]],
    "a file where a folder is, in two segments": [[file(b"a")], [file(b"a/b"), file(b"c")]],
    "a symlink where a folder is": [[link(b"a", b"../../elsewhere"), file(b"a/b"), file(b"c")]],
    "a symlink where a folder is, in two segments": [[link(b"a", b"elsewhere")], [file(b"a/b"), file(b"c")]],
}
ESCAPING: Mapping[str, Segments] = {
    "one symlink": [[link(b"x", b"../y")]],
    "by way of another": [[link(b"d/l", b".."), link(b"x", b"d/l/../y")]],
    "by way of another in another segment": [[link(b"d/l", b"..")], [link(b"x", b"d/l/../y")]],
    "by way of a circle": [[link(b"a", b"a"), link(b"b", b"a/../..")]],
}


def canaries(scene: Scene) -> list[Path]:
    """Files that a path or a link of these trees would have put somewhere."""
    names = ("passwd", "y", "post-checkout", "config")
    return [path for path in scene.folder.rglob("*") if path.name in names and path.parent.name != ".dsv"]


def reader_refuses(scene: Scene, message: str | None = None) -> None:
    out = scene.folder / "restored"
    with pytest.raises(StoreError, match=message):
        reader.restore(scene.store, "set", out)
    assert not out.exists()


@pytest.mark.parametrize("segments", (LEAVING | MEETING).values(), ids=(LEAVING | MEETING).keys())
def test_a_tree_that_breaks_a_rule_of_paths(scene: Scene, segments: Segments) -> None:
    scene.reset(tree(*segments))
    before = scene.contents()
    people = {use: scene.newcomer() for use in (CACHE, CLONE)}
    for use, person in people.items():
        refused(use(person, "set"), use.code(5), "damaged")
        nothing_partial(person)
    refused(people[CACHE]("ls", "set"), 5, "damaged")
    reader_refuses(scene)
    assert canaries(scene) == []
    assert scene.contents() == before
    goes_on_with_a_good_commit(scene, people)


def goes_on_with_a_good_commit(scene: Scene, people: Mapping[Use, Dsv]) -> None:
    """The next move of the branch names a good tree: the same people's same commands work."""
    maker = Maker()
    maker.chunk()
    commit = maker.tree(*GOOD)
    scene.reset({**maker.store(None), **named(commit, 1)})
    for use, person in people.items():
        assert use(person, "set").code == 0
        assert use.result(person, "set") == GOOD_FILES


@pytest.mark.parametrize("segments", ESCAPING.values(), ids=ESCAPING.keys())
def test_a_symlink_that_leaves_the_tree(scene: Scene, segments: Segments) -> None:
    """It takes all links of a tree to see it. `ls` follows none, so it shows them."""
    scene.reset(tree(*segments))
    people = {use: scene.newcomer() for use in (CACHE, CLONE)}
    for use, person in people.items():
        refused(use(person, "set"), use.code(5), "symlink that leaves the dataset")
        nothing_partial(person)
    assert people[CACHE].ok("ls", "set").lines == [
        entry.path.decode() for entries in segments for entry in entries
    ]
    reader_refuses(scene, "leaves the tree")
    goes_on_with_a_good_commit(scene, people)


def test_a_selection_is_judged_by_what_is_in_it(scene: Scene) -> None:
    """Without the link that it leaves by, this one dangles inside; a selection that has both is refused."""
    scene.reset(tree([link(b"d/l", b".."), file(b"e"), link(b"x/y", b"../d/l/../../z")]))
    person = scene.newcomer()
    folder = Path(person.ok("cache", "set:x", "-q").out.strip())
    assert (folder / "x/y").is_symlink()
    assert (folder / "x/y").resolve().is_relative_to(folder.resolve())
    refused(scene.newcomer()("cache", "set", "-q"), 5, "symlink that leaves the dataset")


def test_a_job_does_not_see_such_a_tree(scene: Scene) -> None:
    scene.reset(tree([link(b"d/l", b".."), link(b"x", b"d/l/../y")]))
    person = scene.newcomer()
    refused(RUN(person, "set"), 125, "symlink that leaves the dataset")
    nothing_partial(person)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"last": b"c"}, "not what its node says"),
        ({"entries": 3, "total": 3}, "not what its node says"),
        ({"files": 1, "total_files": 1}, "not what its node says"),
        ({"size": 9, "total_size": 9}, "not what its node says"),
        ({"total": 3}, "totals"),
        ({"total_size": 1 << 50}, "totals"),
        ({"level": 2}, "a node of level 1 where 2 belongs"),
    ],
)
def test_a_node_that_lies(scene: Scene, change: dict[str, int | bytes], message: str) -> None:
    told = {"last": b"b", "entries": 2, "files": 2, "size": 2, "level": 1}
    told |= {"total": 2, "total_files": 2, "total_size": 2, **change}
    maker = Maker()
    maker.chunk()
    data = segment_bytes([file(b"a"), file(b"b")])
    place = maker.add(ObjectKind.SEGMENT, SegmentId.hash(data), data)
    below = Below(told["last"], SegmentId.hash(data), told["entries"], told["files"], told["size"])  # type: ignore[arg-type]
    node = node_bytes(1, [below])
    root = maker.add(ObjectKind.NODE, NodeId.hash(node), node)
    totals = (told["total_files"], told["total_size"], told["total"])
    commit = maker.commit(NodeId.hash(node), totals, [root, place], level=told["level"])  # type: ignore[arg-type]
    scene.reset(maker.store(commit))
    for use in (CACHE, CLONE):
        person = scene.newcomer()
        refused(use(person, "set"), 5, message)
        nothing_partial(person)


def twice(level: int) -> Repository:
    """A store with a tree whose root lists a segment (level 1), or a node above it, at two places."""
    maker = Maker()
    below: list[Below] = []
    places: list[Location] = []
    for first, last in ((b"a", b"b"), (b"c", b"d")):
        data = segment_bytes([file(first), file(last)])
        places.append(maker.add(ObjectKind.SEGMENT, SegmentId.hash(data), data))
        one = Below(last, SegmentId.hash(data), 2, 2, 2 * len(SMALL))
        if level == 2:
            data = node_bytes(1, [one])
            places.append(maker.add(ObjectKind.NODE, NodeId.hash(data), data))
            one = replace(one, id=NodeId.hash(data))
        below.append(one)
    root = node_bytes(level, [*below, replace(below[0], last=b"f")])
    maker.add(ObjectKind.NODE, NodeId.hash(root), root)
    commit = maker.commit(NodeId.hash(root), (6, 6 * len(SMALL), 6), [], level=level)
    store = MemoryStore()
    for key, value in maker.store(commit).items():
        store.put_if_absent(key, value)
    return Repository.open(store, None)


ASKED: Mapping[str, Callable[[TreeReader], object]] = {
    "where paths are": lambda tree: list(find_paths(tree, [b"a", b"c", b"e"])),
    "entries": lambda tree: find_entries(tree, [b"a", b"c", b"e"]),
    "one entry after the other": lambda tree: [tree.entry(path) for path in (b"a", b"c", b"e")],
    "all": lambda tree: list(tree.segments()),
}


@pytest.mark.parametrize("level", [1, 2])
@pytest.mark.parametrize("ask", ASKED.values(), ids=ASKED.keys())
def test_a_part_that_is_listed_twice(level: int, ask: Callable[[TreeReader], object]) -> None:
    repository = twice(level)
    head = repository.refs.head(DatasetName.parse("set"), MAIN).commit
    assert head is not None
    with pytest.raises(IntegrityError, match="not what"):
        ask(TreeReader(repository.objects, head))


def test_the_trees_are_refused_for_nothing_else(scene: Scene) -> None:
    scene.reset(tree(*GOOD))
    for use in WHOLE:
        person = scene.newcomer()
        assert use(person, "set").code == 0
        assert use.result(person, "set") == GOOD_FILES
    reader.restore(scene.store, "set", scene.folder / "restored")
    assert (scene.folder / "restored/d").read_bytes() == SMALL


def test_the_hand_made_ids_are_the_right_ones() -> None:
    assert file(b"a").file_id == ChunkId.hash(SMALL)
    assert isinstance(Maker().tree([file(b"a")]), CommitId)
