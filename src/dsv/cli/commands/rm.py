"""dsv rm."""

from __future__ import annotations

from typing import Annotated

import typer

from dsv.api.edits import EditRequest, Remove
from dsv.api.edits import edit as commit
from dsv.cli.call import Call
from dsv.cli.declare import command
from dsv.cli.options.edits import (
    RESULT,
    AllowRemovals,
    Author,
    DryRun,
    FromFile,
    Message,
    default_message,
    one_dataset,
    read_list,
    show_edited,
)
from dsv.cli.options.merging import Force, override
from dsv.cli.options.targets import commit_target
from dsv.errors import UsageError


@command(
    "rm",
    unused=["--cache"],
    examples=[
        ("dsv rm chest-xray:train/00017.png", "one file"),
        ("dsv rm chest-xray:old/ :notes.txt", "a folder and a file, in one commit"),
        ("dsv rm 'chest-xray@relabel:train/**/*.tmp' --dry-run", "what a pattern matches; quote it"),
        ("dsv rm --from-file bad.csv chest-xray -m 'unreadable'", "a path a line"),
    ],
    result=RESULT,
)
def rm(
    call: Call,
    words: Annotated[list[str], typer.Argument(metavar="DATASET[@BRANCH]:PATH...")],
    from_file: FromFile = None,
    message: Message = None,
    dry_run: DryRun = False,
    allow_removals: AllowRemovals = False,
    author: Author = None,
    force: Force = False,
) -> None:
    """Remove files and folders of a dataset, without a workspace.

    They go from the branch's next commit; every earlier commit still has them. A folder goes with all that is in it.
    In a pattern * matches within a name, **/ any folders, ? one character, and [a-f] one of these; a path of exactly
    that name comes first. All of it is one commit on the branch (main). If more than half of a dataset's paths would
    go, nothing happens without --allow-removals.
    """
    if from_file is not None:
        if len(words) != 1:
            raise UsageError(
                "with --from-file, one dataset is named, without paths",
                hint="dsv rm --from-file LIST DATASET",
            )
        target = commit_target("rm --from-file", words[0])
        paths: list[str] | list[bytes] = [path for [path] in read_list(call, from_file, 1)]
    else:
        target, paths = one_dataset("rm", words)
    names = [one if isinstance(one, str) else one.decode(errors="replace") for one in paths]
    request = EditRequest(
        message=default_message("remove", names) if message is None else message,
        action="rm",
        allow_removals=allow_removals,
        dry_run=dry_run,
    )
    with call.context(writes=True, author=author, override=override(force, message)) as context:
        done = commit(context, target, [Remove(paths, literal=from_file is not None)], request)
    show_edited(call, done, dry_run=dry_run)
