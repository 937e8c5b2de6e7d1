"""dsv bench: how many accelerators data can feed."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from dsv.api.bench_feed import FeedRequest, FeedResult, bench_feed, find_load
from dsv.api.connection import Connection
from dsv.cli.call import Call
from dsv.cli.declare import argument, command, option, whole
from dsv.cli.options import Offline
from dsv.errors import UsageError
from dsv.values.names import Target
from dsv.values.units import format_bytes, format_count

_NO_RESULT = "like MLPerf Storage, not a result of it"
_RESULT = (
    "note load(model accelerator versions batch seconds sample workers mark) from place made files bytes "
    "sample_bytes demand memory five_times_memory page_cache page_cache_dropped most at_limit "
    "items(accelerators au passed steps seconds bytes bytes_per_second cpu_per_gb host_cpu_per_gb)"
)


@command(
    "bench",
    examples="""
        dsv bench feed chest-xray@v1 --model retinanet  # read from the store
        dsv bench feed chest-xray@v1 --model retinanet --from cache  # from the cache, which gets it first
        dsv bench feed --folder /nfs/images --model retinanet  # from plain files, for comparison
        dsv bench feed --make 200G --folder /nfs  # from files like the model's, which are made and removed
    """,
    result=_RESULT,
)
def bench(
    call: Call,
    what: Literal["feed"] = argument("feed"),
    typed: str | None = argument("[TARGET]"),
    folder: str | None = option("--folder DIR", "Read files below a folder; with --make, make them there."),
    make: int | None = option("--make SIZE", "Make data like the model's, such as 200G; remove it."),
    model: str = option("--model unet3d|retinanet|resnet50|cosmoflow", "An MLPerf model.", default="unet3d"),
    accelerator: str | None = option(
        "--accelerator b200|mi355|h100|a100", "Simulated GPU (default: newest)."
    ),
    source: Literal["store", "cache", "folder"] | None = option(
        "--from store|cache|folder", "Where it is read (default: the store)."
    ),
    accelerators: int | None = option("--accelerators N", "Measure N accelerators, without a search."),
    up_to: int = option("--up-to N", "Try at most N accelerators.", default=64),
    steps: int = option("--steps N", "End a round after N steps, at least 2.", parser=whole(2), default=500),
    duration: int | None = option("--duration TIME", "Or after this long (default: 20s)."),
    batch: Literal["files", "bytes"] | None = option(
        "--batch files|bytes", "A batch has the model's files, or its bytes."
    ),
    keep_page_cache: bool = option("--keep-page-cache", "Read from this host's page cache, too."),
    offline: Offline = False,
) -> int:
    """Measure how many accelerators data can feed.

    Like MLPerf Storage, and not a result of it: simulated accelerators take a batch each, sleep for the computation
    time of the model, and wait for each other, while worker processes read ahead. More and more of them are tried until
    their utilization (AU: computation time / time) is below the model's mark. unet3d and retinanet are models of
    version v3.0, resnet50 and cosmoflow of v1.0 and v2.0.

    A sample is a file as it is, whatever its size. With --batch bytes a batch is cut so that it has the bytes of the
    model's batch, which puts the model's load on files of other sizes. Nothing is decoded.

    The page cache of this host gives up files of a cache or folder before they are read, and after. Other caches are
    not emptied: those of the servers, and for a store in a folder the page cache. To get past them, read five times as
    much as there is memory.

    --make writes data first, and removes it at the end, also after Ctrl-C: below the folder, or to a store of its own
    beside yours, whose name ends with -bench-feed- and some digits.
    """
    load = find_load(model, accelerator)
    if load.per_file > 1 and batch == "files":
        raise UsageError(
            f"a sample of {model} is a part of a file", subject=batch, hint="leave out --batch files"
        )
    request = FeedRequest(
        load,
        _source(source, typed, folder, make),
        None if typed is None else Target.parse(typed),
        None if folder is None else Path(folder).absolute(),
        make,
        accelerators,
        up_to,
        steps,
        float(duration or 20),
        by_bytes=batch == "bytes" or load.per_file > 1,
        drop=not keep_page_cache,
    )
    _show(call, _measured(call, request, offline))
    return 0


def _measured(call: Call, request: FeedRequest, offline: bool) -> FeedResult:
    environ, flags = dict(call.around.environ), call.flags
    with call.progress() as meter:
        connection = Connection(
            environ, call.settings.cwd, flags.store, flags.names, flags.cache, offline=offline, progress=meter
        )
        return bench_feed(connection, request)


def _source(source: str | None, target: str | None, folder: str | None, make: int | None) -> str:
    """Return where the data is read. Raises `UsageError` unless that is clear."""
    possible: dict[str, tuple[str, ...]] = {
        "TARGET": ("store", "cache") if target is not None else (),
        "--folder": ("folder",) if folder is not None else (),
        "--make": ("store",) if make and folder is None else (),
    }
    named = [word for word, sources in possible.items() if sources]
    if len(named) != 1:
        raise UsageError(
            f"it reads one of TARGET, --folder DIR and --make SIZE, not {' and '.join(named) or 'nothing'}",
            subject=target,
            hint="dsv bench feed DATASET@REV, --folder DIR, --make SIZE, or --make SIZE --folder DIR",
        )
    sources = possible[named[0]]
    if source not in (None, *sources):
        raise UsageError(
            f"--from {source} is not for {named[0]}", subject=source, hint=f"--from {' or '.join(sources)}"
        )
    return source or sources[0]


def _show(call: Call, result: FeedResult) -> None:
    load, request = result.load, result.request
    head: dict[str, object] = {"from": request.source, "made": request.make is not None, "note": _NO_RESULT}
    dropped = request.drop and request.source != "store"
    call.results(result.rounds, result, page_cache_dropped=dropped, **head)
    call.line(f"{load.model} on {load.accelerator}, as in MLPerf Storage {load.versions}:")
    call.line(
        f"  {format_count(load.batch, 'sample')} of {format_bytes(load.sample)} each {load.seconds * 1000:g} ms, "
        f"{load.workers} workers"
    )
    call.line(f"  {format_bytes(round(result.demand))}/s for each accelerator, AU from {load.mark:.2f}")
    call.line(f"{'made in ' if request.make is not None else ''}{result.place}:")
    call.line(f"  {format_count(result.files, 'file')}, {format_bytes(result.bytes)}")
    for line in _caveats(result):
        call.line(f"  {line}")
    call.line("")
    rows = [
        [
            f"{trial.accelerators:,}",
            f"{trial.au:.3f}",
            "yes" if trial.passed else "no",
            f"{format_bytes(round(trial.bytes_per_second))}/s",
            *("-" if cost is None else f"{cost:.2f}" for cost in (trial.cpu_per_gb, trial.host_cpu_per_gb)),
            f"{trial.steps:,}",
        ]
        for trial in result.rounds
    ]
    call.table(["accelerators>", "au>", "passed", "read>", "cpu s/gb>", "host cpu s/gb>", "steps>"], rows)
    call.line("")
    if result.most is not None:
        more = f" or more: --up-to {2 * result.most}" if result.at_limit else ""
        call.line(f"most accelerators with an AU of {load.mark:.2f}: {result.most:,}{more}")
    call.line(_NO_RESULT)


def _caveats(found: FeedResult) -> list[str]:
    """Return what to know of the data before the figures are believed."""
    load, request = found.load, found.request
    times = found.bytes / found.memory
    memory = f"{times:.2g} times" if times >= 0.01 else "less than 0.01 times"
    lines = [f"{memory} the memory of this host; MLPerf Storage takes 5 times"]
    if request.source == "store":
        lines.append("how much of it was in caches of the store and of this host is unknown")
    elif found.page_cache is None:
        lines.append("the file system does not tell how much of it was in this host's page cache")
    else:
        warm = f"{found.page_cache:.0%} of the files were in this host's page cache"
        lines.append(warm + (", which was dropped" if request.drop else ", which was kept"))
    if not found.five_times_memory:
        lines.append("caches may have been warm: these figures may be too good")
    if not 0.9 < found.sample_bytes / load.sample < 1.1:
        lines.append(
            f"here a sample is a file of {format_bytes(round(found.sample_bytes))}: see --batch bytes"
        )
    return lines
