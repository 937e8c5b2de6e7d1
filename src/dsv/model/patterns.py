"""One line of a `.dsvignore`: gitignore's patterns, matched bytewise as git does, in time linear in the path.

A pattern becomes a list of tokens, and a path is run through all of them at once: bit n of the state says that the
first n tokens can match what was read so far. Nothing is ever tried twice, so no pattern is slow.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property

_SLASH = ord("/")
_SPECIAL = b"*?[\\"
_ALL = (1 << 256) - 1  # sets of bytes are bit sets
_NO_SLASH = _ALL & ~(1 << _SLASH)
# The classes of the C locale, which are git's.
_CLASSES = {
    b"alnum": b"0-9A-Za-z",
    b"alpha": b"A-Za-z",
    b"blank": b" \t",
    b"cntrl": b"\0-\x1f\x7f",
    b"digit": b"0-9",
    b"graph": b"!-~",
    b"lower": b"a-z",
    b"print": b" -~",
    b"punct": b"!-/:-@[-`{-~",
    b"space": b"\t-\r ",
    b"upper": b"A-Z",
    b"xdigit": b"0-9A-Fa-f",
}


class _Mark(enum.Enum):
    """What takes no single byte."""

    STAR = "any run of bytes without a slash"
    STARS = "any run of bytes"
    MAYBE = "the two tokens that follow may be left out"


_Token = int | _Mark
"""A set of bytes, one of which matches, or a mark."""
_FOLDERS: list[_Token] = [_Mark.MAYBE, _Mark.STARS, 1 << _SLASH]  # `**/`


@dataclass(frozen=True)
class Pattern:
    """includes: it takes back what an earlier pattern left out. text: without the marks at its ends.

    anchored: it is for the whole path below the folder of its file, and not for the last component alone.
    """

    includes: bool
    directories_only: bool
    anchored: bool
    text: bytes
    _literal: bytes = field(init=False)  # what it begins with
    _ending: bytes | None = field(init=False)  # of a star and then no wildcard

    def __post_init__(self) -> None:
        first = next((at for at, byte in enumerate(self.text) if byte in _SPECIAL), len(self.text))
        object.__setattr__(self, "_literal", self.text[:first])
        simple = self.text[:1] == b"*" and not any(byte in _SPECIAL for byte in self.text[1:])
        object.__setattr__(self, "_ending", self.text[1:] if simple and not self.anchored else None)

    def matches(self, path: bytes, name: bytes, *, directory: bool) -> bool:
        """path: below the folder of the pattern's file; name: its last component."""
        if self.directories_only and not directory:
            return False
        if self._ending is not None:
            return name.endswith(self._ending)
        subject = path if self.anchored else name
        literal = self._literal
        if len(literal) == len(self.text):
            return subject == literal
        if not subject.startswith(literal):
            return False
        return bool(self._accepts(subject, len(literal)))

    @cached_property
    def _accepts(self) -> Callable[[bytes, int], object]:
        """Whether a text matches from a place on, which is where the literal beginning ends."""
        tokens = _tokens(self.text, len(self._literal))
        if tokens is None:
            return lambda text, start: False
        if sum(token in (_Mark.STAR, _Mark.STARS) for token in tokens) > 1:
            return _Automaton(tokens).accepts
        # One star leaves little to try again, and the regular expressions of Python are faster.
        return re.compile(_expression(tokens), re.DOTALL).fullmatch


class _Automaton:
    """Runs all ways to match at once, each a bit."""

    __slots__ = ("_crossing", "_final", "_maybe", "_moves", "_stars", "_start")

    def __init__(self, tokens: list[_Token]) -> None:
        self._moves = [0] * 256
        self._stars = self._crossing = self._maybe = 0
        for place, token in enumerate(tokens):
            bit = 1 << place
            if token is _Mark.MAYBE:
                self._maybe |= bit
            elif isinstance(token, _Mark):
                self._stars |= bit
                self._crossing |= bit if token is _Mark.STARS else 0
            else:
                for byte in range(256):
                    if token >> byte & 1:
                        self._moves[byte] |= bit
        self._final = 1 << len(tokens)
        self._start = self._closed(1)

    def accepts(self, text: bytes, start: int) -> bool:
        moves, stars, crossing = self._moves, self._stars, self._crossing
        state = self._start
        for byte in text[start:]:
            stay = state & (crossing if byte == _SLASH else stars)
            state = self._closed((state & moves[byte]) << 1 | stay)
            if not state:
                return False
        return bool(state & self._final)

    def _closed(self, state: int) -> int:
        """With what is reached without taking a byte."""
        while True:
            maybe = state & self._maybe
            further = state | (state & self._stars) << 1 | maybe << 1 | maybe << 3
            if further == state:
                return state
            state = further


def _expression(tokens: list[_Token]) -> bytes:
    """The tokens of a pattern with one star at most, as a regular expression."""
    marks = {_Mark.STAR: b"[^/]*", _Mark.STARS: b".*"}
    out = b""
    for place, token in enumerate(tokens):
        if token is _Mark.MAYBE:
            out += b"(?:"
        elif isinstance(token, _Mark):
            out += marks[token]
        else:
            members = [b"\\x%02x" % byte for byte in range(256) if token >> byte & 1]
            out += b"[%b]" % b"".join(members) if members else b"(?!)"
        if place >= 2 and tokens[place - 2] is _Mark.MAYBE:
            out += b")?"
    return out


def parse(line: bytes) -> Pattern | None:
    """The pattern of a line without its end; None for an empty one and for a comment.

    Raises `ValueError` for a line that is neither: an exclamation mark alone, or a backslash at the end.
    """
    if line.startswith(b"#"):
        return None
    text = _trimmed(line)
    if not text:
        return None
    includes = text.startswith(b"!")
    text = text[1:] if includes else text
    if not text:
        raise ValueError("there is nothing behind its exclamation mark")
    if (len(text) - len(text.rstrip(b"\\"))) % 2:
        raise ValueError("it ends with a backslash")
    directories_only = text.endswith(b"/")
    text = text[:-1] if directories_only else text
    anchored = b"/" in text
    return Pattern(includes, directories_only, anchored, text[1:] if text.startswith(b"/") else text)


def _trimmed(line: bytes) -> bytes:
    """Without the spaces at its end; one behind a backslash stays."""
    text = line.rstrip(b" ")
    escaped = (len(text) - len(text.rstrip(b"\\"))) % 2
    return line[: len(text) + 1] if escaped and len(line) > len(text) else text


def _tokens(text: bytes, at: int) -> list[_Token] | None:
    """What the text asks for from a place on; None if nothing can match it."""
    tokens: list[_Token] = []
    while at < len(text):
        byte = text[at]
        if byte == ord("*"):
            start = at
            while text[at : at + 1] == b"*":
                at += 1
            alone = start == 0 or text[start - 1] == _SLASH
            following = text[at : at + 1] == b"/" or text[at : at + 2] == b"\\/"
            crosses = at - start > 1 and alone and (at == len(text) or following)
            if crosses and text[at : at + 1] == b"/":
                at += 1
                tokens += [] if tokens[-3:] == _FOLDERS else _FOLDERS  # `**/**/` is `**/`
            else:
                tokens.append(_Mark.STARS if crosses else _Mark.STAR)
            continue
        if byte == ord("["):
            found = _set(text, at + 1)
            if found is None:
                return None
            members, at = found
            tokens.append(members & _NO_SLASH)
            continue
        if byte == ord("\\"):
            at += 1
            if at == len(text):  # it was before the slash that means folders
                return None
        tokens.append(_NO_SLASH if byte == ord("?") else 1 << text[at])
        at += 1
    return tokens


def _set(text: bytes, at: int) -> tuple[int, int] | None:
    """The set of bytes in brackets, `at` being behind the opening one, and where it ends. None: it has no end."""
    negated = text[at : at + 1] in (b"!", b"^")
    at += negated
    members, previous, first = 0, 0, True
    while first or text[at : at + 1] != b"]":
        first = False
        byte = text[at] if at < len(text) else 0
        if not byte:
            return None
        if byte == ord("-") and previous and text[at + 1 : at + 2] not in (b"", b"]"):
            at += 1
            at += text[at] == ord("\\")
            if at >= len(text):
                return None
            members |= _range(previous, text[at])
            previous = 0
        elif text[at : at + 2] == b"[:":
            end = text.find(b"]", at + 2)
            if end < 0:
                return None
            if end == at + 2 or text[end - 1] != ord(":"):
                members |= 1 << byte
                previous = byte
            else:
                named = _CLASSES.get(text[at + 2 : end - 1])
                if named is None:
                    return None
                members |= _named(named)
                at, previous = end, 0
        else:
            at += byte == ord("\\")
            if at >= len(text):
                return None
            members |= 1 << text[at]
            previous = text[at]
        at += 1
    return (_ALL & ~members if negated else members), at + 1


def _range(low: int, high: int) -> int:
    return (1 << high + 1) - (1 << low) if low <= high else 0


def _named(ranges: bytes) -> int:
    """Bytes and ranges of them, written as in brackets."""
    members, at = 0, 0
    while at < len(ranges):
        wide = ranges[at + 1 : at + 2] == b"-" and at + 2 < len(ranges)
        members |= _range(ranges[at], ranges[at + 2] if wide else ranges[at])
        at += 3 if wide else 1
    return members
