"""The nodes of a job on Kubernetes begin and end together: without a cluster, over the loopback."""

from __future__ import annotations

import socket
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from threading import Event, Thread

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from dsv.run.engines.base import Ended
from dsv.run.engines.kubernetes import rendezvous
from dsv.run.engines.kubernetes.job import JobSnapshot, ended
from dsv.run.engines.kubernetes.rendezvous import (
    AGAIN,
    DONE,
    FIRST,
    GO,
    LOST,
    WAIT,
    Attempt,
    FirstNode,
    Member,
    keep_together,
)
from tests.engines.test_kubernetes_end import GANG, a_job, a_pod
from tests.labs.machine import free_ports
from tests.waiting import until


def _begun(nodes: int = 3, number: int = 2) -> Attempt:
    attempt = Attempt(nodes, number)
    for node in range(nodes):
        assert attempt.report(node, number, None, 0.0)[0] == WAIT
    attempt.check(0.0)
    return attempt


def test_no_node_begins_before_all_are_there() -> None:
    attempt = Attempt(2, 1)
    assert attempt.report(0, 1, None, 0.0) == (WAIT, "")
    attempt.report(1, 1, None, 1.0)
    attempt.report(0, 1, None, 20.0)
    attempt.check(20.0)  # node 1 has said nothing for so long that it may be gone again
    assert attempt.report(0, 1, None, 20.0)[0] == WAIT
    attempt.report(1, 1, None, 20.5)
    attempt.check(20.5)
    assert [attempt.report(node, 1, None, 21.0)[0] for node in (0, 1)] == [GO, GO]


def test_one_failure_counts_and_ends_all() -> None:
    attempt = _begun()
    assert attempt.report(1, 2, 3, 1.0) == (FIRST, "node 1 failed first, with exit code 3")
    assert attempt.report(2, 2, 1, 1.0)[0] == AGAIN  # which failed as well, for want of the other
    assert attempt.report(0, 2, None, 1.0)[0] == AGAIN
    assert attempt.report(1, 2, 3, 9.0)[0] == FIRST


def test_nodes_that_are_done_wait_for_the_others() -> None:
    attempt = _begun()
    assert [attempt.report(node, 2, 0, 1.0)[0] for node in (0, 1)] == [GO, GO]
    assert attempt.report(2, 2, 4, 2.0)[0] == FIRST
    assert attempt.report(1, 2, 0, 2.0)[0] == AGAIN
    done = _begun()
    assert [done.report(node, 2, 0, 1.0)[0] for node in (0, 1, 2, 0, 1)] == [GO, GO, DONE, DONE, DONE]


def test_the_first_node_leaves_after_the_others_know() -> None:
    attempt = _begun()
    attempt.report(1, 2, 3, 1.0)
    assert not attempt.may_leave(1.0)
    attempt.report(2, 2, None, 1.0)
    assert attempt.may_leave(1.0)


def test_a_node_that_has_begun_again_is_not_waited_for_in_the_attempt_before() -> None:
    """Its next attempt waits for the first node, which would wait a minute for the one that was replaced."""
    attempt = _begun(nodes=2)
    assert attempt.report(1, 3, None, 1.0) == (WAIT, "")
    assert attempt.report(0, 2, None, 1.0) == (AGAIN, "attempt 3 of node 1 has begun")
    assert attempt.may_leave(1.0)


def test_a_node_that_does_not_report_ends_the_attempt_without_a_wait() -> None:
    attempt = _begun()
    for node in (0, 1):
        attempt.report(node, 2, None, LOST + 1)
    attempt.check(LOST + 1)
    assert attempt.report(1, 2, None, LOST + 1) == (AGAIN, "node 2 was silent for 60 s")
    assert attempt.first is None and attempt.may_leave(LOST + 1)


def test_a_node_of_an_earlier_attempt_ends_and_one_of_a_later_waits() -> None:
    attempt = _begun()
    assert attempt.report(1, 1, None, 1.0)[0] == AGAIN
    assert attempt.report(0, 2, None, 1.0)[0] == GO
    assert attempt.report(1, 3, None, 1.0)[0] == WAIT
    assert attempt.report(0, 2, None, 1.0) == (AGAIN, "attempt 3 of node 1 has begun")


def test_pods_of_one_attempt_take_no_word_from_those_of_another_with_its_number() -> None:
    """After a queue took the place of a job away, the cluster counts anew, and a pod may still be ending."""
    old = Attempt(2, 1, "a0")
    old.report(0, 1, None, 0.0, "a0")
    old.report(1, 1, None, 0.0, "a1")
    old.check(0.0)
    assert old.report(1, 1, None, 0.0, "a1") == (GO, "a0")
    assert old.report(1, 1, None, 1.0, "b1") == (WAIT, "")
    assert old.report(0, 1, None, 1.0, "a0") == (AGAIN, "node 1 has begun again")
    assert old.may_leave(1.0)
    new = Attempt(2, 1, "b0")
    assert new.report(1, 1, None, 1.0, "a1", "a0") == (AGAIN, "node 0 has begun again")
    assert not new.last_report and new.reason is None
    assert new.report(1, 1, None, 1.0, "b1") == (WAIT, "")


def test_the_failure_of_an_attempt_is_not_reported_to_another_with_its_number() -> None:
    old = Attempt(2, 1, "a0")
    for node in (0, 1):
        old.report(node, 1, None, 0.0, f"a{node}")
    old.check(0.0)
    old.report(1, 1, 143, 1.0, "a1", "a0")
    assert old.report(1, 1, None, 2.0, "b1") == (WAIT, "")
    assert old.report(1, 1, 143, 2.0, "a1", "a0")[0] == FIRST


def test_a_pod_that_took_the_place_of_one_before_the_beginning_counts_in_its_stead() -> None:
    attempt = Attempt(2, 1, "a0")
    attempt.report(0, 1, None, 0.0, "a0")
    attempt.report(1, 1, None, 0.0, "a1")
    assert attempt.report(1, 1, None, 1.0, "b1") == (WAIT, "")
    attempt.check(1.0)
    assert attempt.report(1, 1, None, 1.0, "b1") == (GO, "a0")


class Node:
    """One node's part, in a thread."""

    def __init__(self, member: Member, folder: Path) -> None:
        self.own = folder / f"{member.node}-{member.attempt}"
        self.own.mkdir()
        self.signals: list[int] = []
        more = () if member.node else (FirstNode(member).may_leave,)
        self.thread = Thread(target=keep_together, args=(member.ask, self.own, self.signals, *more))
        self.thread.start()

    def has(self, name: str) -> bool:
        return (self.own / name).exists()

    def leave(self) -> None:
        self.signals.append(15)
        self.thread.join()


@pytest.fixture
def member() -> Member:
    return Member(node=0, attempt=1, nodes=2, first="127.0.0.1", port=free_ports(1)[0], token="t")


def test_two_nodes_over_the_network(member: Member, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rendezvous, "_PERIOD", 0.02)
    assert replace(member, node=1).ask(None) is None
    first = Node(member, tmp_path)
    stranger = replace(member, node=1, token="guessed")
    until(lambda: replace(member, node=1, attempt=0).ask(None) is not None, "the first node")
    assert stranger.ask(None) is None and not first.has("held")
    other = Node(replace(member, node=1), tmp_path)
    until(lambda: first.has("held") and other.has("held"), "the beginning")
    other.signals.append(15)  # its command was killed, and left no word
    until(lambda: first.has("verdict") and other.has("verdict"), "the end")
    assert (other.own / "verdict").read_text() == "first node 1 failed first, with exit code 137\n"
    assert (first.own / "verdict").read_text() == "again node 1 failed first, with exit code 137\n"
    first.leave()
    other.leave()


def test_a_node_that_began_with_a_pod_that_is_gone_begins_again(
    member: Member, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Over the network: the first node has another pod by then, and its attempt the same number."""
    monkeypatch.setattr(rendezvous, "_PERIOD", 0.02)
    member.pod = "a0"
    first = FirstNode(member)
    other = Node(replace(member, node=1, pod="a1"), tmp_path)
    until(lambda: member.ask(None) == (GO, "a0"), "the beginning")
    until(lambda: other.has("held"), "the other's beginning")
    first.attempt = Attempt(2, 1, "b0")
    until(lambda: other.has("verdict"), "the end")
    assert (other.own / "verdict").read_text() == "again node 0 has begun again\n"
    assert replace(member, pod="b0", begun_with="-").ask(None) == (WAIT, "")
    other.leave()


def test_a_container_that_is_started_again_in_its_pod_is_the_same_pod(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    assert rendezvous.pod_id(tmp_path) == rendezvous.pod_id(tmp_path) != rendezvous.pod_id(tmp_path / "other")


def test_those_that_say_nothing_or_too_much_keep_no_node_waiting(
    member: Member, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rendezvous, "_ANSWER_SECONDS", 10_000.0)
    FirstNode(member)
    with ExitStack() as strangers:
        silent = [
            strangers.enter_context(socket.create_connection(("127.0.0.1", member.port))) for _ in range(9)
        ]
        silent[0].sendall(b"half a line")
        asked = Event()

        def ask() -> None:
            if replace(member, node=1).ask(None) is not None:
                asked.set()

        Thread(target=ask, daemon=True).start()
        until(asked.is_set, "the answer")
        endless = strangers.enter_context(socket.create_connection(("127.0.0.1", member.port)))
        with pytest.raises(OSError, match=r"(?i)reset|broken pipe"):
            for _ in range(1024):
                endless.sendall(bytes(1 << 16))


def test_a_node_that_is_cut_off_ends_by_itself(
    member: Member, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rendezvous, "_PERIOD", 0.02)
    monkeypatch.setattr(rendezvous, "LOST", 0.5)

    class Cut:
        """The first node, until it is not reached any more."""

        answers = [(GO, "")] * 3

        def ask(self, code: int | None) -> tuple[str, str] | None:
            return self.answers.pop() if self.answers else None

    signals: list[int] = []
    thread = Thread(target=keep_together, args=(Cut().ask, tmp_path, signals))
    thread.start()
    until((tmp_path / "verdict").exists, "the end")
    assert (tmp_path / "end").exists()
    assert (tmp_path / "verdict").read_text().startswith("again node 0 was silent")
    signals.append(15)
    thread.join()


@dataclass
class ModelPod:
    """One pod of a node, as `keep_together` goes through it."""

    number: int
    attempt: int
    last_report: float
    began: bool = False
    code: int | None = None
    verdict: tuple[str, str] | None = None
    end: int | None = None
    """The exit code of its container, once that has ended."""


@dataclass
class Model:
    """A job of two nodes on a cluster that replaces each pod that has failed. The command succeeds whenever it ends."""

    now: float = 0.0
    pods: list[ModelPod] = field(default_factory=list)
    attempt: Attempt = field(default_factory=lambda: Attempt(2, 1))

    def last(self, number: int) -> ModelPod | None:
        return next((each for each in reversed(self.pods) if each.number == number), None)

    def make(self, number: int) -> None:
        """A pod for a node that has none, or in place of one that failed."""
        before = self.last(number)
        if before is None or before.end not in (None, 0):
            attempt = 1 if before is None else before.attempt + 1
            self.pods.append(ModelPod(number, attempt, self.now))
            if number == 0:
                self.attempt = Attempt(2, attempt)

    def finish(self, number: int) -> None:
        pod = self.last(number)
        if pod is not None and pod.began and pod.code is None:
            pod.code = 0

    def kill(self, number: int) -> None:
        pod = self.last(number)
        if pod is not None and pod.end is None:
            pod.end = rendezvous.KILLED

    def turn(self, number: int) -> None:
        pod, first = self.last(number), self.last(0)
        if pod is None or pod.end is not None:
            return
        answer = pod.verdict
        if answer is None and first is not None and first.end is None:
            self.attempt.check(self.now)
            answer = self.attempt.report(number, pod.attempt, pod.code, self.now)
        if answer is not None:
            pod.last_report = self.now
            pod.began = pod.began or answer[0] == GO
        elif pod.began and self.now - pod.last_report > LOST:
            answer = (AGAIN, "")
        if answer is not None and answer[0] in (DONE, FIRST, AGAIN):
            pod.verdict = answer
            if number != 0 or self.attempt.may_leave(self.now):
                pod.end = 0 if answer[0] == DONE else 190

    def ended(self) -> Ended | None:
        """Return the end as a dsv that looks at the job computes it."""
        seen = [
            a_pod(each.number, each.attempt - 1, phase="Running" if each.began else "Pending")
            if each.end is None
            else a_pod(
                each.number, each.attempt - 1, phase="Failed" if each.end else "Succeeded", code=each.end
            )
            for each in self.pods
        ]
        return ended(JobSnapshot(a_job(**GANG, completions=2, backoffLimit=9), tuple(seen)))

    def go_on(self) -> None:
        """Each node has its turn, and its command ends; a pod that has failed is replaced after a while."""
        for number in (0, 1):
            if int(self.now) % 7 == 0:
                self.make(number)
            self.turn(number)
            self.finish(number)
        self.now += 1.0


STEPS = st.sampled_from(["make", "turn", "turn", "finish", "kill"])
DONE_BY_BOTH = [(step, number) for step in ("make", "turn", "turn") for number in (0, 1)] + [
    ("turn", 0), ("turn", 1), ("finish", 0), ("finish", 1), ("turn", 0), ("turn", 1)
]  # fmt: skip


@given(st.lists(st.tuples(STEPS, st.sampled_from([0, 1])), max_size=40))
@example([*DONE_BY_BOTH, ("kill", 0)])
@example([*DONE_BY_BOTH[:-1], ("kill", 1), ("turn", 0)])
def test_the_end_is_known_whichever_node_is_killed_at_whatever_moment(steps: list[tuple[str, int]]) -> None:
    """Of a job whose command succeeds wherever it ends. A node that is killed once all are done has nobody to begin
    again with."""
    model = Model()
    for step, number in steps:
        getattr(model, step)(number)
        model.now += 0.5
    for _ in range(400):
        if (found := model.ended()) is not None:
            break
        model.go_on()
    assert found is not None and found.exit_code == 0, model
