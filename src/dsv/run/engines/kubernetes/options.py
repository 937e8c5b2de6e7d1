"""The options of a pool on Kubernetes: the table [pools.NAME.kubernetes] of the configuration."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Annotated, Any, Final, Literal, Self, TypeAlias

import msgspec

from dsv.run.engines.base import OptionKind, of_type, read_options
from dsv.values.json import Json

NAME: Final = "kubernetes"


@dataclass(frozen=True, slots=True)
class Volume:
    """A volume of the cluster. Paths below prefix are in it; source is as in the manifest of a pod."""

    prefix: PurePosixPath
    source: Mapping[str, Json] = field(hash=False)

    def holds(self, path: PurePosixPath) -> bool:
        return path == self.prefix or self.prefix in path.parents


@dataclass(frozen=True, slots=True, kw_only=True)
class KubernetesOptions:
    context: str | None = None
    """Of the kubeconfig; None for the current one."""
    kubeconfig: str | None = None
    """The path; None for the file that kubectl uses."""
    namespace: str | None = None
    """None for that of the context."""
    image: str | None = None
    """The image of dsv, for the containers that fetch and hold the data."""
    dsv: str = "dsv"
    """The program in that image."""
    queue: str | None = None
    """Of Kueue."""
    gpu: str = "nvidia.com/gpu"
    """The name of the resource for GPUs."""
    node_selector: Mapping[str, str] = field(default_factory=dict)
    tolerations: tuple[Mapping[str, Json], ...] = ()
    priority_class: str | None = None
    service_account: str | None = None
    secret: str | None = None
    """The name of a Secret with credentials for the store."""
    image_pull_secrets: tuple[str, ...] = ()
    volumes: tuple[Volume, ...] = ()
    root: bool = False
    """Let images run as root."""
    autoscaling: bool = False
    """Nodes are created on demand."""
    overlay: Mapping[str, Json] = field(default_factory=dict)
    """Merged into the Job."""

    @classmethod
    def read(cls, options: Mapping[str, Json], where: str = NAME) -> Self:
        """Raise `UsageError` for an unknown key or a value of the wrong type."""
        return cls(**read_options(options, where, NAME, _KINDS))

    def volume_of(self, path: PurePosixPath) -> Volume | None:
        """Return the volume with the longest prefix: a folder in a volume may be a volume of its own."""
        fitting = [each for each in self.volumes if each.holds(path)]
        return max(fitting, key=lambda each: len(each.prefix.parts), default=None)


def _volumes(value: Json) -> tuple[Volume, ...]:
    """Raise `ValueError`."""
    return tuple(_volume(*each) for each in msgspec.convert(value, dict[str, dict[str, Any]]).items())


def _volume(prefix: str, said: Mapping[str, Any]) -> Volume:
    folder = PurePosixPath(prefix)
    if not folder.is_absolute() or ".." in folder.parts or folder == PurePosixPath("/"):
        raise ValueError(f"{prefix} is no folder below /")
    match said:
        case {"claim": str(claim), **rest} if not rest:
            return Volume(folder, {"persistentVolumeClaim": {"claimName": claim}})
        case {"nfs": str(server), "path": str(path), **rest} if not rest:
            return Volume(folder, {"nfs": {"server": server, "path": path}})
        case {"host": str(path), **rest} if not rest:
            return Volume(folder, {"hostPath": {"path": path, "type": "Directory"}})
    raise ValueError(f"{prefix} is a claim, or an nfs server and a path, or a folder of the host")


def _flag(value: Json) -> bool:
    return msgspec.convert(value, bool | Literal["true", "false"]) in (True, "true")


_Word: TypeAlias = Annotated[str, msgspec.Meta(pattern=r"\A[^\s\0]+\Z")]
_WORDS: Final = (
    "context", "kubeconfig", "namespace", "image", "dsv", "queue", "gpu", "priority_class", "service_account", "secret"
)  # fmt: skip
_KINDS: Final[dict[str, OptionKind]] = {
    **dict.fromkeys(_WORDS, ("a word", "NAME", of_type(_Word))),
    "node_selector": ("a table of labels", '{"pool": "a100"}', of_type(dict[_Word, str])),
    "tolerations": (
        "a list of tables",
        '[{"key": "nvidia.com/gpu", "operator": "Exists"}]',
        of_type(tuple[dict[str, Any], ...]),
    ),
    "image_pull_secrets": ("a list of names", '["registry"]', of_type(tuple[_Word, ...])),
    "volumes": ("a table of folders", '{"/nfs": {"claim": "datasets"}}', _volumes),
    "root": ("true or false", "true", _flag),
    "autoscaling": ("true or false", "true", _flag),
    "overlay": ("a table", '{"spec": {"ttlSecondsAfterFinished": 3600}}', of_type(dict[str, Any])),
}


Manifest: TypeAlias = dict[str, Any]

RUN_KEY: Final = "dsv.run/run"
COMMIT_KEY: Final = "dsv.run/commit"
SIGNAL_KEY: Final = "dsv.run/signal"
STOPPED_KEY: Final = "dsv.run/stopped"
"""Annotations: the id of the run, its commit, the signals sent to the pod, and who asked dsv to end the job."""
LABEL: Final = "dsv.run/run"
MANAGED: Final = ("app.kubernetes.io/managed-by", "dsv")
QUEUE_LABEL: Final = "kueue.x-k8s.io/queue-name"
INDEX_KEY: Final = "batch.kubernetes.io/job-completion-index"
JOB_UID_LABEL: Final = "batch.kubernetes.io/controller-uid"
FAILED_KEY: Final = "batch.kubernetes.io/job-index-failure-count"
IGNORED_KEY: Final = "batch.kubernetes.io/job-index-ignored-failure-count"
MAIN, STAGING, HOLDING = "main", "stage", "hold"
GANG_PORT: Final = "DSV_GANG_PORT"
"""The variable with the port at which the nodes of a job agree to start and end together."""
GRACE_SECONDS: Final = 30
OWN: Final = "/dsv/own"
"""The empty folder that the containers of a pod share."""
KEPT_SECONDS: Final = 7 * 86_400
LATE_SECONDS: Final = 300
"""Seconds that a pod may live longer than `--time`, as it also fetches the data."""
_LONGEST_NAME: Final = 52  # the names of pods add the number of the node and five letters
NOT_AGAIN: Final = [124, 125, 126, 127]


def object_name(run: str) -> str:
    """Return the name of all objects of a run: always the same, so that they are created once."""
    text = re.sub(r"[^a-z0-9]+", "-", run.lower()).strip("-")
    name = f"dsv-{text}"
    if f"dsv-{run}" == name and len(name) <= _LONGEST_NAME:
        return name
    digest = hashlib.sha256(run.encode()).hexdigest()[:10]
    return f"{name[: _LONGEST_NAME - 11].rstrip('-')}-{digest}"


def credentials_name(name: str) -> str:
    return f"{name}-store"
