"""Submitting a job and staying with it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from threading import Event, Lock, Thread
from typing import Final

from dsv.engines.base import CANNOT_LAUNCH, Ended, Engine, Handle, ImageNotPulled, NoPlaceYet, Plan
from dsv.engines.output import Output
from dsv.engines.signals import ENDING
from dsv.errors import LaunchError
from dsv.model.run import JobRef
from dsv.model.run_end import EndCause

_PAUSES: Final = (2.0, 15.0)
"""Seconds before an engine that has no place for a job is asked again, at first and at most."""


class Foreground:
    """A `Handle` from the moment in which a job is submitted: its engine may take long to take it.

    known: writes the reference down. The job begins only after that, so that whoever is killed in between leaves
    either nothing that runs or something that can be found. What it raises ends the job, and is raised by `check`.
    waits: told why the engine has no place for the job yet; whether it is to be asked again after a pause.
    """

    def __init__(
        self,
        engine: Engine,
        plan: Plan,
        output: Output,
        on_end: Callable[[], None],
        known: Callable[[JobRef], None],
        waits: Callable[[str], bool] = lambda reason: False,
    ) -> None:
        self._engine = engine
        self._output = output
        self._on_end = on_end
        self._known = known
        self._waits = waits
        self._cancelled = Event()
        self._lock = Lock()  # held while the job begins: a signal comes before that or reaches the job
        self._attached: Handle | None = None
        self._ended: Ended | None = None
        self._problem: BaseException | None = None
        Thread(target=self._begin, args=(plan,), name="dsv-job", daemon=True).start()

    @property
    def ended(self) -> Ended | None:
        return self._ended if self._attached is None else self._attached.ended

    def check(self) -> None:
        """Raises what kept the reference from being written down."""
        if self._problem is not None:
            raise self._problem

    def signal(self, number: int) -> None:
        with self._lock:
            if self._attached is not None:
                self._attached.signal(number)
            elif number in ENDING:
                self._cancelled.set()

    def kill(self) -> None:
        with self._lock:
            self._cancelled.set()
            if self._attached is not None:
                self._attached.kill()

    def _begin(self, plan: Plan) -> None:
        ref, cause, hint = None, None, None
        try:
            ref = self._submit(plan)
            self._known(ref)
            with self._lock:
                if not self._cancelled.is_set():
                    self._attached = self._engine.attach(ref, self._output, self._on_end)
                    return
            reason = "it was ended before it began"
        except LaunchError as error:
            reason, hint = error.message, error.hint
            cause = EndCause.IMAGE_NOT_PULLED if isinstance(error, ImageNotPulled) else None
        except BaseException as error:  # noqa: BLE001 (raised by `check`, in the thread that waits)
            self._problem, reason = error, str(error)
        ended = Ended(
            exit_code=CANNOT_LAUNCH,
            launched=False,
            taken=ref is not None,
            reason=reason,
            hint=hint,
            cause=cause,
        )
        if ref is not None and not self._is_gone(ref):
            ended = replace(ended, seen=False, may_live=True)
        self._ended = ended
        self._on_end()

    def _submit(self, plan: Plan) -> JobRef:
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
        """Ends the job. Only one that its engine holds by itself may live on without an answer."""
        left = self._engine.cancel(ref, 0)
        return not self._engine.queues or (left is not None and not left.lives)
