"""Measure how many accelerators a store, a cache or a folder can feed.

The figures of the models are those of `configs/dlio/workload/MODEL_ACCELERATOR.yaml` in github.com/mlcommons/storage.
Each round is a process (`bench_feed_process`), with reading processes like a training.
"""

from __future__ import annotations

import json
import os
import secrets
import shlex
import shutil
import subprocess
import sys
import tempfile
from bisect import bisect_left
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from msgspec import structs

from dsv.api.datasets import ls
from dsv.api.program import Commit, Store
from dsv.api.store import create_repository
from dsv.errors import DsvError, NoRoom, NotFound, Unsupported, UsageError, made
from dsv.files.errors import about
from dsv.files.process import start_program
from dsv.stores.base import together
from dsv.values.names import Rev, Target
from dsv.values.progress import NoProgress
from dsv.values.units import format_bytes, format_count

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

    from dsv.api.connection import Connection
    from dsv.api.context import Context

_PROGRAM = "dsv.api.bench_feed_process"
_PIECE = 8 << 20
_REMOVED_AT_ONCE = 200
_SEED = 20
PREFIX = "dsv-bench-feed-"
"""The prefix of the names of throwaway folders and stores."""
PREFETCH = 2
"""Batches that are read ahead (`prefetch_size` of DLIO). Each worker reads at least one ahead."""


@dataclass(frozen=True, slots=True)
class AcceleratorLoad:
    """The demand of one accelerator, by a model of MLPerf Storage."""

    model: str
    accelerator: str
    versions: str
    """The versions of MLPerf Storage that have these figures."""
    batch: int
    """Samples per step."""
    seconds: float
    """Computation time of a step."""
    sample: int
    """Mean bytes of a sample."""
    spread: int
    """Standard deviation of the bytes of a sample."""
    workers: int
    """Processes that read for each accelerator (`read_threads`)."""
    mark: float
    """The accelerator utilization to reach, from 0 to 1."""
    per_file: int = 1
    """Samples per file. If more than 1, a batch is a range of bytes."""

    @property
    def batch_bytes(self) -> int:
        return self.batch * self.sample

    @property
    def depth(self) -> int:
        """Return how many batches a worker reads ahead, like PyTorch's loader under DLIO."""
        return -(-PREFETCH // self.workers)

    def sizes(self, total: int, seed: int) -> Iterator[int]:
        """Yield normally distributed file sizes (1 or more) like the model's, until they sum to `total`."""
        drawn, made = Random(seed), 0
        while made < total:
            size = max(1, round(drawn.gauss(self.sample, self.spread))) * self.per_file
            yield size
            made += size


_UNET3D, _RETINANET = (146_600_628, 68_341_808, 4, 0.90), (322_957, 0, 8, 0.85)
_RESNET50, _COSMOFLOW = (114_660, 0, 8, 0.90, 1251), (2_828_486, 71_311, 4, 0.70)
LOADS = (
    AcceleratorLoad("unet3d", "b200", "v3.0", 7, 0.162, *_UNET3D),
    AcceleratorLoad("unet3d", "h100", "v1.0 and v2.0", 7, 0.323, *_UNET3D),
    AcceleratorLoad("unet3d", "a100", "v1.0 and v2.0", 7, 0.636, *_UNET3D),
    AcceleratorLoad("retinanet", "b200", "v3.0", 24, 0.04755, *_RETINANET),
    AcceleratorLoad("retinanet", "mi355", "v3.0", 32, 0.0634, *_RETINANET),
    AcceleratorLoad("resnet50", "h100", "v1.0 and v2.0", 400, 0.224, *_RESNET50),
    AcceleratorLoad("resnet50", "a100", "v1.0 and v2.0", 400, 0.435, *_RESNET50),
    AcceleratorLoad("cosmoflow", "h100", "v1.0 and v2.0", 1, 0.0035, *_COSMOFLOW),
    AcceleratorLoad("cosmoflow", "a100", "v1.0 and v2.0", 1, 0.00551, *_COSMOFLOW),
)
MODELS = tuple(dict.fromkeys(load.model for load in LOADS))


def find_load(model: str, accelerator: str | None) -> AcceleratorLoad:
    """Return the load of a model on an accelerator (None: its first). Raises `UsageError` if unknown."""
    for load in LOADS:
        if load.model == model and accelerator in (load.accelerator, None):
            return load
    known = [load.accelerator for load in LOADS if load.model == model]
    if not known:
        raise UsageError(f"there is no model {model!r}", subject=model, hint=f"--model {'|'.join(MODELS)}")
    assert accelerator is not None
    raise UsageError(
        f"no version of MLPerf Storage has a computation time of {model} on {accelerator!r}",
        subject=accelerator,
        hint=f"--accelerator {'|'.join(known)}",
    )


@dataclass(frozen=True, slots=True)
class FeedRequest:
    load: AcceleratorLoad
    source: str
    """`store`, `cache` or `folder`."""
    target: Target | None = None
    folder: Path | None = None
    make: int | None = None
    """Bytes of data to make: in the folder, or in a new store beside the current one."""
    accelerators: int | None = None
    """Measure only this number, without a search."""
    limit: int = 64
    """The most accelerators to try."""
    steps: int = 500
    """The most steps of a round."""
    seconds: float = 20.0
    """The most seconds of a round; but at least two steps are measured."""
    by_bytes: bool = False
    """A batch has as many bytes as the model's, instead of as many files."""
    drop: bool = True
    """Drop each file from the page cache of this host before and after it is read."""


@dataclass(frozen=True, slots=True)
class Round:
    """The arguments of the process that runs a round."""

    request: FeedRequest
    accelerators: int
    paths: list[str]
    sizes: list[int]
    commit: Commit | None
    """None if the paths are local files."""


@dataclass(frozen=True, slots=True)
class RoundResult:
    """The result of a round, without its warm-up steps."""

    accelerators: int
    au: float
    """Accelerator utilization, from 0 to 1."""
    passed: bool
    steps: int
    seconds: float
    bytes: int
    """Bytes that the accelerators consumed."""
    bytes_per_second: float
    cpu_per_gb: float | None
    """Processor seconds of the reading processes for each 10^9 bytes; None if no bytes were read."""
    host_cpu_per_gb: float | None
    """The same for all processes of this host and its kernel."""
    page_cache: float | None
    """The share of files that were in this host's page cache when they were read; None if unknown."""


@dataclass(frozen=True, slots=True)
class FeedResult:
    request: FeedRequest
    place: str
    files: int
    bytes: int
    memory: int
    """Memory of this host in bytes."""
    most: int | None
    """The most accelerators, up to the limit, that reach the mark; None if only one number was measured."""
    rounds: tuple[RoundResult, ...]

    @property
    def load(self) -> AcceleratorLoad:
        return self.request.load

    @property
    def sample_bytes(self) -> float:
        """Return the mean size of a sample: of a file, or the model's if batches are counted in bytes."""
        return self.load.sample if self.request.by_bytes else self.bytes / self.files

    @property
    def demand(self) -> float:
        """Return the bytes per second that one accelerator needs."""
        return self.load.batch * self.sample_bytes / self.load.seconds

    @property
    def five_times_memory(self) -> bool:
        return self.bytes >= 5 * self.memory

    @property
    def at_limit(self) -> bool:
        return self.most == self.request.limit

    @property
    def page_cache(self) -> float | None:
        return max((one.page_cache for one in self.rounds if one.page_cache is not None), default=None)


def bench_feed(connection: Connection, request: FeedRequest) -> FeedResult:
    """Measure the most accelerators whose utilization reaches the model's mark, or only the given number.

    Raises `NotFound`, `UsageError`, `NoRoom`, and the errors of reading.
    """
    if not sys.platform.startswith("linux"):
        raise Unsupported("dsv bench feed measures on Linux only", hint="run it on a host that trains")
    with ExitStack() as stack:
        if request.make is not None:
            request, connection = stack.enter_context(_made(connection, request))
        place, commit, paths, sizes = _samples(connection, request)
        if not sum(sizes):
            raise NotFound(f"there are no files with content in {place}", subject=place)
        rounds: dict[int, RoundResult] = {}

        def passes(accelerators: int) -> bool:
            connection.progress.note(f"measuring {format_count(accelerators, 'accelerator')}")
            found = _measure(Round(request, accelerators, paths, sizes, commit))
            rate = format_bytes(round(found.bytes_per_second))
            connection.progress.note(f"utilization {found.au:.3f}, {rate}/s")
            rounds[accelerators] = found
            return found.passed

        most = None
        if request.accelerators is None:
            most = most_that_pass(passes, request.limit)
        else:
            passes(request.accelerators)
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    found = tuple(rounds[number] for number in sorted(rounds))
    return FeedResult(request, place, len(sizes), sum(sizes), memory, most, found)


def most_that_pass(passes: Callable[[int], bool], limit: int) -> int:
    """Return the largest number up to `limit` that passes while the next fails; 0 if 1 fails. Calls `passes`
    only once per number.
    """
    good, tried = 0, 1
    while tried <= limit and passes(tried):
        good = tried
        tried = limit if tried < limit < 2 * tried else 2 * tried
    untried = range(good + 1, min(tried, limit + 1))
    return good + bisect_left(untried, True, key=lambda number: not passes(number))


def _samples(connection: Connection, request: FeedRequest) -> tuple[str, Commit | None, list[str], list[int]]:
    """Return the source as text, its commit if it is in the store, and the paths and sizes of its files."""
    folder, target = request.folder, request.target
    if request.source == "store":
        assert target is not None
        store = Store(structs.replace(connection, progress=NoProgress()))
        commit = store.open(str(Target(target.dataset, target.rev)))
        pinned = Target(target.dataset, Rev(commit.id), target.path)
        paths, sizes = [], list[int]()
        with ls(connection.reading, pinned) as (entries, erasures):
            for entry in erasures.without(entry for entry, _ in entries):
                if entry.is_file:
                    paths.append(os.fsdecode(entry.path))
                    sizes.append(entry.size)
        return f"{commit.dataset}@{commit.id[:12]} in {connection.settings.store().url}", commit, paths, sizes
    if request.source == "cache":
        from dsv.api.hold_while import cache_while

        assert target is not None
        root = connection.settings.cache().path
        [staged] = cache_while(connection.reading, root, [target], os.getpid(), offline=connection.offline)
        folder = staged.path
    assert folder is not None
    if not folder.exists():
        raise NotFound(
            f"there is no folder {folder}", subject=str(folder), hint="dsv bench feed --folder DIR"
        )
    with about(folder):
        return (str(folder), None, *_files_below(folder))


def _files_below(folder: Path) -> tuple[list[str], list[int]]:
    """Return the paths and sizes of the regular files below a folder, or of a single file."""
    if not folder.is_dir():
        return [str(folder)], [folder.stat().st_size]
    paths, sizes = [], []
    waiting = [str(folder)]
    while waiting:
        with os.scandir(waiting.pop()) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    waiting += [entry.path] if entry.name != ".dsv" else []
                elif entry.is_file(follow_symlinks=False):
                    paths.append(entry.path)
                    sizes.append(entry.stat().st_size)
    return paths, sizes


def _measure(what: Round) -> RoundResult:
    """Measure one number of accelerators. Raises the error of a reader."""
    with about(sys.executable):  # Ctrl-C reaches only this process, which then ends the other
        process = start_program(_PROGRAM, what, stdout=subprocess.PIPE, start_new_session=True)
    assert process.stdin is not None and process.stdout is not None
    with process:
        try:
            said = process.stdout.read()
        finally:
            with suppress(BrokenPipeError):
                process.stdin.close()  # ends the process and its readers
    if not said:
        raise DsvError(f"a round ended with exit code {process.returncode} and no result")
    found = json.loads(said)
    if isinstance(found, list):
        raise made(*found)
    return RoundResult(**found, accelerators=what.accelerators)


@contextmanager
def _made(connection: Connection, request: FeedRequest) -> Iterator[tuple[FeedRequest, Connection]]:
    """Make data like the model's, and always remove it at the end."""
    assert request.make is not None
    if request.source == "folder":
        assert request.folder is not None
        with _made_folder(connection.reading, request.folder, request.load, request.make) as folder:
            yield replace(request, folder=folder), connection
        return
    with _made_store(connection, request.load, request.make) as own:
        yield replace(request, target=Target.parse("feed")), own


@contextmanager
def _made_folder(context: Context, above: Path, load: AcceleratorLoad, total: int) -> Iterator[Path]:
    if not above.is_dir():
        raise NotFound(
            f"there is no folder {above}", subject=str(above), hint=f"mkdir -p {shlex.quote(str(above))}"
        )
    _check_room(shutil.disk_usage(above).free, total, str(above))
    sizes = list(load.sizes(total, _SEED))
    with about(above):
        folder = Path(tempfile.mkdtemp(prefix=PREFIX, dir=above))
    try:
        _announce(context, sizes, str(folder))
        context.progress.start(len(sizes), sum(sizes))
        for number, size in enumerate(sizes):
            path = folder / _name(number)
            path.parent.mkdir(exist_ok=True)
            with about(path), path.open("wb", buffering=0) as file:
                for at in range(0, size, _PIECE):
                    file.write(os.urandom(min(_PIECE, size - at)))
                os.fsync(file.fileno())
            context.progress.advance(1, size)
        context.progress.finish()
        yield folder
    finally:
        with about(folder):
            shutil.rmtree(folder)


@contextmanager
def _made_store(connection: Connection, load: AcceleratorLoad, total: int) -> Iterator[Connection]:
    """Make a new store beside the current one, with a dataset `feed`, and remove it at the end."""
    choice = connection.settings.store()
    if choice.names is not None:
        raise Unsupported(
            f"data can't be made in {choice.url}, whose names are kept in {choice.names}",
            subject=choice.url,
            hint="dsv bench feed DATASET@REV, or --make SIZE --folder DIR",
        )
    url = f"{choice.url.rstrip('/')}-{PREFIX.removeprefix('dsv-')}{secrets.token_hex(4)}"
    scheme = url.partition("://")[0]
    of_others = {"gs": "STORAGE_EMULATOR_HOST", "az": "AZURE_STORAGE_BLOB_ENDPOINT"}
    said = {
        of_others.get(scheme, "AWS_ENDPOINT_URL_S3"): choice.endpoint,
        "AWS_REGION": choice.region,
        "AWS_PROFILE": choice.profile,
        "AWS_CA_BUNDLE": choice.ca_bundle,
    }
    with tempfile.TemporaryDirectory(prefix=PREFIX) as local:  # for the local copies of the store's metadata
        environ = {**connection.variables, **{key: value for key, value in said.items() if value}}
        environ["XDG_CACHE_HOME"] = local
        own = structs.replace(connection, environ=environ, url=url, names=None)
        try:
            with own.context.store(create=True) as store:
                _check_room(store.free_bytes(), total, choice.url)
                sizes = list(load.sizes(total, _SEED))
                _announce(own.context, sizes, url)
                create_repository(own.context, store, single_writer=True)
            with Store(own).edit("feed", create=True) as edits:
                for number, size in enumerate(sizes):
                    edits.put(_name(number), _Random(size))  # type: ignore[arg-type]
            yield own
        finally:
            try:
                _remove_store(own.context, url)
            except DsvError:
                connection.progress.note(f"{url} could not be removed, and is not needed")
                raise


def _remove_store(context: Context, url: str) -> None:
    """Delete a store that no other process uses."""
    with context.store() as store:
        keys = [item.key for item in store.data.list("")]
        for at in range(0, len(keys), _REMOVED_AT_ONCE):
            together([partial(store.data.delete, key) for key in keys[at : at + _REMOVED_AT_ONCE]])
    if url.startswith(("/", "file:")):
        folder = unquote(urlsplit(url).path) if url.startswith("file:") else url
        with about(folder):
            shutil.rmtree(folder)


def _check_room(free: int | None, total: int, place: str) -> None:
    if free is not None and free < total:
        raise NoRoom(
            f"{place} has {format_bytes(free)} free, and {format_bytes(total)} are to be written",
            subject=place,
            hint="a smaller --make SIZE",
        )


def _announce(context: Context, sizes: list[int], place: str) -> None:
    context.progress.note(
        f"writing {format_count(len(sizes), 'file')}, {format_bytes(sum(sizes))}, to {place}; it is removed at the end"
    )


def _name(number: int) -> str:
    return f"{number // 1000:04}/{number % 1000:03}.bin"


class _Random:
    """A readable of `size` random bytes."""

    def __init__(self, size: int) -> None:
        self._left = size

    def readinto(self, buffer: WriteableBuffer, /) -> int:
        into = memoryview(buffer).cast("B")
        count = min(len(into), self._left)
        into[:count] = os.urandom(count)
        self._left -= count
        return count
