"""What a conformance test needs: jobs made, run to their end, and looked at."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dsv.errors import Unreachable
from dsv.run.engines.attach import Foreground, Signals, supervise
from dsv.run.engines.base import Ended, Engine, Facts, Job, JobPlan, Mount
from dsv.run.engines.containers.container import ContainerProgram
from dsv.run.engines.output import JobOutput, LogKeeper
from dsv.run.record import JobRef
from dsv.values.secrets import Masker
from tests.waiting import PATIENCE, until


@dataclass(frozen=True, slots=True)
class Finished:
    """A job that is over."""

    outcome: Ended
    stdout: bytes
    stderr: bytes
    log: bytes
    notes: tuple[str, ...]

    @property
    def code(self) -> int:
        return self.outcome.exit_code


def await_removal(handle: Foreground) -> None:
    engine = handle._engine
    if isinstance(engine, ContainerProgram) and engine.removal is not None:
        engine.removal.join(PATIENCE)


@dataclass(slots=True)
class Running:
    """A job under supervision in a thread."""

    handle: Foreground
    signals: Signals
    refs: list[JobRef]
    notes: list[str] = field(default_factory=list)
    lost: str | None = None
    result: list[Ended] = field(default_factory=list)
    thread: threading.Thread | None = None

    @property
    def ref(self) -> JobRef:
        until(lambda: bool(self.refs), "the reference of the job")
        return self.refs[0]

    def wait(self) -> Ended:
        """Until the engine has removed it too, as this process would before its own end."""
        assert self.thread is not None
        self.thread.join(PATIENCE)
        assert self.result, "the job did not end"
        await_removal(self.handle)
        return self.result[0]


@dataclass(slots=True)
class Bench:
    """An engine on this machine, and a folder for its jobs."""

    engine: Engine
    facts: Facts
    folder: Path
    image: str | None
    count: int = 0

    @classmethod
    def of(cls, engine: Engine, folder: Path, image: str | None) -> Bench:
        asked: list[Facts] = []

        def answered() -> bool:
            """A busy machine's engine may not answer within the few seconds that dsv waits."""
            try:
                asked.append(engine.probe())
            except Unreachable as error:
                if "did not answer in" not in error.message:
                    raise
            return bool(asked)

        until(answered, "the engine's answer")
        return cls(engine, asked[0], folder, image)

    def shell(self, script: str, *arguments: str, **more: object) -> Job:
        return self.job("sh", "-c", script, "sh", *arguments, **more)

    def job(
        self,
        *command: str,
        mounts: tuple[Mount, ...] = (),
        env: Mapping[str, str] | None = None,
        name: str | None = None,
        image: str | None = None,
        workdir: str | None = None,
        shm_bytes: int | None = None,
        **resources: Any,
    ) -> Job:
        self.count += 1
        scratch = self.folder / f"scratch-{self.count}"
        scratch.mkdir(mode=0o700)
        own = f"dsv-test-{os.getpid()}-{self.folder.name[-20:]}-{self.count}"
        return Job(
            run=f"run-{own}", name=name or own, command=command, image=image or self.image, mounts=mounts,
            env=env or {}, workdir=workdir, shm_bytes=shm_bytes, scratch=scratch, **resources,
        )  # fmt: skip

    def mount(self, target: str, *, writable: bool = False, name: str | None = None) -> Mount:
        """A new folder for a job."""
        folder = self.folder / (name or target.strip("/"))
        folder.mkdir(exist_ok=True)
        return Mount(folder, target, writable)

    def plan(self, job: Job) -> JobPlan:
        return self.engine.plan(job, self.facts)

    def run(self, job: Job, *, grace: float = 20.0, log_limit: int = 1 << 20) -> Finished:
        """To its end."""
        keeper = LogKeeper(log_limit)
        out, err = self.folder / f"stdout-{self.count}", self.folder / f"stderr-{self.count}"
        notes: list[str] = []
        with out.open("wb") as stdout, err.open("wb") as stderr:
            output = JobOutput(stdout.fileno(), stderr.fileno(), keeper)
            signals = Signals()
            handle = Foreground(self.engine, self.plan(job), output, signals.wake, lambda ref: None)
            outcome = supervise(
                handle, output, signals, lost=lambda: None, note=notes.append, grace=lambda: grace
            )
        await_removal(handle)
        return Finished(outcome, out.read_bytes(), err.read_bytes(), keeper.kept(Masker()).data, tuple(notes))

    def start(self, job: Job, *, stdout: int | None = None, grace: float = 20.0) -> Running:
        """Under supervision, in the background."""
        signals = Signals()
        output = JobOutput(stdout, None, LogKeeper(1 << 20))
        refs: list[JobRef] = []
        handle = Foreground(self.engine, self.plan(job), output, signals.wake, refs.append)
        running = Running(handle, signals, refs)

        def watch() -> None:
            running.result.append(
                supervise(
                    running.handle,
                    output,
                    signals,
                    lost=lambda: running.lost,
                    note=running.notes.append,
                    grace=lambda: grace,
                )
            )

        running.thread = threading.Thread(target=watch)
        running.thread.start()
        return running
