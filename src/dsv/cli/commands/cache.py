"""dsv cache."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path

from dsv.api.cache import cache as materialize
from dsv.api.cache import check_link, make_link
from dsv.cli.call import Call
from dsv.cli.declare import argument, command, option, whole
from dsv.cli.options import LockFile, Offline, Strict, one_of
from dsv.cli.output import local_time, to_item
from dsv.errors import UsageError
from dsv.run.staged import Staged
from dsv.values.names import Target
from dsv.values.units import LONGEST, format_bytes, format_count, format_duration, parse_duration


@command(
    "cache",
    examples="""
        dsv cache chest-xray@v1 --while 4711  # while process 4711 lives; a script names itself by $$
        DATA=$(dsv cache chest-xray@v1 --hold 3d)  # the folder, safe from eviction for three days
        dsv cache chest-xray@v1 --hold 3d --json | jq -r '.items[0] | .path, .hold'  # the folder, and the hold's id
        dsv cache chest-xray@v1:train chest-xray@v1:labels.csv  # parts of a commit, with their full paths
        dsv cache --lock data.lock --hold 3d  # what 'dsv lock' has written
        dsv cache chest-xray@v2 --link data --hold 3d  # data/ is that commit from now on
    """,
    result=(
        "items(path dataset commit files bytes fetched_bytes linked_files erased hit seconds hold held_until)"
    ),
)
def cache(
    call: Call,
    targets: list[str] | None = argument("[TARGET]..."),
    lock: LockFile = None,
    hold: str | None = option("--hold DURATION", "Hold it for this long (in a Slurm job: until it ends)."),
    while_pid: int | None = option("--while PID", "Hold it while this local process runs.", parser=whole(1)),
    jobs: int | None = option("-j --jobs N", "Number of processes that fetch files.", parser=whole(1)),
    link: str | None = option("--link LINK", "Make this symlink point to the cached commit."),
    offline: Offline = False,
    strict: Strict = False,
) -> None:
    """Make commits appear as files in the cache.

    Prints a path for each TARGET, [DATASET][@REV][:PATH], and then for each line of a lock file. The files are
    read-only, and appear whole or not at all. What another cached commit has is linked, not fetched again. Any
    number of processes that ask for one commit share the work.

    --link makes a symlink, or replaces one in one step, once all of the commit is there. It does not keep the
    commit from eviction: --hold or --while does.
    """
    wanted = [Target.parse(text) for text in targets or ()]
    if lock is not None:
        from dsv.api.lock_files import read_lock

        wanted += read_lock(Path(lock)).values()
    one_of(hold=hold, **{"while": while_pid})
    one_of(strict=strict, **{"while": while_pid})
    if link is not None and len(wanted) != 1:
        raise UsageError("--link takes one target", subject=link, hint="dsv cache TARGET --link LINK")
    if link is not None:
        check_link(Path(link))
    seconds, job = _hold(hold, call.around.environ)
    with call.context() as context:
        folder = call.settings.cache().path
        if while_pid is not None:
            from dsv.api.hold_while import cache_while

            found = cache_while(context, folder, wanted, while_pid, offline=offline, jobs=jobs)
        else:
            found = materialize(
                context, folder, wanted, hold=seconds, job=job, offline=offline, jobs=jobs, strict=strict
            )
    if link is not None:
        make_link(Path(link), found[0].path)
        call.say(f"{link} now points to {found[0].path}")
    for item in found:
        if not call.json:
            call.out.line(str(item.path))
        call.say(_story(item, while_pid))
    call.results(found)


def _hold(hold: str | None, environ: Mapping[str, str]) -> tuple[float | None, str | None]:
    """Return the seconds of the hold (by default until the Slurm job ends, if that is known), and the job."""
    job = environ.get("SLURM_JOB_ID") or None
    if hold is not None:
        return parse_duration(hold), job
    end = environ.get("SLURM_JOB_END_TIME", "")
    if job is None or not end.isdecimal():
        return None, job
    left = min(int(end) - time.time(), LONGEST)
    return (left, job) if left > 0 else (None, job)


def item_of(item: Staged) -> dict[str, object]:
    return to_item(item, cache.result["items"])


def _story(item: Staged, while_pid: int | None) -> str:
    name = f"{item.dataset}@{str(item.commit)[:12]}"
    if item.hit:
        what = f"{name} was cached already: {format_count(item.files, 'file')}, {format_bytes(item.bytes)}"
    else:
        linked = f", {format_count(item.linked_files, 'file')} linked" if item.linked_files else ""
        what = (
            f"{name} cached in {format_duration(item.seconds)}: {format_count(item.files, 'file')}, "
            f"{format_bytes(item.bytes)}; {format_bytes(item.fetched_bytes)} fetched{linked}"
        )
    if item.erased:
        what += f"; {format_count(item.erased, 'file')} erased from the store"
    if while_pid is not None:
        return f"{what}; held while process {while_pid} lives"
    if item.held_until is not None:
        until, hold = local_time(item.held_until * 1000), (item.hold or "")[:12]
        return f"{what}; held until {until}, or until dsv release --id {hold}"
    if item.may_go is not None:
        return (
            f"{what}; kept until {local_time(item.may_go * 1000)} if nobody uses it (--hold keeps it longer)"
        )
    return what
