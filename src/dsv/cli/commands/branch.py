"""dsv branch."""

from __future__ import annotations

from typing import Annotated

import typer

from dsv.api import branches as api
from dsv.api.branches import BranchItem, BranchPath, rename_branch
from dsv.api.context import Context
from dsv.api.protection import protect_branch
from dsv.cli.call import Call
from dsv.cli.declare import command, text, whole
from dsv.cli.options.targets import commit_target, one_of
from dsv.cli.output import rfc3339
from dsv.cli.table import Column
from dsv.errors import UsageError
from dsv.format.records import Limits, checked_limits, describe_limits
from dsv.values.ids import CommitId
from dsv.values.names import DatasetName
from dsv.values.units import format_duration

Listing = Annotated[
    str | None, typer.Option("--list", metavar="DATASET", help="List the branches of this dataset.")
]
Reset = Annotated[bool, typer.Option("--reset", help="Move an existing branch to TARGET.")]
Move = Annotated[
    str | None, typer.Option("--move", metavar="OLD", help="Rename this branch: --move OLD NAME.")
]
Delete = Annotated[
    str | None, typer.Option("--delete", metavar="NAME", help="Delete this branch; --restore undoes that.")
]
Restore = Annotated[str | None, typer.Option("--restore", metavar="NAME", help="Restore a deleted branch.")]
Protect = Annotated[
    str | None,
    typer.Option("--protect", metavar="NAME", help="Protect this branch: it only moves forward."),
]
OnlyMerge = Annotated[bool, typer.Option("--only-merge", help="With --protect: only merges move it.")]
Who = Annotated[
    list[str] | None,
    typer.Option(
        "--who", metavar="AUTHOR", help="With --protect: only this author moves it; may be repeated."
    ),
]
MaxRemovals = Annotated[
    int | None,
    typer.Option(
        "--max-removals",
        parser=whole(0),
        metavar="PERCENT",
        help="With --protect: no move removes more of its paths.",
    ),
]
Unprotect = Annotated[
    str | None, typer.Option("--unprotect", metavar="NAME", help="Remove the protection of this branch.")
]
Force = Annotated[
    bool,
    typer.Option(
        "--force", help="Delete a branch whose commits have no other name; with -m, move a protected one too."
    ),
]
Message = Annotated[
    str, typer.Option("-m", "--message", parser=text, metavar="TEXT", help="Why, for the log of moves.")
]
Author = Annotated[
    str | None,
    typer.Option(
        "--author", parser=text, metavar="WHO", help="Who does it, instead of the configured author."
    ),
]


@command(
    "branch",
    unused=["--cache"],
    examples=[
        ("dsv branch", "list the branches of this workspace's dataset"),
        ("dsv branch --list chest-xray", "or of another one"),
        (
            "dsv branch relabel",
            "a branch at the base commit of this workspace; dsv switch relabel follows it",
        ),
        ("dsv branch chest-xray@relabel chest-xray@v1", "at any commit, without a workspace"),
        ("dsv branch --move relabel labels-2", "another name"),
        ("dsv branch --delete relabel", "refused if its commits have no other name"),
        ("dsv branch --restore relabel", "where it was when it was deleted"),
        ("dsv branch relabel @main~2 --reset", "moved to another commit"),
        ("dsv branch --protect main --only-merge --max-removals 5", "a rule that every dsv keeps to"),
        ("dsv branch --unprotect main", ""),
    ],
    result={
        "items.dataset": "the dataset",
        "items.branch": "the branch's name",
        "items.commit": "what it names; null before its first commit, and when it was just deleted",
        "items.before": "what it named before this command; null if nothing else",
        "items.author": "who made that commit",
        "items.time": "when",
        "items.moved_by": "who moved the branch last",
        "items.moved": "when",
        "items.ahead": "how many commits it has and main has not; null for main, and in what is no list",
        "items.behind": "how many commits main has and it has not",
        "items.followed": "whether this workspace follows it",
        "items.protected": "its rule: only_merge, who, max_removals; null if it is not protected",
    },
)
def branch(
    call: Call,
    name: Annotated[str | None, typer.Argument(metavar="[NAME]")] = None,
    target: Annotated[str, typer.Argument(metavar="[TARGET]")] = "",
    listing: Listing = None,
    reset: Reset = False,
    move: Move = None,
    delete: Delete = None,
    restore: Restore = None,
    protect: Protect = None,
    only_merge: OnlyMerge = False,
    who: Who = None,
    max_removals: MaxRemovals = None,
    unprotect: Unprotect = None,
    force: Force = False,
    message: Message = "",
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
    with call.context(
        writes=True, author=author, override=message.strip() or None if force else None
    ) as context:
        doing = _Doing(call, context, message)
        if move is not None:
            doing.move(move, name, target)
        elif delete is not None:
            doing.delete(_named("delete", delete, name, target), force=force)
        elif restore is not None:
            doing.restore(_named("restore", restore, name, target))
        elif protect is not None:
            doing.protect(_named("protect", protect, name, target), limits)
        elif unprotect is not None:
            doing.protect(_named("unprotect", unprotect, name, target), None)
        elif name is None or listing is not None:
            _refuse_list(name, message, author, reset=reset, force=force)
            doing.show(listing)
        else:
            doing.put(name, target, reset=reset)


def _limits(protect: str | None, only_merge: bool, who: list[str] | None, max_removals: int | None) -> Limits:
    if protect is None and (only_merge or who or max_removals is not None):
        raise UsageError(
            "--only-merge, --who and --max-removals say what a protected branch allows",
            hint="dsv branch --protect NAME --only-merge",
        )
    return checked_limits(only_merge=only_merge, who=tuple(who or ()), max_removals=max_removals)


def _named(option: str, text: str, dataset: str | None, more: str) -> BranchPath:
    """A branch behind an option, and perhaps its dataset behind that, as `dsv tag --delete` takes it."""
    path = BranchPath.parse(text)
    if more or (dataset is not None and path.dataset is not None):
        raise UsageError(
            f"--{option} takes one branch, not {more or dataset} too",
            subject=more or dataset,
            hint=f"dsv branch --{option} [DATASET@]NAME",
        )
    return path if dataset is None else BranchPath(DatasetName.parse(dataset), path.branch)


def _refuse_list(name: str | None, message: str, author: str | None, *, reset: bool, force: bool) -> None:
    if reset:
        raise UsageError("--reset moves a branch, and none is named", hint="dsv branch NAME TARGET --reset")
    if name is not None:
        raise UsageError(
            f"--list takes no branch, and {name} is one", subject=name, hint="dsv branch --list DATASET"
        )
    if message or author is not None or force:
        raise UsageError("a list of branches has no message and no author", hint="dsv branch NAME -m TEXT")


class _Doing:
    """What was asked, done and told."""

    def __init__(self, call: Call, context: Context, message: str) -> None:
        self._call = call
        self._context = context
        self._message = message

    def show(self, dataset: str | None) -> None:
        found = api.branches(self._context, None if dataset is None else DatasetName.parse(dataset))
        if self._call.json:
            self._call.items(map(_item, found))
            return
        columns = [
            Column("branch", keep=True),
            Column("commit", keep=True),
            Column("author"),
            Column("age", right=True),
            Column("ahead", right=True, keep=True),
            Column("behind", right=True, keep=True),
            Column("rule"),
        ]
        self._call.table(columns, [self._row(item) for item in found])

    def put(self, name: str, target: str, *, reset: bool) -> None:
        path, wanted = BranchPath.parse(name), commit_target(f"branch {name}", target)
        if not reset:
            made = api.create_branch(self._context, path, wanted, self._message)
            self._tell(made, f"created {_name(made)} at {_short(made.commit)}")
            return
        if not target:
            raise UsageError(
                "--reset moves a branch to a commit, and none is named",
                hint=f"dsv branch {name} TARGET --reset",
            )
        moved = api.reset_branch(self._context, path, wanted, self._message)
        if moved.before is None:
            self._tell(moved, f"{_name(moved)} is already at {_short(moved.commit)}")
            return
        self._tell(moved, f"moved {_name(moved)} to {_short(moved.commit)} (was {_short(moved.before)})")
        self._say(f"dsv branch {_name(moved)} {moved.dataset}@{_short(moved.before)} --reset moves it back")
        if moved.followed:
            self._say(
                f"this workspace follows it, and its files are unchanged: dsv restore --from @{moved.branch} updates "
                "them"
            )

    def move(self, old: str, new: str | None, more: str) -> None:
        if new is None or more:
            raise UsageError("--move takes the old name and the new one", hint="dsv branch --move OLD NEW")
        path, to = BranchPath.parse(old), BranchPath.parse(new)
        if to.dataset not in (None, path.dataset):
            raise UsageError(
                f"{old} stays in its dataset", subject=new, hint=f"dsv branch --move {old} {to.branch}"
            )
        renamed = rename_branch(self._context, path, to.branch, self._message)
        self._tell(
            renamed,
            f"renamed {renamed.dataset}@{path.branch} to {_name(renamed)}, at {_short(renamed.commit)}",
        )
        if renamed.followed:
            self._say(f"this workspace now follows {renamed.branch}")

    def delete(self, path: BranchPath, *, force: bool) -> None:
        gone = api.delete_branch(self._context, path, self._message, force=force)
        at = "" if gone.before is None else f" (was {_short(gone.before)})"
        self._tell(gone, f"deleted {_name(gone)}{at}")
        self._say(f"dsv branch --restore {_name(gone)} restores it")
        if gone.followed:
            self._say("this workspace followed it: dsv switch BRANCH follows another")

    def restore(self, path: BranchPath) -> None:
        item = api.restore_branch(self._context, path, self._message)
        self._tell(item, f"restored {_name(item)} at {_short(item.commit)}")

    def protect(self, path: BranchPath, limits: Limits | None) -> None:
        item, _, first = protect_branch(self._context, path, limits, self._message)
        said = "is not protected" if limits is None else f"is protected: {describe_limits(limits)}"
        self._tell(item, f"{_name(item)} {said}")
        if first:
            self._say(
                "older versions of dsv, without protected branches, can only read this store from now on"
            )

    def _tell(self, item: BranchItem, line: str) -> None:
        if self._call.json:
            self._call.items([_item(item)])
        else:
            self._call.line(line)

    def _say(self, text: str) -> None:
        if not self._call.json:
            self._call.say(text)

    def _row(self, item: BranchItem) -> list[str]:
        age = None if item.time_ms is None else self._context.clock() - item.time_ms
        return [
            f"{'* ' if item.followed else '  '}{item.branch}",
            _short(item.commit),
            item.author or "-",
            "-" if age is None else format_duration(max(age, 0) / 1000),
            "-" if item.ahead is None else f"{item.ahead:,}",
            "-" if item.behind is None else f"{item.behind:,}",
            "" if item.limits is None else describe_limits(item.limits),
        ]


def _name(item: BranchItem) -> str:
    return f"{item.dataset}@{item.branch}"


def _short(commit: CommitId | None) -> str:
    return "-" if commit is None else str(commit)[:12]


def _item(item: BranchItem) -> dict[str, object]:
    limits = item.limits
    return {
        "dataset": str(item.dataset),
        "branch": str(item.branch),
        "commit": None if item.commit is None else str(item.commit),
        "before": None if item.before is None else str(item.before),
        "author": item.author,
        "time": rfc3339(item.time_ms),
        "moved_by": item.moved_by,
        "moved": rfc3339(item.moved_ms),
        "ahead": item.ahead,
        "behind": item.behind,
        "followed": item.followed,
        "protected": None
        if limits is None
        else {"only_merge": limits.only_merge, "who": list(limits.who), "max_removals": limits.max_removals},
    }
