"""A system that grants few threads, as a container's limit of processes or of memory makes it."""

from __future__ import annotations

import threading

import pytest


def grant(threads: int, monkeypatch: pytest.MonkeyPatch) -> list[threading.Thread]:
    """Let so many threads start from now on. Return those that have; once it is cleared, others may."""
    start, started = threading.Thread.start, list[threading.Thread]()

    def limited(thread: threading.Thread) -> None:
        if len(started) >= threads:
            raise RuntimeError("can't start new thread")
        started.append(thread)
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", limited)
    return started
