"""dsv sync."""

from __future__ import annotations

from dsv.api.environment import user_at_host
from dsv.api.sync import SyncRequest
from dsv.api.sync import sync as publish
from dsv.cli.call import Call
from dsv.cli.declare import command, option
from dsv.cli.options import Author, Force, Paths, Rehash, SkipUnsupported, Yes, one_of, override, paths_in
from dsv.errors import IntegrityError
from dsv.values.names import BranchName
from dsv.values.units import format_bytes, format_count
from dsv.workspace.publish import Synced

SHOWN = 20
"""Paths in a warning."""


@command(
    "sync",
    unused=["--cache"],
    examples="""
        dsv sync -m "NIH release, 15 classes"  # commit everything here, and publish it
        dsv sync labels.csv train/  # only these paths
        dsv sync --new-branch relabel  # on a new branch, which this workspace follows from then on
        COMMIT=$(dsv sync -q)  # the commit id is all that goes to stdout
    """,
    result=(
        "commit parent dataset branch files bytes added changed removed any_change uploaded_bytes "
        "uploaded_objects reuploaded lost skipped(path reason)"
    ),
)
def sync(
    call: Call,
    paths: Paths = None,
    message: str = option("-m --message TEXT", "Commit message; without, a count of the changes."),
    branch: str | None = option("--branch NAME", "Publish on this branch, and follow it from then on."),
    new_branch: str | None = option("--new-branch NAME", "The same, on a branch that this sync makes."),
    allow_removals: bool = option(
        "--allow-removals", "Publish even if most files, or a whole top-level folder, are gone."
    ),
    skip_unsupported: SkipUnsupported = False,
    reupload: bool = option("--reupload", "Upload again what the store has lost."),
    jobs: int | None = option("-j --jobs N", "Processes that read small files.", hidden=True),
    rehash: Rehash = False,
    yes: Yes = False,
    author: Author = None,
    force: Force = False,
) -> int:
    """Commit this folder and publish it.

    There is no staging area: the whole folder is committed, except what .dsvignore excludes (in gitignore's syntax).
    Only new content is uploaded, and no file here is ever written. If the branch has new commits, nothing is published
    and the exit code is 4, even if nothing changed here: pull first, or publish with 'dsv sync --new-branch NAME'. If
    interrupted, the next sync resumes.
    """
    one_of(branch=branch, new_branch=new_branch)
    name = branch or new_branch
    with call.context(writes=True, author=author, override=override(force, message)) as context:
        chosen = paths_in(context.workspace(), paths or ())
        request = SyncRequest(
            paths=() if b"" in chosen else chosen,
            message=message,
            branch=None if name is None else BranchName.parse(name),
            new_branch=new_branch is not None,
            allow_removals=allow_removals,
            skip_unsupported=skip_unsupported,
            reupload=reupload,
            jobs=jobs,
            rehash=rehash,
            confirm=call.confirm_published(yes),
        )
        done = publish(context, request)
    _warn(call, done)
    call.result(done)
    if done.commit is not None:
        call.line(str(done.commit))
    call.say(_summary(done))
    is_first = done.any_change and done.parent is None and author is None
    if is_first and call.author() == user_at_host():
        call.say(f"signed as {user_at_host()}; dsv config author 'NAME <EMAIL>' sets another name")
    return IntegrityError.exit_code if done.lost else 0


def _warn(call: Call, done: Synced) -> None:
    for problem in done.skipped:
        call.warn(f"left out {problem}")
    if done.single_writer:
        call.warn("this store can't tell two writers apart: make sure that nobody else syncs to it now")
    if done.reuploaded:
        call.say(f"{format_count(done.reuploaded, 'object')} lost or damaged in the store: uploaded again")
    for path in done.lost[:SHOWN]:
        call.warn(
            f"the store has lost the content of {path}, and this folder does not have it as the base does"
        )
    if len(done.lost) > SHOWN:
        call.warn(f"and of {format_count(len(done.lost) - SHOWN, 'other path')}")


def _summary(done: Synced) -> str:
    if done.commit is None:
        return "nothing here to commit yet"
    where = f"{done.dataset}@{done.branch}"
    if not done.any_change:
        return f"nothing changed here; {where} is at {str(done.commit)[:12]}"
    # Symlinks and empty folders are paths, and no files.
    changes = f"{format_count(done.added, 'path')} added, {done.changed:,} changed, {done.removed:,} removed"
    total = f"{format_count(done.files, 'file')}, {format_bytes(done.bytes)}"
    return f"{where}: {changes}; {total} in total; {format_bytes(done.uploaded_bytes)} uploaded"
