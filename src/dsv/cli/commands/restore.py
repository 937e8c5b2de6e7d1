"""dsv restore."""

from __future__ import annotations

from typing import Annotated

from dsv.api.checkout import restore as put_back
from dsv.cli.call import Call
from dsv.cli.declare import command, option
from dsv.cli.options.arguments import Offline, Paths, workspace_paths
from dsv.cli.output import WRITTEN_KEYS, written
from dsv.values.names import Target


@command(
    "restore",
    examples=[
        ("dsv restore labels.csv", "as the base has it; your change to it is gone"),
        ("dsv restore", "every file that was deleted here"),
        ("dsv restore train/ --from @v1", "a folder as the tag has it"),
        ("dsv restore --offline labels.csv", "from a commit that was cached here, without the store"),
        (
            "dsv restore --from @v1",
            "the whole workspace, whose base it then is; refused where work would be lost",
        ),
    ],
    result={
        "commit": "the commit that the files come from",
        **WRITTEN_KEYS,
    },
)
def restore(
    call: Call,
    paths: Paths = None,
    source: Annotated[
        str | None, option("--from TARGET", "A commit of this dataset, instead of the base.")
    ] = None,
    force: Annotated[bool, option("--force", "Give up local changes, also where no path is named.")] = False,
    offline: Offline = False,
) -> None:
    """Restore files as a commit has them.

    Local changes to a PATH that is named are lost. Files that no commit has stay, unless they are in the way. Without
    PATH this restores the whole workspace: deleted files come back, and changes are lost only with --force.
    """
    target = None if source is None else Target.parse(source)
    with call.context(offline=offline) as context:
        done = put_back(context, workspace_paths(context.workspace(), paths or ()), target, force=force)
    if call.json:
        call.result(done)
        return
    commit = str(done.commit)[:12]
    rev = None if target is None else target.rev
    is_named = rev is not None and not str(done.commit).startswith(rev.text)
    what = f"{done.dataset}@{rev} ({commit})" if is_named else f"{done.dataset}@{commit}"
    call.line(f"restored {what}: {written(done)}")
