"""dsv show."""

from __future__ import annotations

from dsv.api.diff import ShownCommit, ShownPath
from dsv.api.diff import show as read
from dsv.cli import differences as view
from dsv.cli.call import Call
from dsv.cli.commands.log import COMMIT_KEYS, commit_lines
from dsv.cli.commands.site import Html, write_page
from dsv.cli.declare import command
from dsv.cli.options import Offline, TargetOrBase, one_of
from dsv.cli.output import printable, to_item
from dsv.errors import UsageError
from dsv.format.records import Erasure
from dsv.values.names import Target
from dsv.values.units import format_bytes, format_count, format_time


@command(
    "show",
    unused=["--cache"],
    examples="""
        dsv show  # the base commit of this workspace
        dsv show @v2 --name-status  # each path that it changed
        dsv show @v2:train/1.png  # one file: size, id, chunks, what it shares with the version before
    """,
    result=(
        f"dataset {COMMIT_KEYS} names {view.SUM_KEYS} path(path kind size files id url target chunks change "
        f"old_path shared_bytes) {view.FOLDER_KEYS}"
    ),
)
def show(
    call: Call,
    target: TargetOrBase = "",
    dirs: view.Dirs = None,
    name_only: view.NameOnly = False,
    name_status: view.NameStatus = False,
    html: Html = None,
    offline: Offline = False,
) -> None:
    """Show a commit, or one file of it.

    The change since the first parent is summed by folder. TARGET is [DATASET][@REV][:PATH]; without it, the base
    commit of this workspace.
    """
    one_of(json=call.json, name_only=name_only, name_status=name_status, html=html)
    one_of(dirs=dirs is not None, name_only=name_only, name_status=name_status)
    with call.context(offline=offline) as context, read(context, Target.parse(target)) as shown:
        if html is not None:
            call.takes_only("--html", "target", "html")
            if shown.path is not None:
                raise UsageError(
                    "--html shows whole commits", subject="--html", hint="dsv show DATASET@REV --html FILE"
                )
            write_page(call, context, html, [shown.dataset], "commit", shown.dataset, shown.id)
        elif name_only or name_status:
            for one in shown.differences:
                call.out.line(view.name_status(one) if name_status else printable(one.path))
        elif call.json:
            _write_commit_json(call, shown, dirs)
        elif shown.path is not None and shown.path.entry is not None:
            _write_path(call, shown, shown.path)
        else:
            _write_head(call, shown)
            _write_change(call, shown, dirs)


def _write_head(call: Call, shown: ShownCommit) -> None:
    if shown.path is None:
        ink = call.around.stdout_ink
        for line in commit_lines(shown.id, shown.commit, shown.names, ink, parents=True):
            call.prose(line)
        return
    call.out.line(f"folder  {printable(shown.path.path)}")
    call.out.line(f"in      {_commit(shown)}")
    call.out.line(f"size    {format_count(shown.path.files, 'file')}, {format_bytes(shown.path.bytes)}")


def _write_change(call: Call, shown: ShownCommit, dirs: int | None) -> None:
    summary = shown.summarize()
    call.out.line("")
    since = "The first commit" if shown.parent is None else f"Since {shown.dataset}@{str(shown.parent)[:12]}"
    since += _passed(shown)
    call.out.line(f"{since}: {view.counts(summary.total)}")
    view.write_folders(call, summary, dirs)
    if shown.unsearched:
        call.say(view.unsearched(shown.unsearched))


def _write_path(call: Call, shown: ShownCommit, path: ShownPath) -> None:
    entry = path.entry
    assert entry is not None
    rows = [
        (entry.kind.word, printable(path.path)),
        ("in", _commit(shown)),
        ("target", None if entry.target is None else printable(entry.target)),
        (
            "size",
            f"{format_bytes(entry.size)} ({format_count(entry.size, 'byte')})" if entry.is_file else None,
        ),
        ("mode", view.mode(entry)),
        ("id", None if entry.file_id is None else str(entry.file_id)),
        ("chunks", f"{path.chunks:,}" if entry.is_file and path.erased is None else None),
        ("url", None if path.url is None else printable(path.url)),
        ("erased", None if path.erased is None else _erased(path.erased)),
        ("change", _change_words(shown, path)),
    ]
    widest = max(len(name) for name, value in rows if value is not None)
    for name, value in rows:
        if value is not None:
            call.out.line(f"{name:<{widest}}  {value}")


def _erased(erased: Erasure) -> str:
    return printable(f"{format_time(erased.time_ms)[:10]} by {erased.author}: {erased.reason}")


def _change_words(shown: ShownCommit, path: ShownPath) -> str:
    one = path.difference
    if shown.parent is None:
        return f"added, by the first commit{_passed(shown)}"
    since = f"since {shown.dataset}@{str(shown.parent)[:12]}{_passed(shown)}"
    if one is None or one.before is None or path.entry is None:
        return f"{_change(path)} {since}"
    words = one.what.value if one.content_changed or not one.mode_changed else "mode changed"
    if one.old_path != one.path:
        words = f"renamed from {printable(one.old_path or b'')}"
    if not one.content_changed or path.chunks < 2:
        return f"{words} {since}"
    share = 100 * path.shared // path.entry.size
    return f"{words} {since}, {format_bytes(path.shared)} ({share}%) in the same chunks"


def _passed(shown: ShownCommit) -> str:
    """Return which commits are left out of the comparison."""
    if not shown.passed:
        return ""
    where = "before it" if shown.parent is None else "in between"
    return f" (gc has removed the content of {format_count(shown.passed, 'expired commit')} {where})"


def _change(path: ShownPath) -> str | None:
    if path.entry is None:
        return None
    return "unchanged" if path.difference is None else path.difference.what.value


def _commit(shown: ShownCommit) -> str:
    return f"{shown.dataset}@{str(shown.id)[:12]}"


def _write_commit_json(call: Call, shown: ShownCommit, dirs: int | None) -> None:
    summary = shown.summarize()
    path = None
    if shown.path is not None:
        one, entry = shown.path.difference, shown.path.entry
        path = to_item(
            shown.path,
            "path kind size files id url target chunks change old_path shared_bytes",
            kind="folder" if entry is None else entry.kind.word,
            size=shown.path.bytes,
            id=None if entry is None else entry.file_id,
            target=None if entry is None else entry.target,
            change=_change(shown.path),
            old_path=one.old_path if one is not None else None if entry is None else shown.path.path,
            shared_bytes=shown.path.shared,
        )
    call.result(
        shown,
        **to_item(shown.commit, COMMIT_KEYS, commit=shown.id),
        **view.sums_item(summary.total),
        path=path,
        folders=[view.folder_item(row) for row in summary.by_folder(dirs)],
    )
