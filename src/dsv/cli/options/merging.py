"""Conflicts in merge, cherry-pick, revert and pull: the options that settle them, and how they are shown."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from dsv.cli.call import Call
from dsv.cli.declare import option
from dsv.cli.output import first, to_item
from dsv.errors import NotFound, UsageError
from dsv.merge.paths import Choices
from dsv.values.paths import PathSet, show

if TYPE_CHECKING:
    from dsv.format.tree import Entry
    from dsv.merge.paths import MergeConflict, Settled


Resolved = Annotated[
    list[str] | None,
    option("--resolved PATH=FILE", "Give PATH, which both sides changed, the content of the local FILE."),
]
TableKey = Annotated[
    str | None,
    option("--table-key COLUMN", "Merge CSV and Parquet files row by row; COLUMN tells rows apart."),
]
SETTLED_KEYS = "choice from_theirs settled from_theirs_count settled_count"
CONFLICT_KEYS = "conflicts(path kind ours theirs reason) without_effect"


def choices(
    ours: list[str] | None,
    theirs: list[str] | None,
    both: list[str] | None,
    resolved: list[str] | None,
    paths: Callable[[list[str]], Sequence[bytes]],
) -> Choices:
    """Return the choices for conflicts. Raises `UsageError` for a path with two of them.

    `paths` makes paths of the dataset of those that were typed.
    """
    seen: dict[bytes, str] = {}

    def choose(path: bytes, option: str) -> None:
        if seen.setdefault(path, option) != option:
            name = path.decode("utf-8", "backslashreplace") or "."
            raise UsageError(
                f"{seen[path]} and {option} both name {name}", subject=name, hint="choose one of them"
            )

    sides: dict[str, PathSet | None] = {}
    for name, typed in (("--ours", ours), ("--theirs", theirs), ("--both", both)):
        side = sides[name] = PathSet.of(paths(typed)) if typed else None
        for path in () if side is None else side.paths or (b"",):
            choose(path, name)
    files: dict[bytes, str] = {}
    for one in resolved or ():
        named, equals, file = one.partition("=")
        if not (named and equals and file):
            raise UsageError(
                f"{one} is not PATH=FILE", subject=one, hint="--resolved labels.csv=/tmp/labels.csv"
            )
        [path] = paths([named])
        if path in files:
            raise UsageError(f"--resolved names {named} twice", subject=named, hint="give it one file")
        choose(path, "--resolved")
        if not Path(file).is_file():
            hint = "--resolved PATH=FILE: FILE is a file on this machine"
            raise NotFound(f"{file} is not a file", subject=file, hint=hint)
        files[path] = file
    return Choices(sides["--ours"], sides["--theirs"], sides["--both"], files)


def settled_json(one: Settled) -> dict[str, object]:
    content = one.content
    return {
        "path": one.path.decode("utf-8", "surrogateescape"),
        "choice": None if one.choice is None else one.choice.name.lower(),
        "from_theirs": [] if content is None else content.taken.first,
        "from_theirs_count": 0 if content is None else content.taken.count,
        "settled": [] if content is None else content.settled.first,
        "settled_count": None if content is None else content.settled.count,
    }


def tell_settled(call: Call, settled: Sequence[Settled]) -> None:
    """Print a line for each file that was merged, or that a choice has settled."""
    for line in first(list(map(str, settled)), more="; --json has them all"):
        call.line(f"  {line}")


def tell_conflicts(call: Call, error: MergeConflict, **head: object) -> int:
    """Print the list for a program, and return the exit code; for people raise the error, which has it."""
    warn_without_effect(call, error.without_effect)
    if not call.json:
        raise error
    keys = "path kind ours theirs reason"
    conflicts = [
        to_item(
            one, keys, ours=_entry_json(one.ours), theirs=_entry_json(one.theirs), reason=one.reason or None
        )
        for one in error.conflicts
    ]
    call.result(error, **head, conflicts=conflicts)
    return error.exit_code


def warn_without_effect(call: Call, paths: Iterable[bytes]) -> None:
    """Warn of paths that were mistyped, most likely."""
    for path in paths:
        call.warn(f"a side was chosen for {show(path)}, but no conflict is at or below it")


def _entry_json(entry: Entry | None) -> dict[str, object] | None:
    if entry is None:
        return None
    kind = entry.kind.name.lower().replace("_", "-")
    return to_item(entry, "kind size file_id target", kind=kind)
