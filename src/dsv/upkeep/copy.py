"""Copying commits to another store under the same ids: only objects that the other store lacks are copied.

Every object is checked against its id on the way. Chunks are copied as they are compressed, into packs filled
in path order. Segments, nodes and recipes keep their bytes and get new locators, which say where objects lie
in one store. A commit is written when an index of the other store lists all that it refers to.

A successor is a copy of a dataset's history in a new dataset, whose commits do not list the erased files. A
commit's id covers its tree, so these have other ids. The rest of each commit is kept, so the same copy makes
the same ids again: to continue a killed copy, repeat it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from functools import partial
from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING, NamedTuple

import msgspec
from msgspec.structs import replace

from dsv.errors import Conflict, IntegrityError, NotFound
from dsv.format.codec import Codec, Compressor
from dsv.format.locator import Location, Locator, ObjectKind, places_of
from dsv.format.recipe import Recipe
from dsv.format.records import CommitRecord, ExpiryAction, RefEntry, WriterIdentity
from dsv.format.segment import Segment
from dsv.format.tree import Entry, Node
from dsv.repo.errors import NOT_OURS
from dsv.repo.expiry import ExpiryLog, append, read_expiry
from dsv.repo.history import KeptParents, lacking, walk
from dsv.repo.merge_indexes import tidy
from dsv.repo.objects.checks import checked
from dsv.repo.objects.erasures import NOWHERE, Erasures
from dsv.repo.objects.objects import Located, Objects
from dsv.repo.objects.ranges import RangeReader, spans
from dsv.repo.refs.branches import LostRace
from dsv.repo.session import Session, naming, point_branch
from dsv.repo.tree.reader import LocatedSegment, TreePart, TreeReader
from dsv.repo.tree.writer import TreeChange, write_tree
from dsv.stores.base import batches, together
from dsv.transfer.upload import Uploader
from dsv.values.ids import ChunkId, CommitId, Id, NodeId, PackId, RecipeId, SegmentId
from dsv.values.names import MAIN, DatasetName
from dsv.values.paths import sort_key
from dsv.values.progress import Progress

if TYPE_CHECKING:
    from dsv.repo.repository import Repository

_SPAN = 16 << 20
"""Bytes of the largest range that is read from a pack."""
_SEGMENTS = 32
"""Segments whose contents are copied together: about 32,000 files."""
_NODES = 64
"""Nodes that are read together."""
INDEX_BYTES = 64 << 20
"""Bytes of packs before the first index. A killed copy must send again what no index lists."""
_INDEX_SHARE, _INDEX_MOST = 16, 64 << 30
"""A later index follows after 1/`_INDEX_SHARE` of all bytes sent, to keep them few, at most `_INDEX_MOST`."""
_COMMITS = 64
"""Commits that are written together."""
_NOWHERE = Location(PackId(bytes(16)), 0, 1, 1, Codec.RAW)
"""The location of objects that a plan only counts."""
SUCCESSOR = "successor"
"""The action of the first move of a branch of a successor."""


class ChunkCopy(NamedTuple):
    """A chunk to copy, with the path of a file that it belongs to, for messages."""

    chunk: ChunkId
    path: bytes


class TreeCopy:
    """Copies the trees of commits, one after the other, and skips what an earlier tree has."""

    def __init__(
        self,
        source: Objects,
        sink: Receiver | CopyPlan,
        progress: Progress,
        base: TreeReader | None = None,
        erased: Erasures | None = None,
    ) -> None:
        """sink: the other store. erased: what is not copied; None: what was erased from the source. base: a
        tree that names of the other store keep, as of a branch's head. Only what differs is looked up."""
        self._source = source
        self._sink = sink
        self._progress = progress
        self._base = base
        self._erased = source.erasures if erased is None else erased
        self._placed: dict[Id, Location] = {}

    def copy(self, commits: Iterable[CommitId]) -> Iterator[Location]:
        """Copy trees, and yield where the root of each lies. Raises `IntegrityError` for a part that can't be
        read. Segments that many small edits have made are read together, except in trees of several levels."""
        for some in batches(commits, _COMMITS):
            trees = together([partial(TreeReader, self._source, commit_id) for commit_id in some])
            together([tree.top for tree in trees])
            self._root(trees[0])
            near = self._base.top() if self._base is not None and self._base.commit.level == 1 else []
            flat = (tree for tree in trees if tree.commit.level == 1)
            parts = ((tree, part) for tree in flat for part in tree.top() if part.id not in self._placed)
            new: dict[Id, tuple[TreeReader, TreePart]] = {}
            for tree, part in parts:  # each of its first tree, so that the parts of a tree stay in its order
                new.setdefault(part.id, (tree, part))
            for leaves in batches(new.values(), _SEGMENTS):
                self._segments(leaves, near)
            yield from map(self._root, trees)

    def _root(self, tree: TreeReader) -> Location:
        return self._node(tree, tree.commit.root, tree.top(), tree.commit.level, None)

    def _node(
        self, tree: TreeReader, node_id: Id, parts: list[TreePart], level: int, near: list[TreePart] | None
    ) -> Location:
        """Copy a node and all below it. near: the base's parts in place of `parts`; None above its root."""
        found = self._placed.get(node_id)
        if found is not None:
            return found
        if near is None and self._base is not None and self._base.commit.level == level:
            near = self._base.top()
        for part in near or ():
            if part.where is not None and not self._sink.avoids(part.where.pack):
                self._placed.setdefault(part.child.id, part.where)
        missing = [part for part in parts if part.child.id not in self._placed]
        if level == 1:
            for at in range(0, len(missing), _SEGMENTS):
                self._segments([(tree, part) for part in missing[at : at + _SEGMENTS]], near or [])
        else:
            for at in range(0, len(missing), _NODES):
                self._nodes(tree, missing[at : at + _NODES], level - 1, near)
        places = [self._placed[part.child.id] for part in parts]
        encoded = Node(level, tuple(part.child for part in parts)).encode()
        _check_same(NodeId.hash(encoded), node_id)
        where = self._placed[node_id] = self._sink.put_metadata(
            ObjectKind.NODE, node_id, encoded, Locator.of(places)
        )
        return where

    def _nodes(
        self, tree: TreeReader, parts: list[TreePart], level: int, near: list[TreePart] | None
    ) -> None:
        tree.below_nodes(parts, level)  # reads all of them together, before they are used one by one
        if near is not None and self._base is not None:
            self._base.below_nodes([one for one in near if any(_overlap(one, part) for part in parts)], level)
        for part in parts:
            nearer = None
            if near is not None and self._base is not None:
                nearer = self._base.below_nodes([one for one in near if _overlap(one, part)], level)
            self._node(tree, part.child.id, tree.below_nodes([part], level), level, nearer)

    def _segments(self, of_trees: list[tuple[TreeReader, TreePart]], near: list[TreePart]) -> None:
        leaves = [leaf for _, leaf in of_trees]
        ahead = list[Located[Segment]]()
        with suppress(IntegrityError):  # the tree of the damaged one reads it again, and says where it is
            ahead += self._source.segments((leaf.id, leaf.where) for leaf in leaves)
        segments = list[LocatedSegment]()
        for tree, parts in groupby(of_trees, itemgetter(0)):
            segments += tree.segments([leaf for _, leaf in parts])
        known = self._known(leaves, near)
        lacking: dict[Id, tuple[Entry, Location | None]] = {}
        for located in segments:
            for entry, where in located.entries():
                content = _content_of(entry)
                if content is None or content in known or content in lacking:
                    continue
                if self._erased.of(entry) is not None:
                    known[content] = NOWHERE
                    continue
                found = self._sink.find_content(entry)
                if found is None:
                    lacking[content] = entry, where
                else:
                    known[content] = found
        known.update(self._contents(lacking))
        for leaf, located in zip(leaves, segments, strict=True):
            self._progress.advance(files=located.segment.files, bytes=located.segment.total_bytes)
            contents = (_content_of(entry) for entry in located.segment.entries())
            places = Locator.of(known[content] for content in contents if content is not None)
            encoded = self._source.encode_segment(located.segment)
            _check_same(SegmentId.hash(encoded), leaf.id)
            self._placed[leaf.id] = self._sink.put_metadata(ObjectKind.SEGMENT, leaf.id, encoded, places)

    def _known(self, leaves: list[TreePart], near: list[TreePart]) -> dict[Id, Location]:
        """Return where the other store has contents of the base that these segments may have too."""
        known: dict[Id, Location] = {}
        chosen = [one for one in near if any(_overlap(one, leaf) for leaf in leaves)]
        if self._base is None or not chosen:
            return known
        with suppress(IntegrityError):  # without them each content is looked for
            for located in self._base.segments(chosen):
                for entry, where in located.entries():
                    content = _content_of(entry)
                    if content is not None and where is not None and not self._sink.avoids(where.pack):
                        known[content] = where
        return known

    def _contents(self, lacking: dict[Id, tuple[Entry, Location | None]]) -> Iterator[tuple[Id, Location]]:
        recipes: list[tuple[Id, list[Recipe]]] = []
        self._sink.take(self._source, self._pieces(lacking, recipes))
        for content, (entry, _) in lacking.items():
            if entry.recipe_id is None:
                yield content, self._place(ChunkId(content))
        for content, parts in recipes:
            yield content, self._put_recipes(parts)

    def _pieces(
        self, lacking: dict[Id, tuple[Entry, Location | None]], recipes: list[tuple[Id, list[Recipe]]]
    ) -> Iterator[tuple[Location, ChunkCopy]]:
        """Yield the chunks that the other store lacks, in path order. recipes: gets the recipes of each large
        file, each after those that it lists."""
        large = ((entry.recipe_id, at) for entry, at in lacking.values() if entry.recipe_id is not None)
        read = iter(self._source.recipes(large))
        under_way = set[ChunkId]()
        for content, (entry, where) in lacking.items():
            if entry.recipe_id is None:
                chunks: Iterable[tuple[Id, Location | None]] = ((content, where),)
            else:
                parts: list[Recipe] = []
                chunks = self._chunks(next(read), parts, set())
                recipes.append((content, parts))
            for one, place in chunks:
                chunk = ChunkId(one)
                if (ObjectKind.CHUNK, chunk) in self._erased.objects:
                    continue  # erased with one file, while another file has it too
                if chunk not in under_way and (
                    entry.recipe_id is None or self._sink.find_chunk(chunk) is None
                ):
                    under_way.add(chunk)
                    if place is None or place.pack.is_external:  # it may be in the store by now
                        place = self._source.find(ObjectKind.CHUNK, chunk)
                    yield place, ChunkCopy(chunk, entry.path)

    def _chunks(
        self, found: Located[Recipe], parts: list[Recipe], seen: set[Id]
    ) -> Iterator[tuple[Id, Location | None]]:
        """Yield the chunks of a recipe; those of a recipe that is listed often only once."""
        recipe = found.value
        for (child, length), place in zip(recipe.rows(), places_of(found.locator), strict=False):
            if recipe.level and child not in seen:
                seen.add(child)
                below = Located(*self._source.recipe(RecipeId(child), place, (recipe.level - 1, length)))
                yield from self._chunks(below, parts, seen)
            elif not recipe.level:
                yield child, place
        parts.append(recipe)

    def _place(self, chunk: ChunkId) -> Location:
        if (ObjectKind.CHUNK, chunk) in self._erased.objects:
            return NOWHERE
        found = self._sink.find_chunk(chunk)
        assert found is not None  # it was added
        return found

    def _put_recipes(self, parts: list[Recipe]) -> Location:
        """Store recipes, each after those that it lists; return where the last one, the file's own, lies."""
        made: dict[Id, Location] = {}
        for recipe in parts:
            places = [
                made[child] if recipe.level else self._place(ChunkId(child)) for child in recipe.children()
            ]
            encoded = recipe.encode()
            recipe_id = RecipeId.hash(encoded)
            where = self._sink.put_metadata(ObjectKind.RECIPE, recipe_id, encoded, Locator.of(places))
            made[recipe_id] = where
        return where


def _content_of(entry: Entry) -> Id | None:
    """Return the id of a file's recipe or chunk; None for an entry without content."""
    if not entry.is_file or not entry.size:
        return None
    return entry.recipe_id or entry.file_id


def _overlap(one: TreePart, other: TreePart) -> bool:
    """Return whether two nodes or segments of two trees may have paths in common."""
    return _begins_in(one, other) and _begins_in(other, one)


def _begins_in(one: TreePart, other: TreePart) -> bool:
    return one.before is None or sort_key(one.before) < sort_key(other.child.last)


def _check_same(made: Id, wanted: Id) -> None:
    if made != wanted:
        raise IntegrityError(f"{wanted} is encoded in another way", subject=str(wanted), hint=NOT_OURS)


class Receiver(Uploader):
    """Stores the objects of a copy. Writes an index now and then, so a killed copy can be continued."""

    _indexed = 0

    def put_metadata(
        self, kind: ObjectKind, object_id: Id, encoded: bytes, locator: Locator | None
    ) -> Location:
        if kind is ObjectKind.RECIPE:
            self._whole.add(RecipeId(object_id))
        return super().put_metadata(kind, object_id, encoded, locator)

    def find_content(self, entry: Entry) -> Location | None:
        """Return where the store has all of a file's content: its chunk or its recipe."""
        assert entry.file_id is not None
        found = self.find(entry.size, entry.file_id, entry.recipe_id)
        return None if found is None else found.location

    def take(self, source: Objects, pieces: Iterator[tuple[Location, ChunkCopy]]) -> None:
        """Store chunks that the store lacks. Raises `IntegrityError` if the source has no intact copy."""
        reader = RangeReader(source.store, source.threads, source.externals)
        for where, piece, stored in reader.read(spans(pieces, _SPAN)):
            self._add(source, where, piece, stored)
            sent = self.uploaded_bytes
            if sent - self._indexed >= min(max(INDEX_BYTES, sent // _INDEX_SHARE), _INDEX_MOST):
                self.finish()

    def _add(self, source: Objects, where: Location, piece: ChunkCopy, stored: memoryview | None) -> None:
        if stored is not None:
            with suppress(IntegrityError):
                data = stored[: where.stored]
                content = checked(ObjectKind.CHUNK, piece.chunk, where, data)
                if where.pack.is_external:
                    self.add_bytes(content)
                else:
                    self.add_stored(piece.chunk, where.codec, data, where.length)
                return
        try:
            found, _ = source.read_by_index(ObjectKind.CHUNK, piece.chunk, where)
        except IntegrityError as error:
            name = piece.path.decode("utf-8", "backslashreplace")
            message = f"{name} can't be copied: {error.message}"
            raise IntegrityError(message, subject=name, hint=error.hint) from error
        self.add_bytes(found)

    def finish(self) -> None:
        super().finish()
        self._indexed = self.uploaded_bytes


class CommitCopy:
    """Copies the commits that `publish` will name, in one session of the other store."""

    def __init__(
        self, source: Objects, session: Session, receiver: Receiver, progress: Progress, base: CommitId | None
    ) -> None:
        """base: the head of a branch of the other store, whose tree is the most similar."""
        target = session.repository.objects
        near = TreeReader(target, base) if base is not None and not session.avoids_any else None
        self._source = source
        self._session = session
        self._receiver = receiver
        self._trees = TreeCopy(source, receiver, progress, near, target.erasures)

    def copy(self, commits: Iterable[CommitId], expired: Collection[CommitId]) -> None:
        """Copy commits, each after its parents, and what they refer to unless they are expired."""
        for some in batches(commits, _COMMITS):
            roots = self._trees.copy(commit_id for commit_id in some if commit_id not in expired)
            waiting = [(one, None if one in expired else Locator.of([next(roots)])) for one in some]
            self._receiver.finish()
            for commit_id, locator in waiting:
                commit = self._source.commit(commit_id)
                _check_same(self._session.put_commit(commit, locator), commit_id)
                self._session.repository.objects.stored(commit_id, commit.encode())


class _Either:
    """Reads commits of two stores, each from where it is whole."""

    def __init__(self, first: Objects, second: Objects) -> None:
        self._first, self._second = first, second

    def commit(self, commit_id: CommitId) -> CommitRecord:
        try:
            return self._first.commit_or_none(commit_id) or self._second.commit(commit_id)
        except IntegrityError:
            if (found := self._second.commit_or_none(commit_id)) is None:
                raise
            return found


def unnamed(
    source: Objects, there: Objects, named: CommitId, commits: Iterable[CommitId], names: Iterable[CommitId]
) -> list[CommitId]:
    """Return those of a commit's ancestors to which none of these names of the other store leads. What a name
    leads to is whole there, or expired by somebody: a copy takes no content away."""
    lacked = set(lacking(_Either(source, there), named, set(names))[0])
    return [commit_id for commit_id in commits if commit_id in lacked]


_NOT_COPIED = "not copied"
"""The message of the expiry of commits that come without content."""


def expire_without_content(
    source: Objects,
    there: Repository,
    writer: WriterIdentity,
    name: tuple[DatasetName, CommitId],
    commits: set[CommitId],
) -> None:
    """Free ancestors of a commit that come without content, before any name leads to them.

    One that got a name meanwhile stays: who writes a name reads the log after it, and this reads the names
    after its entry in the log.
    """
    dataset, named = name

    def mine(log: ExpiryLog) -> set[CommitId]:
        return {one for one in commits & log.expired.keys() if log.states[one].entry.message == _NOT_COPIED}

    def kept(log: ExpiryLog) -> set[CommitId]:
        heads, tags = there.refs.names(dataset)
        names = [*(one.commit for one in heads if one.commit), *(value.commit for _, value in tags)]
        return mine(log).difference(unnamed(source, there.objects, named, commits, names))

    write = partial(append, there, writer, dataset)
    write(ExpiryAction.EXPIRE, lambda _: commits, _NOT_COPIED)
    write(ExpiryAction.UNDO, kept, "a name leads to it")
    write(ExpiryAction.FREE, mine, _NOT_COPIED)


class CopyPlan:
    """Stands in for a `Receiver`, and counts objects instead of storing them."""

    def __init__(self, target: Objects) -> None:
        self._indexes = target.indexes
        self._compressor = Compressor()
        self._new: set[Id] = set()
        self.bytes = 0
        """The size of the objects as they would be stored, with their locators."""

    @property
    def objects(self) -> int:
        return len(self._new)

    def avoids(self, pack_id: PackId) -> bool:
        return False

    def find_chunk(self, chunk_id: ChunkId) -> Location | None:
        return self._find(ObjectKind.CHUNK, chunk_id)

    def find_content(self, entry: Entry) -> Location | None:
        assert entry.file_id is not None
        if entry.recipe_id is not None:
            return self._find(ObjectKind.RECIPE, entry.recipe_id)
        return self._find(ObjectKind.CHUNK, entry.file_id)

    def take(self, source: Objects, pieces: Iterator[tuple[Location, ChunkCopy]]) -> None:
        for where, piece in pieces:
            if piece.chunk not in self._new:
                self._new.add(piece.chunk)
                self.bytes += where.stored

    def put_metadata(
        self, kind: ObjectKind, object_id: Id, encoded: bytes, locator: Locator | None
    ) -> Location:
        found = self._find(kind, object_id)
        if found is not None:
            return found
        self._new.add(object_id)
        self.bytes += len(self._compressor.pack(encoded)[1]) + (
            0 if locator is None else len(locator.encode())
        )
        return _NOWHERE

    def _find(self, kind: ObjectKind, object_id: Id) -> Location | None:
        return _NOWHERE if object_id in self._new else self._indexes.find(kind, object_id)


class Succeeded(msgspec.Struct, frozen=True):
    """The result. `paths`: paths left out of `commits` commits, counted once for each commit."""

    dataset: str
    commits: int
    paths: int
    branches: int
    tags: int


def make_successor(
    repository: Repository, writer: WriterIdentity, dataset: DatasetName, new: DatasetName
) -> Succeeded:
    """Make a new dataset with the branches, tags and unexpired commits of another one, without erased files.
    Raises `NotFound` if there is no such dataset or its `main` has no commit, and `Conflict` if the new name
    belongs to a dataset that is not this copy."""
    refs, objects = repository.refs, repository.objects
    refs.require(dataset)
    heads = {head.branch: head.commit for head in refs.heads(dataset) if head.commit is not None}
    main = heads.pop(MAIN, None)
    if main is None:
        raise NotFound(f"{dataset}@{MAIN} has no commit", subject=str(dataset), hint=f"dsv log {dataset}")
    _, tags = refs.names(dataset)
    after = refs.newest(new, MAIN)
    if after is None:
        refs.check_new_dataset(new)
    elif after.entry.deleted or after.entry.action != SUCCESSOR:
        raise _is_taken(new)
    starts = [main, *heads.values(), *(value.commit for _, value in tags)]
    # What a branch names is not left out: an `expire` that was killed may have expired it.
    expired = set(read_expiry(refs, dataset).states) - {main, *heads.values()}
    parents, known = KeptParents(objects, expired), dict[SegmentId, list[bytes]]()
    made, commits, paths = dict[CommitId, CommitId](), [], 0
    with Session.open(repository, writer, resumed=False) as session:
        with Uploader(session) as uploader:
            for commit_id, old in reversed(list(walk(objects, starts))):
                if commit_id in expired:
                    continue
                tree = TreeReader(objects, commit_id)
                gone = _erased_in(tree, known)
                commit, locator = _without(uploader, tree, gone)
                above = tuple(dict.fromkeys(made[one] for one in parents.of(old)))
                commit = repository.named(replace(commit, parents=above), new, old.branch or MAIN)
                made[commit_id], paths = commit.id, paths + len(gone)
                commits.append((commit, locator))
            uploader.finish()
        for commit, locator in commits:
            session.put_commit(commit, locator)
        if after is not None and after.commit != made[main]:
            raise _is_taken(new)
        entry = RefEntry.of(writer, repository.clock(), made[main], SUCCESSOR)
        if after is None and isinstance(session.publish(new, MAIN, None, entry), LostRace):
            raise _is_taken(new)
    for branch, head in sorted(heads.items()):
        if refs.newest(new, branch) is None:
            point_branch(repository, writer, (new, branch), None, made[head], SUCCESSOR)
    tags = [(name, value) for name, value in tags if value.commit in made]
    for name, value in tags:
        if refs.tag(new, name) is None:
            with naming(repository, writer, new, made[value.commit], f"tag {name}"):
                refs.set_tag(new, name, replace(value, commit=made[value.commit]))
    tidy(repository, writer)
    return Succeeded(str(new), len(made), paths, len(heads) + 1, len(tags))


def _erased_in(tree: TreeReader, known: dict[SegmentId, list[bytes]]) -> list[bytes]:
    """Return the erased paths of a tree. known: those of segments read before; new ones are added."""
    erasures, leaves = tree.objects.erasures, tree.leaves()
    unread = {leaf.id: leaf for leaf in leaves if leaf.id not in known}
    read = tree.objects.segments((leaf_id, leaf.where) for leaf_id, leaf in unread.items())
    for leaf_id, located in zip(unread, read, strict=True):
        known[leaf_id] = [entry.path for entry in located.value.entries() if erasures.of(entry) is not None]
    return [path for leaf in leaves for path in known[leaf.id]]


def _without(uploader: Uploader, tree: TreeReader, paths: list[bytes]) -> tuple[CommitRecord, Locator | None]:
    """Write a tree without these paths. Return the commit with that tree, and the tree's locator."""
    made = write_tree(uploader, tree, [TreeChange(path, None) for path in paths])
    commit = replace(
        tree.commit,
        root=made.root,
        level=made.level,
        files=made.files,
        bytes=made.bytes,
        entries=made.entries,
    )
    return commit, made.locator


def _is_taken(new: DatasetName) -> Conflict:
    hint = "dsv erase DATASET --successor ANOTHER-NAME"
    return Conflict(f"there is a dataset {new} already, and it is not this copy", subject=str(new), hint=hint)
