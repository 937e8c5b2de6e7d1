"""Paths of a tree: valid paths, where symlinks lead, and sets of paths with everything below them."""

from __future__ import annotations

import bisect
import operator
import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final, Protocol

import msgspec
from blake3 import blake3

MAX_PATH = 4096  # bytes
MAX_COMPONENT = 255  # bytes
MAX_TARGET = 4095  # bytes of a symlink's target: what Linux takes
_MAX_HOPS = 40  # what Linux follows for one path; macOS follows 32
# The one letter outside ASCII that folds to a letter of a reserved name is LATIN SMALL LETTER LONG S.
_RESERVED = re.compile(rb"\.(?:d(?:s|%b)v|git)" % "ſ".encode(), re.IGNORECASE)
_BAD = re.compile(rb"//|/(?:\.\.?|%b)/" % _RESERVED.pattern, re.IGNORECASE)


def check_path(path: bytes) -> None:
    """Raises `ValueError` with the reason if a tree may not hold this path."""
    _check_relative(path, MAX_PATH)
    for part in path.split(b"/"):
        if not part:
            raise ValueError("it has an empty component")
        if part in (b".", b".."):
            raise ValueError(f"it has a component {part.decode()!r}")
        if len(part) > MAX_COMPONENT:
            raise ValueError(f"it has a component longer than {MAX_COMPONENT} bytes")
        if _RESERVED.fullmatch(part):
            raise ValueError(f"it has a component {part.decode()!r}, which is dsv's or git's own")


def check_target(target: bytes) -> None:
    """Raises `ValueError` if no tree may hold a symlink with this target, at any path."""
    _check_relative(target, MAX_TARGET)


def _check_relative(text: bytes, most: int) -> None:
    if not text:
        raise ValueError("it is empty")
    if len(text) > most:
        raise ValueError(f"it is longer than {most} bytes")
    if b"\0" in text:
        raise ValueError("it holds a NUL")
    try:
        text.decode("utf-8")
    except UnicodeDecodeError:
        raise ValueError("it is not UTF-8") from None
    if text[:1] == b"/":
        raise ValueError("it is absolute")


def check_joined(blob: bytes) -> list[bytes]:
    """Return the paths of a blob, in which they are joined by NUL, checked as `check_path` does.

    Works on the whole blob: a few nanoseconds a byte. Raises `ValueError` with one path and its reason.
    """
    paths = blob.split(b"\0")
    framed = b"/" + blob.replace(b"\0", b"/") + b"/"
    good = (
        not _any_longer(blob, MAX_COMPONENT)
        or (max(map(len, paths)) <= MAX_PATH and max(map(len, framed.split(b"/"))) <= MAX_COMPONENT)
    ) and _BAD.search(framed) is None
    try:
        blob.decode("utf-8")
    except UnicodeDecodeError:
        good = False
    if not good:
        for path in paths:
            try:
                check_path(path)
            except ValueError as error:
                raise ValueError(f"path {show(path)}: {error}") from None
        raise AssertionError("check_joined and check_path disagree")
    return paths


# Paths as `sort_key` orders them, ended by a byte that UTF-8 never has.
_TO_KEYS = bytes.maketrans(b"/\0", b"\0\xff")


def disorder(blob: bytes) -> int | None:
    """Return the position of the first path that may not follow the previous one; None in tree order.

    `blob` is one that `check_joined` accepted. A path follows another if it sorts after it by components and
    is not below it. The paths below `p` have the keys from `p NUL` to `p 0x01` (exclusive), so one comparison
    with `p 0x01` decides both.
    """
    keys = blob.translate(_TO_KEYS)
    ends = keys.replace(b"\xff", b"\1\xff").split(b"\xff")
    starts = keys.split(b"\xff")[1:]
    if all(map(operator.le, ends, starts)):
        return None
    return next(at for at, (end, start) in enumerate(zip(ends, starts, strict=False), 1) if end > start)


def _any_longer(blob: bytes, limit: int) -> bool:
    """Return whether one of the paths in the blob has more than `limit` bytes."""
    start, last = 0, len(blob) - limit
    while start < last:
        start = blob.rfind(b"\0", start, start + limit + 1) + 1
        if not start:
            return True
    return False


def show(path: bytes, limit: int = 200) -> str:
    """Return the path for a message: quoted, without control characters, and no longer than `limit`."""
    text = repr(path.decode("utf-8", "backslashreplace"))
    return text if len(text) <= limit else text[: limit - 1] + "…"


def link_escapes(links: Mapping[bytes, bytes]) -> list[bytes]:
    """Return the symlinks (path -> target) that lead out of the tree, resolved through the tree's own links.

    The paths must be valid paths of one tree. A link that dangles inside, or is part of a loop, does not
    count; a link with more hops than any system follows does.
    """
    return [path for path, target in links.items() if _escapes(path, target, links)]


def _escapes(path: bytes, target: bytes, links: Mapping[bytes, bytes]) -> bool:
    if target[:1] == b"/":
        return True
    here = path.split(b"/")[:-1]  # these are folders: nothing lies below a symlink's path
    # Components still to walk, the next one last; None marks the end of the target of a followed link.
    ahead: list[bytes | None] = [*target.split(b"/")[::-1]]
    following = [path]
    hops = 0
    while ahead:
        part = ahead.pop()
        if part is None:
            following.pop()
        elif part == b"..":
            if not here:
                return True
            here.pop()
        elif part not in (b"", b"."):
            here.append(part)
            link = b"/".join(here)
            if link in following:
                # A loop, where every system stops. Programs that resolve links themselves read on.
                links = {}
            elif link in links:
                hops += 1
                if hops > _MAX_HOPS or links[link][:1] == b"/":
                    return True
                here.pop()
                following.append(link)
                ahead.append(None)
                ahead.extend(links[link].split(b"/")[::-1])
    return False


def fold_clashes(
    paths: Iterable[bytes], *, spelling: bool = True, ends: bool = False
) -> list[tuple[bytes, bytes]]:
    """Return pairs of paths that have one name on a file system that folds case or Unicode (`spelling`), or
    drops dots and spaces at the end of a name (`ends`; what it would be called there counts as the other).

    The paths must be in tree order (`sort_key`). Folders count: if two folders clash, they are the pair, and
    the paths below them are not compared. Memory holds the names of one folder for each level.
    """
    clashes: list[tuple[bytes, bytes]] = []
    parts: list[bytes] = []  # of the path before
    names: list[dict[str | bytes, bytes]] = [{}]  # the names in each of its folders, the top one first
    for path in paths:
        now = path.split(b"/")
        depth = 0
        while depth < len(parts) and depth < len(now) and parts[depth] == now[depth]:
            depth += 1
        del names[depth + 1 :]
        for level in range(depth, len(now)):
            if level == len(names):
                names.append({})
            kept = now[level].rstrip(b". ") if ends else now[level]
            first = names[level].setdefault(_fold_key(kept) if spelling else kept, kept)
            if first != now[level]:
                above = b"".join(part + b"/" for part in now[:level])
                clashes.append((above + first, above + now[level]))
        parts = now
    return clashes


def _fold_key(path: bytes) -> str:
    text = path.decode("utf-8", "surrogateescape")
    if text.isascii():
        return text.lower()
    seen = (one for one in unicodedata.normalize("NFD", text) if unicodedata.category(one) != "Cf")
    return unicodedata.normalize("NFC", "".join(seen).casefold())


TAR_ENDINGS: Final = (".tar", ".tar.gz", ".tgz", ".tar.xz", ".tar.bz2")
DATA_ENDING: Final = re.compile(
    r"\.(7z|arrow|bz2|csv|gz|h5|jpg|jsonl?|lz4|np[yz]|parquet|pdf|png|pt"
    r"|rar|safetensors|tar|tgz|tif|tsv|txt|xz|zip|zst)$",
    re.IGNORECASE,
)
"""Ends of names of files that are neither web pages nor folders."""


def found_otherwise(name: str, exists: Callable[[str], bool]) -> tuple[bool, bool]:
    """Return whether a file, with `a` and perhaps `\xe9` in its name, is found by other spellings of that, as by a file
    system that folds case or Unicode, and with a dot or a space at the end. name: its name, or its whole path."""
    folder, slash, last = name.rpartition("/")
    folded = {last.upper(), last.replace("\xe9", "e\u0301"), last.replace("a", "a\u200d")} - {last}
    folds = any(exists(folder + slash + one) for one in sorted(folded))
    return folds, exists(name + ".") or exists(name + " ")


def sort_key(path: bytes) -> bytes:
    """Return a key to sort paths by components, bytewise: NUL is in no path and below every other byte."""
    return path.replace(b"/", b"\0")


class Scope(Protocol):
    """The paths that a walk of a tree is limited to."""

    @property
    def whole(self) -> bool:
        """Return whether it has every path."""
        ...

    def __contains__(self, path: bytes) -> bool: ...

    def overlaps(self, after: bytes | None, last: bytes) -> bool:
        """Return whether sorted paths in (`after`, `last`] may be in it; `after` None: from the start."""
        ...


class PathSet(msgspec.Struct, frozen=True):
    """Files and folders of a tree, each with everything below it. Without paths: the whole tree."""

    keys: tuple[bytes, ...] = ()
    """The `sort_key` of each path, sorted; none is below another."""

    @classmethod
    def of(cls, paths: Iterable[bytes]) -> PathSet:
        """Slashes at either end are ignored. An empty path is the whole tree."""
        keys = sorted({sort_key(path.strip(b"/")) for path in paths})
        if b"" in keys:
            return cls()
        kept: list[bytes] = []
        for key in keys:
            if not kept or not _is_below(key, kept[-1]):
                kept.append(key)
        return cls(tuple(kept))

    @property
    def whole(self) -> bool:
        return not self.keys

    @property
    def paths(self) -> tuple[bytes, ...]:
        """In tree order; none for the whole tree."""
        return tuple(key.replace(b"\0", b"/") for key in self.keys)

    @property
    def id(self) -> str | None:
        """16 hex digits for the name of a cached part; None for the whole tree."""
        if self.whole:
            return None
        hashed = blake3(b"\n".join(self.keys), derive_key_context="dsv 2026-11 selection v1")
        return hashed.hexdigest(length=8)

    @property
    def ways(self) -> frozenset[bytes]:
        """The folders that lead to the paths, without the root; computed at each call."""
        return frozenset(folder for path in self.paths for folder in folders_above(path))

    def __contains__(self, path: bytes) -> bool:
        if self.whole:
            return True
        key = sort_key(path)
        at = bisect.bisect_right(self.keys, key)
        return at > 0 and _is_below(key, self.keys[at - 1])

    def touches(self, path: bytes) -> bool:
        """Return whether the path is in the set or leads to something in it."""
        if path in self:
            return True
        prefix = sort_key(path) + b"\0"
        at = bisect.bisect_left(self.keys, prefix)
        return path != b"" and at < len(self.keys) and self.keys[at].startswith(prefix)

    def overlaps(self, after: bytes | None, last: bytes) -> bool:
        if self.whole:
            return True
        low = b"" if after is None else sort_key(after)
        high = sort_key(last)
        # A folder's paths have the keys from `key + NUL` to `key + \1` (exclusive).
        return any(key <= high and (key + b"\1") > low for key in self.keys)


class Both(msgspec.Struct, frozen=True):
    """The intersection of two scopes."""

    one: Scope
    other: Scope

    @property
    def whole(self) -> bool:
        return self.one.whole and self.other.whole

    def __contains__(self, path: bytes) -> bool:
        return path in self.one and path in self.other

    def overlaps(self, after: bytes | None, last: bytes) -> bool:
        return self.one.overlaps(after, last) and self.other.overlaps(after, last)


WHOLE = PathSet()


def folders_above(path: bytes) -> Iterator[bytes]:
    """Yield the folders that a path lies in, the nearest first, without the root."""
    end = path.rfind(b"/")
    while end > 0:
        yield path[:end]
        end = path.rfind(b"/", 0, end)


def _is_below(key: bytes, folder: bytes) -> bool:
    return key == folder or key.startswith(folder + b"\0")
