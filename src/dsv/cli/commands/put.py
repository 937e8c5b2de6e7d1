"""dsv put."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from dsv.api.edits import EditRequest, Put
from dsv.api.edits import edit as commit
from dsv.cli.call import Call
from dsv.cli.declare import command
from dsv.cli.options.edits import RESULT, Author, DryRun, Message, default_message, show_edited, stdin
from dsv.cli.options.merging import Force, override
from dsv.errors import UsageError
from dsv.values.names import Target


@command(
    "put",
    unused=["--cache"],
    examples=[
        ("dsv put labels.csv chest-xray:", "one file, at the top of the dataset"),
        ("dsv put new/*.png chest-xray@relabel:train/", "into the folder train of branch relabel"),
        ("dsv put images chest-xray:train/", "a folder, as train/images, merged into what is there"),
        ("dsv put images/. chest-xray:train/", "what is in the folder, as train/..."),
        ("zcat all.csv.gz | dsv put - chest-xray:all.csv", "what a command prints"),
        ("dsv put data cats: --create", "makes the dataset if it is not there yet"),
    ],
    result=RESULT,
)
def put(
    call: Call,
    words: Annotated[list[str], typer.Argument(metavar="SRC... DATASET[@BRANCH]:PATH")],
    message: Message = None,
    dry_run: DryRun = False,
    no_clobber: Annotated[
        bool, typer.Option("--no-clobber", help="Leave paths that are there already as they are.")
    ] = False,
    create: Annotated[
        bool, typer.Option("--create", help="Make the dataset if it is not there yet.")
    ] = False,
    skip_unsupported: Annotated[
        bool, typer.Option("--skip-unsupported", help="Leave out what can't be stored, such as sockets.")
    ] = False,
    author: Author = None,
    force: Force = False,
) -> None:
    """Add or replace files of a dataset, without a workspace.

    SRC is a file or folder of this machine, or - for stdin. PATH with a slash at its end, or that of a folder in the
    dataset, is a folder to put them in; otherwise it is the new name. Files that are there are replaced, and folders
    merged; no file replaces a folder. All of it is one commit on the branch (main). If somebody else publishes
    meanwhile, it goes on top of theirs, unless both changed one path: then nothing is published, with exit code 4.

    Folders are taken as 'dsv sync' takes them: symlinks as symlinks, less what a .dsvignore in them names.
    """
    if len(words) < 2:
        raise UsageError(
            "name what to put, and where", subject=words[0], hint=f"dsv put SRC {words[0]}; dsv put --help"
        )
    *sources, typed = words
    target = Target.parse(typed)
    path = target.path or b""
    if len(sources) > 1 and path and not path.endswith(b"/"):
        path += b"/"
    edits = [
        Put(path, stdin(call).readinto, not no_clobber)  # type: ignore[attr-defined]
        if source == "-"
        else Put(path, Path(source), not no_clobber, source.endswith(("/.", "/..")))
        for source in sources
    ]
    request = EditRequest(
        message=default_message("put", [_name(one) for one in sources]) if message is None else message,
        action="put",
        create=create,
        skip_unsupported=skip_unsupported,
        dry_run=dry_run,
    )
    with call.context(writes=True, author=author, override=override(force, message)) as context:
        done = commit(context, target, edits, request)
    show_edited(call, done, dry_run=dry_run)


def _name(source: str) -> str:
    return "stdin" if source == "-" else Path(os.path.normpath(Path.cwd() / source)).name or source
