"""Check what prevents dsv from working here: each check uses the real thing, and names the remedy."""

from __future__ import annotations

import os
import platform
import secrets
import sys
import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from enum import Enum
from importlib import metadata
from pathlib import Path

from dsv import __version__
from dsv.api.context import Context
from dsv.api.pools import load_pool
from dsv.api.settings import BUILT_IN
from dsv.cache.account import recount
from dsv.cache.root import CacheRoot, explain
from dsv.cache.settings import check_writable, load_settings
from dsv.errors import Denied, DsvError, NotFound
from dsv.files.attributes import server_time
from dsv.files.process import host_name
from dsv.files.system import kind_of, name_of
from dsv.repo.damage import read_damage
from dsv.repo.format_log import has_layout
from dsv.repo.merge_indexes import check_indexes
from dsv.repo.objects.trim import find_copies
from dsv.repo.repository import Repository
from dsv.run.dirs import RUNS
from dsv.run.engine_list import ENGINES, engine_of
from dsv.stores.base import StoreBackend
from dsv.stores.open import OpenStore, split_of
from dsv.stores.options import StoreOptions
from dsv.stores.probe import KEYS, PROCESSES, THREADS, prove, prove_data, race
from dsv.upkeep.packs import Schedule
from dsv.values.units import format_bytes, format_count, format_time

CLOCK_SECONDS = 60.0
"""A larger clock difference is reported: S3 refuses requests from 15 minutes on, and record times mislead."""
LITTLE_ROOM = 5
"""Per cent of free room in a file system below which it is reported."""
_LIBRARIES = ("obstore", "boto3", "msgspec", "blake3", "zstandard", "typer", "rich")


class CheckState(Enum):
    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True, slots=True)
class Finding:
    check: str
    state: CheckState
    text: str
    """The finding, as a part of a sentence."""
    hint: str | None = None


def examine(context: Context, environ: Mapping[str, str], opened: ExitStack) -> Iterator[Finding]:
    """Run all checks in turn. Writes small objects to the store, and deletes them. `opened` closes all."""
    yield _versions()
    yield from _settings(context)
    yield from _workspace(context)
    yield from examine_store(context, opened)
    yield from _cache(context)
    yield _copies(context)
    yield from _engines(environ)
    yield from _pools(context, environ)
    yield _run_folders(context)


def _versions() -> Finding:
    found = []
    for name in _LIBRARIES:
        with suppress(metadata.PackageNotFoundError):
            found.append(f"{name} {metadata.version(name)}")
    python = ".".join(map(str, sys.version_info[:3]))
    text = f"dsv {__version__}, Python {python}, {platform.platform(terse=True)}; {', '.join(found)}"
    return _ok("versions", text)


def _settings(context: Context) -> Iterator[Finding]:
    for key in ("store", "cache"):
        setting = context.settings.get(key)
        if setting is not None:
            yield _ok(key, f"{setting.value}, from {setting.origin}")
        with suppress(DsvError):  # opening the store reports errors of its setting
            names = context.settings.place_of_names() if key == "store" else None
            if names is not None:
                yield _ok("names", f"{names.value}, from {names.origin}")
    yield _ok("author", context.writer.author)
    for origin, key in context.settings.unknown():
        yield _warn("config", f"{origin} has {key}, which is not a setting of this version", f"edit {origin}")


def _workspace(context: Context) -> Iterator[Finding]:
    try:
        workspace = context.workspace_or_none()
        if workspace is not None:
            base = workspace.base()
            at = "no commit yet" if base is None else f"at commit {str(base)[:12]}"
            part = "" if workspace.chosen.whole else "; it is sparse, dsv sparse list shows what it has"
            yield _ok("workspace", f"{workspace.root} of {workspace.dataset}@{workspace.branch}, {at}{part}")
    except DsvError as error:
        yield _failed("workspace", error)


def examine_store(context: Context, opened: ExitStack, *, thorough: bool = False) -> Iterator[Finding]:
    """Read, then write with the conditions that dsv needs, then compare clocks.

    opened: closes all. thorough: let many writers in several processes race for keys, for some seconds.
    """
    choice = context.settings.store()
    try:
        store = opened.enter_context(context.store())
        single_writer = yield from _reading(context, store)
        yield from _writing(store, single_writer=single_writer)
        if thorough and not single_writer:
            yield from _under_load(store, context.store_options(choice))
    except NotFound as error:
        if choice.origin == BUILT_IN and not Path(choice.url).exists():
            yield _warn("store", error.message, error.hint)
        else:
            yield _failed("store", error)
    except DsvError as error:
        yield _failed("store", error)


def _reading(context: Context, store: OpenStore) -> Generator[Finding, None, bool]:
    """Return whether the store was made for a single writer."""
    began = time.monotonic()
    if not has_layout(store):
        yield _warn("store", f"{store.url} answers and holds no dsv store yet", "dsv init makes one")
        return False
    first = time.monotonic() - began
    try:
        repository = context.open_repository(store)
        refs = repository.refs
        datasets = sum(refs.dataset_tombstone(one) is None for one in refs.datasets())
    except DsvError as error:
        yield _failed("store", error)
        return False
    counted = format_count(datasets, "dataset")
    yield _ok("read", f"{store.url} has {counted}, and answered in {first * 1000:.0f} ms")
    try:
        yield _contents(context, repository)
    except DsvError as error:
        yield _failed("contents", error)
    split = split_of(store)
    if split is not None:
        yield _ok("names are in", f"{split.names.url}; the rest of the store is in {split.data.url}")
    workspace = context.workspace_or_none()
    if workspace is not None and workspace.store_id != repository.id:
        text = f"{workspace.root} belongs to another store than {store.url}"
        yield fail("workspace", text, "dsv config shows where the store's setting comes from")
    return repository.format.single_writer


def _contents(context: Context, repository: Repository) -> Finding:
    """Return what is known about the store's packs; they are not read here."""
    damage = read_damage(repository)
    if damage is not None and damage.missing:
        count = len(damage.missing)
        many = format_count(count, "object") if damage.all_missing else f"{count:,} objects or more"
        was = "was" if many == "1 object" else "were"
        text = f"{many} {was} lost when dsv verify last looked: commits that have them can't be read"
        return fail("contents", text, "dsv verify lists what is lost; dsv verify --repair")
    read = Schedule(repository, context.writer).oldest()
    since = f"dsv verify has read every pack since {format_time(read * 1000)}" if read else ""
    return _ok("contents", f"dsv doctor does not read contents; {since or 'some packs were never read'}")


def _writing(store: StoreBackend, *, single_writer: bool) -> Iterator[Finding]:
    key = f"probe/{secrets.token_hex(8)}/clock"
    try:
        before = time.time()
        store.put_if_absent(key, b"dsv doctor")
        between = (before + time.time()) / 2
        written = store.modified(key)
        with suppress(Denied):
            store.delete(key)
        split = split_of(store)
        proof = prove(store if split is None else split.names)
        data = () if split is None else prove_data(split.data)
    except Denied as error:
        reading = "reading needs no more"
        hint = f"{error.hint}; {reading}" if error.hint else f"{reading}; ask its administrator"
        yield _warn("write", f"you may not write to {store.url}: {error.message}", hint)
        return
    except DsvError as error:
        yield _failed("write", error)
        return
    names = store if split is None else split.names
    if single_writer and not proof.put_if_absent_ok:
        yield _warn("write", f"{names.url} was made for a single writer: of two syncs at once one is lost")
    else:
        order = "" if proof.ordered else "; its listings are in no order, which costs some requests"
        hint = "use another store for what several people write"
        yield _proved(
            "write", names, () if proof.ok else proof.findings, f"Concurrent-write test passed{order}", hint
        )
    if split is not None:
        good = f"{split.data.url} gives back what is written to it, whole, in ranges and in listings"
        hint = "docs/reference/s3-servers.md has each server's settings"
        yield _proved("write data", split.data, data, good, hint)
    yield _clock("clock", f"the store's clock and {host_name()}'s", written - between, 1.0)
    free = store.free_bytes()
    if free is not None:
        yield _ok("store room", f"{format_bytes(free)} free in {store.url}")


def _under_load(store: StoreBackend, options: StoreOptions) -> Iterator[Finding]:
    split = split_of(store)
    names = store if split is None else split.names
    if names.url.startswith("memory://"):
        return  # other processes can't see it
    try:
        findings = race(names, options)
    except Denied:
        return  # already reported
    except DsvError as error:
        yield _failed("write under load", error)
        return
    good = f"of {PROCESSES * THREADS} writers in {PROCESSES} processes one won each of {KEYS} keys"
    hint = "dsv store move-names LOCATION keeps the names where one writer wins"
    yield _proved("write under load", names, findings, good, hint)


def _proved(check: str, store: StoreBackend, findings: Sequence[str], good: str, hint: str) -> Finding:
    if not findings:
        return _ok(check, good)
    return fail(check, f"{store.url} does not keep what dsv relies on: {'; '.join(findings)}", hint)


def _clock(check: str, what: str, seconds: float, grain: float) -> Finding:
    """grain: seconds by which the time may be off because it is in whole seconds."""
    off = max(0.0, abs(seconds) - grain)
    if off > CLOCK_SECONDS:
        hint = "start a time service: timedatectl set-ntp true"
        return _warn(check, f"{what} differ by {off:,.0f} s", hint)
    return _ok(check, f"{what} agree to within {off + grain:.0f} s")


def _cache(context: Context) -> Iterator[Finding]:
    try:
        root = CacheRoot(context.settings.cache().path)
        if not root.path.exists():
            yield _ok("cache", f"{root.path} is not there yet; the first dsv cache makes it")
            return
        check_writable(root, load_settings(root))
        room = os.statvfs(root.path)
        system, kind = kind_of(root.path), name_of(root.path)
        where = f"on {kind or 'a file system'}{', shared with other hosts' if system.remote else ''}"
        offset = server_time(root.path) - time.time()
        accounts = _accounts(root)
    except DsvError as error:
        yield _failed("cache", error)
        return
    except OSError as error:
        yield _failed("cache", explain(error, root.path, "write to"))
        return
    free, total = room.f_bavail * room.f_frsize, room.f_blocks * room.f_frsize
    text = f"{root.path} can be written, {where}, {format_bytes(free)} of {format_bytes(total)} free"
    if free * 100 < total * LITTLE_ROOM:
        yield _warn("cache", text, "dsv evict --dry-run shows what could go")
    elif room.f_files and room.f_favail * 100 < room.f_files * LITTLE_ROOM:
        yield _warn("cache", f"{text}, but only {room.f_favail:,} inodes", "dsv evict --dry-run")
    else:
        yield _ok("cache", text)
    yield accounts
    if system.remote:
        yield _clock("cache clock", f"the file server's clock and {host_name()}'s", offset, 0.0)


def _accounts(root: CacheRoot) -> Finding:
    counted = recount(root, mend=False)
    size = sum(room.bytes for _, room in counted)
    off = sum(abs(item.room.bytes - room.bytes) for item, room in counted)
    text = f"the accounts of {format_count(len(counted), 'cached commit')}, {format_bytes(size)}, "
    if off * 50 > size:
        return _warn("cache accounts", f"{text}are wrong by {format_bytes(off)}", "dsv cached --recount")
    return _ok("cache accounts", f"{text}agree with the disk")


def _copies(context: Context) -> Finding:
    try:
        limits, places = context.copy_limits, list[str]()
        for folder in context.copies_beside(CacheRoot(context.settings.cache().path).dot):
            sizes = [size for _, size, _ in find_copies(folder)]
            places.append(f"{format_bytes(sum(sizes))} in {format_count(len(sizes), 'file')} in {folder}")
    except (DsvError, OSError) as error:
        return _failed("metadata", error if isinstance(error, DsvError) else explain(error, folder, "read"))
    most = f"at most {format_bytes(limits.max_size)} and {limits.max_files:,} files each"
    return _ok("metadata", f"copies: {', '.join(places)}; {most} (metadata.max_size, metadata.max_files)")


def _engines(environ: Mapping[str, str]) -> Iterator[Finding]:
    gpus: int | None = None
    for name, make in ENGINES.items():
        if make.queues:  # a cluster is no engine of this machine: its pools are checked
            continue
        try:
            answer = make(environ).probe()
        except DsvError as error:
            hint = f"start {name} if you run images by it; dsv run takes an engine that answers"
            yield _warn(f"engine {name}", error.message, hint)
            continue
        gpus = answer.machine.gpus
        version = f" {answer.version}" if answer.version else ""
        yield _ok(f"engine {name}", f"{name}{version} answers{', without root' if answer.rootless else ''}")
    yield _ok("gpus", format_count(gpus, "NVIDIA GPU") if gpus else "no NVIDIA GPU on this machine")


def _run_folders(context: Context) -> Finding:
    folder, size = context.settings.state / RUNS, 0
    for above, _, names in os.walk(folder):
        with suppress(OSError):
            size += sum(Path(above, name).lstat().st_blocks * 512 for name in names)
    what = "dsv runs --delete removes it with the runs, runs.keep_local = 30d what the store has"
    return _ok("run folders", f"{format_bytes(size)} in {folder}; {what}")


def _ok(check: str, text: str) -> Finding:
    return Finding(check, CheckState.OK, text)


def _warn(check: str, text: str, hint: str | None = None) -> Finding:
    return Finding(check, CheckState.WARN, text, hint)


def fail(check: str, text: str, hint: str | None) -> Finding:
    return Finding(check, CheckState.FAIL, text, hint)


def _failed(check: str, error: DsvError) -> Finding:
    return fail(check, error.message, error.hint)


def _pools(context: Context, environ: Mapping[str, str]) -> Iterator[Finding]:
    for name in context.settings.names("pools"):
        check = f"pool {name}"
        try:
            pool = load_pool(context.settings, name, "dsv doctor")
        except DsvError as error:
            yield _failed(check, error)
            continue
        if pool.engine is None:  # this machine, whose engines were checked
            continue
        try:
            answer = engine_of(pool)(environ, pool.options).probe()
        except DsvError as error:
            settings = f"dsv pools; dsv config lists the settings of pools.{name}"
            yield _warn(check, error.message, error.hint or settings)
        else:
            version = f" {answer.version}" if answer.version else ""
            yield _ok(check, f"{pool.engine}{version} answers")


def examine_indexes(context: Context) -> Iterator[Finding]:
    """Check the index files. Yield nothing if there is no store: `examine_store` reports that."""
    repository = None
    try:
        with context.repository() as repository:
            report = check_indexes(repository)
    except DsvError as error:
        if repository is not None or not isinstance(error, NotFound):
            yield fail("index files", error.message, error.hint)
        return
    for fault in report.faults:
        yield fail("index files", fault.text, fault.hint)
    if not report.faults:
        some = "" if report.read == report.files else f"{report.read:,} of "
        whole = f"{some}{report.files:,} are whole"
        yield _ok("index files", f"{whole}; a sync needs to know {report.standing:,} of them")
