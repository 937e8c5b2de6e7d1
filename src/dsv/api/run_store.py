"""The store of run records, opened when the first record is on its way: a cached commit needs no store to start."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import ExitStack
from types import TracebackType
from typing import Self

from dsv.api.context import Context
from dsv.errors import Conflict
from dsv.model.ids import StoreId
from dsv.model.names import DatasetName
from dsv.model.run import RunId, start_number
from dsv.repo.runs import RunStore
from dsv.store.base import Buffer, Store


class LateRunStore(RunStore):
    """Takes records for one store, and only for that one. A context manager that closes what was opened.

    started: called when the start of a run is there.
    """

    def __init__(
        self, context: Context, store_id: StoreId, started: Callable[[], None] = lambda: None
    ) -> None:
        # Not the base's: the store that it would be given isn't open yet.
        self._context = context
        self._store_id = store_id
        self._started = started
        self._opened: Store | None = None
        self._stack = ExitStack()
        self._lock = threading.Lock()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        self._stack.close()

    @property
    def _store(self) -> Store:
        """Opened by whatever asks first. Raises what opening a store raises, and `Unsupported` for a newer one."""
        with self._lock:
            if self._opened is None:
                self._opened = self._open()
        return self._opened

    def write(self, dataset: DatasetName, run: RunId, part: str, data: Buffer) -> None:
        """Raises what `RunStore.write` raises, and what opening the store raises."""
        super().write(dataset, run, part, data)
        if start_number(part) is not None:
            self._started()

    def _open(self) -> Store:
        repository = self._stack.enter_context(self._context.repository())
        if repository.id != self._store_id:
            raise Conflict(
                f"{repository.store.url} is not the store that the data came from",
                subject=repository.store.url,
                hint="dsv config store shows which store is in effect and why",
            )
        repository.format.check(repository.store.url, writing=True)
        return repository.store
