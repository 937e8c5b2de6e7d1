"""What the objects of a run are called in a cluster, and by which keys they are found there."""

from __future__ import annotations

import hashlib
import re
from typing import Any, Final, TypeAlias

Manifest: TypeAlias = dict[str, Any]

RUN_KEY: Final = "dsv.run/run"
COMMIT_KEY: Final = "dsv.run/commit"
SIGNAL_KEY: Final = "dsv.run/signal"
STOPPED_KEY: Final = "dsv.run/stopped"
"""Annotations: the id of the run; the commit that it sees; the last signal that was sent to the pod; who asked dsv to
end the job."""
LABEL: Final = "dsv.run/run"
MANAGED: Final = ("app.kubernetes.io/managed-by", "dsv")
QUEUE_LABEL: Final = "kueue.x-k8s.io/queue-name"
INDEX_KEY: Final = "batch.kubernetes.io/job-completion-index"
JOB_UID_LABEL: Final = "batch.kubernetes.io/controller-uid"
FAILED_KEY: Final = "batch.kubernetes.io/job-index-failure-count"
IGNORED_KEY: Final = "batch.kubernetes.io/job-index-ignored-failure-count"
MAIN, STAGING, HOLDING = "main", "stage", "hold"
GANG_PORT: Final = "DSV_GANG_PORT"
"""The variable that tells the nodes of a job where they agree to begin and end together."""
GRACE_SECONDS: Final = 30
OUT: Final = "/dsv/out"
"""The output folder of a run whose pool has none, in the pod."""
KEPT_SECONDS: Final = 7 * 86_400
LATE_SECONDS: Final = 300
"""How much longer than `--time` the cluster lets a pod live, with the time in which the data is fetched."""
_LONGEST_NAME: Final = 52  # the pods add the number of the node and five letters
NOT_AGAIN: Final = [124, 125, 126, 127]


def object_name(run: str) -> str:
    """The name that all objects of a run have: the same whoever makes them, so that it is made once."""
    text = re.sub(r"[^a-z0-9]+", "-", run.lower()).strip("-")
    name = f"dsv-{text}"
    if f"dsv-{run}" == name and len(name) <= _LONGEST_NAME:
        return name
    digest = hashlib.sha256(run.encode()).hexdigest()[:10]
    return f"{name[: _LONGEST_NAME - 11].rstrip('-')}-{digest}"


def credentials_name(name: str) -> str:
    return f"{name}-store"
