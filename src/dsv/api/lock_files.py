"""Lock files, which say which data belongs to the code beside them: targets with full commit ids, one a line, such as
`resized@4f2a…`. A receipt of `dsv run --into` is a lock file of one line."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from shlex import quote

from dsv.api.context import Context
from dsv.errors import NotFound, UsageError
from dsv.files.small_files import read_small, rewrite_file
from dsv.values.names import Rev, Target, clean_path
from dsv.values.paths import show

_LOCKED = re.compile(r"[^@:\n]+@[0-9a-f]{64}(:[^\r\n]+)?")
_LINES = re.compile(rf"({_LOCKED.pattern}\n)*".encode())
_MOST = 64 << 20
_MARKS = ("<<<<<<<", "|||||||", "=======", ">>>>>>>")


def lock(context: Context, targets: Iterable[Target]) -> dict[Target, Target]:
    """Return the lines for targets, as `read_lock` does. Raises `NotFound`, also for a path that the commit does not
    have, and `UsageError`."""
    from dsv.api.datasets import ls, resolve  # a run reads a lock file without them

    lines = []
    for target in targets:
        resolved = resolve(context, target)
        line = Target(resolved.dataset, Rev(str(resolved.commit)), clean_path(target.path) or None)
        if not _LOCKED.fullmatch(str(line)):
            raise UsageError("a lock file can't hold a path with a line break", subject=str(target))
        with ls(context, line):  # which looks for the path
            lines.append(line)
    return _by_place(lines, "a lock file")


def read_lock(path: Path, *, may_be_empty: bool = False) -> dict[Target, Target]:
    """Return the sorted targets of a lock file by themselves without their commit. Raises as `read_bytes`, `NotFound`,
    and `UsageError`."""
    again, lines = f"dsv lock TARGET... > {quote(str(path))}", []
    try:
        with path.open("rb") as file:
            content = file.read(_MOST + 1)
    except FileNotFoundError:
        raise NotFound(f"there is no lock file {path}", subject=str(path), hint=again) from None
    if len(content) > _MOST:
        raise UsageError(f"{path} is too large for a lock file", subject=str(path), hint=again)
    for number, text in enumerate(content.decode("utf-8-sig", "surrogateescape").split("\n"), 1):
        text = text.removesuffix("\r")  # git may have added it, and an editor what the codec takes away
        if _LOCKED.fullmatch(text):
            lines.append(Target.parse(text))
        elif text.strip() and not text.startswith("#"):
            shown = show(text.encode("utf-8", "surrogateescape"))
            what = "is no DATASET@COMMIT with a full id"
            what = "marks a conflict that git has left" if text.startswith(_MARKS) else what
            raise UsageError(f"line {number} of {path} {what}: {shown}", subject=str(path), hint=again)
    if not lines and not may_be_empty:
        raise UsageError(f"{path} names no data", subject=str(path), hint=again)
    return _by_place(lines, str(path))


def further_data(texts: Iterable[str], target: Target) -> tuple[list[str], Target]:
    """Return the values of `--data`, with NAME=TARGET for each line of a lock file in place of `@FILE`, and the target
    of the run: if the file names that without its commit, it is this line, which is no further data."""
    data: list[str] = []
    for text in texts:
        lines = read_lock(Path(text[1:])) if text.startswith("@") else {}
        target = lines.pop(target, target)
        named = [f"{re.split('[/:]', str(place))[-1]}={line}" for place, line in lines.items()]
        data += named if text.startswith("@") else [text]
    return data, target


def _by_place(lines: Iterable[Target], file: str) -> dict[Target, Target]:
    """Raises `UsageError` for two commits of one place."""
    placed: dict[str, Target] = {}
    for line in lines:
        place = str(Target(line.dataset, None, line.path))
        if placed.setdefault(place, line) != line:
            raise UsageError(f"{file} can't have two commits of {place}", subject=place, hint="keep one line")
    return {Target.parse(place): placed[place] for place in sorted(placed)}


def write_receipt(path: Path, targets: Iterable[Target]) -> None:
    """Make this file the sorted lines of these targets. One that is equal already keeps its time, one that changes its
    mode. Raises `OSError`."""
    data = b"".join(sorted({f"{target}\n".encode("utf-8", "surrogateescape") for target in targets}))
    if read_small(path) != data:
        rewrite_file(path, data)


def check_receipt(path: Path, target: Target) -> None:
    """Check that a receipt for this target can be written there. Raises `UsageError` for a file with other content and
    for a target that is not one line, and `OSError` if nothing can be written there."""
    if re.search(rb"[\r\n]", target.path or b""):
        raise UsageError("a receipt can't hold a path with a line break", subject=str(target))
    with suppress(FileNotFoundError):
        path.stat()  # a loop of symlinks has nothing at its end
    path = Path(os.path.realpath(path))
    content = read_small(path)
    if path.exists() and (content is None or not _LINES.fullmatch(content)):
        hint = "choose a path that does not exist"
        raise UsageError(f"{path} is not a receipt", subject=str(path), hint=hint)
    if not os.access(path.parent, os.W_OK | os.X_OK):
        number = errno.EACCES if path.parent.is_dir() else errno.ENOENT
        raise OSError(number, os.strerror(number), str(path))
