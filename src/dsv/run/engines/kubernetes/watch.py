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
_QUERY: Final = {"watch": "true", "timeoutSeconds": str(_SECONDS), "resourceVersion": "0"}
"""Version 0 is what the API server has at hand. The first changes are then the objects as they are."""
_ERROR: Final = '{"type":"ERROR"'
_PAUSES: Final = (0.5, 60.0)
"""Seconds before a watch that was refused is asked for again, at first and at most."""


class Watch(Thread):
    """Calls `moved` for each change of the objects at a path, until `over` is set."""

    def __init__(
        self, api: KubernetesApi, path: str, moved: Callable[[], None], over: Event, **selector: str
    ) -> None:
        super().__init__(name="dsv-kubernetes-watch", daemon=True)
        self._api, self._path, self._moved, self._over = api, path, moved, over
        self._query = {**selector, **_QUERY}
        self.connected = False
        """The cluster tells of changes now."""

    def run(self) -> None:
        pause, longest = _PAUSES
        while not self._over.is_set():
            with suppress(Refusal), self._api.stream(self._path, _SECONDS + 30.0, **self._query) as answer:
                for line in answer.iter_lines():
                    if line.startswith(_ERROR):
                        break
                    self.connected, pause = True, _PAUSES[0]
                    self._moved()
            self.connected = False
            self._over.wait(pause)
            pause = min(2 * pause, longest)


def watches_of(job: KubernetesJob, moved: Callable[[], None], over: Event) -> tuple[Watch, ...]:
    """Return a watch of the Job and one of its pods."""
    jobs, _, name = job.path.rpartition("/")
    return (
        Watch(job.api, jobs, moved, over, fieldSelector=f"metadata.name={name}"),
        Watch(job.api, job.pods_path, moved, over, labelSelector=f"{JOB_UID_LABEL}={job.uid}"),
    )
