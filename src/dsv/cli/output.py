"""stdout, held until the command has succeeded, so that a failure leaves it empty; JSON, text and tables."""

from __future__ import annotations

import io
import re
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from enum import Enum
from errno import EBADF
from functools import cache
from select import select
from typing import IO, TYPE_CHECKING, BinaryIO

import msgspec

from dsv.cli.terminal import PLAIN, Ink, Style, width
from dsv.errors import NoRoom
from dsv.values import units

if TYPE_CHECKING:
    from pathlib import Path

    from dsv.api.checkout import Restored, Updated
    from dsv.cli.terminal import Surroundings
    from dsv.values.ids import CommitId
    from dsv.values.names import DatasetName

HELD_IN_MEMORY = 32 << 20
"""Bytes of output kept in memory; more is kept in a temporary file."""

SCHEMA = 1


class ReaderGone(Exception):
    """The other end of stdout was closed."""


class CommandOutput(AbstractContextManager["CommandOutput"]):
    """Collects the output of a command. `publish` sends it; without that, nothing is shown."""

    def __init__(self, raw: BinaryIO) -> None:
        self._raw = raw
        self._held: IO[bytes] = io.BytesIO()
        self.streaming = False
        self._may_stream = False

    def line(self, text: str) -> None:
        self.write(text.encode("utf-8", "surrogateescape") + b"\n")

    def write(self, data: bytes) -> None:
        """Collect data, or send it while streaming. Raises `ReaderGone`."""
        if self.streaming:
            self._send(data)
            return
        self._held.write(data)
        if isinstance(self._held, io.BytesIO) and self._held.tell() > HELD_IN_MEMORY:
            if self._may_stream:
                self.stream()
                return
            from tempfile import TemporaryFile

            held = self._held.getvalue()
            self._held = TemporaryFile()  # noqa: SIM115 (closed by discard)
            self._held.write(held)

    def isatty(self) -> bool:
        return self._raw.isatty()

    def stream(self) -> None:
        """Send what is held, and from now on send everything at once."""
        self.publish()
        self.streaming = True

    def stream_when_large(self) -> None:
        """Send output beyond `HELD_IN_MEMORY` at once: contents may be larger than a disk."""
        self._may_stream = True

    def publish(self) -> None:
        """Send everything. Raises `ReaderGone`, or `NoRoom` if stdout can't take it."""
        for data in self.held():
            self._send(data)
        self.discard()

    def held(self) -> Iterator[bytes]:
        """Yield what was collected and not yet sent."""
        self._held.seek(0)
        while data := self._held.read(1 << 20):
            yield data

    def discard(self) -> None:
        self._held.close()
        self._held = io.BytesIO()

    def __exit__(self, *_: object) -> None:
        self.discard()

    def _send(self, data: bytes) -> None:
        view = memoryview(data)
        try:
            while view:
                written: int | None = self._raw.write(view)
                if written is None:  # a full pipe that is non-blocking
                    select([], [self._raw], [])
                else:
                    view = view[written:]
            self._raw.flush()
        except BrokenPipeError:
            raise ReaderGone from None
        except OSError as error:
            said = "it is closed" if error.errno == EBADF else (error.strerror or "").lower()
            raise NoRoom(f"stdout can't be written: {said}", subject="stdout") from error


def to_json(value: Mapping[str, object], *, indent: bool = False) -> str:
    """Return ASCII, so that a name that is not UTF-8 still makes valid JSON; keys keep their order."""
    from json import dumps  # takes a while to import

    return dumps(value, indent=2 if indent else None)


def document(fields: Mapping[str, object]) -> dict[str, object]:
    """Add the version of the schema."""
    return {"schema": SCHEMA, **fields}


def write_items(
    out: CommandOutput, items: Iterable[Mapping[str, object]], head: Mapping[str, object] | None = None
) -> None:
    """Write one document whose `items` are written one by one: a million of them never exist at once."""
    out.write(to_json(document(head or {}))[:-1].encode() + b', "items": [')
    first = True
    for item in items:
        out.write((b"\n" if first else b",\n") + to_json(item).encode())
        first = False
    out.write(b"]}\n" if first else b"\n]}\n")


def rfc3339(time_ms: float | None) -> str | None:
    return None if time_ms is None else units.rfc3339(time_ms)


_SECONDS = frozenset({"until", "since", "held_until", "last_use", "may_go"})
"""Attributes that are times in seconds, like those that end in `_at`. Those in milliseconds end in `_ms`."""


class Keys(dict[str, "Keys"]):
    """The keys of a JSON object in order, each with the keys of the object, or the list of objects, below."""

    @classmethod
    @cache
    def parse(cls, text: str) -> Keys:
        """Return the keys of a text like `commit items(path size)`."""
        top = last = cls()
        above: list[Keys] = []
        for word in re.findall(r"\w+|[()]", text):
            if word == "(":
                above.append(top)
                top = last
            elif word == ")":
                top = above.pop()
            else:
                last = top.setdefault(word, cls())
        return top

    def dotted(self) -> Iterator[str]:
        """Yield each key as the documentation names it: `items.path`."""
        for name, below in self.items():
            yield from [f"{name}.{each}" for each in below.dotted()] or [name]


def to_item(found: object, keys: str | Keys, nulls: bool = False, /, **more: object) -> dict[str, object]:
    """Return a result as a JSON object: the values of `more`, and the attributes that are named like a key.
    Keys that neither has are left out, or with `nulls` null."""
    keys = Keys.parse(keys) if isinstance(keys, str) else keys
    assert more.keys() <= keys.keys(), f"keys that are not declared: {sorted(more.keys() - keys.keys())}"
    item: dict[str, object] = {}
    for name, inner_keys in keys.items():
        if name in more:
            item[name] = _plain(more[name], inner_keys)
        elif hasattr(found, name):
            value = getattr(found, name)
            is_time = name in _SECONDS and value is not None
            item[name] = rfc3339(value * 1000) if is_time else _plain(value, inner_keys)
        elif hasattr(found, f"{name}_ms"):
            item[name] = None if (time_ms := getattr(found, f"{name}_ms")) is None else rfc3339(time_ms)
        elif hasattr(found, f"{name}_at"):
            item[name] = rfc3339(getattr(found, f"{name}_at") * 1000)
        elif nulls:
            item[name] = None
    return item


def _plain(value: object, keys: Keys) -> object:
    """Return a value of the api as JSON has it."""
    match value:
        case Enum():
            return value.value
        case None | bool() | int() | float() | str() | dict():
            return value
        case bytes():
            return str(value) if type(value) is not bytes else value.decode("utf-8", "surrogateescape")
        case list() | tuple():
            return [_plain(each, keys) for each in value]
    fields: Iterable[str] = getattr(value, "__struct_fields__", getattr(value, "__dataclass_fields__", ()))
    keys = keys or Keys({name: Keys() for name in fields})
    return to_item(value, keys) if keys else str(value)


def local_time(time_ms: float | None) -> str:
    return "-" if time_ms is None else units.format_time(time_ms)


def free_from(time_ms: float) -> str:
    """Return for people from when gc may free something, for a sentence."""
    return "now" if time_ms <= 1000 * time.time() else f"from {local_time(time_ms)} on"


def short(commit: CommitId | None) -> str:
    """Return the first digits of a commit's id for people, or a dash."""
    return "-" if commit is None else str(commit)[:12]


def cached_name(dataset: DatasetName, commit: CommitId, folder: Path) -> str:
    """Return the name of a cached commit for people: `pets@f54d8ee9f991`, with a + for a part of it."""
    return f"{dataset}@{str(commit)[:12]}{'+' if '+' in folder.name else ''}"


def first(lines: Sequence[str], most: int = 20, more: str = "") -> list[str]:
    """Return the first lines, and one with the number of the others. `more` says where these are."""
    return [*lines[:most], *([f"and {len(lines) - most:,} more{more}"] if len(lines) > most else [])]


def patterns_of(lines: Sequence[str] | None) -> str:
    """Return a few patterns of a sparse workspace, and how many more there are."""
    return ", ".join(first(lines or (), 5)) or "nothing"


CACHED_KEYS = "cached_files cached_bytes"
WRITTEN_KEYS = f"created replaced removed {CACHED_KEYS}"


def written(done: Restored | Updated) -> str:
    """Return the changes to a workspace's files for people."""
    counts = f"{done.replaced:,} replaced, {done.removed:,} removed"
    came = from_caches(done.cached_files, done.cached_bytes)
    return f"{units.format_count(done.created, 'file')} added, {counts}{came}"


def from_caches(files: int, size: int) -> str:
    """Return how much was copied from caches as the end of a sentence, or nothing if no file was."""
    came = f"{units.format_count(files, 'file')}, {units.format_bytes(size)}"
    return f"; from a cache here: {came}" if files else ""


def printable(text: str | bytes) -> str:
    """Return a name with its control characters escaped, which a terminal would obey."""
    if isinstance(text, bytes):
        text = text.decode("utf-8", "surrogateescape")
    if text.isprintable():
        return text
    return "".join(
        c
        if c.isprintable() or "\udc80" <= c <= "\udcff" or c == "\u00a0"
        else c.encode("unicode_escape").decode()
        for c in text
    )


GAP = "  "
NARROWEST = 8
"""Columns that a shortened cell keeps."""


class Painted(str):
    """A cell of a table in a colour."""

    style: str

    def __new__(cls, text: str, style: str) -> Painted:
        made = super().__new__(cls, text)
        made.style = style
        return made


class Column(msgspec.Struct, frozen=True):
    title: str
    right: bool = False
    """Align numbers."""
    keep: bool = False
    """Never shorten, even in a narrow window: for ids and names to copy."""
    exact: bool = False
    """The title is a user's word, and is not written in capitals."""

    @classmethod
    def parse(cls, text: str) -> Column:
        return cls(text.rstrip(">~"), right=">" in text, keep="~" not in text)

    @property
    def head(self) -> str:
        return printable(self.title) if self.exact else self.title.upper()


def write_table(
    out: CommandOutput,
    around: Surroundings,
    columns: Sequence[Column | str],
    rows: Sequence[Sequence[str]],
    details: Sequence[Sequence[str]] = (),
) -> None:
    """Write a header and the rows, each with the lines of its `details` below it; nothing without rows. A
    column may be given by its title: with `>` for numbers, and with `~` if it may be shortened."""
    if not rows:
        return
    parsed = [Column.parse(column) if isinstance(column, str) else column for column in columns]
    cells = [[Painted(printable(cell), getattr(cell, "style", "")) for cell in row] for row in rows]
    titles = [Painted(column.head, "") for column in parsed]
    widths = [max(width(row[i]) for row in [titles, *cells]) for i in range(len(parsed))]
    if around.stdout_is_terminal:
        fitted = _fitted(widths, parsed, around.columns())
        if fitted is None:
            _write_stacked(out, around, parsed, cells, details)
            return
        widths = fitted
    ink = around.stdout_ink
    out.line(ink.paint(Style.HEADING, _row(titles, widths, parsed, PLAIN)))
    for number, row in enumerate(cells):
        out.line(_row(row, widths, parsed, ink))
        _write_details(out, details, number)


def shortened(text: str, room: int) -> str:
    """Cut a text to `room` columns, with an ellipsis at the cut."""
    if width(text) <= room:
        return text
    kept, used = [], 0
    for character in text:
        used += width(character)
        if used > room - 1:
            break
        kept.append(character)
    return "".join(kept) + "…"


def _fitted(widths: Sequence[int], columns: Sequence[Column], room: int) -> list[int] | None:
    """Shorten columns that may be shortened, widest first. Return None if that isn't enough."""
    fitted = list(widths)
    excess = sum(fitted) + len(GAP) * (len(fitted) - 1) - room
    while excess > 0:
        candidates = [i for i, column in enumerate(columns) if not column.keep and fitted[i] > NARROWEST]
        if not candidates:
            return None
        widest = max(candidates, key=lambda i: fitted[i])
        fitted[widest] -= 1
        excess -= 1
    return fitted


def _row(row: Sequence[Painted], widths: Sequence[int], columns: Sequence[Column], ink: Ink) -> str:
    cells = []
    for cell, room, column in zip(row, widths, columns, strict=True):
        text = shortened(cell, room)
        space = " " * (room - width(text))
        text = ink.paint(cell.style, text)
        cells.append(space + text if column.right else text + space)
    return GAP.join(cells).rstrip()


def _write_stacked(
    out: CommandOutput,
    around: Surroundings,
    columns: Sequence[Column],
    rows: Sequence[Sequence[Painted]],
    details: Sequence[Sequence[str]],
) -> None:
    """Write each row as a block, one value a line, for windows too narrow for the table."""
    titles = [printable(column.title) for column in columns]
    longest = max(map(width, titles[1:]))
    for number, row in enumerate(rows):
        out.line(around.stdout_ink.paint(Style.HEADING, row[0]))
        for cell, title in zip(row[1:], titles[1:], strict=True):
            painted = around.stdout_ink.paint(cell.style, cell.rstrip())
            out.line(f"  {title}{' ' * (longest - width(title))}  {painted}")
        _write_details(out, details, number)


def _write_details(out: CommandOutput, details: Sequence[Sequence[str]], number: int) -> None:
    if number < len(details):
        for line in details[number]:
            out.line(GAP + printable(line))
