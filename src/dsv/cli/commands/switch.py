"""dsv switch."""

from __future__ import annotations

from dsv.api.branches import BranchPath
from dsv.api.checkout import switch as follow
from dsv.api.context import Context
from dsv.cli.call import Call
from dsv.cli.declare import argument, command, option
from dsv.cli.options import Author
from dsv.cli.output import WRITTEN_KEYS, written
from dsv.errors import UsageError
from dsv.values.names import BranchName


@command(
    "switch",
    examples="""
        dsv switch relabel  # fetch its files, and publish on it from then on
        dsv switch relabel --create  # a new branch at the base; no file changes
        dsv switch main  # back again
    """,
    result=f"dataset branch commit before_branch before made {WRITTEN_KEYS} any_change",
)
def switch(
    call: Call,
    branch: str = argument("BRANCH"),
    create: bool = option("--create", "Make the branch, at the base commit of this workspace."),
    author: Author = None,
) -> None:
    """Switch to another branch.

    BRANCH is one of this workspace's dataset. The workspace gets its files, and publishes on it from then on. Local
    changes stay; if they are to paths that would change, these are listed with exit code 4, and nothing is written. If
    interrupted, run the same command again.
    """
    with call.context(writes=True, author=author) as context:
        done = follow(context, _branch(context, branch), create=create)
    call.result(done)
    at = "which has no commit yet" if done.commit is None else f"at {str(done.commit)[:12]}"
    where = f"{done.dataset}@{done.branch}, {at}"
    if not done.any_change:
        call.line(f"this workspace already follows {where}")
        return
    if done.renamed_from is not None:
        call.line(f"{done.renamed_from} was renamed: this workspace follows {where} now")
    else:
        call.line(f"switched to {where}")
    if not done.made and (done.writes or done.renamed_from is None):
        call.say(written(done))


def _branch(context: Context, name: str) -> BranchName:
    """Return a branch of the workspace's dataset, which may be named with the dataset."""
    path = BranchPath.parse(name)
    workspace = context.workspace()
    if path.dataset not in (None, workspace.dataset):
        raise UsageError(
            f"{workspace.root} is a workspace of {workspace.dataset}, not of {path.dataset}",
            subject=name,
            hint=f"dsv clone {path} DIR",
        )
    return path.branch
