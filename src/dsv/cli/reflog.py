"""The moves of a branch, as `dsv log --reflog` shows them."""

from __future__ import annotations

from dsv.api.branches import BranchPath
from dsv.api.reflog import MoveItem, reflog
from dsv.cli.call import Call
from dsv.cli.output import local_time, rfc3339, to_json
from dsv.cli.table import Column
from dsv.errors import UsageError
from dsv.model.ids import CommitId

MOVE_KEYS = {
    "number": "with --reflog: which move of the branch it is, from 0; then there are moves, and no items",
    "commit": "where the branch went; null if it was deleted, or made without a commit",
    "before": "where it was; null if nowhere",
    "deleted": "whether this move deleted it",
    "author": "who moved it",
    "time": "when, in UTC",
    "action": "sync, merge, create, reset, delete, restore, rename, protect, …",
    "forced": "whether the rule of the protected branch was overridden",
    "message": "why: of the move, or of the commit that it brought",
}


def show_moves(
    call: Call, branch: str, limit: int | None, others: tuple[object, ...], *, jsonl: bool
) -> None:
    """others: arguments that select or show commits, for which a list of moves has no use."""
    if any(others):
        raise UsageError(
            "--reflog shows the moves of a branch, and takes nothing but -n, --json and --jsonl",
            subject="--reflog",
            hint=f"dsv log --reflog {branch}",
        )
    path = BranchPath.parse(branch)
    with call.context() as context, reflog(context, path, limit) as moves:
        if jsonl:
            for move in moves:
                call.out.line(to_json(_item(move)))
        elif call.json:
            call.document({"moves": list(map(_item, moves))})
        else:
            call.table(_COLUMNS, list(map(_row, moves)))


_COLUMNS = [
    Column("move", right=True, keep=True),
    Column("when"),
    Column("from", keep=True),
    Column("to", keep=True),
    Column("action"),
    Column("by"),
    Column("message"),
]


def _row(move: MoveItem) -> list[str]:
    return [
        f"{move.number}",
        local_time(move.time_ms),
        _short(move.before),
        "deleted" if move.deleted else _short(move.commit),
        f"{move.action} (forced)" if move.forced else move.action,
        move.author,
        move.message.partition("\n")[0],
    ]


def _short(commit: CommitId | None) -> str:
    return "-" if commit is None else str(commit)[:12]


def _item(move: MoveItem) -> dict[str, object]:
    return {
        "number": move.number,
        "commit": None if move.commit is None else str(move.commit),
        "before": None if move.before is None else str(move.before),
        "deleted": move.deleted,
        "author": move.author,
        "time": rfc3339(move.time_ms),
        "action": move.action,
        "forced": move.forced,
        "message": move.message,
    }
