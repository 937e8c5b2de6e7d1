"""dsv verify."""

from __future__ import annotations

from collections.abc import Iterator

from dsv.api.verify import VerifyRequest
from dsv.api.verify import verify as verify_store
from dsv.cli.call import Call
from dsv.cli.declare import argument, command, option
from dsv.cli.output import first
from dsv.cli.terminal import Style
from dsv.errors import IntegrityError, Unreachable, UsageError
from dsv.upkeep.verify import UnreadablePart, Verification
from dsv.values.names import Target
from dsv.values.paths import show
from dsv.values.units import format_bytes, format_count, format_duration, format_time, parse_duration, rfc3339

_PATHS = 10
"""Paths of a commit that are shown."""
_COMMITS = 20
"""Commits, and other things, that are shown."""


@command(
    "verify",
    unused=["--cache"],
    examples="""
        dsv verify  # check names, commits and index files, and that all packs are there
        dsv verify --full  # the same, and read every byte of every pack
        dsv verify --budget 2h  # from cron: read packs for two hours, those read longest ago first
        dsv verify --repair --from s3://backup/dsv  # the same, from another store
    """,
    result=(
        "whole commits packs packs_read bytes_read lost_objects at_risk repaired oldest_unverified damaged_packs "
        "faults unasked unnamed(commit dataset branch parent author time) items(path upto entries commits names)"
    ),
)
def verify(
    call: Call,
    targets: list[str] | None = argument("[DATASET[@REV]...]"),
    full: bool = option("--full", "Read every byte of every pack."),
    budget: str | None = option("--budget TIME", "Read packs for this long: 2h. The others come next time."),
    repair: bool = option("--repair", "Store again what is lost, from wherever a copy is."),
    sources: list[str] | None = option(
        "--from DIR|URL|NAME", "For --repair: a folder of files, or another store."
    ),
) -> int:
    """Look for damage in a store, and say what was lost.

    Every name, commit, part of a tree and index entry is checked, and that every pack is there with its size.
    Contents are read with --full: each byte of each pack is compared with its id. --budget reads part of the packs,
    the next ones each time: all packs before any twice, by any number of machines. It looks at the rest only if a
    pack is damaged.

    What is damaged is marked in the store. From then on no command relies on it, and the next 'dsv sync' or 'dsv put'
    of the same content stores it again, which repairs every commit that has it. Nothing is removed.

    --repair stores again what is lost, and rebuilds index files. It takes other packs of the store, local copies of
    metadata, and what --from names: workspaces, caches and other folders, whose files are hashed, and other stores.
    Nothing is removed except the bytes of a damaged commit, if the right ones were found.

    The exit code is 5 while something is lost, and 6 if the store could not be asked for all of it.
    """
    if budget is not None and (full or targets):
        raise UsageError(
            "--budget is for the packs of the whole store",
            hint="dsv verify --budget 2h, or dsv verify --full",
        )
    if sources and not repair:
        raise UsageError("--from is for --repair", hint="dsv verify --repair --from DIR")
    request = VerifyRequest(
        tuple(map(Target.parse, targets or ())),
        full,
        None if budget is None else float(parse_duration(budget)),
        repair,
        tuple(sources or ()),
    )
    with call.context(writes=True) as context:
        done = verify_store(context, request)
    oldest = None if not done.oldest else done.oldest * 1000
    call.items(_items(done), _head(call, done, None if oldest is None else rfc3339(oldest)))
    _show(call, done)
    if done.oldest is not None:
        (call.routine if done.is_whole and not done.unasked else call.line)(
            f"oldest unverified: {format_time(oldest) if oldest else 'some packs were never read'}"
        )
    if not done.is_whole:
        return IntegrityError.exit_code
    return Unreachable.exit_code if done.unasked else 0


def _head(call: Call, done: Verification, oldest: str | None) -> dict[str, object]:
    return call.head(
        done,
        whole=done.is_whole,
        commits=len(done.names),
        packs=done.packs_seen,
        oldest_unverified=oldest,
        damaged_packs=[{"pack": str(one.pack), "text": one.fault} for one in done.packs],
        unasked=[
            {"pack": str(one.pack), "text": one.failure.message if one.failure else ""}
            for one in done.unasked
        ],
    )


def _items(done: Verification) -> Iterator[dict[str, object]]:
    for one in done.lost:
        shared = {
            "commits": [str(commit) for commit in one.commits],
            "names": list(dict.fromkeys(why for commit in one.commits for why in done.names.get(commit, ()))),
        }
        for path in one.part.paths:
            yield {"path": path.decode("utf-8", "backslashreplace"), "upto": None, "entries": None, **shared}
        if one.part.last is not None:
            last = one.part.last.decode("utf-8", "backslashreplace")
            yield {"path": None, "upto": last, "entries": one.part.entries, **shared}


def _show(call: Call, done: Verification) -> None:
    for fault in done.faults[:_COMMITS]:
        call.line(f"{fault.what} {fault.name}: {fault.text}", Style.BAD)
    by_commit: dict[str, list[UnreadablePart]] = {}
    for one in done.lost:
        for commit_id in one.commits:
            by_commit.setdefault(str(commit_id), []).append(one)
    named = {str(commit_id): why for commit_id, why in done.names.items()}
    for commit in sorted(by_commit, key=lambda one: named[one][:1] and named[one][0].startswith("history"))[
        :_COMMITS
    ]:
        call.line(f"{commit[:12]} ({', '.join(named[commit][:3])}) has lost:", Style.BAD)
        lines = [line for one in by_commit[commit] for line in _lines(one)]
        for line in first(lines, _PATHS):
            call.line(f"  {line}")
    for lost in done.unnamed[:_COMMITS]:
        where, what = f"{lost.dataset}@{lost.branch}", f"{lost.dataset}@{str(lost.commit)[:12]}"
        newer = f", {format_duration(lost.newer // 1000)} newer" if lost.newer >= 1000 else ""
        child = "first commit" if lost.parent is None else f"child of {str(lost.parent)[:12]}"
        call.line(
            f"{what}: no name leads to this {child} of {where}, by {lost.author}{newer}: a sync was interrupted or "
            f"refused, or the move to it is lost; dsv branch {what.replace('@', '@found-')} {what} names it"
        )
    for left in (len(done.unnamed) - _COMMITS, len(done.faults) - _COMMITS, len(by_commit) - _COMMITS):
        if left > 0:
            call.line(f"and {left:,} more; --json lists all")
    for pack in done.packs[:_COMMITS]:
        call.say(f"pack {pack.pack}: {pack.fault}")
    for unasked in done.unasked[:_COMMITS]:
        assert unasked.failure is not None
        call.warn(f"pack {unasked.pack} could not be read: {unasked.failure.message}")
    read = f" read ({format_bytes(done.bytes_read)})" if done.packs_read else ""
    if done.packs_seen:
        looked = f"{format_count(len(done.names), 'commit')}, {format_count(done.packs_seen, 'pack')}"
        looked += f", {done.packs_read:,} of them{read}" if read else ""
    else:  # with --budget: the packs alone
        looked = f"{format_count(done.packs_read, 'pack')}{read}"
    style = Style.BAD if not done.is_whole else "" if done.packs or done.unasked else Style.GOOD
    call.say(f"{looked}: {_verdict(done)}", style)
    if done.repaired:
        call.say(f"{format_count(done.repaired, 'object')} stored again")
    if done.lost_objects:
        call.say("dsv sync or dsv put of the same files stores them again, for all commits that have them")


def _lines(one: UnreadablePart) -> Iterator[str]:
    yield from map(show, one.part.paths)
    if one.part.last is not None:
        upto = f" up to {show(one.part.last)}" if one.part.last else ""
        yield f"{format_count(one.part.entries, 'path')}{upto}, which can't be listed"


def _verdict(done: Verification) -> str:
    if done.lost_objects:
        text = f"{format_count(done.lost_objects, 'object')} lost"
    elif done.at_risk:
        text = (
            f"nothing is lost, but only packs with damaged tables have {format_count(done.at_risk, 'object')}"
        )
    elif done.faults:
        text = f"{format_count(len(done.faults), 'fault')} in names or index files"
    elif done.packs:
        packs = format_count(len(done.packs), "damaged or missing pack")
        text = f"no data is lost: there are intact copies of everything in {packs}"
    else:
        text = "no damage"
    return text if not done.unasked else f"{text} in what could be read"
