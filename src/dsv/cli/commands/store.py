"""dsv store: check and repair a store."""

from __future__ import annotations

from contextlib import ExitStack
from itertools import chain

from dsv.cli.call import Call
from dsv.cli.commands.doctor import show_findings
from dsv.cli.declare import argument, command
from dsv.cli.options import DryRun, Names
from dsv.cli.output import local_time, to_item
from dsv.errors import UsageError
from dsv.values.units import format_count

ACTIONS = ("check", "merge-indexes", "move-names", "rebuild-names")


@command(
    "store",
    unused=["--cache"],
    examples="""
        dsv store check  # test the store in effect, as dsv init did
        dsv store move-names /nfs/names  # keep the store's names there from now on
        dsv store rebuild-names --names /nfs/new-names --dry-run  # show which names can be recovered
    """,
    result=(
        "items(check state text hint commit dataset branch head_of author time message) merged files "
        "deleted names before keys taken_back setting value"
    ),
)
def store(
    call: Call,
    action: str = argument("check|merge-indexes|move-names|rebuild-names"),
    place: str | None = argument("[LOCATION]", help="For move-names: a folder, or a URL."),
    names: Names = None,
    dry_run: DryRun = False,
) -> int:
    """Check a store, compact its index, move or repair refs.

    check: many writers, in several processes too, race for keys under probe/, read them back and list them. If the
    store's names are elsewhere, both parts are tested. Index files are read, 1,000 at most. The exit code is 1 if
    something fails.

    merge-indexes: index files are merged, and those that were merged more than an hour ago are deleted. A
    sync does a part of this by itself when there are many, so nobody needs to run it. Others may sync
    meanwhile.

    move-names: branches, tags and what writers tell each other are kept at LOCATION from now on: a folder, another
    bucket, or the URL of the store itself. Stop all writers first: nothing is moved, with exit code 4, if one writes
    meanwhile. Reading stays possible. If it was interrupted, the same command finishes it; naming the location where
    they are undoes it.

    rebuild-names: if the folder or bucket with a store's names is lost, its commits are still in the bucket. They are
    listed, and the newest commit of each line becomes the head of a branch at LOCATION. Tags cannot be recovered.
    """
    if action not in ACTIONS:
        raise UsageError(
            f"dsv store has no action {action}", subject=action, hint=f"one of {', '.join(ACTIONS)}"
        )
    if dry_run and action != "rebuild-names":
        raise UsageError(f"dsv store {action} does not support --dry-run", hint=f"dsv store {action}")
    if (place is not None) != (action == "move-names"):
        what = "needs a LOCATION" if place is None else f"does not take {place}"
        raise UsageError(f"dsv store {action} {what}", hint="dsv store move-names LOCATION, dsv store check")
    call.flags.names = names
    if place is not None:
        return _move(call, place)
    if action == "merge-indexes":
        return _merge_indexes(call)
    return _check(call) if action == "check" else _rebuild(call, dry_run=dry_run)


def _move(call: Call, place: str) -> int:
    from dsv.api.store import move_names

    with call.context(writes=True) as context:
        done = move_names(context, place)
    setting, value = done.configure or (None, None)
    call.result(done, setting=setting, value=value)
    call.line(done.names)
    if done.taken_back:
        call.say("the move was undone: the names are where they were")
    elif done.configure is None:
        call.say("the names are there already")
    else:
        setting, value = done.configure
        change = f"--unset {setting}" if value is None else f"{setting} {value}"
        call.say(
            f"{format_count(done.keys, 'object')} copied from {done.before}; tell everybody: dsv config {change}"
        )
    return 0


def _check(call: Call) -> int:
    from dsv.api.doctor import examine_indexes, examine_store

    with call.context(writes=True) as context, ExitStack() as opened:
        store = examine_store(context, opened, thorough=True)
        return show_findings(call, chain(store, examine_indexes(context)))


def _merge_indexes(call: Call) -> int:
    from dsv.api.store import merge_index_files

    with call.context(writes=True) as context:
        done = merge_index_files(context)
    call.result(done)
    call.say(
        f"{format_count(done.merged, 'index file')} merged, {done.deleted:,} deleted; a sync needs to know "
        f"{done.files:,}"
    )
    return 0


def _rebuild(call: Call, *, dry_run: bool) -> int:
    from dsv.api.store import rebuild_names

    with call.context(writes=not dry_run) as context:
        commits, place = rebuild_names(context, dry_run=dry_run)
    names, keys = "commit dataset head_of", "author branch time message"
    call.items({**to_item(one, names, commit=one.id), **to_item(one.commit, keys)} for one in commits)
    columns = ["commit", "dataset", "head of", "time~", "author~", "message~"]
    rows = [
        [
            str(one.id)[:12],
            str(one.dataset),
            str(one.head_of or ""),
            local_time(one.commit.time_ms),
            one.commit.author,
            one.commit.message.partition("\n")[0],
        ]
        for one in commits
    ]
    call.table(columns, rows)
    heads = sum(one.head_of is not None for one in commits)
    verb = "would be made" if dry_run else "is" if heads == 1 else "are"
    call.say(f"{format_count(heads, 'branch')} of {format_count(len(rows), 'commit')} {verb} at {place}")
    return 0
