"""The pattern that commands take in the place of a path: `train/**/*.png`, from the top of a dataset."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from dsv.errors import UsageError
from dsv.model.paths import show
from dsv.model.patterns import Pattern

_WILD = b"*?["
_SPECIAL = b"*?[\\"


@dataclass(frozen=True)
class PathPattern:
    """As a shell's: `*` and `?` take no slash, `**/` any folders, and a backslash takes the special meaning away.

    text: without slashes at its ends. folders_only: it is for folders, and not for files.
    """

    text: bytes
    folders_only: bool = False

    def __post_init__(self) -> None:
        if (len(self.text) - len(self.text.rstrip(b"\\"))) % 2:
            raise UsageError(
                f"the pattern {show(self.text)} ends with a backslash",
                subject=self.text.decode("utf-8", "backslashreplace"),
            )

    @cached_property
    def start(self) -> bytes:
        """What every path begins with that it matches, or that lies below one."""
        wild = min((at for byte in _SPECIAL if (at := self.text.find(byte)) >= 0), default=len(self.text))
        return self.text[:wild]

    def matches(self, path: bytes, *, folder: bool) -> bool:
        """Whether this very path matches; those below a folder that matches are for the caller."""
        return self._pattern.matches(path, path.rpartition(b"/")[2], directory=folder)

    def may_match_below(self, folder: bytes) -> bool:
        """Whether it may match something below a folder that neither matches nor lies below one that does."""
        if not folder:
            return True
        names = folder.split(b"/")
        for part, name in zip(self._parts, names, strict=False):
            if part is None:
                return True
            if not part.matches(name, name, directory=True):
                return False
        return len(self._parts) > len(names)

    @cached_property
    def _pattern(self) -> Pattern:
        return Pattern(includes=False, directories_only=self.folders_only, anchored=True, text=self.text)

    @cached_property
    def _parts(self) -> list[Pattern | None]:
        """A pattern for each name on the way; None if it may stand for several names."""
        return [
            None
            if b"**" in part or b"[" in part or b"\\" in part
            else Pattern(includes=False, directories_only=False, anchored=True, text=part)
            for part in self.text.split(b"/")
        ]


def is_pattern(path: bytes) -> bool:
    """Whether a path has characters that a pattern gives another meaning to."""
    return any(byte in path for byte in _WILD)


def escaped(path: bytes) -> bytes:
    """The pattern that matches this path alone."""
    return b"".join(b"\\%c" % byte if byte in _SPECIAL else b"%c" % byte for byte in path)
