"""The guard of a job: starts and dismisses the guardian, a small process that ends the job if this one is killed."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from threading import Lock
from typing import Final

from dsv.run.engines import reaper_process

GRACE: Final = 20.0
"""Seconds that a job gets to end by itself: less than the 30 that Slurm and Kubernetes give dsv."""


class Guard:
    """Made before the job is started. If no process can be started for it, the job goes on without one."""

    def __init__(
        self,
        run: str,
        environ: Mapping[str, str],
        *,
        container: str | None = None,
        files: Sequence[Path] = (),
        grace: float = GRACE,
    ) -> None:
        """run: its id, with which `DSV_RUN` or a label marks the job. container: the program of its engine; files:
        what must not stay."""
        self._process: subprocess.Popen[bytes] | None = None
        self._lock = Lock()
        order = {"run": run, "grace": grace, "container": container, "files": [str(path) for path in files]}
        with suppress(OSError):
            # -I, -S: nothing of the caller's is imported. A session of its own: what ends dsv or the job by its
            # group, the terminal for instance, doesn't end this.
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", reaper_process.__file__],
                env=dict(environ),
                cwd="/",
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
            self._tell(json.dumps(order))

    def watch(self, group: int | None) -> None:
        """The job, or the program that now works for it, leads this process group. A former one is forgotten."""
        self._tell(json.dumps(group))

    def dismiss(self) -> None:
        """The job is over."""
        with self._lock:
            process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()
            assert process.stdin is not None
            with suppress(OSError):
                process.stdin.close()

    def abandon(self) -> None:
        """Nobody waits for the job any more: ends it as if this process were gone, without waiting for that."""
        with self._lock:
            process, self._process = self._process, None
        if process is not None:
            assert process.stdin is not None
            with suppress(OSError):
                process.stdin.close()

    def _tell(self, line: str) -> None:
        if self._process is not None:
            assert self._process.stdin is not None
            with suppress(OSError):
                self._process.stdin.write(line.encode() + b"\n")
                self._process.stdin.flush()
