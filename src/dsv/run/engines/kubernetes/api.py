"""The API of Kubernetes, as JSON: a manifest is submitted exactly as `--dry-run` prints it.

lightkube finds the cluster and the user, and makes the TLS connection. It is an extra of the package, so it is imported
only here.
"""

from __future__ import annotations

import json
import re
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from dsv.errors import Conflict, Denied, DsvError, LaunchError, NotFound, Unreachable, Unsupported, UsageError
from dsv.run.engines.kubernetes.options import NAME, KubernetesOptions

if TYPE_CHECKING:
    from httpx2 import Client, Response
    from lightkube.config.kubeconfig import SingleConfig


EXTRA: Final = "dsv[kubernetes]"
SECONDS: Final = 15.0
PROBE_SECONDS: Final = 5.0
OLDEST: Final = (1, 29)
"""The first release with sidecar containers: init containers with `restartPolicy: Always`."""
QUIET_SECONDS: Final = 60.0
"""A connection that is silent for so long may be to a machine that is gone."""
_PASSES: Final = re.compile(
    r"status unknown for quota|Operation cannot be fulfilled|failed calling webhook|timed? ?out|deadline exceeded"
    r"|etcdserver|try again",
    re.IGNORECASE,
)
"""Refusals that another attempt a moment later may not meet, such as while a new quota is being counted."""
_OTHER_NAMESPACE: Final = "kubectl get namespaces; dsv config pools.NAME.kubernetes.namespace NAMESPACE"
_MERGE: Final = "application/merge-patch+json"
_EXEC_FORMATS: Final = "client.authentication.k8s.io/"


def is_installed() -> bool:
    return all(find_spec(each) is not None for each in ("lightkube", "httpx2", "yaml"))


def not_installed() -> DsvError:
    return Unsupported(
        f"the kubernetes engine needs a library: pip install '{EXTRA}'",
        subject=NAME,
        hint=f"pip install '{EXTRA}'",
    )


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why the cluster did not do what it was asked to.

    status is that of HTTP, or None without an answer; reason is a word such as NotFound.
    """

    message: str
    status: int | None = None
    reason: str = ""

    @property
    def is_away(self) -> bool:
        """Return whether the cluster did not answer, or answered that it can't at the moment."""
        return self.status is None or self.status >= 500 or self.status == 429

    @property
    def passes(self) -> bool:
        """Return whether the same request may succeed a moment later."""
        return not self.is_away and passes(self.message)

    @property
    def is_denied(self) -> bool:
        return self.status in (401, 403)

    @property
    def no_answer(self) -> DsvError:
        """Return the error for a question that was refused."""
        if self.is_denied:
            return self.error("Kubernetes refuses", NAME)
        return Unreachable(
            f"Kubernetes does not answer: {self.message}", subject=NAME, hint="kubectl cluster-info"
        )

    def error(self, what: str, subject: str) -> DsvError:
        """Return the error of a command. what: the first half of its sentence."""
        text = f"{what}: {self.message}"
        if self.is_away:
            return Unreachable(text, subject=subject, hint="kubectl cluster-info")
        if self.status == 401:
            return Denied(text, subject=subject, hint="log in to the cluster again; kubectl auth whoami")
        if self.status == 403:
            return Denied(text, subject=subject, hint="kubectl auth can-i --list")
        if self.status == 404:
            hint = None if "namespaces" not in self.message else _OTHER_NAMESPACE
            return NotFound(text, subject=subject, hint=hint)
        if self.status == 409:
            return Conflict(text, subject=subject)
        return LaunchError(text, subject=subject, hint="dsv run --dry-run prints the manifest")


class KubernetesApi:
    """One cluster and one namespace. Connects at the first request. Several threads may use it.

    environ is the caller's, for KUBECONFIG and HOME.
    """

    def __init__(self, environ: Mapping[str, str], options: KubernetesOptions) -> None:
        self._environ = environ
        self._options = options
        self._client: Client | None = None
        self._namespace: str | None = options.namespace

    @property
    def namespace(self) -> str:
        """Return the namespace. Raises `UsageError` and `Unsupported` as `connect` does."""
        self.connect()
        assert self._namespace is not None  # connect sets it
        return self._namespace

    def connect(self) -> Client:
        """Return the client, without any request to the cluster. Raises `Unsupported` if the library is missing,
        `UsageError` if no cluster is configured."""
        if self._client is not None:
            return self._client
        if not is_installed():
            raise not_installed()
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

    def _look_for_another_identity(self) -> None:
        """Read the configuration again, as the user may have logged in again while a job runs."""
        before, self._client = self._client, None
        try:
            self.connect()
        except DsvError:
            self._client = before

    def _config(self) -> SingleConfig:
        from lightkube.config.kubeconfig import KubeConfig
        from lightkube.core.exceptions import ConfigError

        path = self._options.kubeconfig or self._named()
        if path is None:
            found = KubeConfig.from_service_account().get()
        else:
            found = KubeConfig.from_file(path).get(self._options.context)
        if found is None:
            raise ConfigError("it names no context")
        user = found.user
        if user is not None and user.exec is not None and user.exec.apiVersion == f"{_EXEC_FORMATS}v1":
            user.exec.apiVersion = (
                f"{_EXEC_FORMATS}v1beta1"  # same content, and the only version that lightkube reads
            )
        return found

    def _named(self) -> str | None:
        """Return the first existing file of KUBECONFIG, or the one in the home; None inside a cluster."""
        named = [each for each in self._environ.get("KUBECONFIG", "").split(":") if each]
        there = [each for each in named if Path(each).is_file()]
        if named:
            return there[0] if there else named[0]
        home = self._environ.get("HOME")
        if home is not None and (Path(home) / ".kube" / "config").is_file():
            return str(Path(home) / ".kube" / "config")
        return None if "KUBERNETES_SERVICE_HOST" in self._environ else f"{home or ''}/.kube/config"

    def path(self, kind: str, name: str | None = None) -> str:
        """Return the path of objects of the namespace. kind: such as `pods` or `batch/v1/jobs`."""
        group, _, plural = kind.rpartition("/")
        base = f"/apis/{group}" if group else "/api/v1"
        return f"{base}/namespaces/{self.namespace}/{plural}" + ("" if name is None else f"/{name}")

    def get(self, path: str, seconds: float = SECONDS, **query: str) -> Any | Refusal:
        return self._call("GET", path, query=query, seconds=seconds)

    def create(self, path: str, body: Any) -> Any | Refusal:
        return self._call("POST", path, body)

    def patch(self, path: str, body: Any) -> Any | Refusal:
        return self._call("PATCH", path, body, content_type=_MERGE)

    def delete(self, path: str, grace: float | None = None) -> Any | Refusal:
        """Delete an object and all that it owns."""
        body: dict[str, Any] = {
            "kind": "DeleteOptions",
            "apiVersion": "v1",
            "propagationPolicy": "Background",
        }
        if grace is not None:
            body["gracePeriodSeconds"] = int(grace)
        return self._call("DELETE", path, body)

    def items(self, path: str, seconds: float = SECONDS, **query: str) -> list[Any] | Refusal:
        """Return all pages of a list."""
        found: list[Any] = []
        more = {"limit": "500"}
        while True:
            answer = self.get(path, seconds, **query, **more)
            if isinstance(answer, Refusal):
                return answer
            found += answer.get("items") or []
            token = (answer.get("metadata") or {}).get("continue")
            if not token:
                return found
            more = {"limit": "500", "continue": token}

    @contextmanager
    def stream(self, path: str, **query: str) -> Generator[Response | Refusal, None, None]:
        """Yield a response to read piece by piece. Reading it may raise `httpx2.HTTPError`."""
        import httpx2
        from lightkube.core.exceptions import ConfigError

        client = self.connect()
        request = client.build_request("GET", path, params=query, timeout=_timeout(QUIET_SECONDS))
        try:
            response = client.send(request, stream=True)
        except ConfigError as error:
            yield _no_identity(error)
            return
        except (httpx2.HTTPError, OSError) as error:
            yield Refusal(_said(error))
            return
        try:
            if response.is_success:
                yield response
            else:
                response.read()
                yield _refusal(response)
        finally:
            response.close()

    def _call(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        query: Mapping[str, str] | None = None,
        seconds: float = SECONDS,
        content_type: str = "application/json",
    ) -> Any | Refusal:
        import httpx2
        from lightkube.core.exceptions import ConfigError

        client = self.connect()
        content = None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": content_type} if content is not None else {}
        try:
            response = client.request(
                method, path, params=query, content=content, headers=headers, timeout=_timeout(seconds)
            )
        except ConfigError as error:
            return _no_identity(error)
        except (httpx2.HTTPError, OSError) as error:
            return Refusal(_said(error))
        if not response.is_success:
            if response.status_code == 401:
                self._look_for_another_identity()
            return _refusal(response)
        try:
            return response.json()
        except ValueError:
            return Refusal(f"no answer of Kubernetes: {response.text[:200]}", 502)


def _no_identity(error: Exception) -> Refusal:
    """Return the refusal for a credential plugin that failed."""
    return Refusal(str(error), 401, "Unauthorized")


def passes(message: str) -> bool:
    """Return whether the same request may succeed a moment later."""
    return _PASSES.search(message) is not None


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


def _refusal(response: Response) -> Refusal:
    try:
        status = response.json()
        return Refusal(str(status["message"]), response.status_code, str(status.get("reason", "")))
    except (ValueError, KeyError, TypeError, AttributeError):
        text = " ".join(response.text.split())[:200]
        return Refusal(f"HTTP {response.status_code} {text}".strip(), response.status_code)


def _said(error: Exception) -> str:
    return str(error) or type(error).__name__
