"""`python -m dsv.cache.hold.exec_with_lease`: starts a command and stays with it; what `dsv with` becomes by `execve`.

The command has this process's terminal, descriptors and process group, as though it had been started without dsv.
So a signal of the terminal (Ctrl-C) reaches the command by itself, and only a signal to this process alone is passed
on. `sigtimedwait` tells the two apart, but not in a process with other threads. So this is a program of its own, and
it imports little.

    argv: KEEPER COMMANDS ANSWERS ORDER CMD...: the keeper's pid and the ends of its pipes (0 0 0 for none), its order
"""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import shutil
import signal
import sys
import time
from collections.abc import Sequence

from dsv.cache.hold.protocol import Keeper, Order

PASSED_ON = (
    signal.SIGHUP,
    signal.SIGINT,
    signal.SIGQUIT,
    signal.SIGTERM,
    signal.SIGUSR1,
    signal.SIGUSR2,
)
CANNOT_LAUNCH, CANNOT_INVOKE, NO_SUCH_COMMAND = 125, 126, 127
GRACE = 20.0
"""Seconds that a command whose data is lost gets to end."""
_RELEASED_WITHIN = 10.0  # seconds; while a file server is away, a release would wait for ever
_TICK = 1.0
_TRIES = 5  # starts of a new keeper in a row


class Hold:
    """The keeper, started again if it was killed."""

    def __init__(self, keeper: Keeper | None, order: Order) -> None:
        self._keeper = keeper
        self._order = order
        self._tries = _TRIES

    def watch(self, pid: int) -> None:
        if self._keeper is not None:
            self._order = self._order.watching(pid)
            self._keeper.tell(f"watch {pid}")

    def problem(self) -> str | None:
        """Why the data is not held any more, or None."""
        while self._keeper is not None:
            said = self._keeper.answer(0.0)
            if said is None:
                return None
            if said.startswith("lost "):
                return said.removeprefix("lost ")
            if said.startswith(("gone ", "failed ")):
                return f"{said.partition(' ')[2]} could not be protected again"
            if said.startswith("held "):
                self._tries = _TRIES
                self._order = self._order.after(said)
            elif not said and not self._start_again():
                return "the process that renewed its lease was killed, and a new one does not start"
        return None

    def _start_again(self) -> bool:
        assert self._keeper is not None
        self._keeper.close()
        self._keeper = None
        if self._tries == 0:
            return False
        self._tries -= 1
        try:
            self._keeper = Keeper.start()
        except OSError:
            return False
        self._keeper.hold(self._order)
        return True

    def release(self) -> None:
        """Returns when it is released, or after a while on a file server that does not answer."""
        if self._keeper is None:
            return
        self._keeper.tell("done")
        deadline = time.monotonic() + _RELEASED_WITHIN
        while (left := deadline - time.monotonic()) > 0 and self._keeper.answer(left) not in ("", None):
            pass


def main(argv: Sequence[str]) -> int:
    keeper, commands, answers = map(int, argv[:3])
    for descriptor in (commands, answers) if keeper else ():
        os.set_inheritable(descriptor, False)
    hold = Hold(Keeper(keeper, commands, answers) if keeper else None, Order.decode(argv[3]))
    command = list(argv[4:])
    passed = [number for number in PASSED_ON if signal.getsignal(number) is not signal.SIG_IGN]
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [*passed, signal.SIGCHLD])
    try:
        # Python ignores these two; the command must not inherit that.
        usual = [signal.SIGPIPE, signal.SIGXFSZ]
        child = os.posix_spawnp(command[0], command, os.environ, setsigmask=before, setsigdef=usual)
    except OSError as error:
        hold.release()
        return _not_started(command[0], error)
    hold.watch(child)
    status, lost = _attend(child, hold, [*passed, signal.SIGCHLD])
    hold.release()
    if lost:
        return CANNOT_LAUNCH
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else _die_of(-code)


def _attend(child: int, hold: Hold, awaited: Sequence[int]) -> tuple[int, bool]:
    """The command's wait status, and whether it was ended because its data is no longer held."""
    lost = False
    deadline: float | None = None
    while (status := _reap(child)) is None:
        found = signal.sigtimedwait(awaited, _TICK)
        # A positive code is the kernel's: the terminal sent the signal to the whole group, so the command has it too.
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
    """The command's wait status, None while it lives. Process 1 of a container has other children to reap too."""
    while True:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid == 0:
            return None
        if pid == child:
            return status


def _not_started(command: str, error: OSError) -> int:
    is_there = os.path.lexists(command) if "/" in command else shutil.which(command, os.F_OK)
    if error.errno in (errno.ENOENT, errno.ENOTDIR) and not is_there:
        _complain(f"{command}: command not found")
        return NO_SUCH_COMMAND
    _complain(f"{command} can't be run: {error.strerror}")
    cannot = (errno.E2BIG, errno.ENOMEM, errno.EAGAIN)
    return CANNOT_LAUNCH if error.errno in cannot else CANNOT_INVOKE


def _die_of(number: int) -> int:
    """End by the same signal, so that an interrupted script stops. As process 1, which survives it, return the code."""
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


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
