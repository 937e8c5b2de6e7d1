"""When to look at a job again: as soon as the cluster says that something about its pods is different."""

from __future__ import annotations

import socket
from collections.abc import Callable
from contextlib import suppress
from threading import Event, Lock, Thread
from typing import TYPE_CHECKING, Final

from dsv.engines.kubernetes.api import Refusal
from dsv.engines.kubernetes.jobs import KubernetesJob
from dsv.engines.kubernetes.names import LABEL

if TYPE_CHECKING:
    from httpx2 import Response

_PAUSE: Final = 2.0
"""Seconds before a connection that broke is made again."""


class PodChanges:
    """Calls `changed` whenever a pod of the job has changed, from a thread of its own, until it is closed.

    It says when to look and nothing else, so whoever looks now and then besides misses nothing: it may come late, and
    who may not watch pods gets no call at all.
    """

    def __init__(self, job: KubernetesJob, changed: Callable[[], None]) -> None:
        self._job = job
        self._changed = changed
        self._closed = Event()
        self._lock = Lock()
        self._response: Response | None = None
        Thread(target=self._watch, name="dsv-kubernetes-changes", daemon=True).start()

    def close(self) -> None:
        with self._lock:
            self._closed.set()
            if self._response is not None:
                _hang_up(self._response)

    def _watch(self) -> None:
        import httpx2

        label = f"{LABEL}={self._job.at.name}"
        while not self._closed.is_set():
            with self._job.api.stream(self._job.at.pods, labelSelector=label, watch="true") as answer:
                if isinstance(answer, Refusal):
                    if not answer.is_away:
                        return
                elif self._take(answer):
                    with suppress(httpx2.HTTPError, OSError, ValueError):
                        for _ in answer.iter_raw():
                            self._changed()
                    self._take(None)
            self._closed.wait(_PAUSE)

    def _take(self, response: Response | None) -> bool:
        """False if nobody listens any more."""
        with self._lock:
            self._response = response
            return not self._closed.is_set()


def _hang_up(response: Response) -> None:
    """Ends a read that waits in another thread."""
    connection = response.extensions.get("network_stream")
    its_socket = None if connection is None else connection.get_extra_info("socket")
    if its_socket is not None:
        with suppress(OSError):
            its_socket.shutdown(socket.SHUT_RDWR)
