"""Hold places of a cache for as long as another process lives, as `dsv with` and `dsv cache --while` do.

This module is also a program, with two commands:

    python -m dsv.cache.hold lease
        takes the leases and renews them until the watched process has ended
    python -m dsv.cache.hold exec PID COMMANDS ANSWERS ORDER CMD...
        starts CMD and waits for it; `dsv with` becomes this by `execve`. PID is the process that holds the
        leases, COMMANDS and ANSWERS are the ends of its pipes (0 0 0 for none), ORDER is what it has to hold

`lease` is a process in a session of its own. So it renews the leases while the watched process is stopped,
and it survives the terminal and the process that started it. The two exchange lines:

    to it:      its order in JSON; then `watch PID`, to watch another process instead; `done`, to end
    from it:    `held ID...`; or `failed` and the parts of an error in JSON; later `lost REASON`

`exec` gives the command this process's terminal, descriptors and process group, as if dsv had not started it.
So a signal from the terminal (Ctrl-C) reaches the command directly, and only a signal to this process alone
is passed on. `sigtimedwait` tells the two apart, but not in a process with other threads. The process lives
as long as the command, so what only `lease` needs is imported there.
"""

from __future__ import annotations

import contextlib
import os
import resource
import select
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self

import msgspec
from msgspec.structs import replace

from dsv.errors import DsvError, Unreachable, made

if TYPE_CHECKING:
    from dsv.cache.leases import Lease

PROGRAM = "dsv.cache.hold"
PASSED_ON = (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)
CANNOT_LAUNCH = 125
GRACE = 20.0
"""Seconds that a command whose data is lost has to end, between SIGTERM and SIGKILL."""
_RELEASED_WITHIN = 10.0  # seconds; while a file server is away, a release would never return
_LEASE_TICK = 0.5  # seconds
_EXEC_TICK = 1.0
_TRIES = 5  # consecutive starts of a new process


class HoldRequest(msgspec.Struct, frozen=True):
    """The places to hold, and the process to watch."""

    root: str
    """The folder of the cache."""
    places: tuple[tuple[str, str], ...]
    """Pairs of a dataset's path component and the name of a place."""
    pid: int
    start: int
    """The tick of its kernel at which it started; 0 if unknown."""
    program: str
    """The program that it runs, for people to read."""
    replaces: tuple[str, ...] = ()
    """Ids of leases that are not renewed any more, because their process was killed."""
    run: str | None = None
    """The run that the process is part of, if any."""
    job: str | None = None
    """The batch job that it is part of, if any."""

    def encode(self) -> str:
        return msgspec.json.encode(self).decode()

    @staticmethod
    def decode(text: str | bytes) -> HoldRequest:
        return _ORDER.decode(text)

    def after(self, held: str) -> Self:
        """Return the order for a new process, in case the one that sent this line is killed."""
        return replace(self, replaces=(*self.replaces, *held.split()[1:]))

    def watching(self, pid: int) -> Self:
        """Return the order for a child, which is not reaped yet, so no other process has its pid."""
        return replace(self, pid=pid, start=0)


_ORDER: Final = msgspec.json.Decoder(HoldRequest)


class LeaseHolder(msgspec.Struct):
    """A process that runs the command `lease`, a child of this one, and the ends of its pipes."""

    pid: int
    commands: int
    answers: int
    _unread: bytearray = msgspec.field(default_factory=bytearray)

    @classmethod
    def start(cls) -> Self:
        """Start a holder. It waits for its order, and ends if its pipes close first. Raises `OSError`."""
        process = subprocess.Popen(
            # -P: files in the folder where the command was given are data, whatever their names.
            [sys.executable, "-P", "-m", PROGRAM, "lease"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        assert process.stdin is not None and process.stdout is not None
        holder = cls(process.pid, os.dup(process.stdin.fileno()), os.dup(process.stdout.fileno()))
        process.stdin.close()
        process.stdout.close()
        process.returncode = 0  # Popen warns about a process that was not waited for
        return holder

    def send(self, line: str) -> None:
        """Send a line. If the process has ended, `answer` reports that."""
        with contextlib.suppress(BrokenPipeError):
            os.write(self.commands, line.encode() + b"\n")

    def answer(self, seconds: float) -> str | None:
        """Return its next line, "" if it has ended, None if no line arrives within `seconds`."""
        return _next_line(self.answers, self._unread, seconds)

    def close(self) -> None:
        """Close the pipes. The process continues."""
        os.close(self.commands)
        os.close(self.answers)


class HoldProcess:
    """The process that holds the leases, started again if it was killed."""

    def __init__(self, holder: LeaseHolder | None, order: HoldRequest) -> None:
        self._holder = holder
        self._order = order
        self._tries = _TRIES

    def watch(self, pid: int) -> None:
        if self._holder is not None:
            self._order = self._order.watching(pid)
            self._holder.send(f"watch {pid}")

    def problem(self) -> str | None:
        """Return why the data is no longer held, or None."""
        while self._holder is not None:
            answer = self._holder.answer(0.0)
            if answer is None:
                return None
            if answer.startswith("lost "):
                return answer.removeprefix("lost ")
            if (error := failure(answer)) is not None:
                return f"it could not be protected again: {error.message}"
            if answer.startswith("held "):
                self._tries = _TRIES
                self._order = self._order.after(answer)
            elif not answer and not self._start_again():
                return "the process that renewed the hold was killed, and a new one does not start"
        return None

    def _start_again(self) -> bool:
        assert self._holder is not None
        self._holder.close()
        self._holder = None
        if self._tries == 0:
            return False
        self._tries -= 1
        try:
            self._holder = LeaseHolder.start()
        except OSError:
            return False
        self._holder.send(self._order.encode())
        return True

    def release(self) -> None:
        """End the leases. Return when that is done, or after `_RELEASED_WITHIN` if a file server is away."""
        if self._holder is None:
            return
        self._holder.send("done")
        deadline = time.monotonic() + _RELEASED_WITHIN
        while (left := deadline - time.monotonic()) > 0 and self._holder.answer(left) not in ("", None):
            pass


def exec_command(argv: Sequence[str]) -> int:
    """Start the command, wait for it, and return its exit code."""
    pid, commands, answers = map(int, argv[:3])
    for descriptor in (commands, answers) if pid else ():
        os.set_inheritable(descriptor, False)
    hold = HoldProcess(LeaseHolder(pid, commands, answers) if pid else None, HoldRequest.decode(argv[3]))
    command = list(argv[4:])
    passed = [number for number in PASSED_ON if signal.getsignal(number) is not signal.SIG_IGN]
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [*passed, signal.SIGCHLD])
    try:
        # Python ignores these two; the command must not inherit that.
        usual = [signal.SIGPIPE, signal.SIGXFSZ]
        child = os.posix_spawnp(command[0], command, os.environ, setsigmask=before, setsigdef=usual)
    except OSError as error:
        from dsv.files.process import why_not_started

        hold.release()
        code, why = why_not_started(command[0], error.errno or 0, os.environ)
        _complain(why)
        return code
    hold.watch(child)
    status, lost = _wait(child, hold, [*passed, signal.SIGCHLD])
    hold.release()
    if lost:
        return CANNOT_LAUNCH
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else _die_of(-code)


def _wait(child: int, hold: HoldProcess, awaited: Sequence[int]) -> tuple[int, bool]:
    """Return the command's wait status, and whether it was ended because its data is no longer held."""
    lost = False
    deadline: float | None = None
    while (status := _reap(child)) is None:
        found = signal.sigtimedwait(awaited, _EXEC_TICK)
        # A positive code is the kernel's: the terminal sent the signal to the whole group, with the command.
        if found is not None and found.si_signo != signal.SIGCHLD and found.si_code <= 0:
            os.kill(child, found.si_signo)
        if not lost and (problem := hold.problem()) is not None:
            lost = True
            deadline = time.monotonic() + GRACE
            _complain(f"the data is no longer held, so the command was stopped: {problem}")
            os.kill(child, signal.SIGTERM)
        if deadline is not None and time.monotonic() > deadline:
            os.kill(child, signal.SIGKILL)
    return status, lost


def _reap(child: int) -> int | None:
    """Return the wait status, None while the command lives. Process 1 of a container reaps others too."""
    while True:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid == 0:
            return None
        if pid == child:
            return status


def _die_of(number: int) -> int:
    """End by the same signal, so that an interrupted script stops. Process 1 survives it: return the code."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with contextlib.suppress(OSError):
        signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [number])
    return 128 + number


def _complain(message: str) -> None:
    with contextlib.suppress(OSError):
        sys.stderr.write(f"error: {message}\n")
        sys.stderr.flush()


def failure(answer: str) -> DsvError | None:
    """Return the error in an answer of a lease holder, or None."""
    word, _, rest = answer.partition(" ")
    return made(*msgspec.json.decode(rest)) if word == "failed" else None


def _next_line(source: int, unread: bytearray, seconds: float | None, *also: int) -> str | None:
    """Return the next line, "" at the end, None if none arrives within `seconds` or `also` has an event."""
    while b"\n" not in unread:
        if source not in select.select([source, *also], [], [], seconds)[0]:
            return None
        data = os.read(source, 4096)
        if not data:
            return ""
        unread += data
    line, _, unread[:] = unread.partition(b"\n")
    return line.decode(errors="replace")


def hold_leases() -> int:
    """Read an order from stdin and hold its places until the watched process has ended."""
    # A signal that ends the watched process may go to all of its host or job; this process must outlive that.
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, signal.SIG_IGN)
    os.chdir("/")  # so that any file system can be unmounted
    unread = bytearray()
    line = _next_line(0, unread, None)
    if not line:
        return 1
    order = HoldRequest.decode(line)
    held: list[Lease] = []
    try:
        from dsv.cache.root import explaining

        with explaining(order.root, "hold data in"):
            return _hold_while_alive(order, held, unread)
    except DsvError as error:
        _say(f"failed {msgspec.json.encode(error.parts()).decode()}")
        return 1
    finally:
        for lease in held:
            lease.release()


def _hold_while_alive(order: HoldRequest, held: list[Lease], unread: bytearray) -> int:
    from dsv.cache.leases import Lease, end_hold, find_by_id
    from dsv.cache.root import CachePlace, CacheRoot
    from dsv.files.process import Watched

    watched = Watched(order.pid, order.start)
    root = CacheRoot(Path(order.root))
    places = [CachePlace(dataset, name) for dataset, name in order.places]
    for place in places:
        lease = Lease.take(
            root, place, "run", run=order.run, job=order.job, process=order.pid, program=order.program
        )
        held.append(lease)
        if not lease.confirm():
            raise Unreachable(
                f"{place} was evicted from {root.path} before it could be held", subject=str(place)
            )
        lease.hold()
    for id_ in order.replaces:
        for old in find_by_id(root, places, id_):
            end_hold(root, old)
    _say(" ".join(["held", *(lease.record.owner.id for lease in held)]))
    listening = True  # if stdin is closed, the parent may be dead while the watched process lives
    while not watched.has_ended():
        lost = next((lease for lease in held if lease.lost.is_set()), None)
        if lost is not None:
            _say(f"lost {lost.reason}")
            return 1
        also = () if watched.descriptor is None else (watched.descriptor,)
        if not listening:
            select.select(also, [], [], _LEASE_TICK)
            continue
        line = _next_line(0, unread, _LEASE_TICK, *also)
        listening = line != ""
        if line == "done":
            break
        if line is not None and line.startswith("watch "):
            watched.close()
            watched = Watched(int(line.removeprefix("watch ")))
    return 0


def _say(line: str) -> None:
    try:
        sys.stdout.write(line.replace("\n", " ") + "\n")
        sys.stdout.flush()
    except BrokenPipeError:
        sys.stdout = open(os.devnull, "w", encoding="ascii")  # noqa: SIM115, PTH123 (the reader has ended)


if __name__ == "__main__":
    sys.exit(hold_leases() if sys.argv[1] == "lease" else exec_command(sys.argv[2:]))
