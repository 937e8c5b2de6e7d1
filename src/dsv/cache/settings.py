"""`dsv-cache.toml` at the cache's root: the owner's limits."""

from __future__ import annotations

import fnmatch
import math
from collections.abc import Mapping
from typing import Annotated, TypeVar

import msgspec
from msgspec.structs import replace

from dsv.cache.root import CacheRoot, explaining, refuse_symlinks
from dsv.errors import UPGRADE, Conflict, Unsupported, UsageError
from dsv.files.small_files import read_small
from dsv.values.toml import read_toml
from dsv.values.units import format_bytes, parse_duration, parse_size

PROTOCOL = 1
"""The version of the cache's own files. A cache with a higher one is read, not written."""
DEFAULT_UNUSED_FOR = 86400.0  # seconds
_NEVER = "never"
_LONGEST = 1 << 20  # bytes of the file

_TEMPLATE = """\
# The limits of this dsv cache. `dsv evict` applies them, `dsv cache` makes room within them.
protocol = 1

# unused_for = "1d"      # evict what nobody used for so long (the default); "never" keeps it
# max_size = "20T"       # on disk, files that commits share counted once
# max_files = 50_000_000
# min_free = "5%"        # of the file system, or a size
# protected = ["chest-xray", "team-a/*"]

# [datasets."scratch/*"]
# unused_for = "6h"
# max_size = "500G"
"""


class Amount(msgspec.Struct, frozen=True):
    """A size in bytes, or a share of the file system in percent."""

    bytes: int = 0
    percent: float = 0.0

    @classmethod
    def parse(cls, text: str) -> Amount:
        """Parse `100G` or `10%`. Raises `UsageError`."""
        if text.strip().endswith("%"):
            try:
                percent = float(text.strip()[:-1])
            except ValueError:
                percent = -1.0
            if not 0 <= percent < 100:
                raise UsageError(f"{text!r} is not a share", subject=text, hint="write it like 10%")
            return cls(percent=percent)
        return cls(bytes=parse_size(text))

    def of(self, total: int) -> int:
        """Return the bytes on a file system of `total` bytes."""
        return self.bytes or int(total * self.percent / 100)

    def __str__(self) -> str:
        return f"{self.percent:g}%" if self.percent else format_bytes(self.bytes)


class CacheLimits(msgspec.Struct, frozen=True):
    """The limits of a cache; None means no limit. `unused_for` is in seconds. All `min_free` must be free."""

    unused_for: float | None = None
    max_size: int | None = None
    max_files: int | None = None
    min_free: tuple[Amount, ...] = ()

    def tightened(self, other: CacheLimits) -> CacheLimits:
        """Return the stricter limit of each pair."""
        return CacheLimits(
            _least(self.unused_for, other.unused_for),
            _least(self.max_size, other.max_size),
            _least(self.max_files, other.max_files),
            self.min_free + tuple(amount for amount in other.min_free if amount not in self.min_free),
        )


class _Age(float):
    """Seconds, written as a duration; infinite for `never`."""


class _Size(int):
    """Bytes, written as a number or like `20T`."""


class DatasetRule(msgspec.Struct, frozen=True):
    """The owner's settings for the datasets that match a pattern; None means the cache's general setting."""

    unused_for: _Age | None = None
    max_size: _Size | None = None
    protected: bool | None = None

    def tightened(self, limits: CacheLimits) -> DatasetRule:
        """Return the rule with a command's limits. Without an age, the general one, tightened, applies."""
        if limits.unused_for is None or self.unused_for is None:
            return self
        return replace(self, unused_for=min(self.unused_for, limits.unused_for))


class CacheSettings(msgspec.Struct, frozen=True):
    """The file's content. Patterns are shell patterns over dataset names; an exact name takes precedence."""

    protocol: int = PROTOCOL
    limits: CacheLimits = msgspec.field(default_factory=lambda: CacheLimits(unused_for=DEFAULT_UNUSED_FOR))
    protected: tuple[str, ...] = ()
    datasets: Mapping[str, DatasetRule] = msgspec.field(default_factory=dict)

    def rule(self, dataset: str) -> DatasetRule:
        """Return the one rule for a dataset: its own, or the first whose pattern matches."""
        exact = self.datasets.get(dataset)
        fitting = (rule for name, rule in self.datasets.items() if fnmatch.fnmatchcase(dataset, name))
        return exact or next(fitting, DatasetRule())

    def is_protected(self, dataset: str) -> bool:
        own = self.rule(dataset).protected
        if own is not None:
            return own
        return any(fnmatch.fnmatchcase(dataset, pattern) for pattern in self.protected)

    def unused_for(self, dataset: str) -> float | None:
        """Return the seconds without use after which a dataset's commits are evicted; None: never."""
        own = self.rule(dataset).unused_for
        return _finite(self.limits.unused_for if own is None else own)

    def limits_content(self, dataset: str) -> bool:
        """Return whether a limit for a dataset depends on what is cached, not only on the disk."""
        limited = (self.limits.max_size, self.limits.max_files, self.rule(dataset).max_size)
        return any(one is not None for one in limited)

    def tightened(self, limits: CacheLimits) -> CacheSettings:
        """Return the settings with a command's limits, which apply to all datasets if they are stricter."""
        rules = {name: rule.tightened(limits) for name, rule in self.datasets.items()}
        return replace(self, limits=self.limits.tightened(limits), datasets=rules)


def load_settings(root: CacheRoot) -> CacheSettings:
    """Return the owner's settings, or the defaults if there is no file.

    Raises `UsageError` if the file is not valid, `Denied`, `Unreachable`.
    """
    path = root.settings_file
    with explaining(path, "read"):
        data = read_small(path, _LONGEST)
        if data is None and path.exists():  # another host may have just made it
            data = read_small(path, _LONGEST)
            if data is None:  # the owner's limits are unknown, so nothing may be filled or evicted
                raise UsageError(
                    f"{path} is not a file of at most {format_bytes(_LONGEST)}",
                    subject=str(path),
                    hint=f"check what it is (ls -lL {path}), then correct or remove it",
                )
    return CacheSettings() if data is None else parse_settings(data, str(path))


class _StrictRule(DatasetRule, frozen=True, forbid_unknown_fields=True):
    pass


class _File(msgspec.Struct):
    """The file as it is written. Keys of a newer dsv are ignored."""

    protocol: Annotated[int, msgspec.Meta(ge=1)] = PROTOCOL
    unused_for: _Age = _Age(DEFAULT_UNUSED_FOR)
    max_size: _Size | None = None
    max_files: Annotated[int, msgspec.Meta(ge=0)] | None = None
    min_free: Annotated[int, msgspec.Meta(ge=0)] | str | None = None
    protected: tuple[str, ...] = ()
    datasets: Mapping[str, DatasetRule] = {}


class _StrictFile(_File, forbid_unknown_fields=True):
    datasets: Mapping[str, _StrictRule] = {}


def parse_settings(data: bytes, name: str) -> CacheSettings:
    """Parse a settings file. Raises `UsageError`, which says where the fault is.

    Unknown keys are faults unless a newer dsv wrote the file.
    """
    try:
        table = read_toml(data)
        file = msgspec.convert(table, _File, dec_hook=_parse)
        if file.protocol <= PROTOCOL:
            file = msgspec.convert(table, _StrictFile, dec_hook=_parse)
        free = file.min_free
        amount = Amount.parse(free) if isinstance(free, str) else Amount(bytes=free or 0)
        limits = CacheLimits(
            _finite(file.unused_for), file.max_size, file.max_files, () if free is None else (amount,)
        )
        return CacheSettings(file.protocol, limits, file.protected, file.datasets)
    except (ValueError, UsageError) as error:  # a `msgspec.ValidationError` is a ValueError
        raise UsageError(
            f"{name} is not valid: {error}",
            subject=name,
            hint=f'correct {name}; for example unused_for = "12h", max_size = "500G", protected = ["DATASET"]',
        ) from error


def _parse(kind: type, value: object) -> object:
    """Decode an age or a size. msgspec adds the location of the fault to a `ValueError`."""
    try:
        if kind is _Size and type(value) is int and value >= 0:
            return _Size(value)
        if isinstance(value, str):
            if kind is _Size:
                return _Size(parse_size(value))
            return _Age(math.inf if value == _NEVER else parse_duration(value))
    except UsageError as error:
        raise ValueError(error.message) from error
    raise ValueError(f"{value!r} is not {'a size' if kind is _Size else 'a duration'}")


# Prepared here: two threads that use a class for the first time at once crash the process.
for _kind in (_File, _StrictFile):
    msgspec.json.Decoder(_kind, dec_hook=_parse)


def _finite(age: float | None) -> float | None:
    return None if age == math.inf else age


def prepare_cache(root: CacheRoot) -> CacheSettings:
    """Make the cache if it is missing, with a settings file to edit, and make sure that dsv may write to it.

    Raises `Unsupported` for a cache of a newer dsv, `Denied`, `NoRoom`, `Unreachable`, `UsageError`, and
    `Conflict` if one of its folders is a symlink.
    """
    settings = load_settings(root)
    check_writable(root, settings)
    if not root.settings_file.exists() and (root.top / "format").is_dir() and (root.top / "refs").is_dir():
        raise Conflict(f"{root.path} is a store, so it can't be a cache too", subject=str(root.path))
    refuse_symlinks(root)
    root.prepare()
    with explaining(root.path):
        if not root.settings_file.exists():
            root.write_once(root.settings_file, _TEMPLATE.encode(), writable=True)
    return settings


def check_writable(root: CacheRoot, settings: CacheSettings) -> None:
    """Raises `Unsupported` if the cache follows a newer protocol, which this dsv must not write."""
    if settings.protocol > PROTOCOL:
        raise Unsupported(
            f"{root.path} is a cache of protocol {settings.protocol}, which this dsv may read but not write",
            subject=str(root.path),
            hint=UPGRADE,
        )


_N = TypeVar("_N", int, float)


def _least(a: _N | None, b: _N | None) -> _N | None:
    return b if a is None else a if b is None else min(a, b)
