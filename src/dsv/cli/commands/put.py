"""dsv put, rm and mv: edits of a dataset without a workspace."""

from __future__ import annotations

import csv
import io
import os
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, BinaryIO

from dsv.api.edits import Edit, Edited, EditRequest, Move, MoveAll, PathEdit, Put, Remove, edit
from dsv.cli.call import Call
from dsv.cli.declare import argument, command, option
from dsv.cli.options import (
    AllowRemovals,
    Author,
    Create,
    DryRun,
    Force,
    Message,
    SkipUnsupported,
    Yes,
    commit_target,
    override,
)
from dsv.cli.output import printable, to_item
from dsv.errors import UsageError
from dsv.files.errors import about
from dsv.values.names import Target
from dsv.values.units import format_bytes, format_count

FromFile = Annotated[str | None, option("--from-file LIST", "Read paths from a CSV file; - is stdin.")]

EDIT_RESULT = (
    "commit parent dataset branch files bytes added changed moved removed any_change dry_run refused uploaded_bytes "
    "uploaded_objects skipped(path reason) items(path change old)"
)


@command(
    "put",
    unused=["--cache"],
    examples="""
        dsv put labels.csv chest-xray:  # one file, at the top of the dataset
        dsv put images chest-xray:train/  # a folder, as train/images, merged into what is there
        zcat all.csv.gz | dsv put - chest-xray:all.csv  # what a command prints
        dsv put data cats: --create  # makes the dataset if it is not there yet
    """,
    result=EDIT_RESULT,
)
def put(
    call: Call,
    words: list[str] = argument("SRC... DATASET[@BRANCH]:PATH"),
    message: Message = None,
    dry_run: DryRun = False,
    no_clobber: bool = option("--no-clobber", "Leave paths that are there already as they are."),
    create: Create = False,
    skip_unsupported: SkipUnsupported = False,
    yes: Yes = False,
    author: Author = None,
    force: Force = False,
) -> None:
    """Add or replace files of a dataset, without a workspace.

    SRC is a file or folder of this machine, or - for stdin. PATH with a slash at its end, or that of a folder in the
    dataset, is a folder to put them in; otherwise it is the new name. Files that are there are replaced, and folders
    merged; a file can't replace a folder. All of it is one commit on the branch (main). If somebody else publishes
    meanwhile, the commit follows theirs, unless both changed one path: then nothing is published, with exit code 4.

    Folders are taken as 'dsv sync' takes them: symlinks as symlinks, except what a .dsvignore in them excludes.
    """
    if len(words) < 2:
        raise UsageError(
            "name what to put, and where", subject=words[0], hint=f"dsv put SRC {words[0]}; dsv put --help"
        )
    *sources, typed = words
    target = Target.parse(typed)
    path = target.path or b""
    if len(sources) > 1 and path and not path.endswith(b"/"):
        path += b"/"
    edits: list[Edit] = [
        Put(path, stream.readinto, not no_clobber)  # type: ignore[attr-defined]
        if (stream := _stream(call, source)) is not None
        else Put(path, Path(source), not no_clobber, source.endswith(("/.", "/..")))
        for source in sources
    ]
    text = _message(message, "put", list(map(_source_name, sources)))
    request = EditRequest(
        text, "put", create=create, skip_unsupported=skip_unsupported, dry_run=dry_run, apart=len(edits) > 1,
        confirm=call.confirm_published(yes),
    )  # fmt: skip
    _commit(call, target, edits, request, author, override(force, message))


def _stream(call: Call, source: str) -> BinaryIO | None:
    """Return stdin, or a pipe that the shell has made for `<(COMMAND)`; None for other sources."""
    if source == "-":
        return call.stdin
    if not source.startswith(("/dev/fd/", "/proc/self/fd/")):
        return None
    with about(source):
        return open(source, "rb", buffering=0)  # noqa: PTH123 (the process has it open anyway)


def _source_name(source: str) -> str:
    is_stream = source == "-" or source.startswith("/dev/fd/")
    return "stdin" if is_stream else Path(os.path.normpath(Path.cwd() / source)).name or source


@command(
    "rm",
    unused=["--cache"],
    examples="""
        dsv rm chest-xray:train/00017.png  # one file
        dsv rm 'chest-xray@relabel:train/**/*.tmp' --dry-run  # what a pattern matches; quote it
        dsv rm --from-file bad.csv chest-xray -m 'unreadable'  # a path a line
    """,
    result=EDIT_RESULT,
)
def rm(
    call: Call,
    words: list[str] = argument("DATASET[@BRANCH]:PATH..."),
    from_file: FromFile = None,
    message: Message = None,
    dry_run: DryRun = False,
    allow_removals: AllowRemovals = False,
    author: Author = None,
    force: Force = False,
) -> None:
    """Remove files and folders of a dataset, without a workspace.

    They go from the branch's next commit; every earlier commit still has them. A folder goes with all that is in it.
    In a pattern * matches within a name, **/ any folders, ? one byte, and [a-f] one of these; a path of exactly
    that name comes first. All of it is one commit on the branch (main). If more than half of a dataset's paths would
    go, nothing happens without --allow-removals.
    """
    if from_file is not None:
        target, rows = _from_file(call, "rm", from_file, words)
        paths: list[str] | list[bytes] = [path for [path] in rows]
    else:
        target, paths = _one_dataset("rm", words)
    text = _message(message, "remove", [os.fsdecode(path) for path in paths])
    request = EditRequest(text, "rm", allow_removals=allow_removals, dry_run=dry_run)
    edits = [Remove(paths, literal=from_file is not None)]
    _commit(call, target, edits, request, author, override(force, message))


@command(
    "mv",
    unused=["--cache"],
    examples="""
        dsv mv chest-xray:cats/017.png dogs/  # relabel one image
        dsv mv 'chest-xray@relabel:unsorted/*.png' train/  # what a pattern matches; quote it
        dsv mv --from-file relabel.csv chest-xray  # one commit for lines such as cats/017.png,dogs/017.png
    """,
    result=EDIT_RESULT,
)
def mv(
    call: Call,
    words: list[str] = argument("DATASET[@BRANCH]:PATH... NEW"),
    from_file: FromFile = None,
    replace: bool = option("--replace", "Replace files that are there, and merge folders."),
    message: Message = None,
    dry_run: DryRun = False,
    author: Author = None,
    force: Force = False,
) -> None:
    """Rename and move files and folders of a dataset.

    NEW is a path in the same dataset. With a slash at its end, or if it is a folder, what moves goes into it; otherwise
    it is the new name. No file is uploaded or downloaded, only what describes the folders. A file that is there is
    replaced only with --replace. Patterns are those of 'dsv rm'. All of it is one commit on the branch (main).

    --from-file takes a CSV file with an old and a new path in each line, both from the top of the dataset. All of them
    move at once, so that two files can change places.
    """
    edits: list[Edit]
    if from_file is not None:
        target, rows = _from_file(call, "mv", from_file, words)
        pairs = [(old, new) for old, new in rows]
        edits, names = [MoveAll(pairs, replace)], [f"{old} to {new}" for old, new in pairs]
    else:
        if len(words) < 2:
            raise UsageError("name the new path too", subject=words[0], hint=f"dsv mv {words[0]} NEW")
        target, paths = _one_dataset("mv", words[:-1])
        new_path = _new_path(target, words[-1], words[0])
        if len(paths) > 1 and new_path and not new_path.endswith(b"/"):
            new_path += b"/"
        edits = [Move(path, new_path, replace) for path in paths]
        names = [f"{os.fsdecode(path)} to {os.fsdecode(new_path)}" for path in paths]
    request = EditRequest(_message(message, "move", names), "mv", dry_run=dry_run, apart=len(edits) > 1)
    _commit(call, target, edits, request, author, override(force, message))


def _new_path(target: Target, typed: str, first: str) -> bytes:
    """Return the new path. With a colon it is a target in the same dataset and branch."""
    if ":" not in typed:
        return typed.encode("utf-8", "surrogateescape")
    named = Target.parse(typed)
    if named.dataset not in (None, target.dataset) or (named.dataset is not None and named.rev != target.rev):
        raise UsageError(
            f"{typed} is in another dataset or branch than {first}",
            subject=typed,
            hint="the new path is in the same dataset; write a path with a colon as :PATH",
        )
    return named.path or b""


def _commit(
    call: Call,
    target: Target,
    edits: Sequence[Edit],
    request: EditRequest,
    author: str | None,
    reason: str | None,
) -> None:
    with call.context(writes=True, author=author, override=reason) as context:
        done = edit(context, target, edits, request)
    show_edited(call, done, dry_run=request.dry_run)


def _message(given: str | None, verb: str, names: Sequence[str]) -> str:
    """Return the message of the commit: the given one, or one that says what was done to `names`."""
    if given is not None:
        return given
    if len(names) == 1 and len(names[0]) <= 60:
        return f"{verb} {printable(names[0])}".encode("utf-8", "replace").decode()
    return f"{verb} {format_count(len(names), 'path')}"


def _from_file(call: Call, verb: str, name: str, words: Sequence[str]) -> tuple[Target, list[list[str]]]:
    """Return the dataset and the rows of `--from-file`. Raises `UsageError`."""
    if len(words) != 1:
        raise UsageError(
            "with --from-file, one dataset is named, without paths",
            hint=f"dsv {verb} --from-file LIST DATASET",
        )
    target = commit_target(f"{verb} --from-file", words[0])
    return target, _read_list(call, name, 2 if verb == "mv" else 1)


_HEADINGS = {2: ["old", "new"], 1: ["path"]}
"""The first row may be this heading, by the number of columns."""


def _read_list(call: Call, name: str, columns: int) -> list[list[str]]:
    """Return the rows of a CSV file, without empty lines and a heading. Raises `UsageError`."""
    if name == "-":
        raw = call.stdin.read()
    else:
        with about(name):
            try:
                raw = Path(name).read_bytes()
            except FileNotFoundError:
                raise UsageError(f"there is no list {name}", subject=name) from None
    try:
        lines = io.StringIO(raw.decode("utf-8-sig"), newline="")
    except UnicodeDecodeError as error:
        raise UsageError(f"the list {name} is not UTF-8: byte {error.start}", subject=name) from None
    rows: list[list[str]] = []
    reader = csv.reader(lines, strict=True)
    try:
        for row in reader:
            if not row:
                continue
            if len(row) != columns or not all(row):
                form = "OLD,NEW" if columns == 2 else "PATH"
                raise UsageError(
                    f"line {reader.line_num} of {name} is not {form}",
                    subject=name,
                    hint='a path with a comma stands in double quotes: "a,b.png"',
                )
            rows.append(row)
    except csv.Error as error:
        raise UsageError(f"line {reader.line_num} of {name} is not CSV: {error}", subject=name) from None
    if rows[:1] == [_HEADINGS[columns]]:
        del rows[0]
    if not rows:
        raise UsageError(f"the list {name} has no paths", subject=name)
    return rows


def _one_dataset(verb: str, words: Sequence[str]) -> tuple[Target, list[bytes]]:
    """Return the branch that all words are in, and their paths; only the first word needs the dataset."""
    for word in words:
        if ":" not in word:
            hint = f"dsv ls {word} lists the paths"
            if os.path.lexists(word):
                hint = f"in a workspace: {verb} {shlex.quote(word)}{' NEW' if verb == 'mv' else ''}, then dsv sync"
            raise UsageError(
                f"{word} is not DATASET:PATH",
                subject=word,
                hint=f"{hint}; without a workspace: dsv {verb} DATASET:PATH",
            )
    targets = [Target.parse(word) for word in words]
    first = targets[0]
    for target, word in zip(targets, words, strict=True):
        if target.dataset not in (None, first.dataset) or (
            target.dataset is not None and target.rev != first.rev
        ):
            raise UsageError(
                f"{word} is in another dataset or branch than {words[0]}, and a commit is made on one",
                subject=word,
            )
    return Target(first.dataset, first.rev), [target.path or b"" for target in targets]


def show_edited(call: Call, done: Edited, *, dry_run: bool, more: Mapping[str, object] | None = None) -> None:
    """Print the result of edits. `more` are further keys of the JSON document."""
    for problem in done.skipped:
        call.warn(f"left out {problem}")
    counts = {what: done.count(what) for what in ("added", "changed", "moved", "removed")}
    items = {"items": list(map(_item, done.paths))} if dry_run and call.json else {}
    call.result(done, dry_run=dry_run, **counts, **items, **(more or {}))
    if dry_run:
        for path in done.paths:
            old = "" if path.old is None else f"{printable(path.old)} -> "
            call.line(f"{path.what:<8} {old}{printable(path.path)}")
    elif done.commit is not None:
        call.line(str(done.commit))
    call.say(_summary(done, counts, dry_run))
    if done.refused is not None:
        call.warn(f"without --dry-run this is refused: {done.refused}")


def _summary(done: Edited, counts: Mapping[str, int], dry_run: bool) -> str:
    where = f"{done.dataset}@{done.branch}"
    if not done.any_change:
        at = "has no commit yet" if done.commit is None else f"is at {str(done.commit)[:12]}"
        return f"nothing {'would change' if dry_run else 'changed'}; {where} {at}"
    changes = ", ".join(f"{count:,} {what}" for what, count in counts.items() if count)
    if dry_run:
        return f"{where} would change: {changes}; nothing was written"
    total = f"{format_count(done.files or 0, 'file')}, {format_bytes(done.bytes or 0)}"
    return f"{where}: {changes}; {total} in total; {format_bytes(done.uploaded_bytes)} uploaded"


def _item(path: PathEdit) -> dict[str, object]:
    return to_item(path, "path change old", change=path.what)
