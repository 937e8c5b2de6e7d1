"""Names that people give: datasets, branches, tags, revisions, and the targets made of them.

    [DATASET][@REV][:PATH]

The first `:` ends the names; the rest is the path, unchanged. `@` separates only before it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import ClassVar, Final, Self

import msgspec

from dsv.errors import UsageError

MAX_COMPONENT = 200  # bytes of a name as one key or path component
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*(?:/[A-Za-z0-9][A-Za-z0-9._-]*)*", re.ASCII)
_HEX = re.compile(r"[0-9a-fA-F]{8,64}", re.ASCII)
_REV = re.compile(r"([^~]*)(?:~([0-9]{1,6}))?", re.ASCII)


class _Name(str):
    """Parts of `[A-Za-z0-9][A-Za-z0-9._-]*` joined by `/`; made by `parse` alone."""

    __slots__ = ()
    what: ClassVar[str]

    @classmethod
    def parse(cls, text: str) -> Self:
        """Return the name, unchanged. Raises `UsageError` with the fault."""
        reason = cls._fault(text)
        if reason is not None:
            raise UsageError(
                f"{text!r} is not a name for a {cls.what}: {reason}", subject=text, hint=cls._suggestion(text)
            )
        return cls(text)

    @classmethod
    def _suggestion(cls, text: str) -> str | None:
        """Return a hint with a similar valid name, or None."""
        parts = (re.sub(r"[^A-Za-z0-9._-]+", "-", part).strip("-._") for part in text.split("/"))
        near = "/".join(part for part in parts if part)
        return None if cls._fault(near) is not None else f"such as {near}"

    @classmethod
    def from_component(cls, text: str) -> Self:
        """Return the name with this `component`. Raises `UsageError`, also for another spelling of it."""
        name = cls.parse(text.replace("%2F", "/"))
        if name.component != text:
            raise UsageError(f"{text!r} is not a name for a {cls.what}: a / is written as %2F", subject=text)
        return name

    @property
    def component(self) -> str:
        """The name as one component of a key or of a path."""
        return self.replace("/", "%2F")

    @classmethod
    def _fault(cls, text: str) -> str | None:
        if not text:
            return "it is empty"
        if _NAME.fullmatch(text) is None:
            return "it may have letters, digits, '.', '_', '-' and '/', and each part begins with a letter or digit"
        if ".." in text:
            return "it holds '..'"
        if len(text.replace("/", "%2F")) > MAX_COMPONENT:
            return f"it is longer than {MAX_COMPONENT} bytes"
        if _HEX.fullmatch(text) is not None:
            return "8 to 64 hex digits are read as a commit id"
        return None


class DatasetName(_Name):
    __slots__ = ()
    what = "dataset"


class BranchName(_Name):
    __slots__ = ()
    what = "branch"


class TagName(_Name):
    __slots__ = ()
    what = "tag"


HERE: Final = "here"
"""The pool that needs no configuration: this machine, with the cache in effect."""
MAIN = BranchName("main")


class Rev(msgspec.Struct, frozen=True):
    """A branch, a tag, or 8 to 64 hex digits of a commit id, then `ancestor` times the first parent."""

    text: str
    ancestor: int = 0

    @classmethod
    def parse(cls, text: str) -> Rev:
        """Raises `UsageError`."""
        match = _REV.fullmatch(text)
        if match is None:
            raise UsageError(
                f"{text!r} is not a revision: after a ~ comes a number and no more", subject=text
            )
        name, ancestor = match[1], int(match[2] or 0)
        if _HEX.fullmatch(name) is not None:
            return cls(name.lower(), ancestor)
        fault = _Name._fault(name)
        if fault is not None:
            fault = "a branch, a tag or a commit id comes before the ~" if text and not name else fault
            hint = f"such as main{text}" if text and not name else "such as main, v1.0 or main~2"
            hint = f"write {text[1:]}, as in @v1.0..{text[1:]}" if text.startswith("@") else hint
            raise UsageError(f"{text!r} is not a revision: {fault}", subject=text, hint=hint)
        return cls(name, ancestor)

    @property
    def commit_prefix(self) -> str | None:
        """The lower-case hex digits, if this is the id of a commit."""
        return self.text if _HEX.fullmatch(self.text) is not None else None

    def __str__(self) -> str:
        return f"{self.text}~{self.ancestor}" if self.ancestor else self.text


class Target(msgspec.Struct, frozen=True):
    """The target of a command. Omitted parts are None; `path` is the bytes after the `:`, unchecked."""

    dataset: DatasetName | None = None
    rev: Rev | None = None
    path: bytes | None = None

    @classmethod
    def parse(cls, text: str) -> Target:
        """Return the target; an empty text has no parts. Raises `UsageError`."""
        names, colon, rest = text.partition(":")
        dataset, at, rev = names.partition("@")
        if at and not rev:
            raise UsageError(f"{text!r} names no revision after the @", subject=text)
        is_rev = _HEX.fullmatch(dataset) or (not at and "~" in dataset and _REV.fullmatch(dataset))
        if is_rev:
            raise UsageError(
                f"{dataset!r} is not a name for a dataset: 8 to 64 hex digits are read as a commit id, and a ~ "
                "belongs to a revision, after an @",
                subject=text,
                hint=f"write @{dataset.replace('HEAD', 'main')} for the commit",
            )
        return cls(
            DatasetName.parse(dataset) if dataset else None,
            Rev.parse(rev) if at else None,
            rest.encode("utf-8", "surrogateescape") if colon else None,
        )

    def __str__(self) -> str:
        path = "" if self.path is None else ":" + self.path.decode("utf-8", "surrogateescape")
        return f"{self.dataset or ''}{f'@{self.rev}' if self.rev else ''}{path}"


def clean_path(path: bytes | None) -> bytes:
    """Return a target's path without `.` and without slashes at the ends. Raises `UsageError` for `..`."""
    parts = [part for part in (path or b"").split(b"/") if part not in (b"", b".")]
    if b".." in parts:
        raise UsageError(f"the path {(path or b'').decode(errors='backslashreplace')!r} has a part ..")
    return b"/".join(parts)


_DATA_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", re.ASCII)


def is_data_name(text: str) -> bool:
    return _DATA_NAME.fullmatch(text) is not None and ".." not in text


def parse_data(texts: Iterable[str]) -> dict[str, Target]:
    """Return the targets by name, from `NAME=TARGET` as given with `--data`. Raises `UsageError`."""
    data: dict[str, Target] = {}
    for text in texts:
        name, equals, target = text.partition("=")
        if not equals or not is_data_name(name):
            raise UsageError(f"{text!r} is not NAME=TARGET", subject=text, hint="--data masks=chest-masks@v1")
        if data_variable(name) in map(data_variable, data):
            hint = "name them: --data NAME=TARGET"
            raise UsageError(f"two --data give the variable {data_variable(name)}", subject=name, hint=hint)
        data[name] = Target.parse(target)
    return data


def data_variable(name: str) -> str:
    """Return the variable for the folder of the data of this name: `DSV_DATA_MASKS` for `masks`."""
    return "DSV_DATA_" + re.sub(r"[^A-Z0-9]", "_", name.upper())
