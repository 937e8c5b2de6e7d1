"""`dsv://` for fsspec: pandas, pyarrow, DuckDB, datasets, zarr and others read and publish commits by it.

    dsv://DATASET[@REV]/PATH           in the store in effect; a slash in a name is written as %2F
    dsv://(STORE)/DATASET[@REV]/PATH   in another store: its name, URL or folder, with %2F for / and %3A for :
    dsv://[STORE]/DATASET[@REV]/PATH   the same without these, for programs that accept brackets in a URL

An awaited call runs in a thread. Nothing here has its own event loop or thread, so a process may be forked.
"""

from __future__ import annotations

import asyncio
import errno
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from functools import partial
from glob import has_magic
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote

from fsspec.asyn import AsyncFileSystem, get_loop
from fsspec.core import get_compression
from fsspec.implementations.local import LocalFileSystem
from fsspec.spec import AbstractFileSystem
from fsspec.utils import stringify_path

import dsv
from dsv.api.edits import Edit, MoveAll, Remove
from dsv.api.program import Commit, Info, IsFolder, Store
from dsv.errors import Conflict, Denied, Erased, IntegrityError, NoStore, NotFound, UsageError, as_read_errors
from dsv.filesystem.writing import Key, Text, Transaction, Written, running
from dsv.values.names import MAIN, Target

if TYPE_CHECKING:
    from datetime import datetime


_SCHEME = "dsv://"
_BUFFER = 1 << 17
Row = dict[str, Any]
"""A path in fsspec's form: name, size, type; for a file also `checksum` and `ETag`, both its content's id."""


def _omit_missing(error: OSError) -> None:
    if not isinstance(error, FileNotFoundError):
        raise error


def _walk(self: Any, path: str, *arguments: Any, on_error: Any = "omit", **options: Any) -> Iterator[Any]:
    """As in fsspec, but only what is missing is left out: any other error is raised."""
    yield from AbstractFileSystem.walk(
        self, path, *arguments, on_error=_omit_missing if on_error == "omit" else on_error, **options
    )


class _Local(LocalFileSystem):  # type: ignore[misc]
    walk = _walk


class DsvFileSystem(AsyncFileSystem):  # type: ignore[misc]
    """The datasets of a store, as folders with or without a revision: `pets`, `pets@v1`.

    The first read of a branch fixes its commit; only writes through this object change it. A pickle contains
    these commits. Outside a transaction, each call that writes, and each file that is closed, is one commit.
    """

    protocol = "dsv"
    walk = _walk
    mirror_sync_methods = False
    transaction_type = Transaction

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
        self._commits: dict[Key, Commit] = {}
        self._branches: set[Key] = set()
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
        with as_read_errors(), _as_os_errors(path):
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
        with as_read_errors(), _as_os_errors(path):
            if not top:
                datasets = self._store(store).datasets()
                rows = [_folder(f"{path}/{item.dataset.component}".lstrip("/")) for item in datasets]
            else:
                commit, below = self._at(path)
                top = path.removesuffix(below)
                rows = [_row(commit, top.rstrip("/") + "/" + entry.path, entry) for entry in commit.ls(below)]
        return rows if detail else [row["name"] for row in rows]

    async def _walk(self, path: str, *arguments: Any, on_error: Any = "omit", **options: Any) -> Any:
        async for row in super()._walk(
            path, *arguments, on_error=_omit_missing if on_error == "omit" else on_error, **options
        ):
            yield row

    def expand_path(
        self, path: Any, recursive: bool = False, maxdepth: int | None = None, **options: Any
    ) -> list[str]:
        """As in fsspec, but a path that exists is no pattern."""
        paths = self._strip_protocol([path] if isinstance(path, str | os.PathLike) else [*path])
        exact = [name for name in paths if has_magic(name) and self.exists(name)]
        expanded = {*exact}
        for name in exact if recursive else ():
            expanded.update(self.find(name, maxdepth, withdirs=True))
        if not exact or len(exact) < len(paths):
            others = [name for name in paths if name not in expanded]
            with suppress(FileNotFoundError) if expanded else nullcontext():
                expanded.update(super().expand_path(others, recursive, maxdepth, **options))
        return sorted(expanded)

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
        paths = [name for name in paths if not (recursive and self.isdir(name))]
        asked = options.get("start"), options.get("end")
        raising = "raise" if on_error == "raise" else "return"
        contents = zip(paths, self.cat_ranges(paths, *asked, on_error=raising), strict=True)
        return {name: data for name, data in contents if on_error != "omit" or isinstance(data, bytes)}

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
        columns = [bound if isinstance(bound, list) else [bound] * count for bound in (starts, ends)]
        if any(len(column) != count for column in columns):
            raise ValueError("each path needs one start and one end")
        answers: list[Any] = [None] * count
        asked: dict[str, list[tuple[int, str, int, int | None]]] = {}
        for number, (path, start, end) in enumerate(zip(paths, *columns, strict=True)):
            path = self._strip_protocol(path)
            below = self._parts(path)[2]
            asked.setdefault(path.removesuffix(below), []).append((number, below, start or 0, end))
        for top, rows in asked.items():
            contents = self._ranges(top, [row[1:] for row in rows], on_error == "return")
            for row, data in zip(rows, contents, strict=True):
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
            kinds = FileNotFoundError | IsADirectoryError | IntegrityError | Erased
            if len(asked) == 1 or not isinstance(error, kinds):
                return [error] * len(asked)
        middle = len(asked) // 2
        return [one for part in (asked[:middle], asked[middle:]) for one in self._ranges(top, part, True)]

    def open(
        self, path: str, mode: str = "rb", block_size: Any = None, cache_options: Any = None,
        compression: Any = None, **options: Any,
    ) -> Any:  # fmt: skip
        """As in fsspec. A file that is written is published when it is closed, but not if an error ends its
        `with` block, or if it is forgotten."""
        if "r" in mode:
            return super().open(path, mode, block_size, cache_options, compression, **options)
        names = ("encoding", "errors", "newline")
        text = {name: options.pop(name) for name in names if name in options and "b" not in mode}
        options["packing"] = get_compression(self._strip_protocol(path), compression)
        file = super().open(path, mode.replace("t", "").replace("b", "") + "b", **options)
        return file if "b" in mode else Text(file, **text)

    def _open(
        self,
        path: str,
        mode: str = "rb",
        block_size: int | None = None,
        autocommit: bool = True,
        cache_options: Any = None,
        packing: str | None = None,
        **_: Any,
    ) -> Any:
        if mode == "rb":
            with _as_os_errors(path):
                commit, below = self._at(path)
                held = block_size if isinstance(block_size, int) and block_size > 0 else _BUFFER
                file: Any = commit.open(below, buffer_size=held)
                file.fs, file.path, file.details = self, path, self.info(path)
                file.size = file.details["size"]
            return file
        if mode not in ("wb", "xb"):
            raise NotImplementedError(f"a file of a dataset is read or written anew, not opened by {mode!r}")
        within = running(self)
        if within is None or not within.has_removals:  # else its end decides
            if self.isdir(path):
                raise IsADirectoryError(errno.EISDIR, "it is a folder", path)
            if mode == "xb" and self.exists(path):
                raise FileExistsError(errno.EEXIST, "it already exists", path)
        return Written(self, path, self._place(path), mode == "wb", within, packing)

    def mkdir(self, path: str, create_parents: bool = True, **_: Any) -> None:
        """Do nothing: a folder exists as long as a file is in it."""

    def makedirs(self, path: str, exist_ok: bool = False) -> None:
        """As `mkdir`."""

    def put(self, lpath: Any, rpath: Any, recursive: bool = False, *arguments: Any, **options: Any) -> None:
        """As in fsspec, but a local folder that can't be listed is an error."""
        if not isinstance(rpath, list):
            _Local().expand_path(lpath, recursive, options.get("maxdepth"))
        with Transaction(self, of_one_call=True):
            super().put(lpath, rpath, recursive, *arguments, **options)

    def mv(
        self, path1: Any, path2: Any, recursive: bool = False, maxdepth: int | None = None, **_: Any
    ) -> None:
        """As in fsspec, within one branch. A whole folder moves with its modes, links and empty folders."""
        pairs: list[tuple[str, str]] = []
        plain = isinstance(path1, str) and isinstance(path2, str) and maxdepth is None
        if plain and self._strip_protocol(path1) == self._strip_protocol(path2):
            pairs.append((path1, path1))
        elif plain and (not has_magic(path1) or self.exists(path1)):
            into = not path1.endswith("/") and (path2.endswith("/") or self.isdir(path2))
            pairs.append((path1, f"{path2.rstrip('/')}/{path1.rpartition('/')[2]}" if into else path2))
        else:
            plain = False
            asked = SimpleNamespace(isdir=self.isdir, expand_path=self.expand_path)
            asked.cp_file = lambda *pair, **_: pairs.append(pair)
            AbstractFileSystem.copy(asked, path1, path2, recursive, maxdepth, on_error="raise")
            if not recursive and any(map(self.isdir, self.expand_path(path1))):
                raise IsADirectoryError(errno.EISDIR, "a folder moves with recursive=True", path1)
        whole = maxdepth is None and not (isinstance(path1, list) and isinstance(path2, str))
        moved: dict[str, str] = {}
        for old, new in sorted(tuple(map(self._strip_protocol, pair)) for pair in pairs):
            folder = self.info(old)["type"] == "directory"
            above = (old[:at] for at, sign in enumerate(old) if sign == "/")
            if old == new or any(one in moved and moved[one] + old[len(one) :] == new for one in above):
                continue
            if folder and (plain or whole) and not recursive:
                raise IsADirectoryError(errno.EISDIR, "a folder moves with recursive=True", old)
            if new.startswith(f"{old}/"):
                raise OSError(errno.EINVAL, "a folder can't be moved into itself", old)
            if plain or not folder or (whole and self._parts(new)[2]):
                moved[old] = new
        places = [(self._place(old), self._place(new)) for old, new in moved.items()]
        keys = {place[0] for pair in places for place in pair}
        if len(keys) > 1:
            raise Conflict(f"{path1} can't be moved to another branch", hint="copy it, then remove it")
        with Transaction(self, of_one_call=True) as batch:
            for key in keys:
                batch.add(key, [MoveAll([(old[1], new[1]) for old, new in places], replace=True)])

    def rm_file(self, path: str) -> None:
        """Remove a file. `path` is no pattern."""
        self.info(path)
        self.rm(path)

    def rm(self, path: Any, recursive: bool = False, maxdepth: int | None = None) -> None:
        """As in fsspec; a folder is removed with its last file."""
        limited = recursive and maxdepth is not None
        paths = self.expand_path(path, recursive=limited, maxdepth=maxdepth)
        chosen = {self._strip_protocol(one): self.info(one)["type"] == "directory" for one in paths}
        with Transaction(self, of_one_call=True) as batch:
            for one, is_folder in chosen.items():
                if is_folder and not recursive:
                    raise IsADirectoryError(errno.EISDIR, "a folder is removed with recursive=True", one)
                above = (one[:at] for at, sign in enumerate(one) if sign == "/")
                if not (is_folder and limited) and (limited or not any(map(chosen.get, above))):
                    key, below = self._place(one)
                    batch.add(key, [Remove(below, literal=True)])
            if not batch.has_removals:
                raise OSError(errno.ENOTEMPTY, "maxdepth reaches no file", path)

    def cp_file(self, path1: str, path2: str, **_: Any) -> None:
        if self.isdir(path1):
            return
        with Transaction(self, of_one_call=True), self.open(path1) as source, self.open(path2, "wb") as copy:
            while piece := source.read(1 << 22):
                copy.write(piece)

    @property
    def transaction(self) -> Transaction:
        """The transaction that runs here, else a new one, to begin."""
        return running(self) or Transaction(self)

    def start_transaction(self) -> Transaction:
        return Transaction(self).start()

    def end_transaction(self) -> None:
        """End the transaction that runs here."""
        here = running(self)
        if here is None:
            raise Conflict("no transaction runs here", hint="the thread or task that began it ends it")
        here.complete()

    _intrans = property(lambda self: running(self) is not None, lambda self, _: None)  # fsspec sets it too

    def _publish(self, key: Key, changes: list[Edit], message: str | None = None) -> None:
        if self._publishing[0] != os.getpid():  # forked: a thread of the parent may have held the lock
            self._publishing = os.getpid(), threading.Lock()
        edits = self._store(key[0]).edit(
            key[1], message=message or self._message, create=self._create, allow_removals=self._allow_removals
        )
        with self._publishing[1], _as_os_errors(key[1]):
            with edits:
                edits._add(*changes)
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

    def _place(self, path: str) -> tuple[Key, str]:
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


def _awaited(name: str) -> Callable[..., Any]:
    async def call(self: DsvFileSystem, *arguments: Any, **options: Any) -> Any:
        return await asyncio.to_thread(getattr(self, name), *arguments, **options)

    return call


def _batched(name: str) -> Callable[..., None]:
    def call(self: DsvFileSystem, *arguments: Any, **options: Any) -> None:
        with Transaction(self, of_one_call=True):
            getattr(AsyncFileSystem, name)(self, *arguments, **options)

    return call


for _call in ("copy", "pipe"):  # one commit for all files of a call
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
    """Raises the OSErrors that callers expect of a file system; dsv's own error is the cause."""
    try:
        yield
    except (NoStore, Erased):  # the path may be there
        raise
    except NotFound as error:
        raise FileNotFoundError(errno.ENOENT, error.message, path) from error
    except IsFolder as error:
        raise IsADirectoryError(errno.EISDIR, error.message, path) from error
    except Denied as error:
        raise PermissionError(errno.EACCES, error.message, path) from error
