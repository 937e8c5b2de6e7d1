"""Slurm's own programs, called and parsed. One answer of squeue serves every dsv of a user."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import stat
import subprocess
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass
from functools import lru_cache
from math import inf
from pathlib import Path
from time import monotonic, sleep
from typing import Final

from dsv.files.system import boot
from dsv.run.engines.slurm.script import COMMENT
from dsv.run.record import JobRef, RunState

_WAITS: Final = (0.05, 40.0)
"""Seconds between two tries to lock the file, and until that is given up: a call of squeue takes less, but
its process may be stopped, for instance by Ctrl-Z."""
_MOST: Final = 64 << 20
"""Bytes of an answer that are kept: more than the lines of 100,000 jobs."""


@dataclass(frozen=True, slots=True)
class ProgramResult:
    """The output of a program."""

    text: str = ""
    problem: str | None = None
    """The error message if it failed."""

    @property
    def is_away(self) -> bool:
        """True if the controller gave no answer."""
        return self.problem is not None and _AWAY.search(self.problem) is not None


def queue_file(environ: Mapping[str, str]) -> Path | None:
    """Return the file with the answer for the cluster of this environment, which PATH may change; None if
    this user has no folder for it."""
    words = "\0".join(environ.get(name, "") for name in ("SLURM_CONF", "PATH"))
    cluster = hashlib.sha256(words.encode("utf-8", "surrogateescape")).hexdigest()
    name = f"squeue-{cluster[:16]}.json"
    runtime = environ.get("XDG_RUNTIME_DIR", "")
    if runtime.startswith("/"):
        return Path(runtime) / "dsv" / name
    home = environ.get("HOME", "")
    return Path(home) / ".local/state/dsv" / name if home.startswith("/") else None


def ask_once(
    file: Path | None, ask: Callable[[], ProgramResult], *, since: float, force: bool = False
) -> ProgramResult:
    """Return the last answer if its question was asked at `since` or later, by the monotonic clock of this
    boot; else ask, while other processes wait for the answer.

    force: ask in any case. An unusable file (damaged, or not this user's) only costs a question.
    """
    with _locked(file) as descriptor:
        if descriptor is not None and not force:
            with suppress(OSError, ValueError, KeyError, TypeError):
                last = json.loads(os.pread(descriptor, _MOST, 0))
                if last["boot"] == boot() and since <= last["asked"] <= monotonic():
                    return ProgramResult(last["text"], last["problem"])
        asked = monotonic()
        answer = ask()
        if descriptor is not None:
            data = json.dumps({"boot": boot(), "asked": asked, **asdict(answer)}).encode()
            with suppress(OSError):
                os.ftruncate(descriptor, 0)
                if len(data) <= _MOST:
                    os.pwrite(descriptor, data, 0)
        return answer


@contextmanager
def _locked(file: Path | None) -> Iterator[int | None]:
    """Open and lock the file, if it is this user's own; yield None if that fails."""
    with ExitStack() as opened:
        found = None
        with suppress(OSError):
            if file is not None:
                file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                descriptor = os.open(file, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
                opened.callback(os.close, descriptor)
                info = os.fstat(descriptor)
                if info.st_uid == os.geteuid() and stat.S_ISREG(info.st_mode) and _lock(descriptor):
                    found = descriptor
        yield found


def _lock(descriptor: int) -> bool:
    pause, most = _WAITS
    last = monotonic() + most
    while True:
        with suppress(BlockingIOError):
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        if monotonic() >= last:
            return False
        sleep(pause)


NAME: Final = "slurm"
CALL_SECONDS: Final = 30.0
FRESH: Final = 1.0
"""Seconds for which an answer of squeue is reused."""

_OPTIONS: Final = ("SLURM_", "SBATCH_", "SQUEUE_", "SCANCEL_")
"""Prefixes of variables that stand for options."""
_FORMAT: Final = "%A|%T|%N|%r|%k"
_ID: Final = re.compile(r"[1-9][0-9]{0,9}", re.ASCII)
_QUEUED: Final = {
    "PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD", "SPECIAL_EXIT", "RESV_DEL_HOLD",
}  # fmt: skip
_RUNNING: Final = {"RUNNING", "COMPLETING", "SUSPENDED", "RESIZING", "SIGNALING", "STAGE_OUT", "STOPPED"}
_AWAY: Final = re.compile(
    "Unable to contact|Connection refused|Socket timed out|Communication|Zero Bytes|Unexpected message"
    "|no answer|can't be started"
)
_NEVER: Final = re.compile(
    r"BadConstraints|Invalid(?:Account|QOS)|PartitionTimeLimit|PartitionNodeLimit|DependencyNeverSatisfied"
    r"|Job's (?:account|QOS|group) not (?:known|permitted).*"
    r"|(?:Account|QOS)NotAllowed|(?:Assoc|QOS)Max\w*PerJob\w*|QOSMax\w*PerNodeLimit|QOSMin\w+"
)
"""Reasons to wait that don't end when other jobs end."""


class Queued:
    """A job in the output of squeue."""

    def __init__(self, number: str, state: str, nodes: str, reason: str, comment: str) -> None:
        """state: in Slurm's words. reason: why it waits, or why it ended"""
        self.id, self.state, self.nodes, self.reason = number, state, nodes, reason
        self.waits = state in _QUEUED
        """Slurm is to start it, for the first time or again."""
        self.lives = self.waits or state in _RUNNING
        self.was_killed = reason == "JobLaunchFailure"
        """Its batch script did not end by itself, or could not be started."""
        self.never_begins = state == "PENDING" and _NEVER.fullmatch(reason) is not None
        named = comment.removeprefix(COMMENT) if comment.startswith(COMMENT) else ""
        run, _, folder = named.partition(":")
        self.run = run or None
        """None for a job that isn't dsv's."""
        self.folder = Path(folder)
        waiting = RunState.SUBMITTED if reason == "JobHeldUser" else RunState.QUEUED
        self.run_state = RunState.RUNNING if state in _RUNNING else waiting
        """The state of a job that lives."""


@lru_cache(maxsize=1)  # one answer serves many runs
def read_queue(text: str) -> Mapping[str, Queued]:
    """Parse the output of squeue. Keys are the numbers of jobs."""
    found = {}
    for line in text.splitlines():
        fields = line.split("|", 4)
        if len(fields) == 5 and _ID.fullmatch(fields[0]):
            found[fields[0]] = Queued(*fields)
    return found


def job_id(ref: JobRef) -> str:
    """Return the number in a reference; empty if it is not of a batch job."""
    number, _, folder = ref.id.partition(":")
    return number if _ID.fullmatch(number) and folder.startswith("/") else ""


def job_folder(ref: JobRef) -> Path:
    return Path(ref.id.partition(":")[2])


def words(text: str) -> str:
    """Return a program's message about a failure, in one line."""
    lines = [re.sub(r"^\w+: (?:error|fatal): ", "", line.strip()) for line in text.splitlines()]
    return "; ".join(dict.fromkeys(filter(None, lines))) or "no message"


class SlurmProgram:
    """Runs Slurm's programs in the caller's environment: PATH finds them, SLURM_CONF names the cluster."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        # Inside a job, sbatch would inherit that job's options. The user's own are not for dsv either.
        kept = {name: value for name, value in environ.items() if not name.startswith(_OPTIONS)}
        self.environ = {**kept, **{name: environ[name] for name in ("SLURM_CONF",) if name in environ}}
        self._cluster: str | None = None
        self._since = -inf  # older answers about the queue are not used

    def call(
        self, *argv: str, env: Mapping[str, str] | None = None, seconds: float = CALL_SECONDS
    ) -> ProgramResult:
        """Run the program, away from the terminal's signals."""
        try:
            done = subprocess.run(
                argv,
                env={**self.environ, **(env or {})},
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=seconds,
                check=False,
                start_new_session=True,
            )
        except subprocess.TimeoutExpired:
            return ProgramResult(problem=f"no answer within {seconds:.0f} s")
        except OSError as error:
            return ProgramResult(problem=f"{argv[0]} can't be started: {error.strerror or error}")
        text = done.stdout.decode("utf-8", "replace")
        failed = done.returncode != 0
        return ProgramResult(text, words(done.stderr.decode("utf-8", "replace")) if failed else None)

    def cluster(self) -> ProgramResult:
        """Return the cluster's name and its controller: the same on every machine that reaches it."""
        if self._cluster is None:
            answer = self.call("scontrol", "show", "config", seconds=10)
            if answer.problem is not None:
                return answer
            found = dict(
                re.findall(r"^(ClusterName|SlurmctldHost\[0\])\s*=\s*([^\s(]+)", answer.text, re.MULTILINE)
            )
            self._cluster = "@".join(found[name] for name in sorted(found))
        return ProgramResult(self._cluster)

    def queue(self, *, fresh: float = FRESH) -> tuple[Mapping[str, Queued], ProgramResult]:
        """Return all jobs of this user, and those that ended lately: one call serves all runs of this user on
        this machine. fresh: the age in seconds up to which an answer is reused"""
        since = max(self._since, monotonic() - fresh)
        ask = lambda: self.squeue(f"--user={os.geteuid()}")  # noqa: E731
        answer = ask_once(queue_file(self.environ), ask, since=since, force=fresh <= 0)
        return {} if answer.problem is not None else read_queue(answer.text), answer

    def find(self, number: str, *, fresh: float = FRESH) -> tuple[Queued | None, ProgramResult]:
        """Return one job of any user."""
        jobs, answer = self.queue(fresh=fresh)
        if answer.problem is not None or number in jobs:
            return jobs.get(number), answer
        answer = self.squeue(f"--jobs={number}")
        if answer.problem is not None and "Invalid job id" in answer.problem:
            return None, ProgramResult()
        return read_queue(answer.text).get(number), answer

    def restarts(self, number: str) -> int | None:
        """Return how often Slurm has requeued a job; None if the job is unknown, or without an answer."""
        said = self.call("scontrol", "--oneliner", "show", "job", number).text
        found = re.search(r" Restarts=([0-9]{1,6}) ", said)
        return None if found is None else int(found[1])

    def squeue(self, which: str) -> ProgramResult:
        return self.call("squeue", "--noheader", "--states=all", f"--format={_FORMAT}", which)

    def forget(self) -> None:
        """Forget earlier answers: the queue has changed."""
        self._since = monotonic()
