"""The options of a pool on Kubernetes, and requests to the API of its cluster, as JSON.

lightkube finds the cluster and the user, and makes the TLS connection. It is an extra of the package, so it is imported
only here.
"""

from __future__ import annotations

import json
import re
from collections.abc import Generator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path, PurePosixPath
from time import sleep
from typing import TYPE_CHECKING, Annotated, Any, Final, Self, TypeAlias

import msgspec

from dsv.errors import Conflict, Denied, DsvError, LaunchError, NotFound, Unreachable, Unsupported, UsageError
from dsv.values.json import Json

if TYPE_CHECKING:
    from httpx2 import Client, Response
    from lightkube.config.kubeconfig import SingleConfig


NAME: Final = "kubernetes"


@dataclass(frozen=True, slots=True)
class Volume:
    """A volume of the cluster. Paths below prefix are in it; source is as in the manifest of a pod."""

    prefix: PurePosixPath
    source: Mapping[str, Json] = field(hash=False)

    @classmethod
    def of(cls, prefix: str, said: Mapping[str, str]) -> Self:
        """Raises `ValueError`."""
        folder = PurePosixPath(prefix)
        if not folder.is_absolute() or ".." in folder.parts or folder == PurePosixPath("/"):
            raise ValueError(f"{prefix} is no folder below /")
        match said:
            case {"claim": str(claim), **rest} if not rest:
                return cls(folder, {"persistentVolumeClaim": {"claimName": claim}})
            case {"nfs": str(server), "path": str(path), **rest} if not rest:
                return cls(folder, {"nfs": {"server": server, "path": path}})
            case {"host": str(path), **rest} if not rest:
                return cls(folder, {"hostPath": {"path": path, "type": "Directory"}})
        raise ValueError(f"{prefix} is a claim, or an nfs server and a path, or a folder of the host")


_Word: TypeAlias = Annotated[str, msgspec.Meta(pattern=r"\A[^\s\0]+\Z")]


class KubernetesOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    context: _Word | None = None
    """Of the kubeconfig; None for the current one."""
    kubeconfig: _Word | None = None
    """The path; None for the file that kubectl uses."""
    namespace: _Word | None = None
    """None for that of the context."""
    image: _Word | None = None
    """The image of dsv, for the containers that fetch and hold the data."""
    dsv: _Word = "dsv"
    """The program in that image."""
    queue: _Word | None = None
    """Of Kueue."""
    gpu: _Word = "nvidia.com/gpu"
    """The name of the resource for GPUs."""
    node_selector: dict[_Word, str] = {}
    tolerations: tuple[dict[str, Any], ...] = ()
    priority_class: _Word | None = None
    service_account: _Word | None = None
    secret: _Word | None = None
    """The name of a Secret with credentials for the store."""
    image_pull_secrets: tuple[_Word, ...] = ()
    volumes: dict[str, dict[str, str]] = {}
    root: bool = False
    """Let images run as root."""
    autoscaling: bool = False
    """Nodes are created on demand."""
    overlay: dict[str, Any] = {}
    """Merged into the Job."""

    def __post_init__(self) -> None:
        """Raises `ValueError` for an invalid volume."""
        try:
            self.volume_of(PurePosixPath("/"))
        except ValueError as error:
            raise ValueError(f"volumes: {error}") from error

    def volume_of(self, path: PurePosixPath) -> Volume | None:
        """Return the volume with the longest prefix: a folder in a volume may be a volume of its own."""
        volumes = [Volume.of(*each) for each in self.volumes.items()]
        fitting = [each for each in volumes if each.prefix in (path, *path.parents)]
        return max(fitting, key=lambda each: len(each.prefix.parts), default=None)


DECODER: Final = msgspec.json.Decoder(KubernetesOptions, strict=False)
EXTRA: Final = "dsv-data[kubernetes]"
SECONDS: Final = 15.0
PROBE_SECONDS: Final = 5.0
OLDEST: Final = (1, 29)
"""The first release with sidecar containers: init containers with `restartPolicy: Always`."""
IDLE_SECONDS: Final = 60.0
"""Seconds of silence after which a connection may be to a machine that is gone."""
_TRANSIENT: Final = re.compile(
    r"status unknown for quota|Operation cannot be fulfilled|failed calling webhook|timed? ?out|deadline exceeded"
    r"|etcdserver|try again",
    re.IGNORECASE,
)
"""Refusals that may pass in a moment, such as while a new quota is being counted."""
_TRIES, _BETWEEN = 10, 1.0
"""The number of attempts after such a refusal, and the seconds between them."""
_ERRORS: Final[dict[int | None, tuple[type[DsvError], str | None]]] = {
    401: (Denied, "log in to the cluster again; kubectl auth whoami"),
    403: (Denied, "kubectl auth can-i --list"),
    404: (NotFound, "kubectl get namespaces; dsv config pools.NAME.kubernetes.namespace NAMESPACE"),
    409: (Conflict, None),
}
"""The error of a command and its hint, by the status of the refusal."""
_EXEC_FORMATS: Final = "client.authentication.k8s.io/"


def is_installed() -> bool:
    return all(find_spec(each) is not None for each in ("lightkube", "httpx2", "yaml"))


class Refusal(DsvError):
    """The cluster refused a request, or did not answer. The message is the cluster's."""

    def __init__(self, message: str, status: int | None = None) -> None:
        super().__init__(message, subject=NAME)
        self.status = status
        """The status of HTTP; None without an answer."""
        self.is_away = status is None or status >= 500 or status == 429
        """The cluster did not answer, or answered that it can't at the moment."""
        self.is_denied = status in (401, 403)

    def as_error(self, what: str | None = None, subject: str = NAME) -> DsvError:
        """Return the error of a command. what: the first half of its sentence; None for a question."""
        is_away = self.is_away or (what is None and not self.is_denied)
        said = what or f"Kubernetes {'does not answer' if is_away else 'refuses'}"
        kind, hint = _ERRORS.get(self.status, (LaunchError, "dsv run --dry-run prints the manifest"))
        if is_away:
            kind, hint = Unreachable, "kubectl cluster-info"
        elif self.status == 404 and "namespaces" not in self.message:
            hint = None  # it is something else that is not there
        return kind(f"{said}: {self.message}", subject=subject, hint=hint)


class KubernetesApi:
    """One cluster and one namespace, connected at the first request. Several threads may use it. All requests
    raise `Refusal`; `UsageError` if no cluster is configured; `Unsupported` if the library is missing."""

    def __init__(self, environ: Mapping[str, str], options: KubernetesOptions) -> None:
        """environ: the caller's, for KUBECONFIG and HOME."""
        self._environ = environ
        self._options = options
        self._client: Client | None = None
        self._namespace: str | None = options.namespace

    @property
    def namespace(self) -> str:
        self.connect()
        assert self._namespace is not None  # connect sets it
        return self._namespace

    def connect(self) -> Client:
        """Return the client, without any request to the cluster."""
        if self._client is not None:
            return self._client
        if not is_installed():
            install = f"pip install '{EXTRA}'"
            raise Unsupported(f"the kubernetes engine needs a library: {install}", subject=NAME, hint=install)
        import yaml
        from lightkube.config import client_adapter
        from lightkube.core.exceptions import ConfigError

        wrong = (ConfigError, yaml.YAMLError, OSError, ValueError, KeyError, TypeError, AttributeError)
        try:
            config = self._config()
            client = client_adapter.Client(config, client_adapter.ConnectionParams(timeout=_timeout(SECONDS)))
        except wrong as error:
            said = " ".join(str(error).split())
            raise UsageError(
                f"the configuration of kubectl can't be used: {said}",
                subject=str(self._options.context or NAME),
                hint="kubectl config get-contexts; dsv config pools.NAME.kubernetes.context CONTEXT",
            ) from error
        if self._namespace is None:
            self._namespace = config.namespace
        self._client = client
        return client

    def _reconnect(self) -> None:
        """Read the configuration again: the user may have logged in again while a job runs."""
        before, self._client = self._client, None
        try:
            self.connect()
        except DsvError:
            self._client = before

    def _config(self) -> SingleConfig:
        from lightkube.config.kubeconfig import KubeConfig
        from lightkube.core.exceptions import ConfigError

        path = self._options.kubeconfig or self._config_path()
        if path is None:
            found = KubeConfig.from_service_account().get()
        else:
            found = KubeConfig.from_file(path).get(self._options.context)
        if found is None:
            raise ConfigError("it names no context")
        plugin = None if found.user is None else found.user.exec
        if plugin is not None and plugin.apiVersion == f"{_EXEC_FORMATS}v1":
            plugin.apiVersion = f"{_EXEC_FORMATS}v1beta1"  # same content, and all that lightkube reads
        return found

    def _config_path(self) -> str | None:
        """Return the first existing file of KUBECONFIG, or the one in the home; None inside a cluster."""
        named = [each for each in self._environ.get("KUBECONFIG", "").split(":") if each]
        if named:
            return next((each for each in named if Path(each).is_file()), named[0])
        usual = f"{self._environ.get('HOME', '')}/.kube/config"
        return usual if Path(usual).is_file() or "KUBERNETES_SERVICE_HOST" not in self._environ else None

    def path(self, kind: str, name: str | None = None) -> str:
        """Return the path of objects of the namespace. kind: such as `pods` or `batch/v1/jobs`."""
        group, _, plural = kind.rpartition("/")
        base = f"/apis/{group}" if group else "/api/v1"
        return f"{base}/namespaces/{self.namespace}/{plural}" + ("" if name is None else f"/{name}")

    def get(self, path: str, seconds: float = SECONDS, **query: str) -> Any:
        return _decoded(self._send("GET", path, query=query, seconds=seconds))

    def create(self, path: str, body: Any) -> Any:
        """Create an object. Try again for a while if the refusal may pass."""
        for _ in range(_TRIES):
            try:
                return _decoded(self._send("POST", path, body))
            except Refusal as refusal:
                if refusal.is_away or not is_transient(refusal.message):
                    raise
            sleep(_BETWEEN)
        return _decoded(self._send("POST", path, body))

    def patch(self, path: str, body: Any) -> Any:
        return _decoded(self._send("PATCH", path, body, content_type="application/merge-patch+json"))

    def delete(self, path: str, grace: float | None = None) -> None:
        """Delete an object and all that it owns, if it exists."""
        body = {"kind": "DeleteOptions", "apiVersion": "v1", "propagationPolicy": "Background"}
        try:
            self._send("DELETE", path, body if grace is None else {**body, "gracePeriodSeconds": int(grace)})
        except Refusal as refusal:
            if refusal.status != 404:
                raise

    def items(self, path: str, seconds: float = SECONDS, **query: str) -> list[Any]:
        """Return all pages of a list."""
        found: list[Any] = []
        more = {"limit": "500"}
        while True:
            answer = self.get(path, seconds, **query, **more)
            found += answer.get("items") or []
            token = (answer.get("metadata") or {}).get("continue")
            if not token:
                return found
            more = {"limit": "500", "continue": token}

    @contextmanager
    def stream(
        self, path: str, seconds: float = IDLE_SECONDS, **query: str
    ) -> Generator[Response, None, None]:
        """Yield a response to read piece by piece. seconds: of silence after which the connection is lost"""
        response = self._send("GET", path, query=query, seconds=seconds, stream=True)
        import httpx2

        try:
            yield response
        except httpx2.HTTPError as error:
            raise Refusal(str(error) or type(error).__name__) from error
        finally:
            response.close()

    def _send(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        query: Mapping[str, str] | None = None,
        seconds: float = SECONDS,
        content_type: str = "application/json",
        stream: bool = False,
    ) -> Response:
        client = self.connect()  # says what has to be installed, if the next modules are missing
        import httpx2
        from lightkube.core.exceptions import ConfigError

        request = client.build_request(
            method, path, params=query, timeout=_timeout(seconds),
            content=None if body is None else json.dumps(body).encode(),
            headers=None if body is None else {"Content-Type": content_type},
        )  # fmt: skip
        try:
            response = client.send(request, stream=stream)
            if not response.is_success:
                response.read()
        except ConfigError as error:  # a credential plugin has failed
            raise Refusal(str(error), 401) from error
        except (httpx2.HTTPError, OSError) as error:
            raise Refusal(str(error) or type(error).__name__) from error
        if response.is_success:
            return response
        response.close()
        if response.status_code == 401:
            self._reconnect()
        raise Refusal(_message(response), response.status_code)


def is_transient(message: str) -> bool:
    """Return whether a request that was refused in these words may succeed a moment later."""
    return _TRANSIENT.search(message) is not None


def too_old(version: Mapping[str, Any]) -> str | None:
    """Return why runs can't use a cluster of this version, if they can't."""
    numbers = [re.match(r"\d+", str(version.get(each, ""))) for each in ("major", "minor")]
    major, minor = (0 if each is None else int(each[0]) for each in numbers)
    if (major, minor) >= OLDEST or None in numbers:
        return None
    return f"it is Kubernetes {major}.{minor}, and runs need {OLDEST[0]}.{OLDEST[1]} or later"


def _timeout(seconds: float) -> Any:
    import httpx2

    return httpx2.Timeout(seconds, connect=min(seconds, SECONDS))


def _decoded(response: Response) -> Any:
    try:
        return response.json()
    except ValueError as error:
        raise Refusal(f"no answer of Kubernetes: {response.text[:200]}", 502) from error


def _message(response: Response) -> str:
    with suppress(ValueError, KeyError, TypeError):
        return str(response.json()["message"])
    return f"HTTP {response.status_code} {' '.join(response.text.split())[:200]}".strip()
