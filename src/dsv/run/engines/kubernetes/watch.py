"""Watching a job: the cluster tells of each change, so it is not asked again and again."""

from __future__ import annotations

import re
import socket
from collections.abc import Callable
from contextlib import suppress
from threading import Event, Thread
from typing import TYPE_CHECKING, Final

from dsv.run.engines.kubernetes.api import SECONDS, KubernetesApi, Refusal
from dsv.run.engines.kubernetes.job import KubernetesJob
from dsv.run.engines.kubernetes.manifest import JOB_UID_LABEL

if TYPE_CHECKING:
    from httpx2 import Response

_SECONDS: Final = 300
"""Seconds after which the cluster ends a watch, and is asked for another one."""
_QUERY: Final = {"watch": "true", "timeoutSeconds": str(_SECONDS), "allowWatchBookmarks": "true"}
"""Bookmarks tell of the version, so it does not become too old. None comes while it does not change."""
_VERSION: Final = re.compile(r'"resourceVersion":"(\d+)"')
_ERROR, _BOOKMARK = (f'{{"type":"{kind}"' for kind in ("ERROR", "BOOKMARK"))
_PAUSES: Final = (0.5, 60.0)
"""Seconds before a watch that was refused is asked for again, at first and at most."""


class Watch(Thread):
    """Calls `moved` for each change of the objects at a path, until `end` is called."""

    def __init__(
        self, api: KubernetesApi, path: str, query: dict[str, str], moved: Callable[[], None]
    ) -> None:
        super().__init__(name="dsv-kubernetes-watch", daemon=True)
        self._api, self._path, self._query, self._moved = api, path, query, moved
        self._over = Event()
        self._answer: Response | None = None
        self._version: str | None = None
        """The cluster is asked for the changes after this version."""
        self.connected = False
        """The cluster tells of changes now, or will after a pause of half a second."""

    def run(self) -> None:
        pause, longest = _PAUSES
        while not self._over.is_set():
            try:
                self._read()
                pause = _PAUSES[0]
            except Refusal:
                self._lose()
            self._over.wait(pause)
            pause = min(2 * pause, longest)

    def end(self) -> None:
        """End at once, also while the cluster tells nothing."""
        self._over.set()
        if (answer := self._answer) is not None:
            with suppress(OSError, LookupError, AttributeError, TypeError):
                connection = answer.extensions["network_stream"].get_extra_info("socket")
                socket.socket.shutdown(connection, socket.SHUT_RDWR)

    def _read(self) -> None:
        """Read one watch to its end. Raises `Refusal` if the cluster does not tell of changes any more."""
        if self._version is None:
            now = self._api.get(self._path, SECONDS, limit="1", **self._query)
            self._version = str(now["metadata"]["resourceVersion"])
        query = {**self._query, **_QUERY, "resourceVersion": self._version}
        with self._api.stream(self._path, _SECONDS + 30.0, **query) as answer:
            self._answer = answer
            if not self.connected:
                self.connected = True
                self._moved()  # what changed before
            for line in () if self._over.is_set() else answer.iter_lines():
                if line.startswith(_ERROR):
                    raise Refusal(line)
                if (version := _VERSION.search(line)) is not None:
                    self._version = version[1]
                if not line.startswith(_BOOKMARK):
                    self._moved()
            self._answer = None

    def _lose(self) -> None:
        self._answer = self._version = None
        was_connected, self.connected = self.connected, False
        if was_connected and not self._over.is_set():
            self._moved()  # if only the cluster was lost, the next look shows it


def start_watches(job: KubernetesJob, moved: Callable[[], None]) -> tuple[Watch, ...]:
    """Watch the Job and its pods."""
    jobs, _, name = job.path.rpartition("/")
    pods = {"labelSelector": f"{JOB_UID_LABEL}={job.uid}"}
    watches = (
        Watch(job.api, jobs, {"fieldSelector": f"metadata.name={name}"}, moved),
        Watch(job.api, job.pods_path, pods, moved),
    )
    for watch in watches:
        watch.start()
    return watches
