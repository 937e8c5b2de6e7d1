"""dsv tag."""

from __future__ import annotations

from dsv.api import branches as api
from dsv.cli.call import Call
from dsv.cli.declare import argument, command, option
from dsv.cli.options import Author, TargetOrBase, commit_target, one_of
from dsv.cli.output import local_time
from dsv.errors import UsageError
from dsv.values.names import DatasetName, TagName

_DELETE_TAG = "dsv tag --delete NAME [DATASET] --force"


@command(
    "tag",
    unused=["--cache"],
    examples="""
        dsv tag v1  # the base commit of this workspace is v1 from now on
        dsv tag v1 chest-xray@3f2a9c01 -m 'as published'  # any commit, without a workspace
        dsv tag --delete v1 --force  # the name is gone for good: it is never used again
    """,
    result="items(dataset tag commit author time message)",
)
def tag(
    call: Call,
    name: str | None = argument("[NAME]"),
    target: TargetOrBase = "",
    message: str = option("-m --message TEXT", "Message of the tag."),
    listing: str | None = option("--list DATASET", "List the tags of this dataset."),
    delete: str | None = option(
        "--delete NAME", "Delete this tag of the dataset named after it, or else of the workspace's."
    ),
    force: bool = option("--force", "With --delete: a deleted tag can't be restored."),
    author: Author = None,
) -> None:
    """Create an immutable tag, or list tags.

    TARGET is [DATASET][@REV]; without it, the base commit of this workspace. A tag never moves.
    """
    one_of(list=listing, delete=delete)
    if delete is not None:
        if target:
            raise UsageError(
                f"--delete takes one tag and one dataset, not {target} too", subject=target, hint=_DELETE_TAG
            )
        _delete_tag(call, delete, name, message, author, force)
        return
    if force:
        raise UsageError("--force is for --delete", hint=_DELETE_TAG)
    if name is None or listing is not None:
        call.takes_only("a list of tags", "listing")
        _list_tags(call, listing)
        return
    dataset, at, rev = name.rpartition("@")
    if at:
        raise UsageError(
            f"a tag is named without its dataset, not {name!r}",
            subject=name,
            hint=f"dsv tag {rev or 'NAME'} {target or dataset or 'TARGET'}",
        )
    tag_name, wanted = TagName.parse(name), commit_target(f"tag {name}", target)
    with call.context(writes=True, author=author) as context:
        made = api.tag(context, tag_name, wanted, message)
    call.results([made])
    call.line(f"{made.dataset}@{made.tag} is {made.commit}")


def _delete_tag(
    call: Call, delete: str, dataset: str | None, message: str, author: str | None, force: bool
) -> None:
    where = None if dataset is None else DatasetName.parse(dataset)
    with call.context(writes=True, author=author) as context:
        gone = api.delete_tag(context, where, TagName.parse(delete), message, force=force)
    call.results([])
    call.line(f"tag {delete} is deleted; it was {gone.dataset}@{str(gone.commit)[:12]}")
    call.say(f"dsv tag NEW-NAME {gone.dataset}@{gone.commit} names that commit again")


def _list_tags(call: Call, dataset: str | None) -> None:
    with call.context() as context:
        found = api.tags(context, None if dataset is None else DatasetName.parse(dataset))
    call.results(found)
    columns = ["tag", "commit", "tagged~", "by~", "message~"]
    rows = [
        [item.tag, str(item.commit)[:12], local_time(item.time_ms), item.author, item.message]
        for item in found
    ]
    call.table(columns, rows)
