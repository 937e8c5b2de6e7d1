"""The steps of jobs on Kubernetes, with the time at which the cluster told of each: the same for any client."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from threading import Event, Thread
from time import time
from typing import Any

from tests.labs.kubernetes import Kubernetes
from tests.labs.machine import environment

STEPS = (
    "job made",
    "job begins",
    "pod made",
    "pod placed",
    "hold runs",
    "stage over",
    "command over",
    "hold over",
    "pod over",
    "job complete",
)
_CONTAINERS = (
    ("initContainerStatuses", "hold", "running", "hold runs"),
    ("initContainerStatuses", "stage", "terminated", "stage over"),
    ("containerStatuses", "main", "terminated", "command over"),
    ("initContainerStatuses", "hold", "terminated", "hold over"),
)


class Watch:
    """What the cluster has said since it began to listen."""

    def __init__(self) -> None:
        self._said: list[tuple[float, Any]] = []
        self.hears = Event()

    def steps(self, prefix: str, since: float) -> dict[str, float]:
        """Seconds from then until each step of jobs that were made later, and whose names begin so, was told of."""
        found: dict[str, float] = {}
        first: dict[str, float] = {}
        for when, thing in list(self._said):
            name = thing["metadata"]["name"]
            if name.startswith(prefix) and first.setdefault(thing["metadata"]["uid"], when) >= since:
                for step in _steps_of(thing):
                    found.setdefault(step, when - since)
        return found

    def listen(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdout is not None
        decoder, text = json.JSONDecoder(), ""
        while data := os.read(process.stdout.fileno(), 1 << 16):
            self.hears.set()
            text += data.decode()
            while text := text.lstrip():
                try:
                    event, end = decoder.raw_decode(text)
                except ValueError:  # the rest is on its way
                    break
                self._said.append((time(), event["object"]))
                text = text[end:]


@contextmanager
def watching(cluster: Kubernetes, namespace: str) -> Iterator[Watch]:
    watch = Watch()
    argv = [
        str(cluster.programs / "kubectl"),
        "-n",
        namespace,
        "get",
        "--watch",
        "--output-watch-events",
        "-ojson",
    ]
    started = [
        subprocess.Popen([*argv, kind], env=environment(cluster.env), stdout=subprocess.PIPE)
        for kind in ("pods", "jobs")
    ]
    listeners = [Thread(target=watch.listen, args=(each,), daemon=True) for each in started]
    for listener in listeners:
        listener.start()
    try:
        yield watch
    finally:
        for each in started:
            each.terminate()
            each.wait()


def _steps_of(thing: Mapping[str, Any]) -> Iterator[str]:
    said = thing.get("status") or {}
    if thing["kind"] == "Job":
        yield "job made"
        if not thing["spec"].get("suspend"):
            yield "job begins"
        if any(each["type"] == "Complete" for each in said.get("conditions") or ()):
            yield "job complete"
        return
    yield "pod made"
    if thing["spec"].get("nodeName"):
        yield "pod placed"
    for kind, name, state, step in _CONTAINERS:
        if any(each["name"] == name and state in each["state"] for each in said.get(kind) or ()):
            yield step
    if said.get("phase") in ("Succeeded", "Failed"):
        yield "pod over"
