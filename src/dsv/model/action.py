"""What made a move of a branch, as the log of moves has it: `sync`, `reset: why`, `delete (forced): why`."""

from __future__ import annotations

import msgspec

MERGE = "merge"
RENAME = "rename"
RENAMED_TO = "to "
"""Verbs, and what a message begins with, that something is decided by or told from."""

_FORCED = " (forced)"
MESSAGE_MAX = 900
"""Characters of a message that go into a move of a branch, beside the rest of its action."""


class Action(msgspec.Struct, frozen=True):
    """forced: the branch is protected, and its rule was overridden."""

    verb: str
    message: str = ""
    forced: bool = False

    @classmethod
    def parse(cls, text: str) -> Action:
        """Any text is one: it is for people."""
        verb, _, message = text.partition(": ")
        return cls(verb.removesuffix(_FORCED), message, verb.endswith(_FORCED))

    def __str__(self) -> str:
        verb = self.verb + _FORCED if self.forced else self.verb
        return f"{verb}: {self.message}" if self.message else verb

    def overriding(self, why: str) -> Action:
        """The same, forced for this reason."""
        said = self.message if why in self.message else "; ".join(filter(None, (self.message, why)))
        return Action(self.verb, said[: MESSAGE_MAX + 100], forced=True)
