"""How the nodes of a job on Kubernetes begin and end together: without a cluster, over the loopback."""

from __future__ import annotations

import socket
from dataclasses import replace
from pathlib import Path
from threading import Thread

import pytest

from dsv.engines.kubernetes import gang
from dsv.engines.kubernetes.gang import (
    AGAIN,
    DONE,
    FIRST,
    GO,
    LOST,
    WAIT,
    Attempt,
    FirstNode,
    OtherNode,
    Seat,
    Told,
    keep_together,
)
from tests.waiting import until


def _begun(nodes: int = 3, number: int = 2) -> Attempt:
    attempt = Attempt(nodes, number)
    for node in range(nodes):
        assert attempt.report(node, number, None, 0.0)[0] == WAIT
    attempt.look(0.0)
    return attempt


def test_no_node_begins_before_all_are_there() -> None:
    attempt = Attempt(2, 1)
    assert attempt.report(0, 1, None, 0.0) == (WAIT, "")
    attempt.report(1, 1, None, 1.0)
    attempt.report(0, 1, None, 20.0)
    attempt.look(20.0)  # node 1 has said nothing for so long that it may be gone again
    assert attempt.report(0, 1, None, 20.0)[0] == WAIT
    attempt.report(1, 1, None, 20.5)
    attempt.look(20.5)
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


def test_a_node_that_is_not_heard_of_ends_the_attempt_and_is_not_waited_for() -> None:
    attempt = _begun()
    for node in (0, 1):
        attempt.report(node, 2, None, LOST + 1)
    attempt.look(LOST + 1)
    assert attempt.report(1, 2, None, LOST + 1) == (AGAIN, "nothing was heard of node 2 for 60 s")
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
    old.look(0.0)
    assert old.report(1, 1, None, 0.0, "a1") == (GO, "a0")
    assert old.report(1, 1, None, 1.0, "b1") == (WAIT, "")
    assert old.report(0, 1, None, 1.0, "a0") == (AGAIN, "node 1 has begun again")
    assert old.may_leave(1.0)
    new = Attempt(2, 1, "b0")
    assert new.report(1, 1, None, 1.0, "a1", "a0") == (AGAIN, "node 0 has begun again")
    assert not new.heard and new.reason is None
    assert new.report(1, 1, None, 1.0, "b1") == (WAIT, "")


def test_the_failure_of_an_attempt_is_not_told_to_the_one_that_has_its_number() -> None:
    old = Attempt(2, 1, "a0")
    for node in (0, 1):
        old.report(node, 1, None, 0.0, f"a{node}")
    old.look(0.0)
    old.report(1, 1, 143, 1.0, "a1", "a0")
    assert old.report(1, 1, None, 2.0, "b1") == (WAIT, "")
    assert old.report(1, 1, 143, 2.0, "a1", "a0")[0] == FIRST


def test_a_pod_that_took_the_place_of_one_before_the_beginning_counts_in_its_stead() -> None:
    attempt = Attempt(2, 1, "a0")
    attempt.report(0, 1, None, 0.0, "a0")
    attempt.report(1, 1, None, 0.0, "a1")
    assert attempt.report(1, 1, None, 1.0, "b1") == (WAIT, "")
    attempt.look(1.0)
    assert attempt.report(1, 1, None, 1.0, "b1") == (GO, "a0")


class Node:
    """One node's part, in a thread."""

    def __init__(self, seat: Seat, folder: Path) -> None:
        self.own = folder / f"{seat.node}-{seat.attempt}"
        self.own.mkdir()
        self.told = Told()
        node = FirstNode(seat) if seat.node == 0 else OtherNode(seat)
        self.thread = Thread(target=keep_together, args=(node, self.own, self.told))
        self.thread.start()

    def has(self, name: str) -> bool:
        return (self.own / name).exists()

    def leave(self) -> None:
        self.told.over = True
        self.thread.join()


@pytest.fixture
def seat() -> Seat:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    return Seat(node=0, attempt=1, nodes=2, first="127.0.0.1", port=port, token="t")


def test_two_nodes_over_the_network(seat: Seat, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gang, "_PERIOD", 0.02)
    assert OtherNode(replace(seat, node=1)).ask(None) is None
    first = Node(seat, tmp_path)
    stranger = OtherNode(replace(seat, node=1, token="guessed"))
    until(lambda: OtherNode(replace(seat, node=1, attempt=0)).ask(None) is not None, "the first node")
    assert stranger.ask(None) is None and not first.has("held")
    other = Node(replace(seat, node=1), tmp_path)
    until(lambda: first.has("held") and other.has("held"), "the beginning")
    other.told.over = True  # its command was killed, and left no word
    until(lambda: first.has("verdict") and other.has("verdict"), "the end")
    assert (other.own / "verdict").read_text() == "first node 1 failed first, with exit code 137\n"
    assert (first.own / "verdict").read_text() == "again node 1 failed first, with exit code 137\n"
    first.leave()
    other.leave()


def test_a_node_that_began_with_a_pod_that_is_gone_begins_again(
    seat: Seat, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Over the network: the first node has another pod by then, and its attempt the same number."""
    monkeypatch.setattr(gang, "_PERIOD", 0.02)
    first = FirstNode(replace(seat, pod="a0"))
    other = Node(replace(seat, node=1, pod="a1"), tmp_path)
    until(lambda: first.ask(None)[0] == GO, "the beginning")
    until(lambda: other.has("held"), "the other's beginning")
    first._seat = replace(seat, pod="b0")
    first._attempt = Attempt(2, 1, "b0")
    until(lambda: other.has("verdict"), "the end")
    assert (other.own / "verdict").read_text() == "again node 0 has begun again\n"
    assert first.ask(None) == (WAIT, "")
    other.leave()


def test_a_container_that_is_started_again_in_its_pod_is_the_same_pod(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    assert gang._pod_id(tmp_path) == gang._pod_id(tmp_path) != gang._pod_id(tmp_path / "other")


def test_a_node_that_is_cut_off_ends_by_itself(
    seat: Seat, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gang, "_PERIOD", 0.02)
    monkeypatch.setattr(gang, "LOST", 0.5)

    class Cut:
        """The first node, until it is not reached any more."""

        answers = [(GO, "")] * 3

        def ask(self, code: int | None) -> tuple[str, str] | None:
            return self.answers.pop() if self.answers else None

        def may_leave(self) -> bool:
            return True

    told = Told()
    thread = Thread(target=keep_together, args=(Cut(), tmp_path, told))
    thread.start()
    until((tmp_path / "verdict").exists, "the end")
    assert (tmp_path / "end").exists()
    assert (tmp_path / "verdict").read_text().startswith("again nothing was heard of node 0")
    told.over = True
    thread.join()
