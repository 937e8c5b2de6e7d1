"""Whatever becomes of the files that commits refer to, a read gives what was committed or is refused."""

from __future__ import annotations

import io
import random
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from dsv.errors import NotFound, Unsupported
from dsv.format import keys
from dsv.format.external import ExternalSource
from dsv.format.tree import Entry, Kind
from dsv.repo.objects.access import Access
from dsv.repo.objects.externals import Found, SourceChanged
from dsv.repo.repository import Repository
from dsv.repo.session import Session
from dsv.repo.tree.reader import TreeReader
from dsv.repo.tree.writer import TreeChange
from dsv.stores.base import Bytes, PutResult, StoreBackend
from dsv.stores.memory import MemoryStore
from dsv.transfer.commit import Committed, Draft, commit_changes
from dsv.transfer.download import Fetcher, WantedFile
from dsv.transfer.upload import Uploader
from dsv.values.ids import CommitId
from dsv.values.names import MAIN
from tests.exhaustive import examples
from tests.kit.repositories import DATASET, WRITER, create
from tests.stores.wrapper import Wrapper
from tests.upkeep.gc_world import collect

NOISE = random.Random(5).randbytes(3 << 20)


class Elsewhere:
    """Files that somebody else keeps: each has a content and a tag. asked: what was read of which."""

    def __init__(self, *, versions: bool = False) -> None:
        self.files: dict[str, list[tuple[str, bytes]]] = {}
        self.versions = versions
        self.asked: list[tuple[str, int, int]] = []
        self.count = 0

    def put(self, url: str, content: bytes) -> None:
        self.count += 1
        self.files.setdefault(url, []).append((str(self.count), content))

    def source(self, url: str) -> ExternalSource:
        tag, content = self.files[url][-1]
        return ExternalSource(url, "", tag if self.versions else "", tag, len(content))

    def read(self, source: ExternalSource, start: int, length: int) -> Found:
        self.asked.append((source.url, start, length))
        known = self.files.get(source.url, [])[0 if self.versions else -1 :]
        known = [one for one in known if not source.version or one[0] == source.version]
        if not known:
            raise NotFound("there is nothing")
        tag, content = known[-1]
        version = tag if self.versions else ""
        return content[start : start + length], replace(source, tag=tag, version=version, size=len(content))


def opened(store: StoreBackend, elsewhere: Elsewhere) -> Repository:
    return Repository.open(store, None, Access(read_source=elsewhere.read))


def publish(repository: Repository, files: dict[str, tuple[bytes, ExternalSource | None]]) -> CommitId | None:
    """Commit files, of which those with a source are referred to. Return the commit, None if nothing changed."""
    head = repository.refs.head(DATASET, MAIN)

    def changes(uploader: Uploader) -> Iterator[TreeChange]:
        for name, (content, source) in sorted(files.items()):
            uploader.source = None if source is None else lambda one=source: one
            stored = uploader.add_unsized(io.BytesIO(content).readinto)
            uploader.source = None
            entry = Entry(name.encode(), Kind.FILE, stored.size, stored.file_id, stored.recipe_id)
            yield TreeChange(name.encode(), entry, stored.location)

    base = None if head.commit is None else TreeReader(repository.objects, head.commit)
    parents = () if head.commit is None else (head.commit,)
    draft = Draft(DATASET, MAIN, head, parents, "", "put")
    done = commit_changes(repository, WRITER, draft, base, changes)
    return done.id if isinstance(done, Committed) else None


def contents(repository: Repository, commit: CommitId) -> dict[str, bytes | None]:
    """Every file of a commit; None for those that are refused."""
    found: dict[str, bytes | None] = {}
    tree = TreeReader(repository.objects, commit)
    wanted = [WantedFile(entry, where) for entry, where in tree.below(b"")]
    for one, pieces in Fetcher(repository.objects).files(wanted):
        name = one.entry.path.decode()
        try:
            found[name] = b"".join(pieces)
        except Exception as error:  # noqa: BLE001
            assert isinstance(error.__cause__, SourceChanged), error
            found[name] = None
    return found


def external(store: StoreBackend) -> list[str]:
    packs = (keys.parse_pack_key(item.key) for item in store.list(keys.PACK_PREFIX))
    return [str(pack) for pack in packs if pack is not None and pack.is_external]


CONTENTS = [b"one", b"two", b"three", NOISE[: 2 << 20], NOISE[1 << 20 :], NOISE[: 2 << 20] + b"more"]
STEPS = st.one_of(
    st.tuples(st.just("refer"), st.integers(0, 3), st.integers(0, 5)),
    st.tuples(st.just("store"), st.integers(0, 3), st.integers(0, 5)),
    st.tuples(st.just("overwrite"), st.integers(0, 3), st.integers(0, 5)),
    st.tuples(st.just("remove"), st.integers(0, 3), st.just(0)),
    st.tuples(st.just("gc"), st.just(0), st.just(0)),
)


@settings(max_examples=examples(60), deadline=None)
@given(st.lists(STEPS, min_size=2, max_size=10), st.booleans())
def test_a_read_gives_what_was_committed_or_is_refused(
    steps: Sequence[tuple[str, int, int]], versions: bool
) -> None:
    """A stored content is never refused; one that is referred to, only after its source has changed."""
    store, elsewhere = MemoryStore(), Elsewhere(versions=versions)
    create(store)
    said: dict[CommitId, dict[str, bytes]] = {}
    files: dict[str, bytes] = {}
    solid: set[bytes] = set()
    changed = False
    for step, at, which in steps:
        name, url, content = f"f{at}", f"s3://lake/{at}", CONTENTS[which]
        if step in ("refer", "store"):
            if step == "refer":
                elsewhere.put(url, content)
                changed = changed or (not versions and len(elsewhere.files[url]) > 1)
            else:
                solid.add(content)
            source = elsewhere.source(url) if step == "refer" else None
            files[name] = content
            made = publish(opened(store, elsewhere), {name: (content, source)})
            if made is not None:
                said[made] = dict(files)
        elif step == "overwrite" and url in elsewhere.files:
            elsewhere.put(url, content)
            changed = changed or not versions
        elif step == "remove":
            changed = elsewhere.files.pop(url, None) is not None or changed
        elif step == "gc":
            folder = tempfile.mkdtemp()
            collect(store, Path(folder) / "gc")
            shutil.rmtree(folder)
    for commit, expected in said.items():
        for name, found in contents(opened(store, elsewhere), commit).items():
            assert found in (None, expected[name])
            assert found is not None or (changed and expected[name] not in solid)


def test_neighbouring_chunks_of_a_file_are_read_together() -> None:
    store, elsewhere = MemoryStore(), Elsewhere()
    create(store)
    elsewhere.put("s3://lake/big", NOISE)
    commit = publish(opened(store, elsewhere), {"big": (NOISE, elsewhere.source("s3://lake/big"))})
    assert commit is not None
    assert contents(opened(store, elsewhere), commit) == {"big": NOISE}
    assert elsewhere.asked == [("s3://lake/big", 0, len(NOISE))]


def test_the_same_bytes_at_another_place_are_read_there() -> None:
    """One source is gone; an import has found the same file elsewhere."""
    store, elsewhere = MemoryStore(), Elsewhere()
    create(store)
    for url in ("s3://lake/old", "s3://lake/new"):
        elsewhere.put(url, NOISE)
    commit = publish(opened(store, elsewhere), {"big": (NOISE, elsewhere.source("s3://lake/old"))})
    assert commit is not None
    del elsewhere.files["s3://lake/old"]
    assert contents(opened(store, elsewhere), commit) == {"big": None}
    assert publish(opened(store, elsewhere), {"big": (NOISE, elsewhere.source("s3://lake/new"))}) is None
    assert contents(opened(store, elsewhere), commit) == {"big": NOISE}
    assert len(external(store)) == 2


def test_gc_deletes_a_reference_that_nothing_needs(tmp_path: Path) -> None:
    store, elsewhere = MemoryStore(), Elsewhere()
    create(store)
    elsewhere.put("s3://lake/a", NOISE)
    commit = publish(opened(store, elsewhere), {"a": (NOISE, elsewhere.source("s3://lake/a"))})
    assert commit is not None
    collect(store, tmp_path / "first")
    assert len(external(store)) == 1
    assert publish(opened(store, elsewhere), {"a": (NOISE, None)}) is None
    collect(store, tmp_path / "second")
    assert external(store) == []
    elsewhere.files.clear()
    assert contents(opened(store, elsewhere), commit) == {"a": NOISE}


def test_the_order_of_writes() -> None:
    """The feature comes before the first external pack, and that before the index which names it."""

    class Ordered(Wrapper):
        def put_if_absent(self, key: str, data: Bytes) -> PutResult:
            order.append(key)
            return super().put_if_absent(key, data)

    order: list[str] = []
    store, elsewhere = MemoryStore(), Elsewhere()
    create(store)
    elsewhere.put("s3://lake/a", NOISE)
    publish(opened(Ordered(store), elsewhere), {"a": (NOISE, elsewhere.source("s3://lake/a"))})
    (pack,) = [at for at, key in enumerate(order) if key.endswith(b"extern".hex())]
    packs = [at for at, key in enumerate(order) if key.startswith("packs/")]
    feature = order.index(keys.format_key(1))
    index = next(at for at, key in enumerate(order) if key.startswith("index/"))
    assert feature < pack == packs[0] < packs[-1] < index < len(order)


def test_a_session_does_not_take_what_is_referred_to_for_stored() -> None:
    store, elsewhere = MemoryStore(), Elsewhere()
    create(store)
    elsewhere.put("s3://lake/a", NOISE)
    publish(opened(store, elsewhere), {"a": (NOISE, elsewhere.source("s3://lake/a"))})
    repository = opened(store, elsewhere)
    (entry, _), *_ = TreeReader(
        repository.objects, repository.refs.head(DATASET, MAIN).commit or CommitId(bytes(32))
    ).below(b"")
    assert entry.file_id is not None
    with Session.open(repository, WRITER) as session, Uploader(session) as uploader:
        assert uploader.find(entry.size, entry.file_id, entry.recipe_id) is None
        assert uploader.find(entry.size, entry.file_id, entry.recipe_id, outside=True) is not None
        session.close()


def test_nobody_has_said_how_to_read() -> None:
    store, elsewhere = MemoryStore(), Elsewhere()
    create(store)
    elsewhere.put("s3://lake/a", b"alpha")
    commit = publish(opened(store, elsewhere), {"a": (b"alpha", elsewhere.source("s3://lake/a"))})
    assert commit is not None
    objects = Repository.open(store, None).objects
    (entry, _), *_ = TreeReader(objects, commit).below(b"")
    with pytest.raises(Unsupported, match="s3://lake/a can't be read from here"):
        list(Fetcher(objects).files([WantedFile(entry)]))
