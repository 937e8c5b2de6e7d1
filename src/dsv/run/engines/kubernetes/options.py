"""The options of a pool on Kubernetes: the table [pools.NAME.kubernetes] of the configuration."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any, Final, Self, TypeAlias

from dsv.errors import UsageError
from dsv.values.json import Json

NAME: Final = "kubernetes"
_WORD: Final = re.compile(r"[^\s\0]+")
_KINDS: Final = {"claim": {"claim"}, "nfs": {"nfs", "path"}, "host": {"host"}}
"""The kinds of volumes, each with its keys."""


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
    """Whether images may run as root."""
    autoscaling: bool = False
    """Whether nodes are created on demand."""
    overlay: Mapping[str, Json] = field(default_factory=dict)
    """Merged into the Job."""

    @classmethod
    def read(cls, options: Mapping[str, Json], where: str = NAME) -> Self:
        """Raise `UsageError` for an unknown key or a value of the wrong type."""
        found: dict[str, Any] = {}
        for key, value in options.items():
            if key not in _READ:
                raise UsageError(
                    f"{where}.{key} means nothing to the kubernetes engine",
                    subject=key,
                    hint=f"dsv config --unset {where}.{key}",
                )
            kind, example, read = _READ[key]
            try:
                found[key] = read(value)
            except ValueError as error:
                raise UsageError(
                    f"{where}.{key} has to be {kind}" + (f": {error}" if str(error) else ""),
                    subject=key,
                    hint=f"dsv config {where}.{key} '{example}'",
                ) from error
        return cls(**found)

    def volume_of(self, path: PurePosixPath) -> Volume | None:
        """Return the volume with the longest prefix: a folder in a volume may be a volume of its own."""
        fitting = [each for each in self.volumes if each.holds(path)]
        return max(fitting, key=lambda each: len(each.prefix.parts), default=None)


def _word(value: Json) -> str:
    if not isinstance(value, str) or _WORD.fullmatch(value) is None:
        raise ValueError
    return value


def _truth(value: Json) -> bool:
    if value not in (True, False, "true", "false"):
        raise ValueError
    return value in (True, "true")


def _words(value: Json) -> tuple[str, ...]:
    if not isinstance(value, list):
        raise ValueError
    return tuple(_word(each) for each in value)


def _labels(value: Json) -> dict[str, str]:
    if not isinstance(value, dict) or not all(isinstance(each, str) for each in value.values()):
        raise ValueError
    return {_word(name): str(each) for name, each in value.items()}


def _tables(value: Json) -> tuple[Mapping[str, Json], ...]:
    if not isinstance(value, list) or not all(isinstance(each, dict) for each in value):
        raise ValueError
    return tuple(each for each in value if isinstance(each, dict))


def _table(value: Json) -> Mapping[str, Json]:
    if not isinstance(value, dict):
        raise ValueError
    return value


def _volumes(value: Json) -> tuple[Volume, ...]:
    return tuple(_volume(prefix, _table(each)) for prefix, each in _table(value).items())


def _volume(prefix: str, said: Mapping[str, Json]) -> Volume:
    folder = PurePosixPath(prefix)
    if not folder.is_absolute() or ".." in folder.parts or folder == PurePosixPath("/"):
        raise ValueError(f"{prefix} is no folder below /")
    kind = next((each for each in _KINDS if each in said), None)
    if kind is None or set(said) != _KINDS[kind] or not all(isinstance(each, str) for each in said.values()):
        raise ValueError(f"{prefix} is a claim, or an nfs server and a path, or a folder of the host")
    if kind == "claim":
        return Volume(folder, {"persistentVolumeClaim": {"claimName": said["claim"]}})
    if kind == "nfs":
        return Volume(folder, {"nfs": {"server": said["nfs"], "path": said["path"]}})
    return Volume(folder, {"hostPath": {"path": said["host"], "type": "Directory"}})


_A_WORD: Final = ("a word", "NAME", _word)
_READ: Final[dict[str, tuple[str, str, Callable[[Json], Any]]]] = {
    **dict.fromkeys(
        ("context", "kubeconfig", "namespace", "image", "dsv", "queue", "gpu", "priority_class"), _A_WORD
    ),
    **dict.fromkeys(("service_account", "secret"), _A_WORD),
    "node_selector": ("a table of labels", '{"pool": "a100"}', _labels),
    "tolerations": ("a list of tables", '[{"key": "nvidia.com/gpu", "operator": "Exists"}]', _tables),
    "image_pull_secrets": ("a list of names", '["registry"]', _words),
    "volumes": ("a table of folders", '{"/nfs": {"claim": "datasets"}}', _volumes),
    "root": ("true or false", "true", _truth),
    "autoscaling": ("true or false", "true", _truth),
    "overlay": ("a table", '{"spec": {"ttlSecondsAfterFinished": 3600}}', _table),
}
"""For each key: a description of its value, an example, and the function that reads it."""


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
"""How much longer than `--time` the cluster lets a pod live, as it also fetches the data."""
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
