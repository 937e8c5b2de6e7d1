"""What a pool says of its cluster: the table [pools.NAME.kubernetes] of the configuration."""

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
"""The keys that say what a volume is, by the one that tells them apart."""


@dataclass(frozen=True, slots=True)
class Volume:
    """Something that the cluster can mount. prefix: the folder below which paths are in it; source: as in a pod."""

    prefix: PurePosixPath
    source: Mapping[str, Json]

    def holds(self, path: PurePosixPath) -> bool:
        return path == self.prefix or self.prefix in path.parents


@dataclass(frozen=True, slots=True, kw_only=True)
class KubernetesOptions:
    """context, kubeconfig: how the cluster is reached, None for the caller's own; namespace: None for the context's.
    image: of dsv, for the containers that fetch and hold the data; dsv: the program in it. gpu: the resource that a
    GPU is. secret: the name of a Secret with credentials for the store. root: whether images may run as root.
    autoscaling: whether nodes come on demand. overlay: merged into the Job.
    """

    context: str | None = None
    kubeconfig: str | None = None
    namespace: str | None = None
    image: str | None = None
    dsv: str = "dsv"
    queue: str | None = None
    gpu: str = "nvidia.com/gpu"
    node_selector: Mapping[str, str] = field(default_factory=dict)
    tolerations: tuple[Mapping[str, Json], ...] = ()
    priority_class: str | None = None
    service_account: str | None = None
    secret: str | None = None
    image_pull_secrets: tuple[str, ...] = ()
    volumes: tuple[Volume, ...] = ()
    root: bool = False
    autoscaling: bool = False
    overlay: Mapping[str, Json] = field(default_factory=dict)

    @classmethod
    def read(cls, options: Mapping[str, Json], where: str = NAME) -> Self:
        """Raises `UsageError` for what means nothing."""
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
        """The one with the longest prefix counts, so that a folder in a volume may be a volume of its own."""
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
"""For each key: what it has to be, an example, and what reads it."""


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
OWN: Final = "/dsv/own"
"""The empty folder that the containers of a pod share."""
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
