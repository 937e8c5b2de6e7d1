"""Storing lost objects again, from wherever a copy is. Nothing that may still be saved is removed."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import partial
from itertools import chain
from pathlib import Path

from dsv.errors import IntegrityError, NotFound, Unsupported
from dsv.format import keys
from dsv.format.index import Index, IndexBuilder
from dsv.format.locator import ObjectKind
from dsv.format.recipe import SINGLE_CHUNK_MAX, FileCutter, Recipe, build_recipe
from dsv.format.records import MergedFile, WriterIdentity
from dsv.format.tree import Node
from dsv.repo.merge_indexes import put_merge
from dsv.repo.objects.objects import Objects
from dsv.repo.session import Session
from dsv.stores.base import PutResult, ask_each, if_there
from dsv.transfer.upload import Uploader
from dsv.upkeep.hints import wrong_hints
from dsv.upkeep.packs import check_pack
from dsv.upkeep.verify import Verifier
from dsv.values.ids import ChunkId, CommitId, ErasureId, Id

Named = tuple[ObjectKind, Id]
_INDEX_ROWS = 1 << 18
_READ = (IntegrityError, NotFound, Unsupported)


class Repair:
    """One repair, after a verification."""

    def __init__(
        self,
        verifier: Verifier,
        writer: WriterIdentity,
        folders: Iterable[Path],
        stores: Iterable[Objects],
        *,
        all_names: bool,
    ) -> None:
        """all_names: the verification covered the needs of all names in the store."""
        self._verifier = verifier
        self._all_names = all_names
        self._writer = writer
        self._repository = verifier.repository
        self._objects = verifier.objects
        self._folders = list(folders)
        self._stores = list(stores)
        self._cutter = FileCutter()
        self._recipes: dict[Id, bytes] = {}
        """Recipes of large files in the folders."""
        self.repaired = 0
        """Objects, commits and index files that were stored again."""

    def run(self) -> None:
        if self._verifier.knows_erasures:  # else nothing can be stored
            self._index()
        self._tags()
        for fault in self._verifier.result.faults:
            if fault.what == "commit":
                self._commit(CommitId.parse(fault.name))
            elif fault.what == "erasure":
                self._erasure(ErasureId.parse(fault.name))
        if self._verifier.named and self._verifier.knows_erasures:
            # damaged index files that could not be replaced must not keep anything from being stored again
            self._objects.indexes.damaged.update(self._verifier.damaged_indexes)
            self._store_again(set(self._verifier.named))
        self._hints()

    def _store_again(self, wanted: set[Named]) -> None:
        self._verifier.progress.start(None, None)
        with Session.open(self._repository, self._writer) as session, Uploader(session) as uploader:
            for path in self._files():
                if not any(kind in (ObjectKind.CHUNK, ObjectKind.RECIPE) for kind, _ in wanted):
                    break
                with suppress(OSError):
                    self._take(path, wanted, uploader)
            for recipe_id, recipe in self._recipes.items():
                if (ObjectKind.RECIPE, recipe_id) in wanted:
                    self._put(uploader, ObjectKind.RECIPE, recipe_id, recipe)
                    wanted.discard((ObjectKind.RECIPE, recipe_id))
            for kind, object_id, data in self._in_order(wanted):
                self._put(uploader, kind, object_id, data)
            uploader.finish()

    # --- objects

    def _put(self, uploader: Uploader, kind: ObjectKind, object_id: Id, data: bytes) -> None:
        uploader.put_object(kind, object_id, data)
        self._verifier.progress.advance(transferred=len(data))
        self.repaired += 1

    def _in_order(self, wanted: Iterable[Named]) -> Iterator[tuple[ObjectKind, Id, bytes]]:
        """Yield the objects that a source has, each after those that it lists."""
        later: list[tuple[ObjectKind, int, Id]] = []
        for kind, object_id in sorted(wanted):
            data = self._find(kind, object_id)
            if data is None:
                continue
            if kind in (ObjectKind.RECIPE, ObjectKind.NODE):
                level = (Recipe if kind is ObjectKind.RECIPE else Node).decode(data).level
                later.append((kind, level, object_id))
            else:
                yield kind, object_id, data
        for kind, _, object_id in sorted(later):
            data = self._find(kind, object_id)
            if data is not None:
                yield kind, object_id, data

    def _find(self, kind: ObjectKind, object_id: Id) -> bytes | None:
        """Return an object from a local copy, a pack of the store itself, or another store."""
        if kind is not ObjectKind.CHUNK:
            found = self._objects.local(kind, object_id)
            if found is not None:
                return found.value
        for objects in (self._objects, *self._stores):
            with suppress(*_READ):
                return objects.read(kind, object_id)
        return None

    def _take(self, path: Path, wanted: set[Named], uploader: Uploader) -> None:
        """Store the wanted chunks that a file has, and take them out of `wanted`."""
        with path.open("rb") as file:
            ids, lengths = bytearray(), list[int]()
            if os.fstat(file.fileno()).st_size > SINGLE_CHUNK_MAX:
                chunks: Iterable[bytes | memoryview] = self._cutter.chunks(file.readinto)
            else:
                chunks = [file.read(SINGLE_CHUNK_MAX + 1)]
            for chunk in chunks:
                chunk_id = ChunkId.hash(chunk)
                ids += chunk_id
                lengths.append(len(chunk))
                if (ObjectKind.CHUNK, chunk_id) in wanted:
                    self._put(uploader, ObjectKind.CHUNK, chunk_id, bytes(chunk))
                    wanted.discard((ObjectKind.CHUNK, chunk_id))
        self._verifier.progress.advance(files=1, bytes=sum(lengths))
        if len(lengths) > 1:
            for one, made in build_recipe(bytes(ids), lengths):
                if (ObjectKind.RECIPE, one) in wanted:
                    self._recipes[one] = made.encode()

    def _files(self) -> Iterator[Path]:
        waiting = [*self._folders]
        while waiting:
            paths: list[Path] = []
            with suppress(OSError):  # what can't be listed gives nothing
                paths = [
                    path for path in waiting.pop().iterdir() if path.name != ".dsv" and not path.is_symlink()
                ]
            waiting += [path for path in paths if path.is_dir()]
            yield from (path for path in paths if path.is_file())

    # --- commits and tags

    def _commit(self, commit_id: CommitId) -> None:
        """Store a lost commit again, or replace its damaged bytes."""
        commit = self._objects.local_commit(commit_id) or self._objects.copied_commit(commit_id)
        for objects in self._stores:
            with suppress(*_READ):
                commit = commit or objects.commit(commit_id)
        data = b"" if commit is None else commit.encode()
        if CommitId.hash(data) == commit_id:
            self.repaired += self._put_right(keys.commit_key(commit_id), data)

    def _put_right(self, key: str, right: bytes) -> bool:
        """Store these bytes under a key, and return whether it lacked them."""
        store = self._repository.store
        there = if_there(partial(store.get, key))
        if there is not None and there != right:
            store.delete(key)  # these bytes are useless, and the right ones are in memory
        return there != right and store.put_if_absent(key, right) is PutResult.WON

    def _tags(self) -> None:
        """Store the record of each tag again from its copy, and the copy from the record."""
        refs = self._repository.refs
        for dataset in refs.datasets():
            with suppress(IntegrityError):  # of a tag that can't be read
                tags = [(keys.tag_key(dataset, tag), value.encode()) for tag, value in refs.tags(dataset)]
                records = [(key + copy, data) for key, data in tags for copy in ("", keys.TAG_COPY)]
                self.repaired += sum(done for _, done in ask_each(lambda one: self._put_right(*one), records))

    # --- erasures

    def _erasure(self, erasure_id: ErasureId) -> None:
        """Replace the damaged bytes of an erasure by a copy. At each step the store knows what was erased."""
        store, key = self._repository.store, keys.erasure_key(erasure_id)
        erasure = self._objects.erasures.known.get(erasure_id)
        if erasure is None:
            return
        meanwhile = keys.erasure_key(ErasureId.random())
        store.put_if_absent(meanwhile, erasure.encode())
        store.delete(key)
        store.put_if_absent(key, erasure.encode())
        store.delete(meanwhile)
        self.repaired += 1

    # --- indexes, filters and locators

    def _hints(self) -> None:
        store, commits = self._repository.store, self._verifier.whole_commits()
        for hint in wrong_hints(self._repository, self._verifier.rows, commits):
            if hint.is_there:
                store.delete(hint.key)  # nothing relies on it, and the right one is in memory
            store.put_if_absent(hint.key, hint.right)
            self.repaired += 1

    def _index(self) -> None:
        """Index packs of which readable index files lack rows. The new file replaces damaged ones, but if
        only these may list what a pack has, it does so only when nothing is lost any more."""
        verifier, damaged = self._verifier, self._verifier.damaged_indexes
        if not damaged and not verifier.named:
            return
        packs, expected = verifier.rows.packs, verifier.rows.expected_sizes()
        builder, count, left, unasked = IndexBuilder(), 0, False, False
        needless = bool(damaged) and self._all_names and not verifier.named
        encoded, put = list[bytes](), list[MergedFile]()
        with Session.open(self._repository, self._writer) as session:
            for item in chain(self._repository.store.list(keys.PACK_PREFIX), [None]):
                if count >= _INDEX_ROWS or (item is None and count):
                    encoded.append(builder.finish())
                    builder, count = IndexBuilder(), 0
                    if damaged or put or self._is_wanted(encoded[-1]):
                        put += [
                            MergedFile(session.put_index(data), *Index.parse(data).bounds) for data in encoded
                        ]
                        encoded.clear()
                pack = None if item is None else keys.parse_pack_key(item.key)
                if item is None or pack is None or pack in session.condemned:
                    continue
                (at,) = packs.places([pack])
                is_known = at >= 0 and expected[at] == item.size  # the rows make up all of it
                # One is indexed in any case, because a file must replace the damaged ones.
                if is_known and (count or put or not needless):
                    continue
                checked = check_pack(self._objects, pack, lambda _: [], every_row=True)
                left = left or checked.unread
                unasked = unasked or checked.failure is not None
                bad = set(checked.bad)
                for kind, object_id, where in checked.rows:
                    if (kind, object_id) not in bad:
                        builder.add(kind, object_id, where)
                        count += 1
            self.repaired += len(put)
            if damaged and put and not unasked and (needless or not left):
                self._replace(put)

    def _is_wanted(self, encoded: bytes) -> bool:
        """Return whether these rows have a lost object. Packs of a running sync are left to that sync."""
        named = self._verifier.named
        return any((kind, object_id) in named for kind, object_id, _ in Index.parse(encoded).rows())

    def _replace(self, new: Iterable[MergedFile]) -> None:
        """Record that new index files replace damaged ones, which are then not read any more."""
        damaged, listed = self._verifier.damaged_indexes, self._objects.indexes.listed
        runs = [run for run in listed.standing.runs if not any(file.id in damaged for file in run)]
        replaced = {*damaged, *listed.standing.replaced}
        runs = [*((file,) for file in new), *runs]
        put_merge(self._repository, listed, runs, replaced, self._writer.tool)
        self._objects.indexes.renew()
