"""dsv mv."""

from __future__ import annotations

from typing import Annotated

import typer

from dsv.api.edits import Edit, EditRequest, Move, MoveAll
from dsv.api.edits import edit as commit
from dsv.cli.call import Call
from dsv.cli.declare import command
from dsv.cli.options.edits import (
    RESULT,
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
from dsv.values.names import Target


@command(
    "mv",
    unused=["--cache"],
    examples=[
        ("dsv mv chest-xray:cats/017.png dogs/", "relabel one image"),
        ("dsv mv chest-xray:trian train", "rename a folder"),
        ("dsv mv 'chest-xray@relabel:unsorted/*.png' train/", "what a pattern matches; quote it"),
        (
            "dsv mv --from-file relabel.csv chest-xray",
            "one commit for lines such as cats/017.png,dogs/017.png",
        ),
    ],
    result=RESULT,
)
def mv(
    call: Call,
    words: Annotated[list[str], typer.Argument(metavar="DATASET[@BRANCH]:PATH... NEW")],
    from_file: FromFile = None,
    replace: Annotated[
        bool, typer.Option("--replace", help="Replace files that are there, and merge folders.")
    ] = False,
    message: Message = None,
    dry_run: DryRun = False,
    author: Author = None,
    force: Force = False,
) -> None:
    """Rename and move files and folders of a dataset.

    NEW is a path in the same dataset. With a slash at its end, or if it is a folder, what moves goes into it; otherwise
    it is the new name. No file is uploaded or downloaded, only what describes the folders. A file that is there is
    replaced only with --replace. Patterns are those of 'dsv rm'. All of it is one commit on the branch (main).

    --from-file takes a CSV file with an old and a new path in each line, both from the top of the dataset. All of them
    move at once, so that two files can change places.
    """
    edits: list[Edit]
    if from_file is not None:
        if len(words) != 1:
            raise UsageError(
                "with --from-file, one dataset is named, without paths",
                hint="dsv mv --from-file LIST DATASET",
            )
        target = commit_target("mv --from-file", words[0])
        pairs = [(old, new) for old, new in read_list(call, from_file, 2)]
        edits, names = [MoveAll(pairs, replace)], [f"{old} to {new}" for old, new in pairs]
    else:
        if len(words) < 2:
            raise UsageError("name the new path too", subject=words[0], hint=f"dsv mv {words[0]} NEW")
        target, paths = one_dataset("mv", words[:-1])
        new_path = _new_path(target, words[-1], words[0])
        if len(paths) > 1 and new_path and not new_path.endswith(b"/"):
            new_path += b"/"
        edits = [Move(path, new_path, replace) for path in paths]
        names = [f"{path.decode(errors='replace')} to {new_path.decode(errors='replace')}" for path in paths]
    request = EditRequest(
        message=default_message("move", names) if message is None else message, action="mv", dry_run=dry_run
    )
    with call.context(writes=True, author=author, override=override(force, message)) as context:
        done = commit(context, target, edits, request)
    show_edited(call, done, dry_run=dry_run)


def _new_path(target: Target, typed: str, first: str) -> bytes:
    """A path; with a colon it is a target's, in the same dataset and branch."""
    if ":" not in typed:
        return typed.encode("utf-8", "surrogateescape")
    named = Target.parse(typed)
    if named.dataset not in (None, target.dataset) or (named.dataset is not None and named.rev != target.rev):
        raise UsageError(
            f"{typed} is in another dataset or branch than {first}",
            subject=typed,
            hint="the new path is one in the same dataset; a path that has a colon itself is written as :PATH",
        )
    return named.path or b""
