"""`python -m dsv.run.engines.kubernetes.gang`: keeps the nodes of a job together, from beside the command of each.

All nodes begin an attempt together, and it ends on all of them: once a command has failed, or once a node has not been
heard of for a minute. The others ask the first node again and again, so nothing of the cluster has to be asked, and
each node finds by itself that it is cut off. An attempt has a number, but the cluster counts anew after a queue took
the place of a job away. So each pod has an id besides, and the pods of one attempt take no word from those of another.

What a node learns stands in files that the scripts of the pod look at:

    held      the command may begin: every node holds its data
    end       the command is to be ended, if it still runs
    verdict   the container may end: `done`, `first REASON` (its failure is the one that counts), or `again REASON`

`code` is what the script writes for it: the exit code of the command. See scripts.py.
"""

from __future__ import annotations

import hmac
import os
import secrets
import signal
import socket
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from threading import BoundedSemaphore, Lock, Thread
from time import monotonic, sleep
from types import FrameType
from typing import Final, Self

from dsv.run.engines.kubernetes.options import OWN

LOST: Final = 60.0
"""Seconds without a word after which a node is lost: more than the pause of a machine that is merely busy."""
_PERIOD: Final = 0.5
_WAITED_FOR: Final = 10.0
"""Seconds for which a node that waits for the others counts, without saying so again."""
_LAST_WORDS: Final = 20.0
"""Seconds to tell the others after the pod was told to end: less than Kubernetes gives it."""
_ANSWERS_WITHIN: Final = 5.0
_LONGEST: Final = 1024
"""Bytes of a line: what nodes say to each other is much shorter."""
_AT_ONCE: Final = 64
"""How many are listened to at a time: one that says nothing, such as a scan of ports, must not keep a node waiting."""
KILLED: Final = 137
WAIT, GO, DONE, FIRST, AGAIN = "wait", "go", "done", "first", "again"
_FINAL: Final = (DONE, FIRST, AGAIN)


@dataclass(slots=True)
class Attempt:
    """What the first node knows of all of them, itself included, in its own attempt."""

    nodes: int
    number: int
    pod: str = ""
    """The id of the first node's own pod."""
    pods: dict[int, str] = field(default_factory=dict)
    heard: dict[int, float] = field(default_factory=dict)
    codes: dict[int, int] = field(default_factory=dict)
    told: set[int] = field(default_factory=set)
    began: bool = False
    first: int | None = None
    reason: str | None = None
    """Why it is over on all nodes, if it is."""

    def report(
        self, node: int, attempt: int, code: int | None, now: float, pod: str = "", begun_with: str = ""
    ) -> tuple[str, str]:
        """What a node is told that says so of its attempt and of its command.

        begun_with: the pod that let its command begin, if that has begun.
        """
        if attempt < self.number:
            return AGAIN, f"attempt {self.number} has begun"
        if begun_with not in ("", self.pod):
            return AGAIN, "node 0 has begun again"
        if attempt > self.number:
            return self._has_left(node, f"attempt {attempt} of node {node} has begun")
        if pod and self.pods.setdefault(node, pod) != pod:
            if self.began or self.reason is not None:
                return self._has_left(node, f"node {node} has begun again")
            self.pods[node] = pod
        self.heard[node] = now
        if code is not None:
            self.codes.setdefault(node, code)
            if code != 0 and self.reason is None:
                self.first = node
                self._over(f"node {node} failed first, with exit code {code}")
        answer = self._answer(node)
        if answer[0] in _FINAL:
            self.told.add(node)
        return answer

    def look(self, now: float) -> None:
        """Misses those that have not been heard of."""
        silent = sorted(node for node, last in self.heard.items() if now - last > self._patience)
        if self.began and silent and not self.is_done:
            self._over(f"nothing was heard of node {silent[0]} for {LOST:.0f} s")
        elif not self.began:
            for node in silent:
                del self.heard[node]
            self.began = self.reason is None and len(self.heard) == self.nodes

    def may_leave(self, now: float) -> bool:
        """Whether all others know what came of it, or will never ask for that."""
        return all(node in self.told or now - last > LOST for node, last in self.heard.items() if node != 0)

    @property
    def is_done(self) -> bool:
        return self.reason is None and len(self.codes) == self.nodes and not any(self.codes.values())

    @property
    def _patience(self) -> float:
        return LOST if self.began else _WAITED_FOR

    def _has_left(self, node: int, reason: str) -> tuple[str, str]:
        """A later pod of a node asks: it waits for a later one of this node, and nobody asks for its own any more."""
        self.heard.pop(node, None)
        self._over(reason)
        return WAIT, ""

    def _over(self, reason: str) -> None:
        if self.reason is None and not self.is_done:
            self.reason = reason

    def _answer(self, node: int) -> tuple[str, str]:
        if self.reason is not None:
            return (FIRST if node == self.first else AGAIN), self.reason
        if self.is_done:
            return DONE, ""
        return (GO, self.pod) if self.began else (WAIT, "")


@dataclass(frozen=True, slots=True)
class Seat:
    """Which node this is, and where the first is. token: what only those who may read the Job can know. pod: the id of
    this one."""

    node: int
    attempt: int
    nodes: int
    first: str
    port: int
    token: str
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
    """Answers the others, in a thread of its own, and this process itself."""

    def __init__(self, seat: Seat) -> None:
        self._seat = seat
        self._attempt = Attempt(seat.nodes, seat.attempt, seat.pod)
        self._lock = Lock()
        if socket.has_dualstack_ipv6():
            self._server = socket.create_server(("", seat.port), family=socket.AF_INET6, dualstack_ipv6=True)
        else:
            self._server = socket.create_server(("", seat.port))
        Thread(target=self._serve, name="dsv-gang", daemon=True).start()

    def ask(self, code: int | None) -> tuple[str, str]:
        with self._lock:
            now = monotonic()
            self._attempt.look(now)
            return self._attempt.report(self._seat.node, self._seat.attempt, code, now, self._seat.pod)

    def may_leave(self) -> bool:
        with self._lock:
            return self._attempt.may_leave(monotonic())

    def _serve(self) -> None:
        free = BoundedSemaphore(_AT_ONCE)

        def listen(connection: socket.socket) -> None:
            try:
                with connection, suppress(OSError, ValueError):
                    self._answer(connection)
            finally:
                free.release()

        while True:
            free.acquire()
            try:
                connection, _ = self._server.accept()
                Thread(target=listen, args=(connection,), name="dsv-gang-node", daemon=True).start()
            except (OSError, RuntimeError):  # no room for a socket or a thread, for the moment
                free.release()
                sleep(_PERIOD)

    def _answer(self, connection: socket.socket) -> None:
        token, node, attempt, code, *of_pods = _line(connection).split()
        if not hmac.compare_digest(token.encode(), self._seat.token.encode()):
            return
        exit_code = None if code == "-" else int(code)
        pods = (each.strip("-") for each in of_pods[:2])
        with self._lock:
            self._attempt.look(monotonic())
            word, reason = self._attempt.report(int(node), int(attempt), exit_code, monotonic(), *pods)
        connection.sendall(f"{word} {reason}\n".encode())


class OtherNode:
    """Asks the first node."""

    def __init__(self, seat: Seat) -> None:
        self._seat = seat
        self._begun_with = ""

    def ask(self, code: int | None) -> tuple[str, str] | None:
        """None without an answer."""
        seat = self._seat
        with suppress(OSError):
            with socket.create_connection((seat.first, seat.port), _ANSWERS_WITHIN) as connection:
                said = "-" if code is None else str(code)
                pods = f"{seat.pod or '-'} {self._begun_with or '-'}"
                connection.sendall(f"{seat.token} {seat.node} {seat.attempt} {said} {pods}\n".encode())
                word, _, reason = _line(connection).partition(" ")
            if word == GO and not self._begun_with:
                self._begun_with = reason
            if word in (WAIT, GO, *_FINAL):
                return word, reason
        return None

    def may_leave(self) -> bool:
        return True


class Told:
    """Whether the pod was told to end."""

    over = False


def keep_together(node: FirstNode | OtherNode, own: Path, told: Told) -> None:
    """Until the pod is told to end, and the others know of that."""
    began, verdict = False, None
    heard = monotonic()
    last: float | None = None
    while last is None or monotonic() < last:
        code = _read_code(own)
        if told.over:
            last = last or monotonic() + _LAST_WORDS
            code = KILLED if code is None else code
        answer = verdict or node.ask(code)
        if answer is not None:
            heard = monotonic()
        elif began and monotonic() - heard > LOST:
            answer = (AGAIN, f"nothing was heard of node 0 for {LOST:.0f} s")
        if answer is not None and answer[0] == GO and not began:
            began = True
            _write(own / "held", "")
        if answer is not None and answer[0] in _FINAL and verdict is None:
            verdict = answer
            _write(own / "end", "")
        if verdict is not None and node.may_leave():
            _write(own / "verdict", " ".join(verdict).strip())
            break
        sleep(_PERIOD)
    while not told.over:
        sleep(_PERIOD)


def main() -> int:
    told = Told()

    def tell(number: int, frame: FrameType | None) -> None:
        told.over = True

    signal.signal(signal.SIGTERM, tell)
    seat = Seat.of(os.environ, _pod_id(Path(OWN)))
    keep_together(FirstNode(seat) if seat.node == 0 else OtherNode(seat), Path(OWN), told)
    return 0


def _pod_id(own: Path) -> str:
    """A container that is started again in the same pod keeps it."""
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


def _line(connection: socket.socket) -> str:
    """What the other side says, within a bounded time. Raises `OSError` if it says nothing, or too much."""
    deadline = monotonic() + _ANSWERS_WITHIN
    data = b""
    while not data.endswith(b"\n"):
        if len(data) > _LONGEST or (left := deadline - monotonic()) <= 0:
            raise TimeoutError("no line came")
        connection.settimeout(left)
        piece = connection.recv(_LONGEST)
        if not piece:
            break
        data += piece
    return data.decode("utf-8", "replace").strip()


if __name__ == "__main__":
    sys.exit(main())
