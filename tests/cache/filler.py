"""`python -m tests.cache.filler JSON`: one process that asks for a commit, for tests with several real ones."""

from __future__ import annotations

import encodings.ascii  # noqa: F401 (another user may not be able to read this Python installation later)
import json
import os
import subprocess
import sys
import traceback
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from tests.cache.fake_source import STORE, FakeSource
from tests.waiting import PATIENCE

from dsv.cache.fill import files, parts, workers
from dsv.cache.fill.fill import fill
from dsv.cache.fill.plan import FillRequest
from dsv.cache.leases import Lease
from dsv.cache.policy import Need
from dsv.cache.root import CacheRoot
from dsv.errors import DsvError
from dsv.values.ids import CommitId
from dsv.values.paths import PathSet

PROJECT = Path(__file__).parents[2]


def start(
    root: CacheRoot, world: Path, commit: CommitId, *, under: Sequence[str] = (), **options: Any
) -> subprocess.Popen[bytes]:
    """Options: `part_bytes`, `expiry`, `sync_step`, `jobs`, `umask`, `user` and `group` (ids), `selection`, `lease` (it
    takes one first), and those of `FakeSource`. under: a command that runs it."""
    order = {"root": str(root.path), "world": str(world), "commit": str(commit), **options}
    return subprocess.Popen(
        [*under, sys.executable, "-m", "tests.cache.filler", json.dumps(order)],
        cwd=PROJECT,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )


def finish(process: subprocess.Popen[bytes], timeout: float = PATIENCE) -> dict[str, Any]:
    """Return the answer of the process; fail with its stderr if there is none."""
    out, err = process.communicate(timeout=timeout)
    assert process.returncode == 0, err.decode()
    answer: dict[str, Any] = json.loads(out)
    assert "error" not in answer, answer
    return answer


def main(order: dict[str, Any]) -> int:
    parts.PART_BYTES = order.pop("part_bytes", parts.PART_BYTES)
    workers.EXPIRY = order.pop("expiry", workers.EXPIRY)
    files.STEP = order.pop("sync_step", files.STEP)
    os.umask(order.pop("umask", 0o022))
    group, user = order.pop("group", None), order.pop("user", None)
    if user is not None:
        os.setgroups([group])
        os.setgid(group)
        os.setuid(user)
    root, world, commit = CacheRoot(Path(order.pop("root"))), order.pop("world"), order.pop("commit")
    jobs = order.pop("jobs", 1)
    paths = [path.encode() for path in order.pop("selection", [])]
    request = FillRequest("xrays", CommitId.parse(commit), STORE, PathSet.of(paths))
    if order.pop("lease", False):
        Lease.take(root, request.place, "stage")
    helper = partial(FakeSource, world, commit, **order)

    def plenty(need: Need) -> None:
        pass

    try:
        result = fill(
            root,
            request,
            FakeSource(world, commit, **order),
            ensure_room=plenty,
            jobs=jobs,
            helper=helper,
        )
    except DsvError as error:
        trace = "".join(traceback.format_exception(error))
        print(json.dumps({"error": error.kind, "message": error.message, "trace": trace}))
        return 0
    print(
        json.dumps(
            {
                "path": str(result.path),
                "fetched": result.fetched_bytes,
                "linked": result.linked_files,
                "hit": result.hit,
            }
        )
    )
    return 0


if __name__ == "__main__":
    sys.exit(main(json.loads(sys.argv[1])))
