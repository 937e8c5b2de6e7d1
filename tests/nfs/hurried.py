"""`dsv` with the same protocol and shorter times: `python -m tests.nfs.hurried LEASE EXPIRY FILES BYTES ARGUMENT…`."""

from __future__ import annotations

import sys

from dsv.cache import cleanup, leases
from dsv.cache.fill import fill, parts, reservations, workers
from dsv.cli.main import main


def hurry(lease: float = 0, expiry: float = 0, part_files: float = 0, part_bytes: float = 0) -> None:
    """Changes the times of this process.

    lease: seconds that a lease outlives its last renewal. expiry: seconds of silence until another host takes over a
    part; the other times after which somebody is taken for dead are twice as long, and who waits says so more often.
    part_files, part_bytes: in a part. 0 leaves what is built in.
    """
    if lease:
        leases.Lease.take.__func__.__kwdefaults__["ttl"] = lease  # type: ignore[attr-defined]
    if expiry:
        leases.SILENCE = workers.EXPIRY = expiry
        workers.HEARTBEAT_REMOTE = expiry / 10
        fill._POLL_REMOTE = (0.1, min(2.0, expiry / 10))
        workers._NOTE_EVERY = expiry / 4
        reservations._BEGINS_WITHIN = cleanup.ABANDONED = 2 * expiry
    if part_files:
        parts.PART_ENTRIES = parts.PART_ENTRIES_REMOTE = int(part_files)
    if part_bytes:
        parts.PART_BYTES = int(part_bytes)


if __name__ == "__main__":
    hurry(*map(float, sys.argv[1:5]))
    sys.argv[1:5] = []
    sys.exit(main())
