"""dsv resolve."""

from __future__ import annotations

from dsv.api.ls_cat import resolve as find
from dsv.cli.call import Call
from dsv.cli.declare import command
from dsv.cli.options.arguments import Offline, TargetOrBase, commit_target


@command(
    "resolve",
    examples=[
        ("dsv resolve chest-xray@v1", "the commit that the tag names"),
        ("dsv resolve @main~2", "in this workspace's dataset, two commits before the head of main"),
        ("dsv resolve --offline chest-xray", "where main was when the store was last asked from here"),
        ("COMMIT=$(dsv resolve)", "the base of this workspace"),
    ],
    result={"dataset": "the dataset's name", "commit": "the full commit id"},
)
def resolve(call: Call, target: TargetOrBase = "", offline: Offline = False) -> None:
    """Print the full commit id that a target names.

    TARGET is [DATASET][@REV]; without it, the base commit of this workspace.
    """
    wanted = commit_target("resolve", target)
    with call.context(offline=offline) as context:
        found = find(context, wanted)
    if call.json:
        call.result(found)
    else:
        call.line(str(found.commit))
