"""How many parts a process takes at a time."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

from dsv.cache.filling.parts import Board, Claim

_FIRST = 2  # parts
_TURN = 5.0  # seconds
_SHARE = 3  # on a file server a turn takes one part in so many of those that are left


def do_free_parts(
    board: Board,
    do: Callable[[Iterator[Claim]], None],
    *,
    remote: bool,
    stop: Callable[[], bool] = lambda: False,
) -> None:
    """Gives `do` all parts that are free, until there are none or `stop` says so.

    What is fetched ahead is claimed ahead, where others could help with it. So on a file server, where writing is what
    takes long, each turn is some seconds' worth of parts, and at most a third of what is left, so that all who share
    the fill end at about the same time; and nothing is claimed for the next before it is done.
    """
    most = _FIRST if remote else board.count
    while True:
        turn = _Turn(board, most, stop)
        began = time.monotonic()
        do(turn)
        if not turn.claimed:
            return
        took = max(time.monotonic() - began, 0.01)
        most = round(_TURN * turn.claimed / took)
        if remote:
            most = min(most, board.free // _SHARE)
        most = max(_FIRST, min(most, board.count))


class _Turn(Iterator[Claim]):
    """Claims as they are asked for. One that could not be made, as the disk was full, may be asked for again."""

    def __init__(self, board: Board, most: int, stop: Callable[[], bool]) -> None:
        self._board = board
        self._most = most
        self._stop = stop
        self.claimed = 0

    def __next__(self) -> Claim:
        if self.claimed >= self._most or self._stop():
            raise StopIteration
        claim = self._board.claim_free()
        if claim is None:
            raise StopIteration
        self.claimed += 1
        return claim
