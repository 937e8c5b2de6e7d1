"""`dsv://` for fsspec: pandas, pyarrow, DuckDB, datasets, zarr and others read and publish commits by it.

    dsv://DATASET[@REV]/PATH           in the store in effect; a slash in a name is written as %2F
    dsv://(STORE)/DATASET[@REV]/PATH   in another store: its name, URL or folder, with %2F for / and %3A for :
    dsv://[STORE]/DATASET[@REV]/PATH   the same without these, for programs that accept brackets in a URL

An awaited call runs in a thread. Nothing here has its own event loop or thread, so a process may be forked.
"""

from __future__ import annotations

import asyncio
import errno
import io
import os
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from functools import partial
from glob import has_magic
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote

from fsspec.asyn import AsyncFileSystem, get_loop
from fsspec.transaction import Transaction
from fsspec.utils import stringify_path

import dsv
from dsv.api.program import IsFolder
from dsv.errors import Conflict, Denied, IntegrityError, NotFound, UsageError
from dsv.values.names import MAIN, Target

if TYPE_CHECKING:
    from datetime import datetime

    from dsv.api.program import Commit, Edits, Info, Store

_SCHEME = "dsv://"
_BUFFER = 1 << 17
_Key = tuple[str, str]
"""A store as a path names it, empty for the store in effect; and DATASET@REV."""
Row = dict[str, Any]
"""A path in fsspec's form: name, size, type; for a file also `checksum` and `ETag`, both its content's id."""


class _Batch:
    """Changes to one branch that become one commit. Until then, written data is in temporary files."""

    def __init__(self, fs: DsvFileSystem) -> None:
        self._fs = fs
        self.key: _Key | None = None
        self._changes: list[Callable[[Edits], None]] = []
        self._files: list[str] = []

    def add(self, key: _Key, change: Callable[[Edits], None]) -> None:
        if self.key not in (None, key):
            raise Conflict(
                f"this transaction writes to {self.key and self.key[1]}, and so not to {key[1]}",
                subject=key[1],
                hint="one transaction is one commit of one branch",
            )
        self.key = key
        self._changes.append(change)

    def put(self, key: _Key, path: str, file: str, replace: bool) -> None:
        """Put a temporary file. The batch owns it and removes it at the end."""
        self._files.append(file)
        self.add(key, lambda edits: edits._put_exactly(path, Path(file), replace))

    def end(self, publish: bool) -> None:
        try:
            if publish and self.key is not None:
                self._fs._publish(self.key, self._changes)
        finally:
            for file in self._files:
                _remove(file)


class _Transaction(Transaction):  # type: ignore[misc]
    """Publishes everything written in it as one commit at its end, with `message`."""

    def __init__(self, fs: DsvFileSystem, **options: Any) -> None:
        super().__init__(fs, **options)
        self.fs: DsvFileSystem | None = fs
        self.batch = _Batch(fs)
        self.message: str | None = None

    def complete(self, commit: bool = True) -> None:
        fs, files, ended = self.fs, list(self.files), False
        assert fs is not None
        try:
            for file in files:
                file.commit() if commit else file.discard()
            ended = True
        finally:
            try:
                self.batch.end(commit and ended)
            finally:
                fs._intrans, fs._transaction, self.fs = False, None, None
                for file in files:
                    file.discard()


class DsvFileSystem(AsyncFileSystem):  # type: ignore[misc]
    """The datasets of a store, as folders with or without a revision: `pets`, `pets@v1`.

    The first read of a branch fixes its commit; only writes through this object change it. A pickle contains
    these commits. Outside a transaction, each call that writes, and each file that is closed, is one commit.
    """

    protocol = "dsv"
    mirror_sync_methods = False
    transaction_type = _Transaction

    def __init__(
        self,
        store: str | None = None,
        *,
        message: str = "",
        create: bool = False,
        allow_removals: bool = False,
        names: str | None = None,
        cache: str | None = None,
        author: str | None = None,
        cwd: str | Path | None = None,
        offline: bool = False,
        environ: Mapping[str, str] | None = None,
        asynchronous: bool = False,
        loop: asyncio.AbstractEventLoop | None = None,
        **options: Any,
    ) -> None:
        """store, names, cache, author, cwd, offline, environ: see `dsv.store`. message: of commits. create:
        make a missing dataset. allow_removals: a commit may remove more than half of a dataset's files."""
        super().__init__(asynchronous=True, **options)  # False would start a loop
        self.asynchronous = asynchronous
        self._given_loop = loop
        self._named = store
        self._open_store = partial(
            dsv.store, cache=cache, author=author, cwd=cwd, offline=offline, environ=environ
        )
        self._stores = {"": self._open_store(store, names=names)}
        self._create, self._allow_removals, self._message = create, allow_removals, message
        self._commits: dict[_Key, Commit] = {}
        self._branches: set[_Key] = set()
        self._calls = threading.local()
        self._publishing = os.getpid(), threading.Lock()

    def __reduce__(self) -> tuple[Any, ...]:
        state = {name: getattr(self, name) for name in ("_stores", "_commits", "_branches")}
        return _restored, (type(self), self.storage_args, self.storage_options, state)

    @property
    def loop(self) -> asyncio.AbstractEventLoop | None:
        """The loop in which fsspec and other callers run coroutines."""
        return None if self.asynchronous else self._given_loop or get_loop()

    @property
    def fsid(self) -> str:
        return f"dsv-{self._stores[''].context.settings.store().url}"

    @classmethod
    def _strip_protocol(cls, path: Any) -> Any:
        if isinstance(path, list):
            return [*map(cls._strip_protocol, path)]
        text = str(stringify_path(path)).removeprefix(_SCHEME).removeprefix("dsv::")
        if text.startswith("["):
            store, end, rest = text[1:].partition("]")
            if not end or not store or (rest and not rest.startswith("/")):
                raise ValueError(f"{path} is not dsv://[STORE]/DATASET[@REV]/PATH")
            text = f"({quote(store, safe='')}){rest}"
        return text.strip("/")

    def unstrip_protocol(self, name: str) -> str:
        path = self._strip_protocol(name)
        if self._named is None or path.startswith("("):
            return f"{_SCHEME}{path}"
        return f"{_SCHEME}({quote(self._named, safe='')})/{path}"

    def info(self, path: str, **_: Any) -> Row:
        """Return the row of a path; for a symlink to a file, with the size and id of that file."""
        path = self._strip_protocol(path)
        if not self._parts(path)[1]:
            return _folder(path)
        with _as_os_errors(path):
            commit, below = self._at(path)
            assert commit.id
            try:
                return _row(commit, path, commit.info(below))
            except NotFound:  # it may lead through a symlink
                return _row(commit, path, commit.info(below, follow=True))

    def ls(self, path: str, detail: bool = True, **_: Any) -> list[Row] | list[str]:
        """Return the entries of a folder, or the one entry of a file."""
        path = self._strip_protocol(path)
        store, top, _below = self._parts(path)
        if not top:
            found = self._store(store).datasets()
            rows = [_folder(f"{path}/{item.dataset.component}".lstrip("/")) for item in found]
        else:
            with _as_os_errors(path):
                commit, below = self._at(path)
                top = path.removesuffix(below)
                rows = [_row(commit, top.rstrip("/") + "/" + one.path, one) for one in commit.ls(below)]
        return rows if detail else [row["name"] for row in rows]

    def find(
        self, path: str, maxdepth: int | None = None, withdirs: bool = False, detail: bool = False, **_: Any
    ) -> dict[str, Row] | list[str]:
        """As in fsspec, but without symlinks that lead to no file."""
        found = super().find(path, maxdepth, withdirs, detail=True)
        kept = {name: row for name, row in found.items() if row["type"] != "link"}
        return kept if detail else [*kept]

    def exists(self, path: str, **_: Any) -> bool:
        """Return whether a path exists. Raises if that can't be determined, as `isfile` and `isdir` do."""
        return self._type(path) is not None

    def isfile(self, path: str) -> bool:
        return self._type(path) == "file"

    def isdir(self, path: str) -> bool:
        return self._type(path) == "directory"

    def _type(self, path: str) -> str | None:
        try:
            return str(self.info(path)["type"])
        except FileNotFoundError:
            return None

    def modified(self, path: str) -> datetime:
        """Return the time of the commit: files have no time."""
        with _as_os_errors(path):
            self.info(path)
            return self._at(self._strip_protocol(path))[0].time

    def cat_file(self, path: str, start: int | None = None, end: int | None = None, **_: Any) -> bytes:
        path = self._strip_protocol(path)
        with _as_os_errors(path):
            commit, below = self._at(path)
            return commit.read_bytes(below, start or 0, end)

    def cat(self, path: Any, recursive: bool = False, on_error: str = "raise", **options: Any) -> Any:
        """As in fsspec; files stored side by side are read with one request."""
        paths = self.expand_path(path, recursive=recursive)
        if len(paths) == 1 and not isinstance(path, list) and paths[0] == self._strip_protocol(path):
            return self.cat_file(path, **options)
        paths = [one for one in paths if not (recursive and self.isdir(one))]
        asked = options.get("start"), options.get("end")
        raising = "raise" if on_error == "raise" else "return"
        found = zip(paths, self.cat_ranges(paths, *asked, on_error=raising), strict=True)
        return {one: data for one, data in found if on_error != "omit" or isinstance(data, bytes)}

    def cat_ranges(
        self,
        paths: list[str],
        starts: Any,
        ends: Any,
        max_gap: Any = None,
        on_error: str = "return",
        **_: Any,
    ) -> list[Any]:
        """As in fsspec; chunks stored side by side are read with one request. `max_gap` has no effect."""
        count = len(paths)
        columns = [one if isinstance(one, list) else [one] * count for one in (starts, ends)]
        if any(len(one) != count for one in columns):
            raise ValueError("there is not one start and one end for each path")
        answers: list[Any] = [None] * count
        asked: dict[str, list[tuple[int, str, int, int | None]]] = {}
        for number, (path, start, end) in enumerate(zip(paths, *columns, strict=True)):
            path = self._strip_protocol(path)
            below = self._parts(path)[2]
            asked.setdefault(path.removesuffix(below), []).append((number, below, start or 0, end))
        for top, rows in asked.items():
            found = self._ranges(top, [row[1:] for row in rows], on_error == "return")
            for row, data in zip(rows, found, strict=True):
                answers[row[0]] = data
        return answers

    def _ranges(self, top: str, asked: list[tuple[str, int, int | None]], errors_too: bool) -> Sequence[Any]:
        """Read ranges of one commit. errors_too: return an error in its place, and read all others."""
        try:
            with _as_os_errors(top):
                return self._at(top)[0].read_ranges(asked)
        except Exception as error:
            if not errors_too:
                raise
            kinds = FileNotFoundError | IsADirectoryError | IntegrityError
            if len(asked) == 1 or not isinstance(error, kinds):
                return [error] * len(asked)
        middle = len(asked) // 2
        return [one for part in (asked[:middle], asked[middle:]) for one in self._ranges(top, part, True)]

    def _open(
        self,
        path: str,
        mode: str = "rb",
        block_size: int | None = None,
        autocommit: bool = True,
        cache_options: Any = None,
        **_: Any,
    ) -> Any:
        if mode == "rb":
            with _as_os_errors(path):
                commit, below = self._at(path)
                file: Any = commit.open(
                    below, buffer_size=block_size if isinstance(block_size, int) else _BUFFER
                )
                file.fs, file.path, file.details = self, path, self.info(path)
                file.size = file.details["size"]
            return file
        if mode not in ("wb", "xb"):
            raise NotImplementedError(f"a file of a dataset is read or written anew, not opened by {mode!r}")
        if not self._intrans and self.isdir(path):
            raise IsADirectoryError(errno.EISDIR, "it is a folder", path)
        if mode == "xb" and self.exists(path):
            raise FileExistsError(errno.EEXIST, "it already exists", path)
        return _Written(
            self, path, self._place(path), mode == "wb", None if autocommit else self.transaction.batch
        )

    def mkdir(self, path: str, create_parents: bool = True, **_: Any) -> None:
        """Do nothing: a folder exists as long as a file is in it."""

    def makedirs(self, path: str, exist_ok: bool = False) -> None:
        """As `mkdir`."""

    def mv(
        self, path1: str, path2: str, recursive: bool = False, maxdepth: int | None = None, **_: Any
    ) -> None:
        """As in fsspec. Within a branch, one path moves with its modes, links and empty folders."""
        with self._batch() as batch:
            plain = isinstance(path1, str) and isinstance(path2, str) and maxdepth is None
            into = plain and self._parts(self._strip_protocol(path2))[2]  # not a dataset itself
            if into and not has_magic(path1) and not path1.endswith("/"):
                (key, old), (to, new) = (self._place(self._strip_protocol(one)) for one in (path1, path2))
                if key == to and old == new:
                    return
                if key == to:
                    if self.info(path1)["type"] == "directory" and not recursive:
                        raise IsADirectoryError(errno.EISDIR, "a folder moves with recursive=True", path1)
                    new += "/" if path2.endswith("/") else ""
                    batch.add(key, lambda edits: edits.move(old, new, replace=True))
                    return
            super().mv(path1, path2, recursive=recursive, maxdepth=maxdepth)

    def rm_file(self, path: str) -> None:
        self.rm(path)

    def rm(self, path: Any, recursive: bool = False, maxdepth: int | None = None) -> None:
        """As in fsspec; a folder is removed with its last file."""
        limited = recursive and maxdepth is not None
        paths = self.expand_path(path, recursive=limited, maxdepth=maxdepth)
        chosen = {self._strip_protocol(one): self.info(one)["type"] == "directory" for one in paths}
        with self._batch() as batch:
            for one, is_folder in chosen.items():
                if is_folder and not recursive:
                    raise IsADirectoryError(
                        errno.EISDIR, "it is a folder, which goes with recursive=True", one
                    )
                parents = (one[:at] for at, sign in enumerate(one) if sign == "/")
                if not (is_folder and limited) and (
                    limited or not any(chosen.get(above) for above in parents)
                ):
                    key, below = self._place(one)
                    batch.add(key, lambda edits, below=below: edits.remove(below))  # type: ignore[misc]

    def cp_file(self, path1: str, path2: str, **_: Any) -> None:
        if self.isdir(path1):
            return
        with self._batch(), self.open(path1) as source, self.open(path2, "wb") as copy:
            while piece := source.read(1 << 22):
                copy.write(piece)

    @contextmanager
    def _batch(self) -> Iterator[_Batch]:
        """Yield the batch of the transaction or of the outer call, else a new one, published at the end."""
        outer = self.transaction.batch if self._intrans else getattr(self._calls, "batch", None)
        if outer is not None:
            yield outer
            return
        batch = self._calls.batch = _Batch(self)
        ended = False
        try:
            yield batch
            ended = True
        finally:
            self._calls.batch = None
            batch.end(ended)

    def _publish(self, key: _Key, changes: list[Callable[[Edits], None]]) -> None:
        if self._publishing[0] != os.getpid():  # forked: a thread of the parent may have held the lock
            self._publishing = os.getpid(), threading.Lock()
        message = getattr(self._transaction, "message", None) or self._message
        edits = self._store(key[0]).edit(
            key[1], message=message, create=self._create, allow_removals=self._allow_removals
        )
        with self._publishing[1], _as_os_errors(key[1]):
            with edits:
                for change in changes:
                    change(edits)
            self._commits[key] = edits.commit
            self._branches.add(key)

    def _parts(self, path: str) -> tuple[str, str, str]:
        """Split a path into a store, a dataset with its revision, and a path in the dataset."""
        store, _, rest = path.partition("/")
        if not (store.startswith("(") and store.endswith(")")):
            store, rest = "", path
        top, _, below = rest.partition("/")
        store = unquote(store[1:-1])
        return "" if store == self._named else store, top, below

    def _store(self, name: str) -> Store:
        return self._stores.get(name) or self._stores.setdefault(name, self._open_store(name))

    def _at(self, path: str) -> tuple[Commit, str]:
        """Return the commit that a path is in, fixed at its first use, and the path in it."""
        store, top, below = self._parts(path)
        key = store, _name(top)
        return self._commits.get(key) or self._commits.setdefault(key, self._store(store).open(key[1])), below

    def _place(self, path: str) -> tuple[_Key, str]:
        """Return the branch that a path is in, and the path in it. Raises `UsageError` for a tag or an id."""
        store, top, below = self._parts(path)
        key = store, _name(top)
        if not below:
            raise IsADirectoryError(errno.EISDIR, "it is a whole dataset, in which files are written", path)
        if key not in self._branches:
            with suppress(NotFound):
                if self._at(path)[0].branch is None:
                    raise UsageError(
                        f"{key[1]} is not a branch, and only a branch can be written to",
                        subject=key[1],
                        hint="write to DATASET or DATASET@BRANCH",
                    )
            self._branches.add(key)
        return key, below


class _Written(io.BufferedWriter):
    """A file open for writing. Closing it adds it to a commit, unless its `with` block raised."""

    mode = "wb"

    def __init__(
        self, fs: DsvFileSystem, path: str, place: tuple[_Key, str], replace: bool, batch: _Batch | None
    ) -> None:
        """place: see `_place`. batch: of the transaction."""
        descriptor, self._temporary = tempfile.mkstemp(prefix="dsv-")
        super().__init__(io.FileIO(descriptor, "wb"))
        self.fs, self.path = fs, path
        self._place, self._replace, self._batch = place, replace, batch

    def close(self) -> None:
        if not self.closed:
            try:
                super().close()
            except OSError:  # no room for the buffered rest
                _remove(self._temporary)
                raise
            with self.fs._batch() if self._batch is None else nullcontext(self._batch) as batch:
                batch.put(*self._place, self._temporary, self._replace)

    def commit(self) -> None:
        """Close the file at the end of a transaction."""
        self.close()

    def discard(self) -> None:
        """Close it without effect."""
        if not self.closed:
            self.raw.close()
            _remove(self._temporary)

    def __exit__(self, kind: object, *_: object) -> None:
        self.close() if kind is None else self.discard()

    def __del__(self) -> None:
        if hasattr(self, "_batch"):
            self.discard()


def _awaited(name: str) -> Callable[..., Any]:
    async def call(self: DsvFileSystem, *arguments: Any, **options: Any) -> Any:
        return await asyncio.to_thread(getattr(self, name), *arguments, **options)

    return call


def _batched(name: str) -> Callable[..., None]:
    def call(self: DsvFileSystem, *arguments: Any, **options: Any) -> None:
        with self._batch():
            getattr(AsyncFileSystem, name)(self, *arguments, **options)

    return call


for _call in ("copy", "put", "pipe"):  # one commit for all files of a call
    setattr(DsvFileSystem, _call, _batched(_call))
_CALLS = """
    cat cat_file cat_ranges copy cp_file du exists expand_path find get get_file glob info isdir isfile ls makedirs
    mkdir mv pipe pipe_file put put_file rm rm_file size sizes touch
"""
for _call in _CALLS.split():
    setattr(DsvFileSystem, f"_{_call}", _awaited(_call))
DsvFileSystem._mv_file = _awaited("mv")


def _restored(cls: type[DsvFileSystem], arguments: Any, options: Any, state: dict[str, Any]) -> DsvFileSystem:
    fs = cls(*arguments, **{**options, "skip_instance_cache": True})
    for name, value in state.items():
        setattr(fs, name, value)
    return fs


def _name(top: str) -> str:
    """Return DATASET@REV for a part of a path, as `Target.parse` takes it."""
    text = top.replace("%2F", "/")
    try:
        target = Target.parse(text)
    except UsageError as error:
        raise FileNotFoundError(errno.ENOENT, error.message, top) from error
    if target.path is not None or not text:
        raise FileNotFoundError(errno.ENOENT, "a path is dsv://DATASET[@REV]/PATH", top)
    return text if target.rev is not None else f"{text}@{MAIN}"


def _folder(name: str) -> Row:
    return {"name": name, "size": 0, "type": "directory"}


def _row(commit: Commit, name: str, info: Info) -> Row:
    if info.kind == "directory":
        return _folder(name)
    row: Row = {"name": name, "size": info.size, "type": "file"}
    if info.kind == "symlink":
        row |= {"islink": True, "destination": info.target}
        try:
            info = commit.info(info.path, follow=True)
        except (NotFound, UsageError):  # it leads to a folder, or nowhere
            return {**row, "type": "link"}
    return {**row, "size": info.size, "checksum": info.id, "ETag": info.id}


@contextmanager
def _as_os_errors(path: str) -> Iterator[None]:
    """Raise the OSErrors that callers expect of a file system; dsv's own error is the cause."""
    try:
        yield
    except NotFound as error:
        raise FileNotFoundError(errno.ENOENT, error.message, path) from error
    except IsFolder as error:
        raise IsADirectoryError(errno.EISDIR, error.message, path) from error
    except Denied as error:
        raise PermissionError(errno.EACCES, error.message, path) from error


def _remove(file: str) -> None:
    with suppress(FileNotFoundError):
        os.unlink(file)  # noqa: PTH108
