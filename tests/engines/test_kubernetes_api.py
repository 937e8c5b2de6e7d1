"""Connecting to a cluster: its configuration, its version, and its answers."""

from __future__ import annotations

import importlib.util
import sys
from contextlib import nullcontext
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest
from lightkube.core.exceptions import ConfigError

from dsv.errors import Unsupported, UsageError
from dsv.run.engines.kubernetes.api import KubernetesApi, KubernetesOptions, Refusal, too_old
from dsv.run.engines.kubernetes.capacity import ask_capacity
from dsv.run.resources import Capacity, Resources


@pytest.mark.parametrize(
    ("major", "minor", "refused"),
    [
        ("1", "26", True),
        ("1", "28+", True),
        ("1", "29", False),
        ("1", "35+", False),
        ("2", "0", False),
        ("", "", False),
    ],
)
def test_a_cluster_without_restartable_init_containers_is_refused(
    major: str, minor: str, refused: bool
) -> None:
    said = too_old({"major": major, "minor": minor})
    assert (said is not None) == refused
    assert said is None or said.startswith(
        f"it is Kubernetes {major}.{minor.rstrip('+')}, and runs need 1.29"
    )


def test_a_failing_credential_program_ends_no_thread(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whoever reads a log would wait for that thread for ever."""

    class Client:
        def build_request(self, *_: object, **__: object) -> None:
            return None

        def send(self, *_: object, **__: object) -> None:
            raise ConfigError("exec: the token has expired")

    monkeypatch.setattr(KubernetesApi, "connect", lambda _: Client())
    with (
        pytest.raises(Refusal, match="has expired") as refused,
        KubernetesApi({}, KubernetesOptions()).stream("/log"),
    ):
        pass
    assert refused.value.is_denied


@pytest.mark.parametrize(("status", "answers"), [(401, False), (403, True), (500, False)])
def test_a_cluster_that_does_not_know_the_caller_gives_no_answer(
    monkeypatch: pytest.MonkeyPatch, status: int, answers: bool
) -> None:
    """One that only forbids to see its nodes may well take a job."""
    options = KubernetesOptions(namespace="training")

    def refuse(*_: object, **__: object) -> None:
        raise Refusal("no", status)

    monkeypatch.setattr(KubernetesApi, "items", refuse)
    monkeypatch.setattr(KubernetesApi, "path", lambda *_: "/")
    with nullcontext() if answers else pytest.raises(Refusal):
        assert isinstance(ask_capacity(KubernetesApi({}, options), options, Resources()), Capacity)


class Known(BaseHTTPRequestHandler):
    """An API that knows one caller."""

    def do_GET(self) -> None:
        known = self.headers["Authorization"] == "Bearer new"
        self.send_response(200 if known else 401)
        self.end_headers()
        self.wfile.write(b"{}")

    def log_message(self, *_: object) -> None:
        pass


CONFIG = """\
clusters: [{{name: c, cluster: {{server: "http://127.0.0.1:{0}"}}}}]
users: [{{name: u, user: {{token: {1}}}}}]
contexts: [{{name: c, context: {{cluster: c, user: u}}}}]
current-context: c
"""


@pytest.mark.parametrize("missing", ["httpx2", "lightkube", "yaml"])
def test_a_missing_library_is_said_with_what_installs_it(
    missing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The distribution of dsv is called dsv-data."""
    found = importlib.util.find_spec
    monkeypatch.setattr(
        "dsv.run.engines.kubernetes.api.find_spec", lambda name: None if name == missing else found(name)
    )
    monkeypatch.setitem(sys.modules, missing, None)  # importing it fails
    api = KubernetesApi({}, KubernetesOptions())
    with pytest.raises(Unsupported) as caught:
        api.get("/version")
    with pytest.raises(Unsupported), api.stream("/version"):
        pass
    assert caught.value.exit_code == 9 and caught.value.hint == "pip install 'dsv-data[kubernetes]'"


def test_whoever_logs_in_again_is_known_to_a_dsv_that_runs(tmp_path: Path) -> None:
    """A token expires while a job runs. What is not whole yet is no reason to give up."""
    file = tmp_path / "config"
    with ThreadingHTTPServer(("127.0.0.1", 0), Known) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        file.write_text(CONFIG.format(server.server_port, "old"))
        api = KubernetesApi({"KUBECONFIG": str(file)}, KubernetesOptions())
        for text in (file.read_text(), "clusters: [", CONFIG.format(server.server_port, "new")):
            with pytest.raises(Refusal) as refused:
                api.get("/version")
            assert refused.value.status == 401
            file.write_text(text)
        with pytest.raises(Refusal):
            api.get("/version")  # which finds the new one
        assert api.get("/version") == {}
        server.shutdown()


@pytest.mark.parametrize("text", ["clusters: [", "text", "", "clusters: {}", "- 1"])
def test_a_configuration_that_is_none_is_misuse(text: str, tmp_path: Path) -> None:
    (tmp_path / "config").write_text(text)
    api = KubernetesApi({"KUBECONFIG": str(tmp_path / "config")}, KubernetesOptions())
    with pytest.raises(UsageError, match=r"^the configuration of kubectl can't be used: [^\n]*$"):
        api.get("/version")
