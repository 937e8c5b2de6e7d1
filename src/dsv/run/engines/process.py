"""The process engine: the command as a plain child process, with its memory sampled from /proc."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from threading import Event
from time import monotonic, sleep
from typing import ClassVar, Final

from dsv.errors import LaunchError
from dsv.files.process import Fate, Watched, why_not_started
from dsv.files.process import Process as Known
from dsv.run.engines.attach import FollowedJob
from dsv.run.engines.base import (
    Ended,
    Facts,
    Job,
    JobPlan,
    JobStatus,
    LocalEngine,
    Mount,
    SubmittedJob,
    check_command,
    check_given,
)
from dsv.run.engines.machine import (
    Machine,
    UsageSampler,
    check_machine,
    choose_cpus,
    choose_gpus,
    session_memory,
)
from dsv.run.engines.output import JobOutput
from dsv.run.engines.reaper import COMMAND, Guard, end_groups, marked, processes_of
from dsv.run.part import EndCause
from dsv.run.record import JobRef, JobUsage, RunState
from dsv.values.units import format_bytes

_DYING: Final = 10.0
"""Seconds for killed processes to end: one that waits for a file server ends when that answers."""
_PAUSE: Final = 0.05


class ProcessEngine(LocalEngine):
    """Plain processes. A job can write wherever the caller can: data is read-only only by file mode."""

    name: ClassVar[str] = "process"
    gpu_hint: ClassVar[str] = "nvidia-smi -L lists the GPUs"

    def probe(self) -> Facts:
        return Facts(Machine.read(self.environ), Known.here().kernel)

    def place(self, mount: Mount) -> str:
        return str(mount.source)

    def plan(self, job: Job, facts: Facts) -> JobPlan:
        check_given(self, job)
        check_command(job.command)
        check_machine(job, facts.machine)
        env = dict(job.env)
        if job.gpus is not None:
            env.setdefault("CUDA_VISIBLE_DEVICES", self._visible(job.gpus, job.gpu_type, facts.machine))
        cpus = () if job.cpus is None else choose_cpus(job.cpus, facts.machine, job.run)
        return JobPlan(
            engine=self.name, run=job.run, where=facts.where, argv=job.command, env=env,
            cwd=Path(job.workdir) if job.workdir else None, memory_bytes=job.memory_bytes, cpus=cpus,
        )  # fmt: skip

    def submit(self, plan: JobPlan, output: JobOutput, cancelled: Event) -> SubmittedJob:
        if plan.cwd is not None and not plan.cwd.is_dir():
            raise LaunchError(f"{plan.cwd} is not a folder to work in", subject=str(plan.cwd))
        guard = Guard(plan.run, self.environ)
        (order, to_order), (from_problem, problem) = os.pipe(), os.pipe()
        try:
            process = subprocess.Popen(
                [*COMMAND, "exec", str(order), str(problem)], env=dict(self.environ), cwd=plan.cwd,
                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                pass_fds=(order, problem), start_new_session=True,
            )  # fmt: skip
        except OSError as error:
            guard.dismiss()
            os.close(to_order)
            os.close(from_problem)
            raise LaunchError(f"no process can be started: {error.strerror or error}") from error
        finally:
            os.close(order)
            os.close(problem)
        guard.watch(process.pid)
        if plan.cpus:
            with suppress(OSError):  # it has ended, or they were taken away: it runs on others
                os.sched_setaffinity(process.pid, plan.cpus)
        watched = Watched(process.pid)
        watched.close()
        ref = JobRef(self.name, plan.run, plan.where, f"{process.pid}:{watched.process.start}")
        environ = {**self.environ, **plan.env}
        return _ProcessRun(ref, plan, environ, process, to_order, from_problem, guard)

    def status(self, ref: JobRef) -> JobStatus | None:
        known = _known(ref)
        fate = known.fate()
        if fate is Fate.UNKNOWN:
            return None
        if fate is Fate.DEAD:
            return JobStatus(RunState.ENDED)
        return JobStatus(RunState.SUBMITTED if _is_launcher(known.pid) else RunState.RUNNING)

    def cancel(self, ref: JobRef, grace: float) -> JobStatus | None:
        groups = {_known(ref).pid} if _lives(self.status(ref)) else set()
        end_groups(groups | set(processes_of(ref.run)), grace)
        deadline = monotonic() + _DYING
        # A killed process loses its environment, by which it is found, a moment before it counts as ended.
        while (processes_of(ref.run) or _lives(self.status(ref))) and monotonic() < deadline:
            sleep(_PAUSE)
        return self.status(ref)

    def list(self, run: str | None = None) -> tuple[JobRef, ...]:
        """Return each session leader of a job: its other processes belong to that."""
        found = []
        for pid, other in marked():
            with suppress(OSError):
                if run in (None, other) and os.getsid(pid) == pid:
                    watched = Watched(pid)
                    watched.close()
                    known = watched.process
                    found.append(JobRef(self.name, other, known.kernel, f"{pid}:{known.start}"))
        return tuple(found)

    def _visible(self, wanted: int, gpu_type: str | None, machine: Machine) -> str:
        """Choose GPUs for the job: of those that the caller was given, or of all. Raises `LaunchError`."""
        names = choose_gpus(wanted, machine, gpu_type)
        return ",".join(map(str, range(machine.gpus or 0)) if names is None else names)


class _ProcessRun(FollowedJob):
    """A process in its own session, so that signals reach all of it, and the terminal's none of it."""

    def __init__(
        self, ref: JobRef, plan: JobPlan, environ: Mapping[str, str], process: subprocess.Popen[bytes],
        order: int, problem: int, guard: Guard,
    ) -> None:  # fmt: skip
        """environ: of the command
        process: the launcher, which waits for the command to become it
        order, problem: the pipes to the launcher, for the command, and from it, for the reason of a failure
        """
        super().__init__(ref, "dsv-process")
        self._plan, self._environ, self._process, self._guard = plan, environ, process, guard
        self._order, self._reason = order, problem
        self._gone = False
        self._memory = UsageSampler(
            lambda: (session_memory(process.pid), None), limit=plan.memory_bytes, exceeded=self.kill
        )

    def _begin(self, output: JobOutput) -> None:
        assert self._process.stdout is not None and self._process.stderr is not None  # asked for above
        output.attach(self._process.stdout, self._process.stderr)
        self._before = _cpu_seconds(self._process.pid)
        self._problem = self._give()
        self._memory.start()

    def abandon(self) -> None:
        os.close(self._order)
        os.close(self._reason)
        self._process.wait()
        self._guard.dismiss()

    def _give(self) -> Ended | None:
        """Send the command to the launcher, which executes it. Return the job's end if that fails."""
        argv = [os.fsencode(word) for word in self._plan.argv]
        variables = [os.fsencode(f"{name}={value}") for name, value in self._environ.items()]
        data = b"\0".join([b"%d" % len(argv), *argv, *variables])
        with os.fdopen(self._reason, "rb") as problem:
            with suppress(BrokenPipeError), os.fdopen(self._order, "wb") as order:
                order.write(b"%d\n" % len(data) + data)
            answer = problem.read()
        if not answer:
            return None
        code, why = why_not_started(self._plan.argv[0], int(answer), self._environ, self._plan.cwd)
        return Ended(exit_code=code, reason=why)

    def _send(self, number: int) -> bool:
        with suppress(ProcessLookupError, PermissionError):
            if not self._gone:
                os.killpg(self._process.pid, number)
        return True

    def _kill(self) -> bool:
        return self._send(signal.SIGKILL)

    def _close(self) -> None:
        self._guard.abandon() if self.lost else self._guard.dismiss()

    def _until_end(self) -> Ended:
        ended = self._reap()
        return ended if self._problem is None else self._problem

    def _reap(self) -> Ended:
        try:
            os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOWAIT)
            with self._lock:
                # As in a container, other processes end with the first one. It is reaped last: until then its
                # number can't be reused.
                self._send(signal.SIGKILL)
                _, status, rusage = os.wait4(self._process.pid, 0)
                self._gone = True
        finally:
            self._gone = True  # if it was reaped elsewhere, its number may be reused
            self._memory.stop()
        code = os.waitstatus_to_exitcode(status)
        self._process.returncode = code  # else Popen would look for the child once more
        seconds = max(rusage.ru_utime + rusage.ru_stime - self._before, 0.0)
        usage = JobUsage(self._memory.peak_memory_bytes, round(seconds, 3))
        ended = Ended(exit_code=code if code >= 0 else 128 - code, launched=True, usage=usage)
        if not self._memory.was_exceeded or code == 0:
            return ended
        reason = f"it used more than {format_bytes(self._plan.memory_bytes or 0)} of memory"
        return replace(ended, reason=reason, cause=EndCause.OUT_OF_MEMORY)


def _known(ref: JobRef) -> Known:
    """Return the process; an unknown one if the reference is not that of a process."""
    pid, _, start = ref.id.partition(":")
    numbers = pid.isdecimal() and start.isdecimal()
    return Known(ref.where, int(pid), int(start)) if numbers else Known("", 0, 0)


def _lives(status: JobStatus | None) -> bool:
    return status is not None and status.lives


def _is_launcher(pid: int) -> bool:
    """Check that a process has not executed the command yet. Just after an exec its command line is empty."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False
    return not words or os.fsencode(COMMAND[-1]) in words.split(b"\0")


def _cpu_seconds(pid: int) -> float:
    """Return the CPU seconds that the process used before it executed the command."""
    with suppress(OSError, ValueError, IndexError):
        return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) / 1e9
    return 0.0
