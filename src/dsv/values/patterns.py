"""Patterns of paths: those of gitignore, of commands' path arguments, and of sparse workspaces."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from string import ascii_letters, ascii_lowercase, ascii_uppercase, digits, hexdigits, punctuation, whitespace

import msgspec
from blake3 import blake3

from dsv.errors import UsageError
from dsv.values.cached import cached
from dsv.values.paths import folders_above, show, sort_key

_SLASH = ord("/")
_SPECIAL = b"*?[\\"
_ALL = (1 << 256) - 1  # sets of bytes are bit sets
_CLASSES = {
    b"alnum": ascii_letters + digits,
    b"alpha": ascii_letters,
    b"blank": " \t",
    b"cntrl": "".join(map(chr, range(32))) + "\x7f",
    b"digit": digits,
    b"graph": ascii_letters + digits + punctuation,
    b"lower": ascii_lowercase,
    b"print": ascii_letters + digits + punctuation + " ",
    b"punct": punctuation,
    b"space": whitespace,
    b"upper": ascii_uppercase,
    b"xdigit": hexdigits,
}
"""The classes of the C locale, which are git's."""
_STAR, _STARS, _FOLDERS = b"[^/]*", b".*", b"(?:.*/)?"
"""Expressions of `*`, of `**` at the end, and of `**/`."""
_NOTHING = b"(?!)"


class Pattern(msgspec.Struct, frozen=True, dict=True):
    """A line of an ignore file."""

    includes: bool
    """It includes again what an earlier pattern left out."""
    directories_only: bool
    anchored: bool
    """It matches the whole path below the folder of its file, not just the last component."""
    text: bytes
    """Without the marks at its ends."""

    @cached
    def _literal(self) -> bytes:
        return self.text[: _wildcard(self.text)]

    @cached
    def _ending(self) -> bytes | None:
        """The literal after a leading star, which names must end with; None for other patterns."""
        simple = self.text[:1] == b"*" and not any(byte in _SPECIAL for byte in self.text[1:])
        return self.text[1:] if simple and not self.anchored else None

    def matches(self, path: bytes, name: bytes, *, directory: bool) -> bool:
        """path: relative to the folder of the pattern's file; name: its last component."""
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

    @cached
    def _accepts(self) -> Callable[[bytes, int], object]:
        """Return whether a text matches from a position on, where the literal beginning ends."""
        return re.compile(_expression(self.text, len(self._literal)), re.DOTALL).fullmatch


def _wildcard(text: bytes) -> int:
    """Return the position of the first special byte, or the length."""
    return next((at for at, byte in enumerate(text) if byte in _SPECIAL), len(text))


def parse(line: bytes) -> Pattern | None:
    """Return the pattern of a line without its end; None for an empty one and for a comment. Raises
    `ValueError` for an invalid line: an exclamation mark alone, or a backslash at the end."""
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
    """Return the line without trailing spaces, except one after a backslash."""
    text = line.rstrip(b" ")
    escaped = (len(text) - len(text.rstrip(b"\\"))) % 2
    return line[: len(text) + 1] if escaped and len(line) > len(text) else text


def _expression(text: bytes, at: int) -> bytes:
    """Return the regular expression of a text from a position on.

    The text between two stars is matched once, at its first occurrence: a later one leaves less to the second
    star. So the time is at most the length of the path times that of its longest name.
    """
    parts: list[bytes] = []
    star = stars = None  # positions of the last star in this name and the last `**`
    for part in _parts(text, at):
        if part == _NOTHING:
            return part
        if part == _STAR:
            _once(parts, star)
            star = len(parts)
        elif part in (_STARS, _FOLDERS):
            _once(parts, stars)
            stars = len(parts)
        elif part == b"/":
            star = None
        parts.append(part)
    return b"".join(parts)


def _once(parts: list[bytes], start: int | None) -> None:
    """Join the parts from a star on, if any, into one that matches in one way only: the fewest bytes."""
    if start is None:
        return
    lazy = {_STAR: b"[^/]*?", _STARS: b".*?", _FOLDERS: b"(?:.*?/)??"}[parts[start]]
    group = b"g%d" % sum(part.count(b"(?P<") for part in parts)
    parts[start:] = [b"(?=(?P<%b>%b%b))(?P=%b)" % (group, lazy, b"".join(parts[start + 1 :]), group)]


def _parts(text: bytes, at: int) -> Iterator[bytes]:
    """Yield the expressions of stars, sets and single bytes; `_NOTHING` where nothing can match."""
    last = b""
    while at < len(text):
        byte = text[at]
        if byte == ord("*"):
            start = at
            while text[at : at + 1] == b"*":
                at += 1
            alone = start == 0 or text[start - 1] == _SLASH
            following = text[at : at + 1] == b"/" or text[at : at + 2] == b"\\/"
            part = _STARS if at - start > 1 and alone and (at == len(text) or following) else _STAR
            if part == _STARS and text[at : at + 1] == b"/":
                at += 1
                part = _FOLDERS
        elif byte == ord("["):
            set_and_end = _set(text, at + 1)
            if set_and_end is None:
                yield _NOTHING
                return
            members, at = set_and_end
            within = b"".join(b"\\x%02x" % one for one in range(256) if members >> one & 1 and one != _SLASH)
            part = b"[%b]" % within if within else _NOTHING
        else:
            at += byte == ord("\\")
            if at == len(text):  # the backslash was before the slash that means folders
                yield _NOTHING
                return
            part = b"[^/]" if byte == ord("?") else re.escape(text[at : at + 1])
            at += 1
        if part != _FOLDERS or last != _FOLDERS:  # `**/**/` is `**/`
            yield part
        last = part


def _set(text: bytes, at: int) -> tuple[int, int] | None:
    """Return the bytes in brackets as a bit set, and the position after them; None without an end. `at` is
    the position after the opening bracket."""
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
                members |= sum(1 << ord(each) for each in named)
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


_WILD = b"*?["


class PathPattern(msgspec.Struct, frozen=True, dict=True):
    """A pattern as in a shell: `*` and `?` don't match `/`, `**/` matches any folders, `\\` escapes."""

    text: bytes
    """Without slashes at its ends."""
    folders_only: bool = False
    """It matches folders, but no files."""
    includes: bool = True
    """False for an exclusion in a sparse workspace."""

    def __post_init__(self) -> None:
        if (len(self.text) - len(self.text.rstrip(b"\\"))) % 2:
            raise UsageError(
                f"the pattern {show(self.text)} ends with a backslash",
                subject=self.text.decode("utf-8", "backslashreplace"),
            )

    @cached
    def start(self) -> bytes:
        """The beginning of every path that matches or is below a match."""
        return self.text[: _wildcard(self.text)]

    def matches(self, path: bytes, *, folder: bool) -> bool:
        """Return whether exactly this path matches. The caller handles paths below a folder that matches."""
        return self._pattern.matches(path, path.rpartition(b"/")[2], directory=folder)

    def may_match_below(self, folder: bytes) -> bool:
        """Return whether it may match below a folder that neither matches nor is below a match."""
        if not folder:
            return True
        names = folder.split(b"/")
        for part, name in zip(self._parts, names, strict=False):
            if part is None:
                return True
            if not part.matches(name, name, directory=True):
                return False
        return len(self._parts) > len(names)

    @cached
    def _pattern(self) -> Pattern:
        return Pattern(includes=False, directories_only=self.folders_only, anchored=True, text=self.text)

    @cached
    def _parts(self) -> list[Pattern | None]:
        """A pattern for each component; None if it may match several components."""
        return [
            None
            if b"**" in part or b"[" in part or b"\\" in part
            else Pattern(includes=False, directories_only=False, anchored=True, text=part)
            for part in self.text.split(b"/")
        ]


def is_pattern(path: bytes) -> bool:
    """Return whether a path has wildcard characters."""
    return any(byte in path for byte in _WILD)


def escaped(path: bytes) -> bytes:
    """Return the pattern that matches this path alone."""
    return b"".join(b"\\%c" % byte if byte in _SPECIAL else b"%c" % byte for byte in path)


EVERYTHING_LINE = "**"
_RULES_FILE = b".dsvignore"


class SparsePatterns(msgspec.Struct, frozen=True, dict=True):
    """A selection of a dataset's paths. Raises `UsageError` for an invalid line.

    A `.dsvignore` is selected at the top, and if any path next to it or below may be, so that the rules of the whole
    dataset apply to files that the workspace adds.
    """

    lines: tuple[str, ...] | None = None
    """Patterns. The last match of a path or a folder above it decides; `!` excludes. None: everything."""

    def __post_init__(self) -> None:
        _ = self._rules  # raises for an invalid line

    @cached
    def _rules(self) -> tuple[PathPattern, ...]:
        return tuple(map(_parse_rule, self.lines or ()))

    @cached
    def _folders(self) -> dict[bytes, tuple[int, bool | None]]:
        return {}

    @classmethod
    def of(cls, lines: Iterable[str]) -> SparsePatterns:
        """Return the selection of lines from `added` and `removed`, in its shortest form."""
        found = tuple(lines)
        return cls(None if found == (EVERYTHING_LINE,) else found)

    @property
    def whole(self) -> bool:
        return self.lines is None

    @property
    def digest(self) -> bytes:
        """A hash that identifies the selection; empty for everything."""
        if self.lines is None:
            return b""
        return blake3("\n".join(self.lines).encode(), derive_key_context="dsv 2026-11 sparse v1").digest()

    def added(self, texts: Iterable[str]) -> SparsePatterns:
        """Return the selection with what these patterns match added."""
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
        """Return the selection without what these patterns match."""
        lines = [EVERYTHING_LINE] if self.lines is None else list(self.lines)
        for text in texts:
            _check(text)
            if text == EVERYTHING_LINE:
                lines.clear()
                continue
            lines = [line for line in lines if line not in (text, f"!{text}")]
            start = PathPattern(text.encode()).start
            included = [rule.start for rule in map(_parse_rule, lines) if rule.includes]
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
        """Return whether the lines select the path."""
        if self.lines is None:
            return True
        decider, all_below = self._folder(path.rpartition(b"/")[0])
        if all_below is not None:
            return all_below
        for rule in reversed(self._rules[decider + 1 :]):
            if rule.matches(path, folder=True):
                return rule.includes
        return self._verdict(decider)

    def overlaps(self, after: bytes | None, last: bytes) -> bool:
        """Return whether sorted paths in (`after`, `last`] may be selected; `after` None: from the start."""
        if self.lines is None:
            return True
        folder = _common_folder(after, last)
        decider, all_below = self._folder(folder)
        if all_below is not None:
            return all_below
        low, high = b"" if after is None else sort_key(after), sort_key(last)
        if self._verdict(decider) or (not folder and low < sort_key(_RULES_FILE) <= high):
            return True
        for rule in self._rules[decider + 1 :]:
            start = sort_key(rule.start)
            if rule.includes and start <= high and start + b"\xff" > low:
                return True
            for above in (b"", *folders_above(rule.start)):
                name = sort_key(above + b"/" + _RULES_FILE if above else _RULES_FILE)
                if low < name <= high:
                    return True
        return False

    def all_below(self, folder: bytes) -> bool | None:
        """Return whether all paths below the folder are selected, or none is; None: some may be."""
        return True if self.lines is None else self._folder(folder)[1]

    def _folder(self, folder: bytes) -> tuple[int, bool | None]:
        """Return the last rule that matches the folder or one above (-1: none), and its verdict if that is
        the same for all below."""
        found = self._folders.get(folder)
        if found is None:
            decider = self._folder(folder.rpartition(b"/")[0])[0] if folder else -1
            for at in range(len(self._rules) - 1, decider, -1):
                if folder and self._rules[at].matches(folder, folder=True):
                    decider = at
                    break
            verdict = self._verdict(decider)
            mixed = any(
                rule.includes is not verdict and rule.may_match_below(folder)
                for rule in self._rules[decider + 1 :]
            )
            # The rules at the top are there even if nothing else is.
            found = self._folders[folder] = decider, None if mixed or not (folder or verdict) else verdict
        return found

    def _verdict(self, decider: int) -> bool:
        return decider >= 0 and self._rules[decider].includes


def _parse_rule(line: str) -> PathPattern:
    text = line.removeprefix("!")
    _check(text, line)
    return PathPattern(text.encode(), includes=text == line)


EVERYTHING = SparsePatterns()


def _check(text: str, line: str | None = None) -> None:
    try:
        empty = not text.encode().strip(b"/")
    except UnicodeEncodeError:
        raise UsageError(
            f"the pattern {text!r} is not UTF-8, and paths of a dataset are", subject=text
        ) from None
    if empty or text.startswith("!"):
        raise UsageError(f"{line or text!r} is not a pattern", subject=line or text)


def _common_folder(after: bytes | None, last: bytes) -> bytes:
    """Return the deepest folder that has all paths from `after` to `last`."""
    if after is None:
        return b""
    folder = last.rpartition(b"/")[0]
    while folder and not after.startswith(folder + b"/"):
        folder = folder.rpartition(b"/")[0]
    return folder
