"""dsv erase."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from dsv.api import erase as api
from dsv.cli.call import Call
from dsv.cli.declare import command, option, text
from dsv.cli.options.arguments import Author, DryRun, one_of
from dsv.cli.output import local_time, printable, rfc3339
from dsv.errors import Conflict, Unreachable, UsageError
from dsv.values.ids import FileId
from dsv.values.names import Target
from dsv.values.units import format_bytes, format_count, parse_duration

_SHOWN = 20
Ids = Annotated[
    list[str] | None, option("--id FILEID", "A file by its id, as dsv ls --json prints it. May be repeated.")
]
Reason = Annotated[
    str, option("--reason TEXT", "Why; everybody who meets an erased file sees it.", parser=text)
]
SharedChoice = Annotated[
    str | None,
    option("--shared erase|keep", "What becomes of other files that share content with these."),
]
Yes = Annotated[bool, option("--yes", "Do not ask.")]
StatusOption = Annotated[bool, option("--status", "List all erasures, and what still has what was erased.")]
Purge = Annotated[
    bool, option("--purge", "As --status, and delete old versions of packs that a bucket has kept.")
]
Deadline = Annotated[
    str | None, option("--deadline DURATION", "With --status: the time that caches have (default: 30d).")
]


@command(
    "erase",
    unused=["--cache"],
    examples=[
        (
            'dsv erase scans:patients/4711 --reason "consent withdrawn" --dry-run',
            "what would go, and who shares it",
        ),
        (
            'dsv erase scans:patients/4711 --reason "consent withdrawn"',
            "asks for the name of the dataset first",
        ),
        ('dsv erase scans@v1:a.dcm --shared erase --reason "order 17"', "with all that share its content"),
        ('dsv erase --id 8e4c7c1b… --reason "order 17" --yes', "a file by its id, wherever it is"),
        ("dsv erase --status", "what is left, and which caches have obeyed"),
        ("dsv erase --purge", "after dsv gc, in a bucket with versioning"),
    ],
    result={
        "dry_run": "true if nothing was done; null with --status, as the next five",
        "reason": "why",
        "erasures": "the ids of the records that were written",
        "files": "how many contents were erased",
        "bytes": "their size",
        "kept_bytes": "how much of that stays, as other files have it, too",
        "packs": "with --status: packs that have erased contents, until dsv gc has run; else null, as the next six",
        "unindexed": "packs in no index, which may have them; dsv gc removes these, too",
        "versions": "old versions of packs in the bucket that have them",
        "removed_versions": "those that --purge has deleted",
        "unanswered": "what could not be found out, or not be removed",
        "elsewhere": "other places that may have copies",
        "overdue": "true if a cache has not obeyed by its deadline",
        "items.dataset": "the dataset of a path; null with --status, as the next four",
        "items.path": "a path whose content was erased, or that shares a part of it",
        "items.id": "the id of the file, which stays in the trees that list it",
        "items.size": "its size, which stays there, too",
        "items.state": "erased; shared, if it stays with what it shares; kept, if a file was not erased as this path "
        "has the same content; damaged, if it was stored meanwhile and has lost a part",
        "items.erasure": "with --status: the id of an erasure; else null, as the next six",
        "items.time": "when it was made",
        "items.author": "by whom",
        "items.reason": "why",
        "items.caches": "the caches that have removed what was erased",
        "items.waiting": "caches that are known, and have not yet",
        "items.deadline": "until when they should have",
    },
)
def erase(
    call: Call,
    targets: Annotated[list[str] | None, typer.Argument(metavar="[TARGET:PATH]...")] = None,
    ids: Ids = None,
    reason: Reason = "",
    shared: SharedChoice = None,
    yes: Yes = False,
    dry_run: DryRun = False,
    status: StatusOption = False,
    purge: Purge = False,
    deadline: Deadline = None,
    author: Author = None,
) -> int:
    """Erase the contents of files for good.

    TARGET:PATH names a file, or all files of a folder, in one commit. Their contents are erased in every commit, branch
    and tag of the store, whatever the path; other contents that the path had in other commits stay. Commits keep their
    ids, and list the path, its size and its id. 'dsv cat' says when, by whom and why it was erased, and 'dsv export',
    'dsv cache' and 'dsv clone' write the rest. Nobody can store the content there again, and nothing brings it back.

    First, every other path that shares the content or a part of it is listed. If there is any, --shared has to say what
    becomes of those files: 'erase' erases them, too; 'keep' keeps what they have.

    The bytes go with the next 'dsv gc'. A bucket with versioning keeps old versions until --purge deletes them.
    Caches remove them when they next ask the store, and --status tells which have. 'dsv copy' erases them in the other
    store, too. Copies that others have made of the store, backups and the logs of runs are not changed.

    With --status and --purge, the exit code is 1 while something is left, and 6 if a question was not answered.
    """
    one_of(status=status, purge=purge)
    if status or purge:
        if targets or ids or reason or shared or yes or dry_run:
            raise UsageError(
                "--status and --purge take no paths and no other options", hint="dsv erase --status"
            )
        seconds = float(parse_duration(deadline or "30d"))
        with call.context(writes=purge, author=author) as context:
            return _tell_status(call, api.status(context, deadline=seconds, purge=purge))
    if deadline is not None:
        raise UsageError("--deadline is for --status", subject="--deadline", hint="dsv erase --status")
    request = _request(targets or [], ids or [], reason, shared, dry_run=dry_run)
    with call.context(writes=not dry_run, author=author) as context:

        def confirm(items: list[api.ErasedItem]) -> None:
            _show(call, items)
            gone = [item for item in items if item.state == "erased"]
            what = f"the content of {format_count(len(gone), 'path')} will be erased for good"
            call.confirm(what, gone[0].dataset, yes=yes)

        done = api.erase(context, request, confirm)
    _tell(call, done, request)
    return Conflict.exit_code if any(item.state == "damaged" for item in done.items) else 0


def _request(
    targets: list[str], ids: list[str], reason: str, shared: str | None, *, dry_run: bool
) -> api.EraseRequest:
    if not targets and not ids:
        raise UsageError("nothing to erase was named", hint="dsv erase DATASET:PATH --reason TEXT")
    if targets and ids:
        raise UsageError("paths and --id exclude each other", subject="--id", hint="give one of them")
    if not reason.strip() and not dry_run:
        raise UsageError("an erasure needs a reason, which is kept", hint="--reason TEXT")
    if shared not in (None, "erase", "keep"):
        raise UsageError(
            f"--shared takes erase or keep, not {shared}", subject="--shared", hint="--shared keep"
        )
    choice: Any = shared
    return api.EraseRequest(
        tuple(map(Target.parse, targets)), tuple(map(FileId.parse, ids)), reason.strip(), choice, dry_run
    )


def _show(call: Call, items: list[api.ErasedItem]) -> None:
    for item in items[:_SHOWN]:
        call.say(f"{item.state}: {item.dataset}:{printable(item.path)} ({format_bytes(item.size)})")
    if len(items) > _SHOWN:
        call.say(f"and {len(items) - _SHOWN:,} more paths; --dry-run --json lists all")


def _tell(call: Call, done: api.Done, request: api.EraseRequest) -> None:
    if call.json:
        head = dict.fromkeys(
            ("packs", "unindexed", "versions", "removed_versions", "unanswered", "elsewhere", "overdue")
        )
        head = {
            "dry_run": request.dry_run, "reason": request.reason, "erasures": [str(one) for one in done.erasures],
            "files": done.files, "bytes": done.bytes, "kept_bytes": done.kept_bytes, **head,
        }  # fmt: skip
        none = dict.fromkeys(("erasure", "time", "author", "reason", "caches", "waiting", "deadline"))
        call.items(
            (
                {
                    "dataset": item.dataset,
                    "path": item.path.decode("utf-8", "backslashreplace"),
                    "id": str(item.file_id),
                    "size": item.size,
                    "state": item.state,
                    **none,
                }
                for item in done.items
            ),
            head,
        )
        return
    if request.dry_run:
        for item in done.items:
            call.line(f"{item.state} {item.dataset}:{printable(item.path)}")
    if not done.files:
        call.say("nothing is left to erase")
        return
    verb = "would be erased" if request.dry_run else "erased"
    kept = f"; {format_bytes(done.kept_bytes)} stay, as other files have them" if done.kept_bytes else ""
    call.say(f"{format_count(done.files, 'content')} {verb}, {format_bytes(done.bytes)}{kept}")
    for item in done.items:
        if item.state == "damaged":
            call.warn(f"{item.dataset}:{printable(item.path)} was stored meanwhile, and has lost a part")
    if not request.dry_run:
        call.say("the bytes go with the next dsv gc; dsv erase --status tells what is left")
        call.say(
            "paths, sizes and ids stay in the commits that list them; dsv rm DATASET:PATH makes a commit without them"
        )


def _tell_status(call: Call, done: api.Status) -> int:
    if call.json:
        head: dict[str, object] = dict.fromkeys(
            ("dry_run", "reason", "erasures", "files", "bytes", "kept_bytes")
        )
        head |= {
            "packs": done.packs, "unindexed": done.unindexed, "versions": done.versions,
            "removed_versions": done.removed_versions, "unanswered": done.unanswered,
            "elsewhere": done.elsewhere, "overdue": done.overdue,
        }  # fmt: skip
        none = dict.fromkeys(("dataset", "path", "id", "size", "state"))
        call.items(
            (
                {
                    **none, "erasure": str(item.erasure), "time": rfc3339(item.time_ms), "author": item.author,
                    "reason": item.reason, "caches": list(item.caches), "waiting": list(item.waiting),
                    "deadline": rfc3339(item.deadline_ms),
                }
                for item in done.items
            ),
            head,
        )  # fmt: skip
    else:
        _show_status(call, done)
    if done.unanswered:
        return Unreachable.exit_code
    return 0 if done.is_gone and not done.overdue else 1


def _show_status(call: Call, done: api.Status) -> None:
    for item in done.items:
        call.line(
            f"{str(item.erasure)[:12]} {local_time(item.time_ms)} {item.author}: "
            f"{format_count(item.files, 'content')}, {item.reason}"
        )
        obeyed = ", ".join(item.caches) or "none so far"
        call.line(f"  caches that have obeyed: {obeyed}")
        if item.waiting:
            call.line(f"  until {local_time(item.deadline_ms)}: {', '.join(item.waiting)}")
    if not done.items:
        call.say("nothing was ever erased from this store")
        return
    if done.packs or done.unindexed:
        unindexed = f", and {done.unindexed:,} in no index may have them" if done.unindexed else ""
        call.say(f"{format_count(done.packs, 'pack')} with erased contents{unindexed}: dsv gc removes them")
    if done.removed_versions:
        call.say(f"{format_count(done.removed_versions, 'old version')} deleted")
    if done.versions:
        call.say(
            f"{format_count(done.versions, 'old version')} of packs with erased contents: dsv erase --purge"
        )
    if done.is_gone:
        call.say("no pack of the store has anything that was erased")
    for text_ in done.unanswered:
        call.warn(text_)
    call.say(f"not looked at: {'; '.join(done.elsewhere)}")
