"""The rule of a protected branch: who may move it, and how. Advisory: every dsv honours it, a store does not."""

from __future__ import annotations

import msgspec

from dsv.errors import UsageError
from dsv.model import wire
from dsv.model.ids import Nonce
from dsv.model.names import BranchName, DatasetName
from dsv.model.text import LONG_MAX, SHORT_MAX, check_length
from dsv.model.wire import Buffer, Count, Long, Millis, Raw16, Record, Short

_RULE = Record(
    "branch-rule",
    tuple[bool, bool, tuple[Short, ...], Count | None, Raw16, Millis, Short, Long, Short, Short, Count],
)


class Limits(msgspec.Struct, frozen=True):
    """What a protected branch allows beyond going forward.

    only_merge: only merges move it. who: the authors who may move it, sorted, none twice; empty: anyone.
    max_removals: of the paths that the head has, so many percent may go in one move; None: all.
    """

    only_merge: bool = False
    who: tuple[str, ...] = ()
    max_removals: int | None = None

    def fault(self) -> str | None:
        """What is wrong with it, if anything is."""
        if list(self.who) != sorted(set(self.who)) or "" in self.who:
            return "its authors are not sorted, each once"
        if self.max_removals is not None and not 0 <= self.max_removals <= 100:
            return f"{self.max_removals} percent of the paths can't be removed"
        return None

    def names(self, author: str) -> bool:
        """Whether this author is one of those who may move the branch: by the whole text, the name, or the address."""
        name, _, address = author.partition("<")
        known = {part.strip(" >").casefold() for part in (author, name, address)} | {author.casefold()}
        return not self.who or any(one.casefold() in known for one in self.who)


class BranchRule(msgspec.Struct, frozen=True):
    """One entry of the log of a branch's rules; the last one counts. limits None: the branch is not protected.

    dataset, branch, number: which entry it is, from 0.
    """

    limits: Limits | None
    nonce: Nonce
    time_ms: int
    author: str
    message: str
    dataset: DatasetName
    branch: BranchName
    number: int

    @property
    def protected(self) -> bool:
        return self.limits is not None

    @property
    def only_merge(self) -> bool:
        return self.limits is not None and self.limits.only_merge

    @property
    def who(self) -> tuple[str, ...]:
        return () if self.limits is None else self.limits.who

    @property
    def max_removals(self) -> int | None:
        return None if self.limits is None else self.limits.max_removals

    def encode(self) -> bytes:
        """Raises `ValueError` for limits that make no sense."""
        fault = None if self.limits is None else self.limits.fault()
        if fault is not None:
            raise ValueError(fault)
        return _RULE.encode((
            self.protected, self.only_merge, self.who, self.max_removals, bytes(self.nonce),
            self.time_ms, self.author, self.message, str(self.dataset), str(self.branch), self.number,
        ))  # fmt: skip

    @classmethod
    def decode(cls, data: Buffer) -> BranchRule:
        protected, only_merge, who, max_removals, nonce, time_ms, author, message, *names, number = (
            _RULE.decode(data)
        )
        limits = Limits(only_merge, who, max_removals)
        fault = limits.fault()
        if fault is None and not protected and limits != Limits():
            fault = "it protects nothing and has limits"
        if fault is not None:
            raise wire.damaged("branch-rule", fault)
        dataset = wire.carried("branch-rule", DatasetName.parse, names[0])
        branch = wire.carried("branch-rule", BranchName.parse, names[1])
        return cls(
            limits if protected else None, Nonce(nonce), time_ms, author, message, dataset, branch, number
        )


def checked_limits(*, only_merge: bool, who: tuple[str, ...], max_removals: int | None) -> Limits:
    """Limits as a person gives them. Raises `UsageError`."""
    for one in who:
        check_length(one, SHORT_MAX, "an author of --who")
    check_length("".join(who), LONG_MAX, "the list of authors of --who")
    limits = Limits(only_merge, tuple(sorted({one.strip() for one in who})), max_removals)
    fault = limits.fault()
    if fault is not None:
        raise UsageError(fault)
    return limits
