"""dsv restore and rollback."""

from __future__ import annotations

from dsv.api.checkout import restore as put_back
from dsv.api.checkout import rollback as take_back
from dsv.cli.call import Call
from dsv.cli.declare import argument, command, option
from dsv.cli.options import Author, DryRun, Force, Message, Offline, Paths, override, paths_in
from dsv.cli.output import WRITTEN_KEYS, written
from dsv.values.names import Target


@command(
    "restore",
    examples="""
        dsv restore labels.csv  # as the base has it; your change to it is gone
        dsv restore  # every file that was deleted here
        dsv restore train/ --from @v1  # a folder as the tag has it
        dsv restore --from @v1  # the whole workspace, whose base it then is; refused where work would be lost
    """,
    result=f"commit {WRITTEN_KEYS}",
)
def restore(
    call: Call,
    paths: Paths = None,
    source: str | None = option("--from TARGET", "A commit of this dataset, instead of the base."),
    force: bool = option("--force", "Give up local changes, also where no path is named."),
    offline: Offline = False,
) -> None:
    """Restore files as a commit has them.

    Local changes to a PATH that is named are lost. Files that no commit has stay, unless they are in the way. Without
    PATH this restores the whole workspace: deleted files come back, and changes are lost only with --force.
    """
    target = None if source is None else Target.parse(source)
    with call.context(offline=offline) as context:
        done = put_back(context, paths_in(context.workspace(), paths or ()), target, force=force)
    call.result(done)
    commit = str(done.commit)[:12]
    rev = None if target is None else target.rev
    is_named = rev is not None and not str(done.commit).startswith(rev.text)
    what = f"{done.dataset}@{rev} ({commit})" if is_named else f"{done.dataset}@{commit}"
    call.line(f"restored {what}: {written(done)}")


@command(
    "rollback",
    examples="""
        dsv rollback @v1  # a new commit with the files of v1
        dsv rollback @v1 --dry-run  # what would change here
        dsv rollback @main~1 -m 'wrong labels'  # without the last commit's changes
    """,
    result=f"dataset branch commit before source {WRITTEN_KEYS} any_change",
)
def rollback(
    call: Call,
    target: str = argument("TARGET"),
    message: Message = None,
    dry_run: DryRun = False,
    author: Author = None,
    force: Force = False,
) -> None:
    """Roll the branch back to an earlier commit.

    This publishes a new commit with the files of TARGET on the workspace's branch, and updates the workspace. No
    history is lost: to undo a rollback, roll back to the commit before it. Local changes stay. If one of them is to a
    path that would change, or if somebody has moved the branch meanwhile, nothing happens and the exit code is 4.
    """
    with call.context(writes=True, author=author, override=override(force, message)) as context:
        done = take_back(context, Target.parse(target), message, dry_run=dry_run)
    call.result(done)
    where, source = f"{done.dataset}@{done.branch}", str(done.source)[:12]
    if done.commit is not None:
        call.line(str(done.commit))
    if not done.any_change:
        call.say(f"{where} already has the files of {source}")
        return
    verb = "would roll back" if done.commit is None else "rolled back"
    call.say(f"{verb} {where} to {source}: {written(done)}")
