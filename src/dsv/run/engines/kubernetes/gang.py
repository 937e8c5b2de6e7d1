"""`python -m dsv.run.engines.kubernetes.gang`: starts and ends the command of a job on all its nodes together.

It runs in the container `hold` of each node's pod. Kubernetes retries each pod of a Job for itself; it can neither keep
a command waiting until all nodes are ready, nor end and retry all nodes because one has failed. So the nodes agree
among themselves. Twice a second each node tells the first node, node 0, which attempt it is in and with which exit code
its command has ended, and node 0 answers with one of these words:

    wait            not all nodes hold their data yet
    go              the command may run
    done            the command has succeeded on all nodes
    first REASON    the attempt is over, and the failure of this node ended it
    again REASON    the attempt is over because of another node

An attempt is over once a command has failed, or once a node has been silent for a minute. Each node measures the
silence itself, so a node that is cut off from the others ends, too. The cluster numbers attempts anew after a queue has
suspended the job, so each pod has an id as well, and pods of different attempts ignore each other.

A node passes the answers on to the scripts in its pod, as files in the folder that the containers share:

    held       the command may begin
    code       the exit code of the command, written by the script that ran it
    end        the command must end
    verdict    the container may end; holds the last word and its reason
"""

from __future__ import annotations

import hmac
import os
import secrets
import signal
import socket
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from socketserver import StreamRequestHandler, ThreadingTCPServer
from threading import Lock, Thread
from time import monotonic, sleep
from typing import Final, Self, TypeAlias

from dsv.run.engines.kubernetes.options import OWN

LOST: Final = 60.0
"""Seconds of silence after which a node is lost: longer than a busy machine pauses."""
KILLED: Final = 137
WAIT, GO, DONE, FIRST, AGAIN = "wait", "go", "done", "first", "again"
_LAST_WORDS: Final = (DONE, FIRST, AGAIN)
_PERIOD: Final = 0.5
_ABSENT: Final = 10.0
"""Seconds of silence after which a node does not count as ready any more, before the command has begun."""
_GRACE: Final = 20.0
"""Seconds for which a pod that is being ended still tells the others: less than the grace period of its pod."""
_ANSWER_SECONDS: Final = 5.0
_LONGEST_LINE: Final = 1024

Answer: TypeAlias = tuple[str, str]
"""A word and its reason. After `go` the reason is the id of node 0's pod."""


@dataclass(slots=True)
class Attempt:
    """One attempt of a job as node 0 knows it: which nodes are ready, and how the command has ended on each."""

    nodes: int
    number: int
    pod: str = ""
    """The id of node 0's own pod."""
    pods: dict[int, str] = field(default_factory=dict)
    last_report: dict[int, float] = field(default_factory=dict)
    codes: dict[int, int] = field(default_factory=dict)
    informed: set[int] = field(default_factory=set)
    """The nodes that know how the attempt has ended."""
    began: bool = False
    first: int | None = None
    """The node that failed first."""
    reason: str | None = None
    """Why the attempt is over, if it is."""

    def report(
        self, node: int, attempt: int, code: int | None, now: float, pod: str = "", begun_with: str = ""
    ) -> Answer:
        """Take the report of a node, and return the answer to it.

        begun_with: the id of node 0's pod when the node's command began; empty before that.
        """
        if attempt < self.number:
            return AGAIN, f"attempt {self.number} has begun"
        if begun_with not in ("", self.pod):
            return AGAIN, "node 0 has begun again"
        if attempt > self.number:
            return self._replaced(node, f"attempt {attempt} of node {node} has begun")
        if pod and self.pods.setdefault(node, pod) != pod:
            if self.began or self.reason is not None:
                return self._replaced(node, f"node {node} has begun again")
            self.pods[node] = pod
        self.last_report[node] = now
        if code is not None:
            self.codes.setdefault(node, code)
            if code != 0 and self.reason is None:
                self.first = node
                self._end(f"node {node} failed first, with exit code {code}")
        answer = self._answer(node)
        if answer[0] in _LAST_WORDS:
            self.informed.add(node)
        return answer

    def check(self, now: float) -> None:
        """Begin once all nodes are ready. After that, end the attempt if a node is lost."""
        patience = LOST if self.began else _ABSENT
        silent = sorted(node for node, last in self.last_report.items() if now - last > patience)
        if self.began:
            if silent and not self.is_done:
                self._end(f"nothing was heard of node {silent[0]} for {LOST:.0f} s")
            return
        for node in silent:
            del self.last_report[node]
        self.began = self.reason is None and len(self.last_report) == self.nodes

    def may_leave(self, now: float) -> bool:
        """Return whether every other node is informed or lost, so that node 0 may end."""
        return all(
            node in self.informed or now - last > LOST for node, last in self.last_report.items() if node != 0
        )

    @property
    def is_done(self) -> bool:
        return self.reason is None and len(self.codes) == self.nodes and not any(self.codes.values())

    def _replaced(self, node: int, reason: str) -> Answer:
        """End the attempt because a new pod of the node has begun, which waits for a new pod of node 0."""
        self.last_report.pop(node, None)
        self._end(reason)
        return WAIT, ""

    def _end(self, reason: str) -> None:
        if self.reason is None and not self.is_done:
            self.reason = reason

    def _answer(self, node: int) -> Answer:
        if self.reason is not None:
            return (FIRST if node == self.first else AGAIN), self.reason
        if self.is_done:
            return DONE, ""
        return (GO, self.pod) if self.began else (WAIT, "")


@dataclass(frozen=True, slots=True)
class Member:
    """The node that this process belongs to, and where node 0 is."""

    node: int
    attempt: int
    nodes: int
    first: str
    """The address of node 0."""
    port: int
    token: str
    """Known only to those who may read the Job."""
    pod: str = ""

    @classmethod
    def of(cls, environ: Mapping[str, str], pod: str) -> Self:
        addresses = environ["DSV_NODES"].split()
        failed, ignored = (int(environ.get(each) or 0) for each in ("DSV_FAILED", "DSV_IGNORED"))
        return cls(
            node=int(environ["NODE_RANK"]),
            attempt=failed + ignored + 1,
            nodes=len(addresses),
            first=addresses[0],
            port=int(environ["DSV_GANG_PORT"]),
            token=environ["DSV_GANG_TOKEN"],
            pod=pod,
        )


class FirstNode:
    """Answers the reports of the other nodes in threads of its own, and those of this process directly."""

    def __init__(self, member: Member) -> None:
        self._member = member
        self._attempt = Attempt(member.nodes, member.attempt, member.pod)
        self._lock = Lock()
        Thread(
            target=_server(member.port, self._answer_line).serve_forever, name="dsv-gang", daemon=True
        ).start()

    def ask(self, code: int | None) -> Answer:
        return self._report(self._member.node, self._member.attempt, code, self._member.pod)

    def may_leave(self) -> bool:
        with self._lock:
            return self._attempt.may_leave(monotonic())

    def _report(self, node: int, attempt: int, code: int | None, *pods: str) -> Answer:
        with self._lock:
            self._attempt.check(monotonic())
            return self._attempt.report(node, attempt, code, monotonic(), *pods)

    def _answer_line(self, line: str) -> str | None:
        """Return None for a stranger. Raises `ValueError` for a line that is not a report."""
        token, node, attempt, code, pod, begun_with = line.split()
        if not hmac.compare_digest(token.encode(), self._member.token.encode()):
            return None
        exit_code = None if code == "-" else int(code)
        return " ".join(
            self._report(int(node), int(attempt), exit_code, pod.strip("-"), begun_with.strip("-"))
        )


class OtherNode:
    """Reports to node 0."""

    def __init__(self, member: Member) -> None:
        self._member = member
        self._begun_with = ""

    def ask(self, code: int | None) -> Answer | None:
        """Return None if node 0 does not answer."""
        member = self._member
        report = (member.token, member.node, member.attempt, "-" if code is None else code,
                  member.pod or "-", self._begun_with or "-")  # fmt: skip
        with suppress(OSError):
            with socket.create_connection((member.first, member.port), _ANSWER_SECONDS) as connection:
                connection.sendall(" ".join(map(str, report)).encode() + b"\n")
                with connection.makefile("rb") as answer:
                    line = answer.readline(_LONGEST_LINE)
            word, _, reason = line.decode("utf-8", "replace").strip().partition(" ")
            if word == GO and not self._begun_with:
                self._begun_with = reason
            if word in (WAIT, GO, *_LAST_WORDS):
                return word, reason
        return None

    def may_leave(self) -> bool:
        return True


def _server(port: int, answer: Callable[[str], str | None]) -> ThreadingTCPServer:
    class Handler(StreamRequestHandler):
        timeout = _ANSWER_SECONDS

        def handle(self) -> None:
            with suppress(OSError, ValueError):
                line = self.rfile.readline(_LONGEST_LINE).decode("utf-8", "replace")
                if (text := answer(line.strip())) is not None:
                    self.wfile.write(f"{text}\n".encode())

    both = socket.has_dualstack_ipv6()
    server = ThreadingTCPServer(("", port), Handler, bind_and_activate=False)
    server.daemon_threads = True
    server.socket.close()
    server.socket = socket.create_server(
        ("", port), family=socket.AF_INET6 if both else socket.AF_INET, dualstack_ipv6=both
    )
    return server


class Stop:
    """Whether the pod is being ended. Plain, as the handler of a signal sets it."""

    asked = False


def keep_together(node: FirstNode | OtherNode, own: Path, stop: Stop) -> None:
    """Ask node 0 and pass its answers on to the scripts, until the pod is being ended and the others know of it."""
    began, verdict = False, None
    last_answer = monotonic()
    deadline: float | None = None
    while deadline is None or monotonic() < deadline:
        code = _read_code(own)
        if stop.asked:
            deadline = deadline or monotonic() + _GRACE
            code = KILLED if code is None else code
        answer = verdict or node.ask(code)
        if answer is not None:
            last_answer = monotonic()
        elif began and monotonic() - last_answer > LOST:
            answer = (AGAIN, f"nothing was heard of node 0 for {LOST:.0f} s")
        if answer is not None and answer[0] == GO and not began:
            began = True
            _write(own / "held", "")
        if answer is not None and answer[0] in _LAST_WORDS and verdict is None:
            verdict = answer
            _write(own / "end", "")
        if verdict is not None and node.may_leave():
            _write(own / "verdict", " ".join(verdict).strip())
            break
        sleep(_PERIOD)
    while not stop.asked:
        sleep(_PERIOD)


def main() -> int:
    stop = Stop()
    signal.signal(signal.SIGTERM, lambda number, frame: setattr(stop, "asked", True))
    member = Member.of(os.environ, _pod_id(Path(OWN)))
    keep_together(FirstNode(member) if member.node == 0 else OtherNode(member), Path(OWN), stop)
    return 0


def _pod_id(own: Path) -> str:
    """Return the id of this pod: the same one after its container was restarted."""
    path = own / "pod"
    if not path.exists():
        _write(path, secrets.token_hex(8))
    return path.read_text().strip()


def _read_code(own: Path) -> int | None:
    try:
        return int((own / "code").read_text())
    except (OSError, ValueError):
        return None


def _write(path: Path, text: str) -> None:
    partial = path.with_name(f".{path.name}")
    partial.write_text(f"{text}\n" if text else "")
    partial.rename(path)


if __name__ == "__main__":
    sys.exit(main())
