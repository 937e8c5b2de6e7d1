"""Submits a job and follows it until its end, and passes this process's signals on to it."""

from __future__ import annotations

import os
import signal
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from queue import Empty, SimpleQueue
from threading import Event, Lock, Thread
from time import monotonic
from types import FrameType
from typing import ClassVar, Final

from dsv.errors import Interrupted, LaunchError, Signalled
from dsv.files.process import host_name, user_name
from dsv.run.engines.base import (
    CANNOT_LAUNCH,
    Ended,
    Engine,
    Handle,
    ImageNotPulled,
    JobPlan,
    NoPlaceYet,
    SubmittedJob,
)
from dsv.run.engines.output import JobOutput
from dsv.run.engines.reaper import GRACE
from dsv.run.part import TIMED_OUT, EndCause
from dsv.run.record import JobRef

ENDING: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
"""They ask a job to end."""
INFORMING: Final = (signal.SIGUSR1, signal.SIGUSR2)
"""They only inform a job, such as Slurm's warning before the time limit."""


def asked_by(how: str) -> str:
    """Return who or what asked for a job's end, for `cancelled_by`. how: a signal, or `dsv stop`"""
    return f"{user_name(os.geteuid())}@{host_name()}" if how == "dsv stop" else how


class Left(Exception):
    """The job goes on without this process."""


class Signals:
    """A queue of signal numbers. `wake` ends a wait without a signal."""

    def __init__(self) -> None:
        self._queue: SimpleQueue[int | None] = SimpleQueue()
        self._raises = False

    def send(self, number: int) -> None:
        self._queue.put(number)

    def wake(self) -> None:
        self._queue.put(None)

    def next(self, seconds: float) -> int | None:
        """Return the next signal; None after this many seconds, or after `wake`."""
        with suppress(Empty):
            return self._queue.get(timeout=seconds)
        return None

    @contextmanager
    def caught(self) -> Iterator[None]:
        """Receive the process's signals in this block, except those that the caller ignores (under nohup, in
        the background of a script). Outside the main thread this has no effect."""
        with _handled((*ENDING, *INFORMING), self._handle):
            yield

    @contextmanager
    def raising(self) -> Iterator[None]:
        """Raises `Signalled` for `ENDING` signals in this block, within `caught`, while no job gets them."""
        self._raises = True
        try:
            yield
        finally:
            self._raises = False

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self._raises and number in ENDING:
            raise Signalled(Interrupted(f"it was interrupted by {signal.Signals(number).name}"))
        self._queue.put(number)


@contextmanager
def informing_ignored() -> Iterator[None]:
    """Let `INFORMING` signals have no effect in this block, where no job gets them. They are handled, not
    ignored, because child processes inherit ignored signals. An inner `Signals.caught` takes precedence."""
    with _handled(INFORMING, lambda number, frame: None):
        yield


@contextmanager
def _handled(numbers: Iterable[int], handler: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {}
    try:
        for number in numbers:
            if signal.getsignal(number) not in (signal.SIG_IGN, None):
                before[number] = signal.signal(number, handler)
        yield
    finally:
        for number, found in before.items():
            signal.signal(number, found)


class FollowedJob(ABC):
    """A `SubmittedJob` that a thread of this process follows until its end."""

    sent_again: ClassVar[frozenset[int]] = frozenset(ENDING)
    """The signals that are kept until they have reached the command."""
    may_outlive: ClassVar[bool] = False
    """True if a cluster keeps the job if this process ends or can't follow it any more."""

    def __init__(self, ref: JobRef, name: str) -> None:
        """name: of the thread that follows it"""
        self.ref = ref
        self.ended: Ended | None = None
        self.lost = False
        """True if it can't be followed any more: then what guards it has to end it."""
        self._on_end: Callable[[], None] = lambda: None
        self._lock = Lock()
        self._wake = Event()
        self._kills = 0
        self._unsent: list[int] = []  # signals that have not reached the command, in their order
        self._thread = Thread(target=self._follow, name=name, daemon=True)

    def begin(self, output: JobOutput, on_end: Callable[[], None]) -> None:
        self._on_end = on_end
        self._begin(output)
        self._thread.start()

    def abandon(self) -> None:
        return

    def signal(self, number: int) -> None:
        with self._lock:
            if not self._send(number) and number in self.sent_again:
                self._unsent.append(number)
        self._wake.set()

    def kill(self) -> None:
        with self._lock:
            self._kills += 1
            self._unsent = [] if self._kill() else [signal.SIGKILL]
        self._wake.set()

    def send_again(self) -> None:
        """Send the signals that have not reached the command."""
        with self._lock:
            while self._unsent and self._send(self._unsent[0]):
                del self._unsent[0]

    def _follow(self) -> None:
        try:
            ended = self._until_end()
        except Exception as error:  # noqa: BLE001 (it becomes the reason: else a waiting thread would wait for ever)
            self.lost = True
            reason = f"dsv can't follow the job any more: {error!r}"
            ended = Ended(launched=True, seen=False, may_live=self.may_outlive, reason=reason)
        self._close()
        self.ended = ended
        self._on_end()

    @abstractmethod
    def _begin(self, output: JobOutput) -> None:
        """Let the job begin. Raises `LaunchError`."""

    @abstractmethod
    def _send(self, number: int) -> bool:
        """Send a signal. Return False if it has to be sent again."""

    @abstractmethod
    def _kill(self) -> bool:
        """End the job at once; with force from the second time on. Return False if SIGKILL has to be sent again."""

    @abstractmethod
    def _until_end(self) -> Ended:
        """Return the end of the job, after all of its output was read."""

    @abstractmethod
    def _close(self) -> None:
        """Called at the end, also after an error."""


_PAUSES: Final = (2.0, 15.0)
"""Seconds before an engine without room for a job is asked again, at first and at most."""


class Foreground:
    """A `Handle` of a job from its submission on, because an engine may take long to accept it."""

    def __init__(
        self,
        engine: Engine,
        plan: JobPlan,
        output: JobOutput,
        on_end: Callable[[], None],
        known: Callable[[JobRef], None],
        waits: Callable[[str], bool] = lambda reason: False,
    ) -> None:
        """known: records the job's reference before it begins, to find it if this process is killed; an error
        of it ends the job, and `check` raises it
        waits: gets the reason why the engine has no room for the job, and returns whether to ask again later
        """
        self._engine = engine
        self._output = output
        self._on_end = on_end
        self._known = known
        self._waits = waits
        self._cancelled = Event()
        self._lock = Lock()  # held while the job begins: a signal either cancels the job or reaches it
        self._begun: Handle | None = None
        self._ended: Ended | None = None
        self._problem: BaseException | None = None
        Thread(target=self._begin, args=(plan,), name="dsv-job", daemon=True).start()

    @property
    def ended(self) -> Ended | None:
        return self._ended if self._begun is None else self._begun.ended

    def check(self) -> None:
        """Raises the unexpected error of the submission, or the one of `known`."""
        if self._problem is not None:
            raise self._problem

    def signal(self, number: int) -> None:
        with self._lock:
            if self._begun is not None:
                self._begun.signal(number)
            elif number in ENDING:
                self._cancelled.set()

    def kill(self) -> None:
        with self._lock:
            self._cancelled.set()
            if self._begun is not None:
                self._begun.kill()

    def _begin(self, plan: JobPlan) -> None:
        job, begun, cause, hint = None, False, None, None
        try:
            job = self._submit(plan)
            self._known(job.ref)
            with self._lock:
                if not self._cancelled.is_set():
                    begun = True
                    job.begin(self._output, self._on_end)
                    self._begun = job
                    return
            reason = "it was ended before it began"
        except LaunchError as error:
            reason, hint = error.message, error.hint
            cause = EndCause.IMAGE_NOT_PULLED if isinstance(error, ImageNotPulled) else None
        except BaseException as error:  # noqa: BLE001 (raised by `check`, in the thread that waits)
            self._problem, reason = error, str(error)
        ended = Ended(taken=job is not None, reason=reason, hint=hint, cause=cause)
        if job is not None and not self._is_gone(job.ref):
            ended = replace(ended, seen=False, may_live=True)
        if job is not None and not begun:
            job.abandon()
        self._ended = ended
        self._on_end()

    def _submit(self, plan: JobPlan) -> SubmittedJob:
        pause, longest = _PAUSES
        while True:
            try:
                return self._engine.submit(plan, self._output, self._cancelled)
            except NoPlaceYet as error:
                if not self._waits(error.message):
                    raise
            if self._cancelled.wait(pause):
                raise LaunchError("it was ended before it began")
            pause = min(pause * 1.5, longest)

    def _is_gone(self, ref: JobRef) -> bool:
        """End the job. Return False if it may live on, in an engine that queues and did not answer."""
        left = self._engine.cancel(ref, 0)
        if self._engine.queues:
            return left is not None and not left.lives
        self._engine.forget(ref)
        return True


_TICK: Final = 1.0
_AGAIN: Final = 5.0
_LAST_OUTPUT: Final = 2.0
_STUBBORN: Final = (
    "the job has not ended, or its cluster does not answer; send the signal again to leave it running"
)


def supervise(
    handle: Handle,
    output: JobOutput,
    signals: Signals,
    *,
    lost: Callable[[], str | None],
    note: Callable[[str], None],
    over: Callable[[], None] = lambda: None,
    grace: Callable[[], float] = lambda: GRACE,
    expired: Callable[[], bool] = lambda: False,
    hung_up: Callable[[], None] | None = None,
    leave: Callable[[], bool] = lambda: False,
) -> Ended:
    """Return when the job is over and its output delivered.

    lost: called once a second; returns the reason to end the job, if any. expired: called as often; returns
    whether the job's time is over. grace: called when the job is asked to end; returns the seconds that it
    gets. hung_up: called instead of ending the job if the terminal is closed; such a job is also left alive
    if it can't be killed and a further signal arrives. over: called after the job's end, before its last
    output is delivered, which may take long. leave: called once a second until the job is to end; if it returns
    True, this raises `Left`, and the job goes on. An exception here, for instance by Ctrl-C if signals are not
    caught, ends the job first.
    """
    try:
        ended = _until_end(handle, output, signals, lost, note, grace, expired, hung_up, leave)
    except Left:
        raise
    except BaseException:
        output.let_go()
        _end_now(handle, signals)
        raise
    output.job_ended()
    over()
    by_itself = ended.signal is None and ended.cause not in (EndCause.LEASE_LOST, EndCause.TIME_LIMIT)
    _deliver(output, signals, patient=by_itself)
    return ended


def _until_end(
    handle: Handle,
    output: JobOutput,
    signals: Signals,
    lost: Callable[[], str | None],
    note: Callable[[str], None],
    grace: Callable[[], float],
    expired: Callable[[], bool],
    hung_up: Callable[[], None] | None,
    leave: Callable[[], bool],
) -> Ended:
    first: int | None = None
    timed_out = False
    reason: str | None = None
    deadline: float | None = None
    kills = 0
    while (ended := handle.ended) is None:
        number = signals.next(_TICK if deadline is None else max(0.0, min(_TICK, deadline - monotonic())))
        waits = number is None and deadline is None and handle.ended is None
        if waits and leave() and (number := signals.next(0)) is None:
            raise Left
        if number in INFORMING:
            handle.signal(number)
        elif number == signal.SIGHUP and hung_up is not None:
            hung_up()
        elif number is not None and kills > 1 and hung_up is not None:
            left = "the job was left, as it could not be ended"
            ended = Ended(exit_code=128 + number, launched=True, seen=False, may_live=True, reason=left)
            return _judged(ended, first, reason, timed_out)
        elif number is not None and first is None:
            first, seconds = number, grace()
            note(
                f"{signal.Signals(number).name} was sent to the job; it has {seconds:.0f} s to exit; "
                "send it again to kill it now"
            )
            deadline = monotonic() + seconds
            handle.signal(number)
        elif number is not None:
            deadline = monotonic()
        end_requested = reason is not None or timed_out
        timed_out = timed_out or (first is None and reason is None and expired())
        if reason is None and (reason := lost()) is not None:
            note(f"ending the job: {reason}")
        elif timed_out and not end_requested:
            note("ending the job: its time limit is reached")
        if (reason is not None or timed_out) and not end_requested:
            deadline = monotonic() + grace() if deadline is None else deadline
            handle.signal(signal.SIGTERM)
        if deadline is not None and monotonic() >= deadline:
            output.let_go()
            handle.kill()
            kills += 1
            deadline = monotonic() + _AGAIN
            if kills == 2 and hung_up is not None:
                note(_STUBBORN)
    if not ended.launched and first is not None:
        ended = replace(ended, exit_code=128 + first, reason="interrupted before the command began")
    return _judged(ended, first, reason, timed_out)


def _judged(ended: Ended, first: int | None, lost: str | None, timed_out: bool) -> Ended:
    """Return the end with its cause. Acts of dsv take precedence over the engine's report."""
    ended = replace(ended, signal=first)
    if lost is not None:
        return replace(ended, cause=EndCause.LEASE_LOST, exit_code=CANNOT_LAUNCH, reason=lost)
    if not ended.seen:
        return replace(ended, cause=EndCause.LOST_SIGHT)
    if timed_out:
        return replace(ended, cause=EndCause.TIME_LIMIT, exit_code=ended.exit_code or TIMED_OUT)
    if first is not None:
        return replace(ended, cause=EndCause.CANCELLED)
    return replace(ended, cause=ended.cause or (EndCause.EXITED if ended.launched else EndCause.NOT_STARTED))


def _deliver(output: JobOutput, signals: Signals, *, patient: bool) -> None:
    """Wait until a slow reader has the job's whole output; a signal ends the wait."""
    if not patient and not output.drained(_LAST_OUTPUT):
        output.let_go()
    while not output.drained(0.2):
        if signals.next(0.0) not in (None, *INFORMING):
            output.let_go()


def _end_now(handle: Handle, signals: Signals) -> None:
    deadline = monotonic() + 2 * _AGAIN
    while handle.ended is None and monotonic() < deadline:
        handle.kill()
        signals.next(1.0)
