"""dsv rollback."""

from __future__ import annotations

from typing import Annotated

import typer

from dsv.api.rollback import rollback as take_back
from dsv.cli.call import Call
from dsv.cli.declare import command, text
from dsv.cli.forcing import Force, override
from dsv.cli.output import CACHED_KEYS, from_caches, path_counts
from dsv.model.names import Target


@command(
    "rollback",
    examples=[
        ("dsv rollback @v1", "the branch has the files of v1 again, by a new commit"),
        ("dsv rollback @main~1 -m 'wrong labels'", "without the last commit's changes"),
    ],
    result={
        "dataset": "the dataset",
        "branch": "the branch that the workspace follows",
        "commit": "the branch's head now, and the workspace's base",
        "before": "the branch's head before",
        "source": "the commit whose files the branch has now",
        "created": "how many paths are new here",
        "replaced": "how many have other content now",
        "removed": "how many went",
        **CACHED_KEYS,
        "any_change": "false if the branch had these files already",
    },
)
def rollback(
    call: Call,
    target: Annotated[str, typer.Argument(metavar="TARGET")],
    message: Annotated[
        str | None, typer.Option("-m", "--message", parser=text, metavar="TEXT", help="Commit message.")
    ] = None,
    author: Annotated[
        str | None,
        typer.Option(
            "--author", parser=text, metavar="WHO", help="Who commits, instead of the configured author."
        ),
    ] = None,
    force: Force = False,
) -> None:
    """Take the branch back to an earlier commit.

    A new commit with the files of TARGET is published on the workspace's branch, and they are brought here. No history
    is lost: to undo a rollback, roll back to the commit before it. Local changes stay. If one of them is to a path
    that would change, or if somebody has moved the branch meanwhile, nothing happens and the exit code is 4.
    """
    with call.context(writes=True, author=author, override=override(force, message)) as context:
        done = take_back(context, Target.parse(target), message)
    if call.json:
        call.document(
            {
                "dataset": str(done.dataset),
                "branch": str(done.branch),
                "commit": str(done.commit),
                "before": str(done.before),
                "source": str(done.source),
                "created": done.created,
                "replaced": done.replaced,
                "removed": done.removed,
                "cached_files": done.cached_files,
                "cached_bytes": done.cached_bytes,
                "any_change": done.any_change,
            }
        )
        return
    call.line(str(done.commit))
    where = f"{done.dataset}@{done.branch}"
    if not done.any_change:
        call.say(f"{where} has the files of {str(done.source)[:12]} already")
        return
    counts = path_counts(done.created, done.replaced, done.removed)
    came = from_caches(done.cached_files, done.cached_bytes)
    call.say(f"{where} has the files of {str(done.source)[:12]} again: {counts} here{came}")
