"""`python -m dsv.run.engines.kubernetes.rendezvous`: start and end the command of a job on all its nodes together.

It runs in the container `hold` of each node's pod. Kubernetes retries each pod of a Job for itself; it can neither keep
a command waiting until all nodes are ready, nor end and retry all nodes because one has failed. So twice a second each
node tells node 0 which attempt it is in and with which exit code its command has ended, and node 0 answers:

    wait            not all nodes hold their data yet
    go              the command may run
    done            the command has succeeded on all nodes
    first REASON    the attempt is over, and the failure of this node ended it
    again REASON    the attempt is over because of another node

An attempt is over once a command has failed, or a node has been silent for a minute. Each node measures the
silence itself, so a node that is cut off from the others ends, too. The cluster counts attempts from 1 again
after a queue has suspended the job, so each pod also has an id. Pods of different attempts ignore each other.

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

from dsv.run.engines.kubernetes.manifest import OWN

LOST: Final = 60.0
"""Seconds of silence after which a node is lost: longer than a busy machine pauses."""
KILLED: Final = 137
WAIT, GO, DONE, FIRST, AGAIN = "wait", "go", "done", "first", "again"
_LAST_WORDS: Final = (DONE, FIRST, AGAIN)
_PERIOD: Final = 0.5
_ABSENT: Final = 10.0
"""Seconds of silence after which a node does not count as ready any more, before the command has begun."""
_GRACE: Final = 20.0
"""Seconds for which an ending pod still informs the others: less than its grace period."""
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
    """The seconds at which each node reported, by the monotonic clock."""
    codes: dict[int, int] = field(default_factory=dict)
    informed: set[int] = field(default_factory=set)
    """The nodes that know how the attempt has ended."""
    began: bool = False
    first: int | None = None
    """The node that failed first."""
    reason: str | None = None
    """The reason for which the attempt is over, if it is."""

    def report(
        self, node: int, attempt: int, code: int | None, now: float, pod: str = "", begun_with: str = ""
    ) -> Answer:
        """Take the report of a node, and return the answer. begun_with: the id of node 0's pod when the
        node's command began; empty before that"""
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
        if self.reason is None and not self.is_done:
            return (GO, self.pod) if self.began else (WAIT, "")
        self.informed.add(node)
        if self.reason is None:
            return DONE, ""
        return (FIRST if node == self.first else AGAIN), self.reason

    def check(self, now: float) -> None:
        """Begin once all nodes are ready. After that, end the attempt if a node is lost."""
        patience = LOST if self.began else _ABSENT
        silent = sorted(node for node, last in self.last_report.items() if now - last > patience)
        if self.began:
            if silent:
                self._end(f"node {silent[0]} was silent for {LOST:.0f} s")
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


@dataclass(slots=True)
class Member:
    """A node of the job, which reports to node 0."""

    node: int
    attempt: int
    nodes: int
    first: str
    """The address of node 0."""
    port: int
    token: str
    """Known only to users who may read the Job."""
    pod: str = "-"
    begun_with: str = "-"
    """The id of node 0's pod when the command began."""

    @classmethod
    def of(cls, environ: Mapping[str, str], pod: str) -> Self:
        addresses = environ["DSV_NODES"].split()
        node = int(environ["NODE_RANK"])
        failed, ignored = (int(environ.get(each) or 0) for each in ("DSV_FAILED", "DSV_IGNORED"))
        return cls(
            node=node,
            attempt=failed + ignored + 1,
            nodes=len(addresses),
            first=addresses[0] if node else "127.0.0.1",
            port=int(environ["DSV_GANG_PORT"]),
            token=environ["DSV_GANG_TOKEN"],
            pod=pod,
        )

    def ask(self, code: int | None) -> Answer | None:
        """Report to node 0, and return its answer; None if it does not answer."""
        state = "-" if code is None else code
        report = f"{self.token} {self.node} {self.attempt} {state} {self.pod} {self.begun_with}\n"
        with suppress(OSError):
            with socket.create_connection((self.first, self.port), _ANSWER_SECONDS) as connection:
                connection.sendall(report.encode())
                with connection.makefile("rb") as answer:
                    line = answer.readline(_LONGEST_LINE)
            word, _, reason = line.decode("utf-8", "replace").strip().partition(" ")
            if word == GO and self.begun_with == "-":
                self.begun_with = reason or "-"
            if word in (WAIT, GO, *_LAST_WORDS):
                return word, reason
        return None


class FirstNode(ThreadingTCPServer):
    """Answers the reports of all nodes, in threads. It runs on node 0."""

    daemon_threads = True

    def __init__(self, member: Member) -> None:
        self.attempt = Attempt(member.nodes, member.attempt, member.pod.strip("-"))
        self._token = member.token.encode()
        self._lock = Lock()
        address, both = ("", member.port), socket.has_dualstack_ipv6()
        super().__init__(address, _Report, bind_and_activate=False)
        self.socket.close()
        family = socket.AF_INET6 if both else socket.AF_INET
        self.socket = socket.create_server(address, family=family, dualstack_ipv6=both)
        Thread(target=self.serve_forever, name="dsv-rendezvous", daemon=True).start()

    def may_leave(self) -> bool:
        with self._lock:
            return self.attempt.may_leave(monotonic())

    def answer(self, line: str) -> str | None:
        """Return the answer; None for a wrong token. Raises `ValueError` for a line that is not a report."""
        token, node, attempt, code, pod, begun_with = line.split()
        if not hmac.compare_digest(token.encode(), self._token):
            return None
        exit_code = None if code == "-" else int(code)
        with self._lock:
            now = monotonic()
            self.attempt.check(now)
            pods = pod.strip("-"), begun_with.strip("-")
            return " ".join(self.attempt.report(int(node), int(attempt), exit_code, now, *pods))


class _Report(StreamRequestHandler):
    server: FirstNode
    timeout = _ANSWER_SECONDS

    def handle(self) -> None:
        with suppress(OSError, ValueError):
            line = self.rfile.readline(_LONGEST_LINE).decode("utf-8", "replace")
            if (text := self.server.answer(line.strip())) is not None:
                self.wfile.write(f"{text}\n".encode())


def keep_together(
    ask: Callable[[int | None], Answer | None],
    own: Path,
    signals: list[int],
    may_leave: Callable[[], bool] = lambda: True,
) -> None:
    """Ask node 0 and pass its answers on to the scripts, until the attempt is over here and the others know of it.
    signals: those that ask for the end; a list, because a handler of signals must not take a lock"""
    began, verdict = False, None
    last_answer = monotonic()
    deadline: float | None = None
    while deadline is None or monotonic() < deadline:
        code = _read_code(own)
        if signals:
            deadline = deadline or monotonic() + _GRACE
            code = KILLED if code is None else code
        answer = verdict or ask(code)
        if answer is not None:
            last_answer = monotonic()
        elif began and monotonic() - last_answer > LOST:
            answer = (AGAIN, f"node 0 was silent for {LOST:.0f} s")
        if answer is not None and answer[0] == GO and not began:
            began = True
            _write(own / "held", "")
        if answer is not None and answer[0] in _LAST_WORDS and verdict is None:
            verdict = answer
            _write(own / "end", "")
        if verdict is not None and may_leave():
            _write(own / "verdict", " ".join(verdict).strip())
            break
        sleep(_PERIOD)
    while not signals and not (own / "ended").exists():
        sleep(_PERIOD)


def main() -> int:
    signals: list[int] = []
    signal.signal(signal.SIGTERM, lambda number, frame: signals.append(number))
    own = Path(OWN)
    member = Member.of(os.environ, pod_id(own))
    if member.node == 0:
        keep_together(member.ask, own, signals, FirstNode(member).may_leave)
    else:
        keep_together(member.ask, own, signals)
    return 0


def pod_id(own: Path) -> str:
    """Return the id of this pod: the same one after its container was restarted."""
    path = own / "pod"
    if not path.exists():
        _write(path, secrets.token_hex(8))
    return path.read_text().strip()


def _read_code(own: Path) -> int | None:
    with suppress(OSError, ValueError):
        return int((own / "code").read_text())
    return None


def _write(path: Path, text: str) -> None:
    partial = path.with_name(f".{path.name}")
    partial.write_text(f"{text}\n" if text else "")
    partial.rename(path)


if __name__ == "__main__":
    sys.exit(main())
