"""dsv datasets."""

from __future__ import annotations

from dsv.api import datasets as api
from dsv.api.context import Context
from dsv.api.datasets import datasets as list_datasets
from dsv.cli.call import Call
from dsv.cli.declare import argument, command, option
from dsv.cli.options import Author, one_of
from dsv.cli.output import local_time, rfc3339, short
from dsv.errors import UsageError
from dsv.values.names import DatasetName
from dsv.values.units import format_bytes, format_count


@command(
    "datasets",
    unused=["--cache"],
    examples="""
        dsv datasets  # of the store in effect
        dsv datasets --delete old-xrays  # asks for its name first
        dsv datasets --undelete old-xrays  # with all branches, until gc has removed the content
    """,
    result="items(dataset commit time files bytes deleted deleted_by renamed_from)",
)
def datasets(
    call: Call,
    new: str | None = argument("[NEW]"),
    delete: str | None = option("--delete NAME", "Delete this dataset; --undelete brings it back."),
    undelete: str | None = option("--undelete NAME", "Bring a deleted dataset back."),
    rename: str | None = option("--rename OLD", "Rename this dataset: --rename OLD NEW."),
    deleted: bool = option("--deleted", "List the datasets that were deleted."),
    yes: bool = option("--yes", "With --delete: do not ask."),
    force: bool = option("--force", "With -m and --delete or --rename: even if a branch is protected."),
    message: str = option("-m --message TEXT", "Why, for the log."),
    author: Author = None,
) -> None:
    """List what the store holds, or delete or rename a dataset.

    Lists every dataset with the head of its branch main. A deleted dataset has no branches any more, and all of its
    commits are expired: 'dsv gc' removes what only they have, two weeks later at the earliest. Its name is not used
    again.

    A renamed dataset keeps its commits with their ids. Its old name is only used again to rename it back.
    """
    one_of(delete=delete, undelete=undelete, rename=rename, deleted=deleted)
    gone, back, old = (None if one is None else DatasetName.parse(one) for one in (delete, undelete, rename))
    if delete is None and (yes or (force and rename is None)):
        raise UsageError("--yes and --force are for --delete", hint="dsv datasets --delete NAME")
    if rename is None and new is not None:
        raise UsageError(f"dsv datasets lists all, and takes no name such as {new}", hint=f"dsv log {new}")
    if rename is not None and new is None:
        raise UsageError("--rename takes two names", hint="dsv datasets --rename OLD NEW")
    writes = not (delete is None and undelete is None and rename is None)
    if not writes and (message or author is not None):
        raise UsageError("a list has no message and no author", hint="dsv datasets --delete NAME -m TEXT")
    reason = message.strip() or None if force else None
    if force and reason is None:
        raise UsageError("--force needs a reason, which is kept", hint="--force -m REASON")
    with call.context(writes=writes, author=author, override=reason) as context:
        if gone is not None:
            _delete(call, context, gone, message, yes=yes)
        elif back is not None:
            _undelete(call, context, back, message)
        elif old is not None and new is not None:
            _rename(call, context, old, DatasetName.parse(new), message)
        elif deleted:
            _list_deleted(call, context)
        else:
            _list(call, context)


def _delete(call: Call, context: Context, name: DatasetName, message: str, *, yes: bool) -> None:
    gone = api.delete(context, name, lambda what: call.confirm(what, name, yes=yes), message)
    call.items([_gone(call, name, gone.time_ms, gone.author)])
    if gone.already:
        call.say(f"dataset {name} was already deleted by {gone.author} ({local_time(gone.time_ms)})")
        return
    call.line(f"deleted dataset {name}; {format_count(gone.commits, 'commit')} expired with it")
    call.say(f"dsv datasets --undelete {name} brings it back, until gc removes the content")


def _rename(call: Call, context: Context, old: DatasetName, new: DatasetName, message: str) -> None:
    done = api.rename(context, old, new, message)
    call.items([_item(call, None, dataset=new, renamed_from=old)])
    if done.already:
        call.say(f"dataset {old} was already renamed to {new} by {done.author} ({local_time(done.time_ms)})")
        return
    call.line(f"renamed dataset {old} to {new}")
    call.say(
        f"in a workspace of {old}, dsv switch main follows it; dsv datasets --rename {new} {old} undoes this"
    )


def _undelete(call: Call, context: Context, name: DatasetName, message: str) -> None:
    heads = api.undelete(context, name, message)
    call.items([_item(call, None, dataset=name)])
    branches = ", ".join(sorted(str(head.branch) for head in heads))
    call.line(f"dataset {name} is back, with {branches}")


def _list_deleted(call: Call, context: Context) -> None:
    deletions = api.deleted_datasets(context)
    call.items(_gone(call, gone.dataset, gone.entry.time_ms, gone.entry.author) for gone in deletions)
    rows = [[str(gone.dataset), local_time(gone.entry.time_ms), gone.entry.author] for gone in deletions]
    call.table(["dataset", "deleted~", "by~"], rows)


def _list(call: Call, context: Context) -> None:
    found = list_datasets(context)
    call.items(_item(call, item) for item in found)
    columns = ["dataset", "commit", "committed~", "files>", "size>"]
    rows = [
        [
            str(item.dataset),
            short(item.commit),
            local_time(item.time_ms),
            f"{item.files:,}",
            format_bytes(item.bytes),
        ]
        for item in found
    ]
    call.table(columns, rows)
    if not found:
        call.say("no datasets yet; run 'dsv init' in a folder to create one")


def _item(call: Call, found: object, **more: object) -> dict[str, object]:
    return call.item(found, **{"deleted": None, "deleted_by": None, "renamed_from": None, **more})


def _gone(call: Call, name: DatasetName, time_ms: int, author: str) -> dict[str, object]:
    return _item(call, None, dataset=name, deleted=rfc3339(time_ms), deleted_by=author)
