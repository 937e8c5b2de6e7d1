"""dsv restore."""

from __future__ import annotations

from typing import Annotated

from dsv.api.restore import restore as put_back
from dsv.cli.call import Call
from dsv.cli.declare import command, option
from dsv.cli.options.arguments import Offline, Paths, workspace_paths
from dsv.cli.output import CACHED_KEYS, from_caches, path_counts
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
        "created": "how many paths were missing",
        "replaced": "how many had other content",
        "removed": "how many were removed, as the commit does not have them",
        **CACHED_KEYS,
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
    counts = path_counts(done.created, done.replaced, done.removed)
    counts += from_caches(done.cached_files, done.cached_bytes)
    commit = str(done.commit)[:12]
    rev = (
        ""
        if target is None or target.rev is None or str(done.commit).startswith(target.rev.text)
        else target.rev
    )
    what = f"{done.dataset}@{rev} ({commit})" if rev else f"{done.dataset}@{commit}"
    call.line(f"restored {what}: {counts}")
