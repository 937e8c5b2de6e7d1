"""Ending a run that is under way on this machine, and waiting for its end, from another process."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from select import select
from time import monotonic, sleep
from typing import Final

from dsv.errors import NotFound, Unsupported, UsageError
from dsv.fs.files import replace_file, write_once
from dsv.fs.process import Process, Watched
from dsv.run.active_runs import UnderWay, stop_request, under_way
from dsv.run.listing import RunKey, matches, only_one

_TICK: Final = 0.2
_LONG: Final = 5.0


def find_under_way(state: Path, text: str) -> UnderWay | None:
    """The run under way that `text` means: by its id or part of it, else by its name. None if there is none.

    Raises `UsageError` for a text that means several.
    """
    there = under_way(state)
    found = {_key(each): each for each in there if matches(each.run, text)}
    if text and not found:
        named = ((each, each.mark.known()) for each in there)
        found = {_key(each): each for each, record in named if record is not None and record.name == text}
    return found[only_one(text, found.keys())] if found else None


def _key(one: UnderWay) -> RunKey:
    return RunKey(one.run, one.mark.dataset)


def is_here(one: UnderWay) -> bool:
    """Whether this machine knows the process that supervises the run, dead or alive."""
    return Process(*one.mark.process).kernel == Process.here().kernel


def ask_to_stop(one: UnderWay, grace: float) -> bool:
    """Asks the run's supervisor to end the job, which gets so many seconds to end by itself.

    False if somebody else has asked before; then nothing is sent, except that a grace of 0 ends the job at once all
    the same. Raises `Unsupported` for a run of another machine, and `NotFound` if its supervisor is gone.
    """
    if not is_here(one):
        raise Unsupported(
            f"run {one.run} is under way on {one.mark.host_name}, and can be stopped there alone",
            subject=one.run,
            hint=f"ssh {one.mark.host_name} dsv stop {one.run}",
        )
    _, pid, start = one.mark.process
    watched = Watched(pid, start)
    try:
        if watched.has_ended():
            raise NotFound(f"the dsv of run {one.run} is gone", subject=one.run, hint=f"dsv runs {one.run}")
        request = stop_request(one.folder, one.run)
        first = write_once(request, f"{grace:g}".encode())
        if not first and grace == 0:
            replace_file(request, b"0", mode=0o600)
        if first or grace == 0:
            _send(watched, signal.SIGTERM)
        return first
    finally:
        watched.close()


def wait_for_end(one: UnderWay, long: Callable[[], None] | None = None) -> None:
    """Returns when the record of the run is kept, or its supervisor is gone. The run is one of this machine.

    long: called each time that a while has gone by.
    """
    _, pid, start = one.mark.process
    watched = Watched(pid, start)
    due = monotonic() + _LONG
    try:
        while (one.folder / one.run).exists() and not watched.has_ended():
            if long is not None and monotonic() >= due:
                long()
                due = monotonic() + _LONG
            if watched.descriptor is None:
                sleep(_TICK)
            else:
                select([watched.descriptor], [], [], _TICK)
    finally:
        watched.close()


def _send(watched: Watched, number: int) -> None:
    try:
        if watched.descriptor is not None:
            signal.pidfd_send_signal(watched.descriptor, number)
        else:
            os.kill(watched.process.pid, number)
    except ProcessLookupError:
        pass  # it has ended just now
    except PermissionError as error:
        raise UsageError("the run is another user's", hint="only they can stop it") from error
