"""What a host does between its boot and its end: the orders that the test leaves in /mnt/box, at any moment.

The box is a folder of this machine and no NFS, so a host whose network is cut still takes orders. The agent
itself never touches the export: it would hang with it.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

BOX = Path("/mnt/box")
KEPT = Path("/run/agent")
POLL = 0.05


def main() -> None:
    os.chdir("/")
    KEPT.mkdir()
    tell("ready", {})
    running: dict[str, tuple[subprocess.Popen[bytes], float]] = {}
    seen: set[str] = set()
    while True:
        for name in sorted(set(os.listdir(BOX / "orders")) - seen):
            seen.add(name)
            if not name.endswith(".new"):
                obey(name, json.loads((BOX / "orders" / name).read_bytes()), running)
        for name, (child, began) in list(running.items()):
            if child.poll() is not None:
                report(name, child.returncode, time.monotonic() - began)
                del running[name]
        time.sleep(POLL)


def obey(name: str, order: dict[str, Any], running: dict[str, tuple[subprocess.Popen[bytes], float]]) -> None:
    if "kill" in order:
        for child, _ in (running[one] for one in order["kill"] if one in running):
            os.killpg(child.pid, signal.SIGKILL)
        tell(name, {})
        return
    with (KEPT / f"{name}.out").open("wb") as out, (KEPT / f"{name}.err").open("wb") as err:
        child = subprocess.Popen(
            order["argv"],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            env={**os.environ, **order["env"]},
            start_new_session=True,
        )
    running[name] = (child, time.monotonic())


def report(name: str, status: int, seconds: float) -> None:
    texts = {one: (KEPT / f"{name}.{one}").read_text(errors="replace") for one in ("out", "err")}
    tell(name, {"status": status, "seconds": seconds, **texts})


def tell(name: str, found: dict[str, Any]) -> None:
    draft = BOX / "answers" / f"{name}.new"
    with draft.open("w") as file:
        file.write(json.dumps(found))
        file.flush()
        os.fsync(file.fileno())
    draft.rename(BOX / "answers" / name)


if __name__ == "__main__":
    main()
