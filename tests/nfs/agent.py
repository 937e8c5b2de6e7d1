"""What a host does between its boot and its end: the orders that the test leaves in /mnt/box, at any moment.

The box is a folder of this machine and no NFS, so a host whose network is cut still takes orders. The agent
itself never touches the export: it would hang with it. An order to run dsv is carried out by a fork of the agent,
which has dsv imported: a process of its own like any other, that begins a second earlier.
"""

from __future__ import annotations

import faulthandler
import json
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dsv.api import connection  # noqa: F401
from dsv.cache.fill import fill  # noqa: F401
from dsv.cli import progress  # noqa: F401
from dsv.cli.commands import cache, evict, hold, pull, run, sync  # noqa: F401
from dsv.cli.main import main as dsv_main
from dsv.stores import clients  # noqa: F401
from tests.nfs.hurried import hurry

BOX = Path("/mnt/box")
KEPT = Path("/run/agent")
STUCK = 200  # seconds, after which a command prints where it stands, for a test that waits longer
POLL, POLL_IDLE = 0.02, 0.1  # seconds; a host without work leaves the processor to the others


@dataclass(frozen=True)
class Child:
    name: str
    pid: int
    began: float


def main() -> None:
    os.chdir("/")
    KEPT.mkdir()
    tell("ready", {})
    running: dict[str, Child] = {}
    seen: set[str] = set()
    while True:
        for name in sorted(set(os.listdir(BOX / "orders")) - seen):
            if not name.endswith(".new"):
                seen.add(name)
                obey(name, json.loads((BOX / "orders" / name).read_bytes()), running)
        for child in list(running.values()):
            pid, status = os.waitpid(child.pid, os.WNOHANG)
            if pid:
                del running[child.name]
                report(child, os.waitstatus_to_exitcode(status))
        time.sleep(POLL if running else POLL_IDLE)


def obey(name: str, order: dict[str, Any], running: dict[str, Child]) -> None:
    if "kill" in order:
        for one in order["kill"]:
            if one in running:
                os.killpg(running[one].pid, signal.SIGKILL)
        tell(name, {})
        return
    if "show" in order:
        tell(name, {one: (KEPT / f"{one}.err").read_text(errors="replace") for one in running})
        return
    environ = {**os.environ, **order["env"]}
    if "dsv" in order:
        pid = fork(name, lambda: program(order["dsv"], order["times"], environ))
    else:
        argv = order["argv"]
        pid = fork(name, lambda: os.execvpe(argv[0], argv, environ))
    running[name] = Child(name, pid, time.monotonic())


def fork(name: str, act: Callable[[], object]) -> int:
    """A process with a session of its own and its output in files; returns when it leads its group."""
    ready, begun = os.pipe()
    pid = os.fork()
    if pid:
        os.close(begun)
        os.read(ready, 1)
        os.close(ready)
        return pid
    status = 70
    try:
        os.setsid()
        for number, path in ((0, Path("/dev/null")), (1, KEPT / f"{name}.out"), (2, KEPT / f"{name}.err")):
            opened = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600)
            os.dup2(opened, number)
            os.close(opened)
        os.close(begun)
        os.close(ready)
        faulthandler.enable()
        faulthandler.dump_traceback_later(STUCK)
        result = act()
        status = result if isinstance(result, int) else 0
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else 1
    except BaseException:  # noqa: BLE001 (a fork must not continue as the agent)
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def program(arguments: list[str], times: list[float], environ: dict[str, str]) -> int:
    os.environ.clear()
    os.environ.update(environ)
    hurry(*times)
    sys.argv = ["dsv", *arguments]
    return dsv_main()


def report(child: Child, status: int) -> None:
    texts = {one: (KEPT / f"{child.name}.{one}").read_text(errors="replace") for one in ("out", "err")}
    tell(child.name, {"status": status, "seconds": time.monotonic() - child.began, **texts})


def tell(name: str, found: dict[str, Any]) -> None:
    draft = BOX / "answers" / f"{name}.new"
    with draft.open("w") as file:
        file.write(json.dumps(found))
        file.flush()
        os.fsync(file.fileno())
    draft.rename(BOX / "answers" / name)


if __name__ == "__main__":
    main()
