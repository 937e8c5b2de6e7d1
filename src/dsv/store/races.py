"""Races between writers in several processes: a server may let two of them win only while it is busy.

`python -m dsv.store.races` is one of these processes: it gets what to do on its standard input, says that it is ready,
and starts when it is told to.
"""

from __future__ import annotations

import json
import secrets
import subprocess
import sys
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import asdict
from functools import partial
from typing import IO, Final, cast

from dsv.errors import Denied, Unreachable
from dsv.format.keys import PROBE_PREFIX
from dsv.store.base import Put, Store, together
from dsv.store.open import open_store
from dsv.store.options import StoreOptions

PROCESSES: Final = 4
THREADS: Final = 4
KEYS: Final = 48
_SIZE: Final = 4096
_SECONDS: Final = 120.0


def race(store: Store, options: StoreOptions, *, keys: int = KEYS) -> tuple[str, ...]:
    """What went wrong if many writers in several processes put the same keys; empty if exactly one won each of them,
    and its bytes are there. Raises `Unreachable` if a process could not reach the store.

    store: open here, by whose URL the others open it with `options`.
    """
    folder = f"{PROBE_PREFIX}{secrets.token_hex(8)}/load/"
    names = [f"{folder}{number:04d}" for number in range(keys)]
    try:
        won = _run(store.url, options, names)
        stored = together([partial(store.get, name) for name in names])
    finally:
        with suppress(Denied):
            together([partial(store.delete, name) for name in names])
    findings = set()
    for name, data in zip(names, stored, strict=True):
        winners = won.get(name, [])
        if len(winners) != 1:
            findings.add(
                f"of {PROCESSES * THREADS} writers of one key in {PROCESSES} processes {len(winners)} were told that "
                "they had won"
            )
        elif data != _value(winners[0], name):
            findings.add("the bytes of the writer that won were replaced by another's")
    return tuple(sorted(findings))


def _run(url: str, options: StoreOptions, names: Sequence[str]) -> dict[str, list[str]]:
    """Who was told to have won each key."""
    won: dict[str, list[str]] = {}
    with ExitStack() as stack:
        racers = [
            stack.enter_context(
                subprocess.Popen(
                    [sys.executable, "-m", "dsv.store.races"],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    text=True,
                )
            )
            for _ in range(PROCESSES)
        ]
        for number, racer in enumerate(racers):
            stack.callback(racer.kill)
            task = {"url": url, "options": asdict(options), "names": names, "me": str(number)}
            _send(racer, json.dumps(task))
        late = threading.Event()
        end = threading.Timer(_SECONDS, _end, (late, racers))  # whatever waits for a racer then sees its end
        stack.callback(end.cancel)
        end.start()
        for racer in racers:
            cast("IO[str]", racer.stdout).readline()  # it is ready
        for racer in racers:
            _send(racer, "go")
        said_by_all = [racer.communicate() for racer in racers]
        if late.is_set():
            raise Unreachable(f"the test of {url} took more than {_SECONDS:.0f} s", subject=url)
        for racer, (out, err) in zip(racers, said_by_all, strict=True):
            if racer.returncode:
                said = err.strip().rpartition("\n")[2] or "it was killed"
                kind = (
                    Denied if said.startswith(f"{Denied.__module__}.{Denied.__qualname__}:") else Unreachable
                )
                raise kind(f"a writer of the test of {url} failed: {said}", subject=url)
            for name, who in json.loads(out):
                won.setdefault(name, []).append(who)
    return won


def _end(late: threading.Event, racers: Sequence[subprocess.Popen[str]]) -> None:
    late.set()
    for racer in racers:
        racer.kill()


def _send(racer: subprocess.Popen[str], line: str) -> None:
    with suppress(BrokenPipeError):  # its end says why
        print(line, file=racer.stdin, flush=True)


def _value(who: str, name: str) -> bytes:
    return f"{who} {name} ".encode().ljust(_SIZE, b".")


def main() -> None:
    task = json.loads(sys.stdin.readline())
    names, me = task["names"], task["me"]
    store = open_store(task["url"], StoreOptions(**task["options"]))
    with suppress(StopIteration):
        next(iter(store.list(PROBE_PREFIX)))  # connected before the start
    print("ready", flush=True)
    sys.stdin.readline()

    def write(thread: int) -> list[tuple[str, str]]:
        who = f"{me}-{thread}"
        return [(name, who) for name in names if store.put_if_absent(name, _value(who, name)) is Put.WON]

    with ThreadPoolExecutor(THREADS) as pool:
        won = [one for found in pool.map(write, range(THREADS)) for one in found]
    store.close()
    print(json.dumps(won))


if __name__ == "__main__":
    main()
