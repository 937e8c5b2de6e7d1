"""Writers in processes of their own, racing for the same keys of one store."""

from __future__ import annotations

import multiprocessing
import os
import queue
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from dsv.stores.base import PutResult
from dsv.stores.open import open_store
from tests.waiting import PATIENCE

if TYPE_CHECKING:
    from multiprocessing.process import BaseProcess
    from multiprocessing.queues import Queue
    from multiprocessing.synchronize import Barrier

    from dsv.stores.options import StoreOptions


def race_processes(
    opening: tuple[str, StoreOptions], keys: list[str], *, processes: int, threads: int
) -> dict[str, list[bytes]]:
    """Key -> the values of those who were reported as winners."""
    # spawn: the client's own threads do not survive a fork.
    context = multiprocessing.get_context("spawn")
    start = context.Barrier(processes)
    results: Queue[list[tuple[str, bytes]]] = context.Queue()
    workers = [
        context.Process(target=_race, args=(opening, keys, threads, start, results), daemon=True)
        for _ in range(processes)
    ]
    for worker in workers:
        worker.start()
    won: dict[str, list[bytes]] = {key: [] for key in keys}
    for _ in workers:
        for key, value in _next(results, workers):
            won[key].append(value)
    for worker in workers:
        worker.join(PATIENCE)
        assert worker.exitcode == 0
    return won


def _next(results: Queue[list[tuple[str, bytes]]], workers: Sequence[BaseProcess]) -> list[tuple[str, bytes]]:
    """The next worker's result; fails as soon as a worker failed."""
    while True:
        try:
            return results.get(timeout=1)
        except queue.Empty:
            failed = [worker for worker in workers if worker.exitcode not in (None, 0)]
            for worker in workers if failed else ():
                worker.kill()
            assert not failed, "a writer's process failed"


def _race(
    opening: tuple[str, StoreOptions],
    keys: list[str],
    threads: int,
    start: Barrier,
    results: Queue[list[tuple[str, bytes]]],
) -> None:
    url, options = opening
    store = open_store(url, options)
    list(store.list("warm/"))
    won: list[tuple[str, bytes]] = []

    def write(number: int) -> None:
        for key in keys:
            value = f"{os.getpid()}-{number}-{key}".encode() * 50
            if store.put_if_absent(key, value) is PutResult.WON:
                won.append((key, value))

    start.wait(PATIENCE)
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(write, range(threads)))
    results.put(won)
    store.close()
