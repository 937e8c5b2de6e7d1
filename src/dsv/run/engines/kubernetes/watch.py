"""Watching a job: the cluster tells of each change, so it is not asked again and again."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from threading import Event, Thread
from typing import Final

from dsv.run.engines.kubernetes.api import KubernetesApi, Refusal
from dsv.run.engines.kubernetes.job import KubernetesJob
from dsv.run.engines.kubernetes.manifest import JOB_UID_LABEL

_SECONDS: Final = 300
"""Seconds after which the cluster ends a watch, and is asked for another one."""
_SILENCE: Final = 90.0
"""Seconds without a word after which the connection is lost: a bookmark comes each minute."""
_QUERY: Final = {
    "watch": "true",
    "timeoutSeconds": str(_SECONDS),
    "allowWatchBookmarks": "true",
    "resourceVersion": "0",
}
"""Version 0 is what the API server has at hand. The first changes are then the objects as they are."""
_ERROR, _BOOKMARK = (f'{{"type":"{kind}"' for kind in ("ERROR", "BOOKMARK"))
_PAUSES: Final = (0.5, 60.0)
"""Seconds before a watch that was refused is asked for again, at first and at most."""


class Watch(Thread):
    """Calls `moved` for each change of the objects at a path, until a minute after `over` is set."""

    def __init__(
        self, api: KubernetesApi, path: str, query: dict[str, str], moved: Callable[[], None], over: Event
    ) -> None:
        super().__init__(name="dsv-kubernetes-watch", daemon=True)
        self._api, self._path, self._query, self._moved, self._over = api, path, query, moved, over
        self.connected = False
        """The cluster tells of changes now."""

    def run(self) -> None:
        pause, longest = _PAUSES
        while not self._over.is_set():
            with suppress(Refusal), self._api.stream(self._path, _SILENCE, **self._query, **_QUERY) as answer:
                self.connected = True
                self._moved()  # also if the last object was deleted before
                for line in answer.iter_lines():
                    if self._over.is_set() or line.startswith(_ERROR):
                        break
                    pause = _PAUSES[0]
                    if not line.startswith(_BOOKMARK):
                        self._moved()
            if self.connected:
                self.connected = False
                self._moved()  # if only the cluster was lost, the next look shows it
            self._over.wait(pause)
            pause = min(2 * pause, longest)


def start_watches(job: KubernetesJob, moved: Callable[[], None], over: Event) -> tuple[Watch, ...]:
    """Watch the Job and its pods."""
    jobs, _, name = job.path.rpartition("/")
    pods = {"labelSelector": f"{JOB_UID_LABEL}={job.uid}"}
    watches = (
        Watch(job.api, jobs, {"fieldSelector": f"metadata.name={name}"}, moved, over),
        Watch(job.api, job.pods_path, pods, moved, over),
    )
    for watch in watches:
        watch.start()
    return watches
