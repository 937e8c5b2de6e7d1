"""`dsv` with the same protocol and shorter times: `python -m tests.nfs.hurried LEASE EXPIRY PART_FILES ARGUMENT…`.

LEASE: seconds that a lease outlives its last renewal; EXPIRY: seconds of silence until another host takes over;
PART_FILES: files in a part. 0 leaves what is built in.
"""

from __future__ import annotations

import sys

from dsv.cache.claims import leases
from dsv.cache.filling import plan, workers
from dsv.cli.main import main

if __name__ == "__main__":
    lease, expiry, files = map(float, sys.argv[1:4])
    if lease:
        leases.Lease.take.__func__.__kwdefaults__["ttl"] = lease  # type: ignore[attr-defined]
    if expiry:
        workers.EXPIRY, workers.BEAT_REMOTE = expiry, expiry / 10
    if files:
        plan.PART_ENTRIES = int(files)
    sys.argv[1:4] = []
    sys.exit(main())
