"""The patterns of a sparse workspace: which paths of its dataset it has."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import msgspec
from blake3 import blake3

from dsv.errors import UsageError
from dsv.model.entry import sort_key
from dsv.model.path_pattern import PathPattern
from dsv.model.path_set import folders_above

EVERYTHING_LINE = "**"
_RULES_FILE = b".dsvignore"


@dataclass(frozen=True)
class SparsePatterns:
    """Paths of a dataset. lines: patterns, of which the last that matches a path or a folder above it decides; one that
    begins with `!` leaves out. None: everything.

    A `.dsvignore` belongs to it if anything next to it or below may: what the workspace adds is to be ignored by the
    rules of the whole dataset. Raises `UsageError` for a line that is no pattern.
    """

    lines: tuple[str, ...] | None = None
    _rules: tuple[_Rule, ...] = field(init=False, compare=False, repr=False)
    _folders: dict[bytes, tuple[int, bool | None]] = field(
        init=False, compare=False, repr=False, default_factory=dict
    )

    def __post_init__(self) -> None:
        object.__setattr__(self, "_rules", tuple(map(_Rule.parse, self.lines or ())))

    @classmethod
    def of(cls, lines: Iterable[str]) -> SparsePatterns:
        """As few lines as have the same meaning, of those that `added` and `removed` make."""
        found = tuple(lines)
        return cls(None if found == (EVERYTHING_LINE,) else found)

    @property
    def whole(self) -> bool:
        """Whether it is everything."""
        return self.lines is None

    @property
    def digest(self) -> bytes:
        """Tells two of them apart; empty for everything."""
        if self.lines is None:
            return b""
        return blake3("\n".join(self.lines).encode(), derive_key_context="dsv 2026-11 sparse v1").digest()

    def added(self, texts: Iterable[str]) -> SparsePatterns:
        """With what these patterns match too."""
        if self.lines is None:
            return self
        lines = list(self.lines)
        for text in texts:
            _check(text)
            if text == EVERYTHING_LINE:
                lines.clear()
            lines = [line for line in lines if line not in (text, f"!{text}")] + [text]
        return self.of(lines)

    def removed(self, texts: Iterable[str]) -> SparsePatterns:
        """Without what these patterns match."""
        lines = [EVERYTHING_LINE] if self.lines is None else list(self.lines)
        for text in texts:
            _check(text)
            if text == EVERYTHING_LINE:
                lines.clear()
                continue
            lines = [line for line in lines if line not in (text, f"!{text}")]
            start = PathPattern(text.encode()).start
            included = [rule.pattern.start for rule in map(_Rule.parse, lines) if rule.includes]
            if any(one.startswith(start) or start.startswith(one) for one in included):
                lines.append(f"!{text}")
            elif not included:
                lines.clear()
        return self.of(lines)

    def __contains__(self, path: bytes) -> bool:
        if self.lines is None:
            return True
        folder, _, name = path.rpartition(b"/")
        if name == _RULES_FILE and self._folder(folder)[1] is not False:
            return True
        return self.matches(path)

    def matches(self, path: bytes) -> bool:
        """Whether the lines choose the path."""
        if self.lines is None:
            return True
        decider, all_below = self._folder(path.rpartition(b"/")[0])
        if all_below is not None:
            return all_below
        for rule in reversed(self._rules[decider + 1 :]):
            if rule.pattern.matches(path, folder=True):
                return rule.includes
        return self._verdict(decider)

    def overlaps(self, after: bytes | None, last: bytes) -> bool:
        """Whether sorted paths in (`after`, `last`] may belong to it; `after` None: from the start."""
        if self.lines is None:
            return True
        folder = _common_folder(after, last)
        decider, all_below = self._folder(folder)
        if all_below is not None:
            return all_below
        low, high = b"" if after is None else sort_key(after), sort_key(last)
        if self._verdict(decider):
            return True
        for rule in self._rules[decider + 1 :]:
            start = sort_key(rule.pattern.start)
            if rule.includes and start <= high and start + b"\xff" > low:
                return True
            for above in (b"", *folders_above(rule.pattern.start)):
                name = sort_key(above + b"/" + _RULES_FILE if above else _RULES_FILE)
                if low < name <= high:
                    return True
        return False

    def all_below(self, folder: bytes) -> bool | None:
        """Whether everything below the folder belongs to it, or nothing does; None: some may, and some may not."""
        return True if self.lines is None else self._folder(folder)[1]

    def leads_to(self, folder: bytes) -> bool:
        """Whether something below the folder may belong to it."""
        return self.lines is None or self._folder(folder)[1] is not False

    def _folder(self, folder: bytes) -> tuple[int, bool | None]:
        """The last rule that matches the folder or one above (-1: none), and the verdict on all below if it is one."""
        found = self._folders.get(folder)
        if found is None:
            decider = self._folder(folder.rpartition(b"/")[0])[0] if folder else -1
            for at in range(len(self._rules) - 1, decider, -1):
                if folder and self._rules[at].pattern.matches(folder, folder=True):
                    decider = at
                    break
            verdict = self._verdict(decider)
            mixed = any(
                rule.includes is not verdict and rule.pattern.may_match_below(folder)
                for rule in self._rules[decider + 1 :]
            )
            found = self._folders[folder] = decider, None if mixed else verdict
        return found

    def _verdict(self, decider: int) -> bool:
        return decider >= 0 and self._rules[decider].includes


class _Rule(msgspec.Struct, frozen=True):
    includes: bool
    pattern: PathPattern

    @classmethod
    def parse(cls, line: str) -> _Rule:
        includes = not line.startswith("!")
        text = line if includes else line[1:]
        _check(text, line)
        return cls(includes, PathPattern(text.encode()))


EVERYTHING = SparsePatterns()


def _check(text: str, line: str | None = None) -> None:
    try:
        empty = not text.encode().strip(b"/")
    except UnicodeEncodeError:
        raise UsageError(
            f"the pattern {text!r} is not UTF-8, and paths of a dataset are", subject=text
        ) from None
    if empty or text.startswith("!"):
        raise UsageError(f"{line or text!r} is no pattern", subject=line or text)


def _common_folder(after: bytes | None, last: bytes) -> bytes:
    """The deepest folder that all paths in between lie in."""
    if after is None:
        return b""
    folder = last.rpartition(b"/")[0]
    while folder and not after.startswith(folder + b"/"):
        folder = folder.rpartition(b"/")[0]
    return folder
