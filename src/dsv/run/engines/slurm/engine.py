"""Slurm: a job is a batch script that Slurm holds until it has room, and begins again if a node fails."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, suppress
from dataclasses import replace
from pathlib import Path
from shutil import disk_usage
from tempfile import NamedTemporaryFile
from threading import Event, Thread
from time import monotonic
from typing import ClassVar, Final

from msgspec.json import Decoder

from dsv.errors import LaunchError, Unreachable
from dsv.files.small_files import open_plain, replace_file
from dsv.run.engines.attach import ENDING, FollowedJob, asked_by
from dsv.run.engines.base import (
    COMMON,
    NO_OPTIONS,
    Ended,
    Engine,
    Facts,
    Job,
    JobPlan,
    JobStatus,
    Mount,
    PrivateFile,
    SubmittedJob,
    check_given,
    read_options,
    until_over,
)
from dsv.run.engines.machine import Machine
from dsv.run.engines.output import JobOutput, NodeLines, through_a_pipe
from dsv.run.engines.slurm.job_status import (
    ATTENDED,
    SCRIPT,
    STOPPED,
    UNWATCHED,
    JobFiles,
    ended,
    idle_seconds,
    is_late,
    left_here,
    nodes_of,
    status,
    status_of,
)
from dsv.run.engines.slurm.program import NAME, ProgramResult, Queued, SlurmProgram, job_folder, job_id
from dsv.run.engines.slurm.script import DECODER, BatchScript, SlurmOptions, passing, render
from dsv.run.part import EndCause
from dsv.run.record import JobRef, RunState
from dsv.run.resources import Capacity, GpuCount, NodeRoom, Resources
from dsv.values.json import Json

_UNFIT: Final = re.compile("DOWN|DRAIN|DRAINING|DRAINED|FAIL|FAILING|NOT_RESPONDING|FUTURE|MAINT|UNKNOWN")
_GPU: Final = re.compile(r"gpu(?::(\(null\)|[^:(),]+))?:([0-9]+)")


def read_capacity(nodes: str, pending: str, options: SlurmOptions) -> Capacity:
    """Read `scontrol --oneliner --details show node`, and one line for each job that waits."""
    found = []
    partitions: set[str] = set()
    for line in nodes.splitlines():
        fields = dict(re.findall(r"(\w+)=(\S*)", line))
        partitions |= set(fields.get("Partitions", "").split(","))
        if "NodeName" in fields and _fits(fields, options):
            found.append(_room(fields))
    never = None
    if options.partition and partitions.isdisjoint(options.partition.split(",")):
        never = f"no machine of this Slurm is in the partition {options.partition}"
    return Capacity(nodes=tuple(found), waiting=len(pending.split()), never=never)


def _fits(fields: dict[str, str], options: SlurmOptions) -> bool:
    state = fields.get("State", "UNKNOWN")
    partitions = fields.get("Partitions", "").split(",")
    features = set(re.split(r"[,&|]", fields.get("ActiveFeatures", "")))
    wanted = _features(options.constraint or "")
    if state.endswith("*") or any(map(_UNFIT.fullmatch, re.split(r"[+*]", state))):
        return False
    named = options.partition.split(",") if options.partition else partitions
    return bool(set(named) & set(partitions)) and wanted <= features


def _features(constraint: str) -> set[str]:
    """Return the features that each node must have, of `gpu-a100&nvme`; none if some nodes may lack them."""
    return set() if re.search(r"[|*\[(]", constraint) else set(re.findall(r"[^&,\s]+", constraint))


def _room(fields: dict[str, str]) -> NodeRoom:
    total, used = _gpus(fields.get("Gres", "")), _gpus(fields.get("GresUsed", ""))
    cpus, memory = _number(fields, "CPUTot"), _number(fields, "RealMemory")
    return NodeRoom(
        name=fields["NodeName"],
        gpus=tuple(GpuCount(kind, max(count - used.get(kind, 0), 0), count) for kind, count in total.items()),
        free_cpus=cpus - _number(fields, "CPUAlloc"),
        total_cpus=cpus,
        free_memory=(memory - _number(fields, "AllocMem")) << 20,
        total_memory=memory << 20,
    )


def _gpus(text: str) -> dict[str, int]:
    """Count GPUs by kind, of `gpu:a100:8(S:0-1),gpu:t4:2` or `gpu:a100:3(IDX:0-2)`."""
    counts: dict[str, int] = {}
    for kind, count in _GPU.findall(text):
        name = kind if kind and kind != "(null)" else "GPU"
        counts[name] = counts.get(name, 0) + int(count)
    return counts


def _number(fields: dict[str, str], name: str) -> int:
    text = fields.get(name, "")
    return int(text) if text.isdecimal() else 0


_TRIES: Final = 4
"""How often Slurm is told to cancel a job that it does not begin to end."""
_ENDING_SECONDS: Final = 600.0
"""How long to go on for a job that it is ending: Slurm waits for a silent node for five minutes in most places."""
_LEAVE: Final = 5.0
"""The age in seconds up to which an answer of squeue shows whether a job can be left to Slurm."""
_UNDECIDED: Final = 60.0
"""Seconds in which Slurm says of most jobs why they wait, also that they can never begin."""
_DYING: Final = 15.0
"""Seconds between two of these. Slurm has a KillWait of its own, in most places of 30 seconds."""


class Slurm(Engine):
    """Jobs on Slurm. Every node must see the folders of the run under the same paths as this machine."""

    name: ClassVar[str] = NAME
    decoder: ClassVar[Decoder[SlurmOptions]] = DECODER
    queues: ClassVar[bool] = True
    gpu_hint: ClassVar[str] = "sinfo --Format=nodes,gres,statelong shows the GPUs of the nodes"
    gives: ClassVar[frozenset[str]] = COMMON | {"image", "time_seconds", "nodes", "retries", "engine_args"}

    def __init__(self, environ: Mapping[str, str], options: Mapping[str, Json] = NO_OPTIONS) -> None:
        super().__init__(environ, options)
        self._options = read_options(self.decoder, options, NAME)
        self._program = SlurmProgram(environ)

    def capacity(self, wanted: Resources) -> Capacity:
        nodes = self._program.call("scontrol", "--oneliner", "--details", "show", "node", seconds=10)
        which = (f"--partition={self._options.partition}",) if self._options.partition else ()
        jobs = self._program.call(
            "squeue", "--noheader", "--states=PENDING", "--format=%A", *which, seconds=10
        )
        for answer in (nodes, jobs):
            if answer.problem is not None:
                raise _unreachable(answer)
        return read_capacity(nodes.text, jobs.text, self._options)

    def probe(self) -> Facts:
        cluster = self._cluster()
        version = self._program.call("sbatch", "--version").text.strip().removeprefix("slurm-wlm ")
        return Facts(Machine.read(self.environ), cluster, version.removeprefix("slurm ") or None)

    def place(self, mount: Mount) -> str:
        return str(mount.source) if self._options.container == "none" else mount.target

    def plan(self, job: Job, facts: Facts) -> JobPlan:
        check_given(self, job)
        batch = BatchScript(job, self._options)
        script = render(batch)
        path = job.scratch / SCRIPT
        return JobPlan(
            engine=self.name,
            run=job.run,
            where=facts.where,
            argv=("sbatch", str(path)),
            env=passing(job.hidden),
            files=(PrivateFile(path, script.encode("utf-8", "surrogateescape")),),
            script=script,
        )

    def submit(self, plan: JobPlan, output: JobOutput, cancelled: Event) -> SubmittedJob:
        (script,) = plan.files
        folder = script.path.parent
        try:
            folder.mkdir(parents=True, exist_ok=True)
            folder.chmod(0o700)
            replace_file(script.path, script.content, mode=0o600)
        except OSError as error:
            raise LaunchError(
                f"{script.path} can't be written: {error.strerror}", subject=str(script.path)
            ) from error
        env = {**plan.env, "DSV_RUN": plan.run}  # so that it is found if it outlives dsv
        answer = self._program.call("sbatch", "--parsable", "--hold", str(script.path), env=env)
        number = answer.text.strip().partition(";")[0]
        ref = JobRef(self.name, plan.run, plan.where, f"{number}:{folder}")
        if answer.problem is None and job_id(ref):
            return SlurmRun(self._program, ref)
        with suppress(Unreachable):  # a held job that nobody cancels does not begin
            for left in self._mine(plan.run):  # it may have been accepted although the answer was lost
                self._program.call("scancel", left.id)
        raise LaunchError(
            f"Slurm does not take the job: {answer.problem or answer.text.strip()}",
            subject=plan.run,
            hint="sinfo shows the partitions, and scontrol ping whether the controller answers"
            if answer.is_away
            else "dsv run --dry-run prints the script, and sbatch --test-only FILE tries it",
        )

    def status(self, ref: JobRef) -> JobStatus | None:
        number = self._number(ref)
        if not number:
            return None
        left = JobFiles(job_folder(ref))
        job, answer = self._program.find(number)
        if job is not None and job.state == "PENDING" and left.begun:  # it began after the question
            job, answer = self._program.find(number, fresh=0)
        if job is not None and job.run not in (None, ref.run):
            job = None  # a new controller numbers from 1 again, and a record may name any number
        if answer.problem is not None:
            return None if left.end is None else JobStatus(RunState.ENDED, left.end)
        if job is not None and job.lives:
            left = self._of_this_start(number, left)
        if job is None and left.end is None and idle_seconds(ref) is not None:
            if self._program.cluster().problem is not None:
                return None  # another cluster may have answered
            _look_afresh(left.folder)  # nothing may be missing there: this is its end
            left = JobFiles(left.folder)
        if job is not None and not job.lives and not _is_there(left.folder):
            return JobStatus(RunState.CUT_OFF)  # a dsv that completes the record removes the folder
        now = status(job, left)
        return now if now.lives else replace(now, idle_seconds=idle_seconds(ref))

    def leave(self, ref: JobRef) -> bool:
        job, answer = self._program.find(job_id(ref), fresh=_LEAVE)
        if answer.problem is not None or job is None or not job.lives or job.never_begins:
            return False
        undecided = job.reason == "None" and (idle_seconds(ref) or 0.0) < _UNDECIDED
        if job.waits and (job.reason == "JobHeldUser" or undecided):
            return False
        with suppress(OSError):
            (job_folder(ref) / UNWATCHED).touch()
            return not os.path.lexists(job_folder(ref) / "end")
        return False

    def withdraw(self, ref: JobRef) -> JobStatus | None:
        """Hold the job first: Slurm begins no held job. Release it if it has begun, for its next attempt."""
        number, folder = job_id(ref), job_folder(ref)
        if self._program.call("scontrol", "hold", number).problem is None:
            job, answer = self._program.find(number, fresh=0)
            left = JobFiles(folder)
            waits = job is not None and job.state == "PENDING" and not (left.begun or left.unread)
            if waits and job is not None and job.run == ref.run:
                self._program.call("scancel", number)
            elif answer.problem is not None or (job is not None and job.lives):
                self._program.call("scontrol", "release", number)
        self._program.forget()
        return self.status(ref)

    def logs(self, ref: JobRef, follow: bool) -> AbstractContextManager[Iterator[bytes]] | None:
        return read_logs(self._program, ref, follow) if job_id(ref) else None

    def cancel(self, ref: JobRef, grace: float) -> JobStatus | None:
        before = self._over(ref) or self.status(ref)
        number, folder = job_id(ref), job_folder(ref)
        if before is None and self._number(ref):
            tell_stopped(folder, "dsv stop")
            if self._program.call("scancel", number).problem is not None:
                return None
            return self._cancel(ref, kill=False) or self.status(ref)
        if before is None or not before.lives:
            return before
        tell_stopped(folder, "dsv stop")
        kill = before.state is RunState.RUNNING
        if grace > 0 and kill:
            kill = send(self._program, number, folder, 15)
            if kill and (done := self._end(ref, grace)) is not None:
                return done
        return self._cancel(ref, kill=kill) or self.status(ref)

    def _cancel(self, ref: JobRef, *, kill: bool) -> JobStatus | None:
        """Have Slurm end a job, and wait as long as it is ending it. Return None if it does not begin to.

        kill: send SIGKILL at once, which Slurm itself sends later
        """
        number, tries, last = job_id(ref), 0, monotonic() + _ENDING_SECONDS
        while tries < _TRIES or (monotonic() < last and self._is_completing(number)):
            tries += 1
            self._program.call("scancel", number)
            if kill:
                self._program.call("scancel", "--signal=KILL", number)
            if (done := self._end(ref, _DYING)) is not None:
                return done
        return None

    def _is_completing(self, number: str) -> bool:
        """Check that Slurm is ending the job: it waits for the nodes' processes, or for a node without an answer."""
        job, _ = self._program.find(number)
        return job is not None and job.state == "COMPLETING"

    def list(self, run: str | None = None) -> tuple[JobRef, ...]:
        cluster = self._cluster()
        jobs = self._mine(run)
        return tuple(JobRef(self.name, each.run or "", cluster, f"{each.id}:{each.folder}") for each in jobs)

    def left_on_node(self, folder: Path, node: int, attempt: int) -> Ended | None:
        return left_here(JobFiles(folder))

    def _mine(self, run: str | None) -> tuple[Queued, ...]:
        """Return the jobs of dsv that live, of one run or of all. Raises `Unreachable`."""
        jobs, answer = self._program.queue(fresh=0)
        if answer.problem is not None:
            raise _unreachable(answer)
        queued = [job for job in jobs.values() if job.run is not None and run in (None, job.run)]
        return tuple(job for job in queued if job.lives and status(job, JobFiles(job.folder)).lives)

    def _cluster(self) -> str:
        answer = self._program.cluster()
        if answer.problem is not None:
            raise _unreachable(answer)
        return answer.text

    def _number(self, ref: JobRef) -> str:
        """Return the number of a job; empty if it is of another cluster, as far as Slurm answers."""
        number = job_id(ref) if ref.engine == self.name else ""
        answer = self._program.cluster() if number else ProgramResult()
        return number if answer.problem is not None or answer.text == ref.where else ""

    def _end(self, ref: JobRef, seconds: float) -> JobStatus | None:
        """Wait for the job's end for this time; None if it has not ended."""

        def now() -> JobStatus | None:
            self._program.forget()
            return self._over(ref) or self.status(ref)

        return until_over(now, seconds)

    def _over(self, ref: JobRef) -> JobStatus | None:
        """Return the end that the job itself reports, while its last step may still send the record (and then
        remove its files). None if it reports none."""
        number = job_id(ref)
        if ref.engine != NAME or not number:
            return None
        done = left_here(self._of_this_start(number, JobFiles(job_folder(ref))))
        return None if done is None else replace(status_of(done), idle_seconds=idle_seconds(ref))

    def _of_this_start(self, number: str, left: JobFiles) -> JobFiles:
        """Ignore the end of an attempt after which Slurm requeued the job, for instance by order of an
        administrator: the job deletes that only when it begins again."""
        if left.end is None or (self._program.restarts(number) or 0) < left.attempt:
            return left
        return JobFiles(left.folder, again=True)


def _unreachable(answer: ProgramResult) -> Unreachable:
    return Unreachable(f"Slurm does not answer: {answer.problem}", subject=NAME, hint="scontrol ping")


_PAUSE: Final = (0.1, 1.0)
"""Seconds between two looks at the job's files: at first, and at most."""
_SLOWER: Final = 1.05
"""The growth of the pause: slow enough to see the end of a short job at once."""
_ASK: Final = (0.5, 15.0)
"""Seconds between two questions to the controller."""
LATE: Final = 60.0
"""Seconds for which the folder is read again if files are missing that a job must have left there."""
_PIECE: Final = 1 << 16
_NO_ROOM: Final = 4096
"""Free bytes below which nodes can't write to the job's folder any more."""
_CUT: Final = b"\n[dsv: the disk of the job's folder is full; what it wrote last may be missing here]\n"
_UNREAD: Final = b"\n[dsv: the job's folder can't be read; the end of its std%s may be missing here]\n"


class SlurmRun(FollowedJob):
    """A job, followed by the files in its folder and by Slurm's reports."""

    may_outlive: ClassVar[bool] = True

    def __init__(self, program: SlurmProgram, ref: JobRef) -> None:
        super().__init__(ref, "dsv-slurm")
        self._program = program
        self._id, self._folder = job_id(ref), job_folder(ref)
        self._over = Event()

    def _begin(self, output: JobOutput) -> None:
        job, answer = self._program.find(self._id, fresh=0)
        if job is not None and job.run_state is RunState.SUBMITTED and job.lives:
            answer = self._program.call("scontrol", "release", self._id)
            self._program.forget()
        if answer.problem is not None:
            raise LaunchError(f"Slurm does not let the job begin: {answer.problem}", subject=self.ref.run)
        self._out, self._err = output.open_pipes()
        Thread(target=self._await_end, name="dsv-slurm-end", daemon=True).start()

    def _send(self, number: int) -> bool:
        if number in ENDING:
            with suppress(OSError):  # the job was about to be left
                (self._folder / UNWATCHED).unlink()
            tell_stopped(self._folder, signal.Signals(number).name)
        return send(self._program, self._id, self._folder, number)

    def _kill(self) -> bool:
        tell_stopped(self._folder, "SIGKILL")
        if self._kills == 1 and JobFiles(self._folder).begun:
            send(self._program, self._id, self._folder, signal.SIGKILL)
        else:
            self._program.call("scancel", self._id)
        return True

    def _await_end(self) -> None:
        """Mark the job's end as seen in time, even while Slurm is slow to answer."""
        while not self._over.wait(_PAUSE[1]):
            if os.path.lexists(self._folder / "end"):
                _attend(self._folder)

    def _close(self) -> None:
        os.close(self._out)
        os.close(self._err)
        self._over.set()

    def _until_end(self) -> Ended:
        out, err = Follower(self._folder, "out", self._out), Follower(self._folder, "err", self._err)
        done = self._end_seen(lambda: out.step() + err.step())
        out.step(last=True)
        err.step(last=True)
        return done

    def _end_seen(self, step: Callable[[], int]) -> Ended:
        pause, interval, asked, late = _PAUSE[0], _ASK[0], 0.0, 0.0
        while True:
            moved = step()
            left = JobFiles(self._folder)
            if left.end is not None:
                _attend(self._folder)
            if left.end is not None or monotonic() - asked >= interval or self._wake.is_set():
                soon = self._wake.is_set() or left.end is not None
                if soon:
                    self._wake.clear()
                    interval = _ASK[0]
                asked = monotonic()
                fresh = min(interval, pause) if soon else interval / 2
                job, answer = self._program.find(self._id, fresh=fresh)
                interval = min(interval * 1.3, _ASK[1])
                if answer.problem is None and is_late(job, left):
                    late, interval = late or monotonic() + LATE, _ASK[0]
                    _look_afresh(self._folder)
                drained = 0 < late <= monotonic()
                if answer.problem is None and (done := ended(job, left, drained=drained)) is not None:
                    return done
                if answer.is_away and left.succeeded and (done := left_here(left)) is not None:
                    return done
                if job is not None and job.never_begins:
                    self._program.call("scancel", self._id)
                    return Ended(
                        reason=f"Slurm can't run it: {job.reason}",
                        hint="sinfo --Format=partition,time shows what --time and stage_time may be together",
                        cause=EndCause.UNSCHEDULABLE,
                    )
            if left.begun:
                self.send_again()
            pause = _PAUSE[0] if moved else min(pause * _SLOWER, _PAUSE[1])
            self._wake.wait(pause)


class Follower:
    """Copies one stream of all nodes of a job into a descriptor while it is written. With several nodes, each
    line begins with the number of its node. A file server that fails is asked again in the next step."""

    def __init__(self, folder: Path, stream: str, sink: int) -> None:
        self.folder = folder
        self.stream = stream
        self._labelled: bool | None = None
        self._lines = NodeLines(sink)
        self._read: dict[str, int] = {}
        self._failed = False

    def step(self, *, last: bool = False) -> int:
        """Copy and count the new bytes. last: the job is over, so incomplete lines are written too"""
        total, self._failed = 0, False
        for path in self._paths():
            while data := self._piece(path):
                total += len(data)
                self._write(path, data)
        if last:
            self._lines.end_lines()
            with suppress(OSError):
                if self.stream == "err" and disk_usage(self.folder).free < _NO_ROOM:
                    self._lines.write(_CUT, None)
            if self._failed:
                self._lines.write(_UNREAD % self.stream.encode(), None)
        return total

    def _paths(self) -> list[Path]:
        try:
            with os.scandir(self.folder) as entries:
                return sorted(Path(entry) for entry in entries if entry.name.startswith(f"{self.stream}."))
        except (FileNotFoundError, NotADirectoryError):
            return []
        except OSError:
            self._failed = True
            return []

    def _piece(self, path: Path) -> bytes:
        try:
            with open_plain(path) as file:
                file.seek(self._read.get(path.name, 0))
                data = file.read(_PIECE)
        except FileNotFoundError:
            return b""
        except OSError:
            self._failed = True
            return b""
        self._read[path.name] = self._read.get(path.name, 0) + len(data)
        return data

    def _write(self, path: Path, data: bytes) -> None:
        if self._labelled is None:
            self._labelled = nodes_of(self.folder) > 1
        self._lines.write(data, int(path.suffix[1:]) if self._labelled else None)


def _attend(folder: Path) -> None:
    """Mark the job's end as seen, so that its node need not complete the record."""
    with suppress(OSError):
        (folder / ATTENDED).touch()


def _look_afresh(folder: Path) -> None:
    """Change the folder, so that the client of a file server drops its cached listing."""
    with suppress(OSError), NamedTemporaryFile(dir=folder):
        pass


def read_logs(program: SlurmProgram, ref: JobRef, follow: bool) -> AbstractContextManager[Iterator[bytes]]:
    """Read the job's output so far, stdout and stderr together; with `follow` until its end."""

    def collect(writer: int, stop: Event) -> None:
        folder = job_folder(ref)
        streams = [Follower(folder, stream, writer) for stream in ("out", "err")]
        with suppress(OSError):
            over = was_there = False
            while not stop.is_set() and not over:
                job, answer = program.find(job_id(ref), fresh=_ASK[1] / 3)
                # A dsv that completes the record removes the folder. Slurm keeps the job for minutes longer.
                is_there = _is_there(folder)
                is_gone, was_there = was_there and not is_there, was_there or is_there
                is_over = answer.problem is None and ended(job, JobFiles(folder)) is not None
                over = not follow or is_gone or is_over
                for each in streams:
                    each.step(last=over)
                stop.wait(0 if over else _PAUSE[1] / 2)
        os.close(writer)

    return through_a_pipe(collect)


def _is_there(folder: Path) -> bool:
    """Return True also if nobody knows, because a file server fails."""
    try:
        folder.stat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:
        return True
    return True


def tell_stopped(folder: Path, how: str) -> None:
    """Record who ended the job, so that no further attempt is made. The first record counts."""
    with suppress(OSError), (folder / STOPPED).open("x") as file:
        file.write(f"{asked_by(how)}\n")


def send(program: SlurmProgram, number: str, folder: Path, which: int) -> bool:
    """Send a signal to the commands of a job; an ending signal cancels a waiting job. Return False if the
    signal has to be sent again once the commands have begun."""
    if JobFiles(folder).begun:
        name = signal.Signals(which).name.removeprefix("SIG")
        return program.call("scancel", f"--signal={name}", number).problem is None
    if which not in (*ENDING, signal.SIGKILL):
        return False
    job, answer = program.find(number, fresh=0)
    if answer.problem is None and (job is None or job.state == "PENDING"):
        program.call("scancel", number)
        return True
    return False
