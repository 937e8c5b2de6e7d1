"""Lines beside a history that show what was merged with what, as git draws them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from dsv.model.ids import CommitId


class Graph:
    """Takes commits in order, none before one of its children. Each open line is a column of two characters."""

    def __init__(self) -> None:
        self._lines: list[CommitId] = []

    def draw(self, commit_id: CommitId, parents: Sequence[CommitId], rows: int) -> Iterator[str]:
        """What stands before each of the commit's `rows` rows of text, then rows of their own up to the next commit."""
        if commit_id not in self._lines:
            self._lines.append(commit_id)
        at = self._lines.index(commit_id)
        for number in range(rows):
            marks = ["|"] * len(self._lines)
            marks[at] = "*" if not number else "|" if parents else " "
            yield " ".join(marks)
        yield from self._fork(at, parents)
        yield from self._join()

    def _fork(self, at: int, parents: Sequence[CommitId]) -> Iterator[str]:
        """The commit's line goes on as that of its first parent; the others get lines of their own."""
        if not parents:
            del self._lines[at]
            if at < len(self._lines):
                yield _row(at, " ", len(self._lines) - at, "/")
            return
        self._lines[at] = parents[0]
        for number, parent in enumerate(parents[1:], 1):
            if parent == self._lines[at]:
                continue
            right = len(self._lines) - at - number
            yield _row(at + number, "\\", right, "\\")
            self._lines.insert(at + number, parent)

    def _join(self) -> Iterator[str]:
        """Lines to the same commit become one."""
        while True:
            seen: dict[CommitId, int] = {}
            pair = None
            for number, commit_id in enumerate(self._lines):
                if commit_id in seen:
                    pair = seen[commit_id], number
                    break
                seen[commit_id] = number
            if pair is None:
                return
            left, right = pair
            moved = " /" * (len(self._lines) - right - 1)
            yield "| " * left + "|" + "_|" * (right - left - 1) + "/" + moved
            del self._lines[right]


def _row(left: int, mark: str, right: int, moved: str) -> str:
    """So many lines that go on, a mark between two columns, and lines that move aside."""
    head = " ".join("|" * left)
    return f"{head}{mark}{' '.join(moved * right)}".rstrip() if right else f"{head}{mark}".rstrip()
