"""Everything up, everything down: each peer in turn, round after round, on the same data."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks import data, disk, server
from benchmarks.measure import run_all
from benchmarks.network import SERVER_ADDRESS, Network
from benchmarks.notebook import Notebook
from benchmarks.peers import Job, Peer

PATIENCE = 150.0  # seconds: who takes longer in a turn sits out the rounds after it


@dataclass(frozen=True, slots=True)
class Transfer:
    """One shape of data to one kind of place by several peers. `up` and `down` name the two pieces of work."""

    shape: data.Shape
    up: str
    down: str
    peers: Sequence[Peer]
    on_server: bool


def measure(transfer: Transfer, book: Notebook, below: Path, rounds: int, net: Network | None = None) -> None:
    """Every peer once per round, in an order that rotates, so that none always comes first.

    One round says enough of a peer that takes minutes where others take seconds.
    """
    source = data.make(transfer.shape, below / "data")
    slow: set[str] = set()
    for number in range(rounds):
        peers = [
            *transfer.peers[number % len(transfer.peers) :],
            *transfer.peers[: number % len(transfer.peers)],
        ]
        for peer in peers:
            if peer.name in slow:
                continue
            with turn(peer, source, below, on_server=transfer.on_server, net=net) as job:
                os.sync()
                up = run_all(peer.up(job))
                book.add(transfer.up, peer.name, up)
                peer.arrive(job)
                os.sync()
                down = run_all(peer.down(job))
                book.add(transfer.down, peer.name, down)
                if up.seconds + down.seconds > PATIENCE:
                    slow.add(peer.name)
                check(job.back, transfer.shape)


@contextmanager
def turn(
    peer: Peer, source: Path | None, below: Path, *, on_server: bool, net: Network | None = None
) -> Iterator[Job]:
    """A peer's own copy of the data, disk and server, prepared; all of it is gone afterwards.

    Without a `source` the data folder is empty, for the caller to fill.
    """
    with ExitStack() as stack:
        work = stack.enter_context(disk.fresh(below)) / "turn"
        (work / "home").mkdir(parents=True)
        if source is None:
            (work / "data").mkdir()
        else:
            shutil.copytree(source, work / "data")
        if on_server:
            inside, address = (net.server, SERVER_ADDRESS) if net else ([], "127.0.0.1")
            running = stack.enter_context(server.fresh(address, inside))
            job = Job(work, running.s3, running.bucket, net.client if net else [], running)
        else:
            job = Job(work, None, "")
        peer.prepare(job)
        yield job


def check(back: Path, shape: data.Shape) -> None:
    """Whatever came back is all there, to the byte count."""
    sizes = [path.stat().st_size for path in back.rglob("file-*.bin")]
    # DVC and dsv keep a cache beside what they show, by other names or as other links.
    assert (len(sizes), sum(sizes)) == (shape.files, shape.bytes), (
        f"{back}: {len(sizes)} files, {sum(sizes)} bytes"
    )
