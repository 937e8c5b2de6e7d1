"""dsv ls, cat, resolve and lock."""

from __future__ import annotations

from pathlib import Path

from dsv.api.datasets import cat as open_file
from dsv.api.datasets import ls as list_entries
from dsv.api.datasets import resolve as find
from dsv.cli.call import Call
from dsv.cli.declare import argument, command, option
from dsv.cli.options import JsonLines, Offline, Receipt, TargetOrBase, commit_target, one_of
from dsv.cli.output import printable
from dsv.format.records import Erasure
from dsv.format.tree import Entry
from dsv.values.names import Rev, Target
from dsv.values.units import format_time, rfc3339


@command(
    "ls",
    examples="""
        dsv ls chest-xray@v1  # every path of the tag
        dsv ls -l @v1:train/cats  # in this workspace's dataset, below a folder, with sizes and ids
        dsv ls --jsonl chest-xray | jq -r 'select(.size > 1000000) | .path'  # files above 1 MB
        dsv ls chest-xray | cut -d/ -f1 | uniq -c  # the top level alone, with the number of paths below each name
    """,
    result="items(path kind size id url erased)",
)
def ls(
    call: Call,
    target: TargetOrBase = "",
    long: bool = option("-l --long", "Show kind, size and id too, and where a reference leads."),
    jsonl: JsonLines = False,
    offline: Offline = False,
) -> None:
    """List the files of a commit.

    Everything at and below the path, symlinks and empty folders too. TARGET is [DATASET][@REV][:PATH]; without
    it, the base commit of this workspace. Nothing is downloaded to disk.
    """
    one_of(json=call.json, jsonl=jsonl, long=long)
    with (
        call.context(offline=offline) as context,
        list_entries(context, Target.parse(target), urls=long or jsonl or call.json) as (entries, erasures),
    ):
        if jsonl or call.json:
            call.items((_item(entry, url, erasures.of(entry)) for entry, url in entries), lines=jsonl)
            return
        for entry, url in entries:
            mark = f"  (erased {format_time(erased.time_ms)[:10]})" if (erased := erasures.of(entry)) else ""
            call.out.line((_long(entry, url) if long else printable(entry.path)) + mark)


def _item(entry: Entry, url: str | None, erased: Erasure | None) -> dict[str, object]:
    return {
        "path": entry.path.decode(),
        "kind": entry.kind.word,
        "size": entry.size,
        "id": None if entry.file_id is None else str(entry.file_id),
        "url": url,
        "erased": erased
        and {"time": rfc3339(erased.time_ms), "author": erased.author, "reason": erased.reason},
    }


def _long(entry: Entry, url: str | None) -> str:
    identity = "-" if entry.file_id is None else str(entry.file_id)[:16]
    target = f" -> {printable(leads)}" if (leads := entry.target or url) else ""
    return f"{entry.kind.word:<10}  {entry.size:>14,}  {identity:<16}  {printable(entry.path)}{target}"


@command(
    "cat",
    examples="""
        dsv cat chest-xray@v1:labels.csv | head  # without materializing anything else
        dsv cat --offline chest-xray@v1:labels.csv  # from a commit that was cached here, without the store
        dsv cat :notes.txt  # as the base commit of this workspace has it
    """,
)
def cat(call: Call, target: str = argument("TARGET"), offline: Offline = False) -> None:
    """Print one file of a commit.

    TARGET is [DATASET][@REV]:PATH. Every byte is checked against its id before it is printed. A file of
    more than 32 MiB is printed while it arrives; where that fails half way, the exit code says so.
    With --json only a failure is JSON: stdout is the file's.
    """
    call.out.stream_when_large()
    with call.context(offline=offline) as context, open_file(context, Target.parse(target)) as pieces:
        for piece in pieces:
            call.out.write(piece)


@command(
    "resolve",
    examples="""
        dsv resolve chest-xray@v1  # the commit that the tag names
        dsv resolve @main~2  # in this workspace's dataset, two commits before the head of main
        COMMIT=$(dsv resolve)  # the base of this workspace
        dsv resolve raw --receipt raw.txt  # the file changes only if the commit does: for make
    """,
    result="dataset commit",
)
def resolve(call: Call, target: TargetOrBase = "", receipt: Receipt = None, offline: Offline = False) -> None:
    """Print the full commit id that a target names.

    TARGET is [DATASET][@REV]; without it, the base commit of this workspace.
    """
    wanted = commit_target("resolve", target)
    with call.context(offline=offline) as context:
        found = find(context, wanted)
    if receipt is not None:
        from dsv.api.lock_files import check_receipt, write_receipt

        check_receipt(Path(receipt), wanted)
        write_receipt(Path(receipt), [Target(found.dataset, Rev(str(found.commit)))])
    call.result(found)
    call.line(str(found.commit))


@command(
    "lock",
    examples="""
        dsv lock chest-xray labels@v3 > data.lock  # then: git add data.lock
    """,
    result="items(dataset commit path)",
)
def lock(call: Call, targets: list[str] = argument("TARGET..."), offline: Offline = False) -> None:
    """Print targets with full commit ids, for a file in git.

    Such a file says which data belongs to the code beside it: a line for each TARGET, in alphabetical order, so that
    the same commits make the same file. 'dsv cache', 'clone' and 'run' read it, and 'dsv diff OLD.lock NEW.lock'
    compares two of them. It does not name the store.
    """
    from dsv.api.lock_files import lock as lock_targets

    with call.context(offline=offline) as context:
        lines = lock_targets(context, map(Target.parse, targets)).values()
    call.items(call.item(line, commit=str(line.rev)) for line in lines)
    for line in () if call.json else lines:
        call.out.line(str(line))
