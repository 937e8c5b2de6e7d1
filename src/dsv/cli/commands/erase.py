"""dsv erase."""

from __future__ import annotations

from functools import partial
from typing import Any

from dsv.api import verify as api
from dsv.api.erased_runs import ReadingRun
from dsv.cli.call import Call
from dsv.cli.declare import argument, command, option
from dsv.cli.options import Author, DryRun, one_of
from dsv.cli.output import first, local_time, printable
from dsv.errors import Conflict, Unreachable, UsageError
from dsv.upkeep.copy import Succeeded
from dsv.upkeep.erase import ErasedPath
from dsv.values.ids import FileId
from dsv.values.names import Target
from dsv.values.units import format_bytes, format_count, parse_duration

_TITLES = {
    "erased": "to be erased from all commits:",
    "shared": "other files with a part of it:",
    "kept": "other files with the same content, so it stays:",
}


@command(
    "erase",
    unused=["--cache"],
    examples="""
        dsv erase scans:patients/4711 --reason "consent withdrawn" --dry-run  # what would go
        dsv erase scans:patients/4711 --reason "consent withdrawn"  # asks for the name of the dataset first
        dsv erase --status  # what is left, and which caches have removed it
    """,
    result=(
        "dry_run reason erasures files bytes kept_bytes packs unindexed versions removed_versions overdue "
        "unanswered elsewhere successor commits paths branches tags items(dataset path id size state "
        "shared_bytes erasure time author reason caches waiting deadline) runs(dataset run output)"
    ),
    nulls=True,
)
def erase(
    call: Call,
    targets: list[str] | None = argument("[TARGET:PATH]..."),
    ids: list[str] | None = option("--id FILEID", "A file by its id, as dsv ls --json prints it."),
    reason: str = option("--reason TEXT", "Why: shown instead of an erased file."),
    shared: str | None = option("--shared erase|keep", "Erase or keep other files with the same content."),
    yes: bool = option("--yes", "Do not ask."),
    dry_run: DryRun = False,
    status: bool = option("--status", "List all erasures, and what still has what was erased."),
    purge: bool = option("--purge", "As --status, and delete old versions of packs that a bucket has kept."),
    deadline: str | None = option("--deadline DURATION", "With --status: the time that caches have: 30d."),
    successor: str | None = option("--successor NEW", "Copy the history, without what was erased."),
    author: Author = None,
) -> int:
    """Erase the contents of files for good.

    TARGET:PATH names a file, or all files of a folder, in one commit. Their contents are erased in every commit,
    branch and tag of the store, whatever the path; other contents that the path had in other commits stay. Commits
    keep their ids, and list the path, its size and its id. 'dsv cat' says when, by whom and why it was erased, and
    'dsv export', 'dsv cache' and 'dsv clone' write the rest. Nobody can store the content there again, and it can't
    be restored.

    First, every other path that shares the content or a part of it is listed. If there is any, --shared has to say what
    becomes of those files: 'erase' erases them, too; 'keep' keeps what they have.

    The bytes go with the next 'dsv gc'. A bucket with versioning keeps old versions until --purge deletes them.
    Caches remove them when they next ask the store, and --status tells which have. 'dsv copy' erases them in the other
    store, too. Copies that others have made of the store, backups and the logs of runs are not changed.

    With --status and --purge, the exit code is 1 while something is left, and 6 if a question was not answered.

    --successor makes a dataset NEW with all branches, tags and commits of a dataset, with other commit ids and without
    the erased paths. The old one stays until 'dsv datasets --delete'.
    """
    one_of(status=status, purge=purge, successor=successor)
    if successor is not None:
        call.takes_only("--successor", "targets", "successor", "author")
        if len(targets or []) != 1:
            what = "--successor takes one dataset"
            raise UsageError(what, subject="--successor", hint="dsv erase DATASET --successor NEW")
        with call.context(author=author) as context:
            return _tell_successor(call, api.successor(context, (targets or [""])[0], successor))
    if status or purge:
        call.takes_only("--status" if status else "--purge", "status", "purge", "deadline", "author")
        seconds = float(parse_duration(deadline or "30d"))
        with call.context(writes=purge, author=author) as context:
            return _tell_status(call, api.status(context, deadline=seconds, purge=purge))
    if deadline is not None:
        raise UsageError("--deadline is for --status", subject="--deadline", hint="dsv erase --status")
    request = _request(targets or [], ids or [], reason, shared, dry_run=dry_run)
    with call.context(writes=not dry_run, author=author) as context:
        done = api.erase(context, request, partial(_show, call), partial(_confirm, call, request, yes))
    _tell(call, done, request)
    return Conflict.exit_code if any(item.state == "damaged" for item in done.items) else 0


def _confirm(call: Call, request: api.EraseRequest, yes: bool, done: api.Done) -> None:
    gone = [item.dataset for item in done.items if item.state == "erased"]
    name = gone[0] if gone else str(request.ids[0])[:12]
    call.confirm("this can't be undone", name, yes=yes, act="erase")


def _request(
    targets: list[str], ids: list[str], reason: str, shared: str | None, *, dry_run: bool
) -> api.EraseRequest:
    if not targets and not ids:
        raise UsageError("nothing to erase was named", hint="dsv erase DATASET:PATH --reason TEXT")
    if targets and ids:
        raise UsageError("paths and --id can't be used together", subject="--id", hint="give one of them")
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


def _show(call: Call, done: api.Done) -> None:
    for state, title in _TITLES.items():
        items = [item for item in done.items if item.state == state]
        if items:
            call.say(title)
        for line in first(list(map(_story, items)), more=", which --dry-run lists"):
            call.say(f"  {line}")
    _show_copies(call, done)


def _show_copies(call: Call, done: api.Done) -> None:
    if done.runs:
        call.say("runs that read it, whose outputs may have a part of it:")
        lines = [f"{run.run} on {run.dataset}" + _output(run) for run in done.runs]
        for line in first(lines, more=", which --dry-run --json lists"):
            call.say(f"  {line}")
    for text_ in (*done.elsewhere, *done.unanswered):
        call.say(f"gc can't reach: {text_}" if text_ in done.elsewhere else text_)


def _output(run: ReadingRun) -> str:
    return "" if run.output is None else f": output in {run.dataset}@{run.output[:12]}"


def _story(item: ErasedPath) -> str:
    name = f"{item.dataset}:{printable(item.path)}  {format_bytes(item.size)}"
    if item.shared_bytes is None:
        return name
    same = item.shared_bytes == item.size
    return f"{name}, the same content" if same else f"{name}, {format_bytes(item.shared_bytes)} of it shared"


def _tell(call: Call, done: api.Done, request: api.EraseRequest) -> None:
    head = call.head(done, dry_run=request.dry_run, reason=request.reason)
    call.items((call.item(item, id=item.file_id) for item in done.items), head)
    if request.dry_run:
        for item in done.items:
            state = "would erase" if item.state == "erased" else item.state
            call.line(f"{state} {_story(item)}")
        _show_copies(call, done)
    if not done.files:
        call.say("nothing is left to erase")
        return
    verb = "would be erased" if request.dry_run else "erased"
    kept = f"; {format_bytes(done.kept_bytes)} stay, as other files have them" if done.kept_bytes else ""
    call.say(f"{format_count(done.files, 'content')} {verb}, {format_bytes(done.bytes)}{kept}")
    for item in done.items:
        if item.state == "damaged":
            call.warn(
                f"{item.dataset}:{printable(item.path)} was stored meanwhile, and has lost a part; erase it, too, or "
                "put another version there"
            )
    if request.dry_run:
        return
    dataset = next((item.dataset for item in done.items if item.state == "erased"), "DATASET")
    call.say("the bytes go with the next dsv gc; dsv erase --status shows what is left")
    call.say("commits still list the paths, with their sizes and ids")
    call.say(f"without these: dsv erase {dataset} --successor NEW copies the history to a new dataset")


def _tell_successor(call: Call, done: Succeeded) -> int:
    call.items((), call.head(done, successor=done.dataset))
    call.say(
        f"{done.dataset}: {format_count(done.commits, 'commit')}, {format_count(done.branches, 'branch')}, "
        f"{format_count(done.tags, 'tag')}, "
        f"without {format_count(done.paths, 'erased path')}"
    )
    call.say("run records stay with the old dataset, which dsv datasets --delete removes")
    return 0


def _tell_status(call: Call, done: api.ErasureStatus) -> int:
    call.results(done.items, done)
    _show_status(call, done)
    if done.unanswered:
        return Unreachable.exit_code
    return 0 if done.is_gone and not done.overdue else 1


def _show_status(call: Call, done: api.ErasureStatus) -> None:
    for item in done.items:
        call.line(
            f"{str(item.erasure)[:12]} {local_time(item.time_ms)} {item.author}: "
            f"{format_count(item.files, 'content')}, {printable(item.reason)}"
        )
        call.line(
            f"  removed from {format_count(len(item.caches), 'cache')}: {', '.join(item.caches)}".rstrip(": ")
        )
        due = local_time(item.deadline_ms)
        call.line(
            f"  still to be removed by {format_count(len(item.waiting), 'cache')} until {due}: "
            f"{', '.join(item.waiting)}"
            if item.waiting
            else f"  no known cache still has to remove it (deadline {due})"
        )
    if not done.items:
        call.say("nothing has been erased from this store")
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
    if done.cached:
        call.say("caches remove erased files when they next ask the store: dsv cache TARGET")
    if not (done.packs or done.unindexed or done.versions):
        call.say("no pack in the store has erased contents")
    for text_ in done.unanswered:
        call.warn(text_)
    for text_ in done.elsewhere:
        call.say(f"not checked: {text_}")
