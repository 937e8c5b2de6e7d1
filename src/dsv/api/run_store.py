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
from dsv.model.run import RunId, RunRecord, start_number
from dsv.repo.runs import RunStore, StoredRun
from dsv.store.base import Buffer


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
        self._runs: RunStore | None = None
        self._stack = ExitStack()
        self._lock = threading.Lock()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        self._stack.close()

    def write(self, dataset: DatasetName, run: RunId, part: str, data: Buffer) -> None:
        """Raises what `RunStore.write` raises, what opening the store raises, and `Unsupported` for a newer one."""
        self._late().write(dataset, run, part, data)
        if start_number(part) is not None:
            self._started()

    def listing(self, dataset: DatasetName | None = None, run_prefix: str = "") -> list[StoredRun]:
        """As of `RunStore`; also raises what opening the store raises."""
        return self._late().listing(dataset, run_prefix)

    def read(self, stored: StoredRun) -> RunRecord:
        """As of `RunStore`; also raises what opening the store raises."""
        return self._late().read(stored)

    def _late(self) -> RunStore:
        with self._lock:
            if self._runs is None:
                self._runs = self._open()
            return self._runs

    def _open(self) -> RunStore:
        repository = self._stack.enter_context(self._context.repository())
        if repository.id != self._store_id:
            raise Conflict(
                f"{repository.store.url} is not the store that the data came from",
                subject=repository.store.url,
                hint="dsv config store shows which store is in effect and why",
            )
        repository.format.check(repository.store.url, writing=True)
        return RunStore(repository.store)
