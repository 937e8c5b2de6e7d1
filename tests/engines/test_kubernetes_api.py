"""What is asked of a cluster before it gets jobs."""

from __future__ import annotations

import pytest
from lightkube.core.exceptions import ConfigError

from dsv.engines.kubernetes.api import KubernetesApi, Refusal, too_old
from dsv.engines.kubernetes.capacity import ask_capacity
from dsv.engines.kubernetes.options import KubernetesOptions
from dsv.model.capacity import Capacity
from dsv.model.resources import Resources


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
def test_a_cluster_without_init_containers_that_go_on_is_refused(
    major: str, minor: str, refused: bool
) -> None:
    said = too_old({"major": major, "minor": minor})
    assert (said is not None) == refused
    assert said is None or said.startswith(
        f"it is Kubernetes {major}.{minor.rstrip('+')}, and runs need 1.29"
    )


def test_a_program_that_no_longer_tells_who_the_caller_is_ends_no_thread(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whoever reads a log would wait for that thread for ever."""

    class Client:
        def build_request(self, *_: object, **__: object) -> None:
            return None

        def send(self, *_: object, **__: object) -> None:
            raise ConfigError("exec: the token has expired")

    monkeypatch.setattr(KubernetesApi, "connect", lambda _: Client())
    with KubernetesApi({}, KubernetesOptions()).stream("/log") as answer:
        assert isinstance(answer, Refusal) and answer.is_denied and "has expired" in answer.message


@pytest.mark.parametrize(("status", "answers"), [(401, False), (403, True), (500, False)])
def test_a_cluster_that_does_not_know_the_caller_gives_no_answer(
    monkeypatch: pytest.MonkeyPatch, status: int, answers: bool
) -> None:
    """One that only forbids to see its nodes may well take a job."""
    options = KubernetesOptions(namespace="training")
    monkeypatch.setattr(KubernetesApi, "items", lambda *_, **__: Refusal("no", status))
    monkeypatch.setattr(KubernetesApi, "path", lambda *_: "/")
    found = ask_capacity(KubernetesApi({}, options), options, Resources())
    assert isinstance(found, Capacity) == answers
