"""dsv sparse."""

from __future__ import annotations

from collections.abc import Sequence

from dsv.cli.call import Call
from dsv.cli.declare import argument, command
from dsv.errors import UsageError
from dsv.values.units import format_count

ACTIONS = ("list", "add", "remove")


@command(
    "sparse",
    examples="""
        dsv sparse add val 'test/**/*.json'  # fetch a folder, and what a pattern matches; quote it
        dsv sparse remove train/raw  # free the space; the dataset keeps the files
        dsv sparse add '**'  # everything: the workspace is no longer sparse
    """,
    result="workspace sparse only created removed",
)
def sparse(
    call: Call,
    action: str = argument("list|add|remove"),
    patterns: list[str] | None = argument("[PATTERN]..."),
) -> None:
    """Show or change which part of the dataset a workspace has.

    A PATTERN begins at the top of the dataset: * matches within a name, **/ any folders, ? one byte, and [a-f]
    one of these; a folder stands for all that is in it, and a path of exactly that name comes first. 'dsv clone
    --only PATTERN' makes a workspace of a part. What a workspace leaves out is never taken for removed.

    add: fetches what the patterns match too. remove: removes these files here, not from the dataset; if any of them
    was changed here, it ends with exit code 4 and the list, and nothing is removed. If it is interrupted, the
    same command continues it.
    """
    from dsv.api.sparse import Sparse, sparse_add, sparse_remove

    words = patterns or []
    _check_patterns(action, words)
    with call.context() as context:
        if action == "list":
            done = Sparse(context.workspace())
        else:
            done = (sparse_add if action == "add" else sparse_remove)(context, words)
    lines = done.workspace.chosen.lines
    call.result(done, workspace=done.workspace.root, sparse=lines is not None, only=lines or ())
    if action == "list":
        for line in lines or ():
            call.line(line)
    if lines is None:
        call.say(f"{done.workspace.root} is not sparse: it has everything")
    elif not lines:
        call.say(f"{done.workspace.root} has no files of its dataset")
    if action == "add":
        call.line(f"fetched {format_count(done.created, 'path')}")
    elif action == "remove":
        call.line(f"removed {format_count(done.removed, 'file')} here; the dataset is unchanged")


def _check_patterns(action: str, words: Sequence[str]) -> None:
    if action not in ACTIONS:
        raise UsageError(
            f"dsv sparse has no action {action}", subject=action, hint=f"one of {', '.join(ACTIONS)}"
        )
    if action == "list" and words:
        raise UsageError(
            f"dsv sparse list takes no pattern, and {words[0]} is one",
            subject=words[0],
            hint="dsv sparse list",
        )
    if action != "list" and not words:
        raise UsageError(f"dsv sparse {action} needs a PATTERN", hint=f"dsv sparse {action} --help")
    for word in words:
        if word.startswith("!"):
            raise UsageError(
                f"{word} excludes paths, which dsv sparse remove does",
                subject=word,
                hint=f"dsv sparse remove {word[1:]}; ./{word} for a path of that name",
            )
