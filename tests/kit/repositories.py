"""Small repositories for tests: a store in memory, and commits made through the real writer's path."""

from __future__ import annotations

import io
import itertools
from collections.abc import Mapping

from dsv.format import keys
from dsv.format.recipe import SINGLE_CHUNK_MAX
from dsv.format.records import CommitRecord, GcCondemned, RefEntry, WriterIdentity
from dsv.format.tree import Entry, Kind
from dsv.repo.refs.branches import Head
from dsv.repo.repository import Repository
from dsv.repo.session import Session
from dsv.repo.tree.reader import TreeReader
from dsv.repo.tree.writer import TreeChange, write_tree
from dsv.stores.base import StoreBackend
from dsv.transfer.download import Fetcher, WantedFile
from dsv.transfer.upload import StoredContent, Uploader
from dsv.values.ids import CommitId, Nonce
from dsv.values.names import MAIN, DatasetName
from dsv.values.paths import sort_key

WRITER = WriterIdentity(author="Ann Lee <ann@example.org>", host="lab", tool="dsv test")
DATASET = DatasetName.parse("scans")
TIME = itertools.count(1_700_000_000_000)

Files = dict[str, bytes | None]
"""Path -> content; None is an empty folder; a key that ends in '@' is a symlink, one in '.sh' is executable."""


def create(store: StoreBackend, *, single_writer: bool = False) -> Repository:
    repository = Repository.create(
        store,
        None,
        author=WRITER.author,
        tool=WRITER.tool,
        single_writer=single_writer,
        clock=lambda: next(TIME),
    )
    entry = RefEntry(None, False, Nonce.random(), next(TIME), WRITER.author, "init")
    assert isinstance(repository.refs.move(DATASET, MAIN, None, entry), Head)
    return repository


def store_content(uploader: Uploader, content: bytes) -> StoredContent:
    if len(content) <= SINGLE_CHUNK_MAX:
        return uploader.add_bytes(content)
    file = io.BytesIO(content)
    return uploader.add_stream(lambda buffer: file.readinto(buffer[:700_001]))


def change(uploader: Uploader, name: str, content: bytes | None, removed: bool = False) -> TreeChange:
    path = name.removesuffix("@").encode()
    if removed:
        return TreeChange(path, None)
    if content is None:
        return TreeChange(path, Entry(path, Kind.EMPTY_DIRECTORY))
    if name.endswith("@"):
        return TreeChange(path, Entry(path, Kind.SYMLINK, target=content))
    stored = store_content(uploader, content)
    kind = Kind.EXECUTABLE if name.endswith(".sh") else Kind.FILE
    return TreeChange(path, Entry(path, kind, stored.size, stored.file_id, stored.recipe_id), stored.location)


def commit(
    repository: Repository, files: Mapping[str, bytes | None], removed: tuple[str, ...] = ()
) -> CommitId:
    """Commits an edit of the head of `main`: `files` are added or replaced, `removed` go."""
    head = repository.refs.head(DATASET, MAIN)
    with Session.open(repository, WRITER) as session, Uploader(session) as uploader:
        base = None if head.commit is None else TreeReader(repository.objects, head.commit)
        names = sorted({*files, *removed}, key=lambda name: sort_key(name.removesuffix("@").encode()))
        changes = [change(uploader, name, files.get(name), name in removed) for name in names]
        tree = write_tree(uploader, base, changes)
        uploader.finish()
        parents = () if head.commit is None else (head.commit,)
        made = CommitRecord(
            root=tree.root, level=tree.level, parents=parents, author=WRITER.author, time_ms=next(TIME),
            message="test", files=tree.files, bytes=tree.bytes, entries=tree.entries,
        )  # fmt: skip
        commit_id = session.put_commit(repository.named(made, DATASET, MAIN), tree.locator)
        publish(session, head, commit_id)
    return commit_id


def publish(session: Session, head: Head, commit_id: CommitId) -> None:
    entry = RefEntry(commit_id, False, Nonce.random(), next(TIME), WRITER.author, "sync")
    assert isinstance(session.publish(DATASET, MAIN, head, entry), Head)


def read(repository: Repository, commit_id: CommitId) -> Files:
    """Read a whole commit."""
    found: Files = {}
    wanted = []
    for entry, where in TreeReader(repository.objects, commit_id).below(b""):
        name = entry.path.decode()
        if entry.kind == Kind.EMPTY_DIRECTORY:
            found[name] = None
        elif entry.kind == Kind.SYMLINK:
            found[name + "@"] = entry.target
        else:
            assert (entry.kind == Kind.EXECUTABLE) == name.endswith(".sh")
            wanted.append(WantedFile(entry, where))
    for file, pieces in Fetcher(repository.objects).files(wanted):
        found[file.entry.path.decode()] = b"".join(pieces)
    return found


def packs(repository: Repository) -> list[str]:
    """Their keys."""
    return [item.key for item in repository.store.list(keys.PACK_PREFIX)]


def condemn(repository: Repository, epoch: int, pack_keys: list[str]) -> None:
    """As gc says that it is about to remove them."""
    ids = sorted(pack for pack in map(keys.parse_pack_key, pack_keys) if pack is not None)
    record = GcCondemned(epoch, tuple(ids), Nonce.random(), 0, "test")
    repository.store.put_if_absent(keys.gc_key(epoch, "condemned"), record.encode())
