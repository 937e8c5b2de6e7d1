"""Writing to a `DsvFileSystem`: transactions, and files open for writing."""

from __future__ import annotations

import io
import sys
import tempfile
import threading
from collections.abc import Sequence
from contextlib import suppress
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import fsspec.transaction
from fsspec.compression import compr

from dsv.api.edits import Edit, Put
from dsv.errors import Conflict

Key = tuple[str, str]
"""A store as a path names it, empty for the store in effect; and DATASET@REV."""


class Transaction(fsspec.transaction.Transaction):  # type: ignore[misc]
    """Changes to one branch that become one commit at its end, with `message`, or join the transaction around it.

    Only the thread or the task that began it is in it, those that run in a copy of its context, and threads that
    Python did not start, such as Arrow's. Until the end, written data is in temporary files.
    """

    def __init__(self, fs: Any, *, of_one_call: bool = False) -> None:
        super().__init__(fs)
        self._of_one_call = of_one_call
        self.message: str | None = None
        self.published = False
        self._ended = False
        self._outer: Transaction | None = None
        self._key: Key | None = None
        self._changes: list[Edit] = []
        self._put: set[str | bytes] = set()
        self._has_removals = False
        self._temporary: list[str] = []
        self._lock = threading.Lock()

    @property
    def has_removals(self) -> bool:
        return self._has_removals or (self._outer is not None and self._outer.has_removals)

    def add(self, key: Key, changes: Sequence[Edit], temporary: Sequence[str] = ()) -> None:
        """Add changes, and their temporary files, which this owns and removes at its end."""
        with self._lock:
            if not self._ended:
                self._temporary += temporary
            if self._ended or self._key not in (None, key):
                what = "has ended" if self._ended else f"writes to {self._key and self._key[1]}"
                raise Conflict(
                    f"this transaction {what}, and so not to {key[1]}",
                    subject=key[1],
                    hint="one transaction is one commit of one branch",
                )
            self._key = key
            for path in [one.path for one in changes if isinstance(one, Put)] if self._of_one_call else ():
                if path in self._put:
                    raise Conflict(f"two files of one call would be written to {path!r}", subject=str(path))
                self._put.add(path)
            self._changes += changes
            self._has_removals |= any(not isinstance(one, Put) for one in changes)

    def start(self) -> Transaction:
        """Begin; if it runs already, as `fs.transaction` does within a transaction, begin another within it."""
        begun = type(self)(self.fs) if self in _RUNNING.get() else self
        begun._outer = running(self.fs)
        _RUNNING.set((*_RUNNING.get(), begun))
        if not self._of_one_call:
            _BEGUN.append(begun)
        return begun

    __enter__ = start

    def __exit__(self, kind: object, *_: object) -> None:
        (running(self.fs) or self).complete(kind is None)

    def complete(self, commit: bool = True) -> None:
        files, kept = [*self.files], False
        try:
            for file in files:
                file.commit() if commit else file.discard()
            with self._lock:
                self._ended, first = True, not self._ended
            if commit and first and self._key is not None:
                if self._outer is not None:
                    self._outer.message = self._outer.message or self.message
                    self._outer.add(self._key, self._changes, self._temporary)
                    kept = True
                else:
                    self.fs._publish(self._key, self._changes, self.message)
            self.published |= commit and first
        finally:
            self._ended = True
            _RUNNING.set(tuple(one for one in _RUNNING.get() if one is not self))
            with suppress(ValueError):
                _BEGUN.remove(self)
            for file in files:
                file.discard()
            self.files.clear()  # which know this
            for name in () if kept else self._temporary:
                Path(name).unlink(missing_ok=True)


_RUNNING: ContextVar[tuple[Transaction, ...]] = ContextVar("dsv_transactions", default=())
"""The transactions of all file systems that run here, the innermost last."""


_BEGUN: list[Transaction] = []
"""Those that callers of a file system have begun in this process."""


def running(fs: object) -> Transaction | None:
    """Return the innermost transaction that runs here; one that failed stays, for what was begun in it."""
    for transaction in reversed(_RUNNING.get()):
        if transaction.fs is fs and not transaction.published:
            return transaction
    if not isinstance(threading.current_thread(), threading._DummyThread):
        return None
    begun = [transaction for transaction in _BEGUN if transaction.fs is fs]
    if len([transaction for transaction in begun if transaction._outer is None]) > 1:
        raise Conflict(
            "more than one transaction runs, and so it is not known which of them this thread writes for",
            hint="let one end before another begins, or use a file system for each: skip_instance_cache=True",
        )
    return begun[-1] if begun else None


class Written(io.BufferedWriter):
    """A file open for writing. Closing it adds it to a commit, unless an error ends its `with` block."""

    mode = "wb"

    def __init__(
        self,
        fs: Any,
        path: str,
        place: tuple[Key, str],
        replace: bool,
        batch: Transaction | None,
        packing: str | None,
    ) -> None:
        """place: see `_place`. batch: the transaction that it was opened in. packing: see fsspec.compression."""
        descriptor, self._temporary = tempfile.mkstemp(prefix="dsv-")
        raw: io.RawIOBase = io.FileIO(descriptor, "wb")
        super().__init__(raw if packing is None else _Packed(raw, packing))
        self.fs, self.path = fs, path
        self._place, self._replace, self._batch = place, replace, batch
        self._handled = sys.exception()

    def close(self) -> None:
        self.discard() if self._is_left_by_error() else self.commit()

    def commit(self) -> None:
        """Close it; also at the end of a transaction."""
        if self.closed:
            return
        key, path = self._place
        change = Put(path, Path(self._temporary), self._replace, exactly=True)
        try:
            super().close()  # there may be no room for the buffered rest
            with Transaction(self.fs, of_one_call=True) as call:
                (self._batch or call).add(key, [change], [self._temporary])
        except BaseException:
            Path(self._temporary).unlink(missing_ok=True)
            raise

    def _is_left_by_error(self) -> bool:
        """Return whether an error is ending a `with` block of others, such as `fsspec.open`, pandas, `closing`,
        which only call `close`."""
        if sys.exception() in (None, self._handled):
            return False
        frame: Any = sys._getframe(2)
        while frame is not None and frame.f_code.co_name != "__exit__":
            frame = frame.f_back
        return frame is not None

    def discard(self) -> None:
        """Close it without effect."""
        if not self.closed:
            try:
                self.raw.close()
            finally:
                Path(self._temporary).unlink(missing_ok=True)

    def __exit__(self, kind: object, *_: object) -> None:
        self.commit() if kind is None else self.discard()

    def __del__(self) -> None:
        if hasattr(self, "_batch"):
            self.discard()


class _Packed(io.RawIOBase):
    """What is written goes to a file, compressed."""

    def __init__(self, file: io.RawIOBase, kind: str) -> None:
        self._file, self._packer = file, compr[kind](file, mode="w")

    def writable(self) -> bool:
        return True

    def write(self, data: Any, /) -> int:
        self._packer.write(data)
        return len(data)

    def close(self) -> None:
        if not self.closed:
            try:
                self._packer.close()
            finally:
                self._file.close()
                super().close()


class Text(io.TextIOWrapper):
    """The same of text."""

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None:
            self.flush()
            self.buffer.commit()  # type: ignore[attr-defined]
        self.__del__()

    def __del__(self) -> None:
        with suppress(ValueError):  # it was detached
            self.buffer.discard()  # type: ignore[attr-defined]
