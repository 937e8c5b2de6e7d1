"""dsv branch."""

from __future__ import annotations

from dsv.api import branches as api
from dsv.api.branches import BranchItem, BranchPath, protect_branch, rename_branch
from dsv.api.context import Context
from dsv.cli.call import Call
from dsv.cli.declare import argument, command, option, whole
from dsv.cli.options import Author, TargetOrBase, commit_target, one_of
from dsv.cli.output import short
from dsv.errors import UsageError
from dsv.format.records import BranchLimits, checked_limits, describe_limits
from dsv.values.names import DatasetName
from dsv.values.units import format_duration


@command(
    "branch",
    unused=["--cache"],
    examples="""
        dsv branch relabel  # a branch at the base commit of this workspace; dsv switch relabel follows it
        dsv branch chest-xray@relabel chest-xray@v1  # at any commit, without a workspace
        dsv branch --delete relabel  # refused if its commits have no other name
        dsv branch --protect main --only-merge --max-removals 5  # a rule that every dsv keeps to
    """,
    result=("items(dataset branch commit before author time moved_by moved ahead behind followed protected)"),
)
def branch(
    call: Call,
    name: str | None = argument("[NAME]"),
    target: TargetOrBase = "",
    listing: str | None = option("--list DATASET", "List the branches of this dataset."),
    reset: bool = option("--reset", "Move an existing branch to TARGET."),
    move: str | None = option("--move OLD", "Rename this branch: --move OLD NAME."),
    delete: str | None = option("--delete NAME", "Delete this branch; --restore undoes that."),
    restore: str | None = option("--restore NAME", "Restore a deleted branch."),
    protect: str | None = option("--protect NAME", "Protect this branch: it only moves forward."),
    only_merge: bool = option("--only-merge", "With --protect: only merges move it."),
    who: list[str] | None = option("--who AUTHOR", "With --protect: only these move it."),
    max_removals: int | None = option(
        "--max-removals PERCENT", "With --protect: no move removes more of its paths.", parser=whole(0)
    ),
    unprotect: str | None = option("--unprotect NAME", "Remove the protection of this branch."),
    force: bool = option(
        "--force", "Delete a branch whose commits have no other name; with -m, move a protected one too."
    ),
    message: str = option("-m --message TEXT", "Why, for the log of moves."),
    author: Author = None,
) -> None:
    """List, make, rename, move, delete and protect branches.

    NAME is [DATASET@]BRANCH; without a dataset it is a branch of this workspace's. TARGET is [DATASET][@REV]; without
    it, the base commit of this workspace. A new branch is not followed yet: 'dsv switch NAME' does that.

    Every move is kept: 'dsv log --reflog NAME' shows them. A protected branch is not deleted, renamed or moved back.
    """
    one_of(
        list=listing,
        reset=reset,
        move=move,
        delete=delete,
        restore=restore,
        protect=protect,
        unprotect=unprotect,
    )
    limits = _limits(protect, only_merge, who, max_removals)
    reason = message.strip() or None if force else None
    with call.context(writes=True, author=author, override=reason) as context:
        if move is not None:
            done = _move(context, move, name, target, message)
        elif delete is not None:
            done = _delete(context, _named("delete", delete, name, target), message, force=force)
        elif restore is not None:
            item = api.restore_branch(context, _named("restore", restore, name, target), message)
            done = item, [f"restored {_name(item)} at {short(item.commit)}"]
        elif protect is not None:
            done = _protect(context, _named("protect", protect, name, target), limits, message)
        elif unprotect is not None:
            done = _protect(context, _named("unprotect", unprotect, name, target), None, message)
        elif name is None or listing is not None:
            call.takes_only("a list of branches", "listing")
            _list(call, context, listing)
            return
        else:
            done = _put(context, name, target, message, reset=reset)
    _tell(call, *done)


def _tell(call: Call, item: BranchItem, lines: list[str]) -> None:
    call.items([_item(call, item)])
    call.line(lines[0])
    for note in lines[1:]:
        call.say(note)


def _limits(
    protect: str | None, only_merge: bool, who: list[str] | None, max_removals: int | None
) -> BranchLimits:
    if protect is None and (only_merge or who or max_removals is not None):
        raise UsageError(
            "--only-merge, --who and --max-removals say what a protected branch allows",
            hint="dsv branch --protect NAME --only-merge",
        )
    return checked_limits(only_merge=only_merge, who=tuple(who or ()), max_removals=max_removals)


def _named(option: str, text: str, dataset: str | None, more: str) -> BranchPath:
    """Return the branch of an option, with its dataset if one follows, as `dsv tag --delete` takes it."""
    path = BranchPath.parse(text)
    if more or (dataset is not None and path.dataset is not None):
        raise UsageError(
            f"--{option} takes one branch, not {more or dataset} too",
            subject=more or dataset,
            hint=f"dsv branch --{option} [DATASET@]NAME",
        )
    return path if dataset is None else BranchPath(DatasetName.parse(dataset), path.branch)


def _list(call: Call, context: Context, dataset: str | None) -> None:
    found = api.branches(context, None if dataset is None else DatasetName.parse(dataset))
    call.items(_item(call, item) for item in found)
    columns = ["branch", "commit", "author~", "age>~", "ahead>", "behind>", "rule~"]
    rows = [
        [
            f"{'* ' if item.followed else '  '}{item.branch}",
            short(item.commit),
            item.author or "-",
            "-" if item.time_ms is None else format_duration(max(context.clock() - item.time_ms, 0) / 1000),
            "-" if item.ahead is None else f"{item.ahead:,}",
            "-" if item.behind is None else f"{item.behind:,}",
            "" if item.limits is None else describe_limits(item.limits),
        ]
        for item in found
    ]
    call.table(columns, rows)


_Done = tuple[BranchItem, list[str]]
"""A changed branch, and notes about it."""


def _put(context: Context, name: str, target: str, message: str, *, reset: bool) -> _Done:
    path, wanted = BranchPath.parse(name), commit_target(f"branch {name}", target)
    if not reset:
        made = api.create_branch(context, path, wanted, message)
        return made, [f"created {_name(made)} at {short(made.commit)}"]
    if not target:
        raise UsageError(
            "--reset moves a branch to a commit, and none is named", hint=f"dsv branch {name} TARGET --reset"
        )
    moved = api.reset_branch(context, path, wanted, message)
    if moved.before is None:
        return moved, [f"{_name(moved)} is already at {short(moved.commit)}"]
    notes = [f"dsv branch {_name(moved)} {moved.dataset}@{short(moved.before)} --reset moves it back"]
    if moved.followed:
        restore = f"dsv restore --from @{moved.branch}"
        notes.append(f"this workspace follows it, and its files are unchanged: {restore} updates them")
    return moved, [f"moved {_name(moved)} to {short(moved.commit)} (was {short(moved.before)})", *notes]


def _move(context: Context, old: str, new: str | None, more: str, message: str) -> _Done:
    if new is None or more:
        raise UsageError("--move takes the old name and the new one", hint="dsv branch --move OLD NEW")
    path, to = BranchPath.parse(old), BranchPath.parse(new)
    if to.dataset not in (None, path.dataset):
        raise UsageError(
            f"{old} can't move to another dataset", subject=new, hint=f"dsv branch --move {old} {to.branch}"
        )
    item = rename_branch(context, path, to.branch, message)
    notes = [f"this workspace now follows {item.branch}"] if item.followed else []
    return item, [f"renamed {item.dataset}@{path.branch} to {_name(item)}, at {short(item.commit)}", *notes]


def _delete(context: Context, path: BranchPath, message: str, *, force: bool) -> _Done:
    gone = api.delete_branch(context, path, message, force=force)
    at = "" if gone.before is None else f" (was {short(gone.before)})"
    notes = [f"dsv branch --restore {_name(gone)} restores it"]
    if gone.followed:
        notes.append("this workspace followed it: dsv switch BRANCH follows another")
    return gone, [f"deleted {_name(gone)}{at}", *notes]


def _protect(context: Context, path: BranchPath, limits: BranchLimits | None, message: str) -> _Done:
    item, first = protect_branch(context, path, limits, message)
    rule = "is not protected" if limits is None else f"is protected: {describe_limits(limits)}"
    old = ["older versions of dsv, without protected branches, can only read this store from now on"]
    return item, [f"{_name(item)} {rule}", *(old if first else [])]


def _name(item: BranchItem) -> str:
    return f"{item.dataset}@{item.branch}"


def _item(call: Call, item: BranchItem) -> dict[str, object]:
    return call.item(item, protected=item.limits)
