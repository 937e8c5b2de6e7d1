"""The caller of a run, the run's folders, the mounts of its data, and its metrics."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from math import inf
from pathlib import Path
from typing import Final, Self

from dsv.errors import LaunchError, UsageError
from dsv.files.descent import Descent, remove_tree
from dsv.files.folders import bound_folder
from dsv.files.process import host_name, user_name
from dsv.files.small_files import open_plain, replace_file
from dsv.repo.job_notes import FOLDER, Notes, parse_notes, read_notes
from dsv.run.engines.base import Ended, Mount
from dsv.run.record import RunId
from dsv.run.series import Curves, Stamp, stamp
from dsv.values.json import Json, parse_json
from dsv.values.names import DatasetName

MAX_METRICS: Final = 1 << 20
MAX_BESIDE: Final = 256
"""Entries at the top of a commit that can be mounted one by one, beside further data."""
RUNS: Final = "runs"
"""The folder, in the user's state, with the runs' own folders."""
ANSWERS: Final = "last-answers"
"""The folder, in the user's state, with the last known states of runs on clusters, in one file for each."""
LIVE_LOG: Final = "live.log"
"""The file with the output of a detached job so far, in the folder of its run."""
MESSAGES: Final = "dsv.log"
"""The file with dsv's messages about a run that has no terminal, in the folder of the run."""
PARAMS_FILE, METRICS_FILE, SERIES_FILE = "params.json", "metrics.json", "metrics.jsonl"
_OF_DSV: Final = ("dsv-cache.toml", "format/0000000000000000")
"""A file of each cache, and one of each store."""


@dataclass(frozen=True, slots=True)
class RunPlace:
    """The caller of a run."""

    environ: Mapping[str, str]
    state: Path
    """The user's folder for dsv's state."""
    cwd: Path
    host: str
    user: str
    author: str | None = None
    """The author of the commits of code and outputs."""

    @classmethod
    def here(cls, environ: Mapping[str, str], state: Path, cwd: Path) -> Self:
        """Return the caller for a run by this process, on this machine."""
        return cls(environ, state, cwd, host_name(), user_name(os.getuid()))

    def folder(self, dataset: DatasetName, run: RunId) -> Path:
        """Return the folder of a run, for its scratch and, by default, its output."""
        return run_folder(self.state, dataset, run)


def first_time(place: RunPlace, what: str) -> bool:
    """Check that this user gets this note for the first time on this machine, and remember that."""
    try:
        folder = place.state / "told"
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        os.close(os.open(folder / what, os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
    except FileExistsError:
        return False
    except OSError:
        return True
    return True


def leave_terminal(folder: Path, terminals: Iterable[int]) -> None:
    """Redirect descriptors of a closed terminal: 2 to a file in this folder of a run, others to nowhere. The
    job's output is kept in another way."""
    nothing = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    messages = nothing
    with suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
        messages = os.open(folder / MESSAGES, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    for descriptor in terminals:
        os.dup2(messages if descriptor == 2 else nothing, descriptor)
    for descriptor in {nothing, messages}:
        os.close(descriptor)


def run_folder(state: Path, dataset: DatasetName, run: RunId) -> Path:
    return state / RUNS / dataset.component / run


def remove_run_folder(state: Path, dataset: DatasetName, run: RunId) -> None:
    """Remove the folder of a run, if there is one, following no symlink below the user's folder of all runs.
    Raises `OSError`."""
    with suppress(FileNotFoundError), Descent(state / RUNS) as descent:
        remove_tree(os.fsencode(run), descent.at(dataset.component.encode()))


def job_folder(out: str, dataset: DatasetName, run: RunId) -> Path:
    """Return the folder of a job's own files, in a pool with this `out`."""
    return Path(out) / dataset.component / f"{run}.job"


def output_folder(place: RunPlace, asked: Path | None, otherwise: Path) -> Path:
    """Return the output folder. Raises `UsageError` if it is in a workspace, whose sync would take the output, in
    the folder of another run, with which it would be deleted, or in a cache or a store."""
    if asked is None:
        return otherwise
    folder = Path(os.path.abspath(place.cwd / asked))  # noqa: PTH100 (a symlink is the caller's to resolve)
    folder = folder.resolve() if folder.is_symlink() else folder  # a link there at the end is the job's
    above = (folder.resolve(), *folder.resolve().parents)
    if folder.resolve().is_relative_to((place.state / RUNS).resolve()):
        why = "is where dsv keeps the runs' own folders, which are deleted with their records"
    elif (workspace := bound_folder(_nearest(folder).resolve(), unreadable=True)) is not None:
        why = f"lies in the workspace {workspace}, whose next sync would take what the run writes"
    elif any((each / mark).exists() for each in above for mark in _OF_DSV):
        why = "lies in a dsv cache or store"
    else:
        return folder
    hint = "leave out --out, or name a folder elsewhere"
    raise UsageError(f"{folder} {why}", subject=str(folder), hint=hint)


def code_folder(place: RunPlace, asked: Path) -> Path:
    """Return the absolute path of the code. Raises `UsageError` if it is not a folder."""
    folder = Path(os.path.abspath(place.cwd / asked))  # noqa: PTH100
    if not folder.is_dir():
        raise UsageError(
            f"{folder} is not a folder", subject=str(folder), hint="--code names the folder of the code"
        )
    return folder


def make_folder(folder: Path, hint: str | None = None) -> None:
    """Create a folder. Raises `LaunchError` if that fails."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise LaunchError(
            f"{folder} can't be created: {error.strerror}", subject=str(folder), hint=hint
        ) from error


def write_params(out: Path, params: Mapping[str, Json]) -> None:
    """Replace `params.json`, never writing through a link. Raises `LaunchError`."""
    try:
        replace_file(out / PARAMS_FILE, json.dumps(params).encode() + b"\n", mode=0o644, sync=False)
    except OSError as error:
        raise LaunchError(f"{out} can't be written to: {error.strerror}", subject=str(out)) from error


def hide_params(out: Path, given: str, shown: Mapping[str, Json]) -> None:
    """Replace the `params.json` that the job was given by one without its secrets, unless the job has replaced it.
    Raises `LaunchError`. given: the parameters as JSON; shown: those of the record"""
    path = out / PARAMS_FILE
    if given != json.dumps(shown) and path.is_file() and path.read_bytes() == f"{given}\n".encode():
        write_params(out, shown)


def data_mounts(main: Path, further: Mapping[str, Path], skeleton: Path) -> tuple[list[Mount], list[Mount]]:
    """Return the mounts of the target, and those of further data.

    Mount points in a read-only folder must exist. So with further data `/data` is a skeleton, with one for
    each top entry of the commit and for each name; `make_skeleton` creates it. Raises `LaunchError` for
    clashing names or too many entries.
    """
    others = [Mount(path, f"/data/{name}") for name, path in further.items()]
    if not others:
        return [Mount(main, "/data")], []
    entries = sorted(main.iterdir()) if main.is_dir() else []
    names = {entry.name for entry in entries}
    for name in further:
        if name in names:
            raise LaunchError(f"the target has a {name} of its own", subject=name, hint="--data OTHERNAME=…")
    if len(entries) > MAX_BESIDE:
        raise LaunchError(
            f"the target has {len(entries)} entries at its top, and with --data at most {MAX_BESIDE} can be "
            "mounted one by one",
            subject=str(main),
            hint="put the further data first as the target, or sync the files into folders",
        )
    own = [Mount(entry, f"/data/{entry.name}") for entry in entries if not entry.is_symlink()]
    return [Mount(skeleton, "/data"), *own], others


def make_skeleton(main: Path, further: Sequence[str], skeleton: Path) -> None:
    """Create the mount points for `data_mounts`, and the commit's top symlinks. Raises `LaunchError`."""
    try:
        skeleton.mkdir(parents=True)
        for entry in main.iterdir():
            place = skeleton / entry.name
            if entry.is_symlink():
                place.symlink_to(entry.readlink())
            elif entry.is_dir():
                place.mkdir()
            else:
                place.touch()
        for name in further:
            (skeleton / name).mkdir()
    except OSError as error:
        raise LaunchError(f"{skeleton} can't be created: {error.strerror}", subject=str(skeleton)) from error


def remove_scratch(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)


_NO_NOTES: Final = Notes()


@dataclass(frozen=True, slots=True)
class Metrics:
    """The metrics of a job, and its notes of commits."""

    values: dict[str, Json] | None = None
    """None if the job wrote none, or none that can be used."""
    problem: str | None = None
    """The reason why the metrics that it wrote can't be used."""
    notes: Notes = _NO_NOTES
    curves: Curves = field(default_factory=Curves)


def metrics_stamps(out: Path, until_ns: float = inf) -> list[Stamp]:
    """Return the stamps of the job's metrics that were written before this time, which change if it writes them."""
    stamps = [stamp(out / name) for name in (METRICS_FILE, SERIES_FILE)]
    return [each for each in stamps if each is not None and each[2] < until_ns]


def left_in(out: Path, run: RunId, before: Collection[Stamp] = ()) -> Metrics:
    """Read what a job left in its output folder. before: the stamps of metrics that were there before it"""
    left = replace(read_metrics(out, before), notes=read_notes(out, run))
    if stamp(out / SERIES_FILE) not in before:
        left.curves.read(out / SERIES_FILE, ended=True)
    return left


def read_metrics(out: Path, before: Collection[Stamp]) -> Metrics:
    """Read the job's `metrics.json`: a JSON object of at most 1 MiB, in a regular file."""
    if stamp(out / METRICS_FILE) in (None, *before):
        return Metrics()
    try:
        with open_plain(out / METRICS_FILE, follow=False) as file:
            data = file.read(MAX_METRICS + 1)
    except OSError as error:
        return Metrics(problem="it is a symlink" if (out / METRICS_FILE).is_symlink() else error.strerror)
    return parse_metrics(data)


def parse_left(ended: Ended) -> Metrics:
    """Parse what a job left on a machine whose folders can't be read here."""
    left = Metrics() if ended.metrics is None else parse_metrics(ended.metrics)
    left.curves.take(ended.series + b"\n")
    return left if ended.notes is None else replace(left, notes=parse_notes(ended.notes))


def remove_notes(out: Path, run: RunId) -> None:
    """Remove a job's notes from its output folder once its record has them."""
    folder = out / FOLDER
    if not folder.is_symlink():
        remove_scratch(folder / run)
        with suppress(OSError):
            folder.rmdir()


def parse_metrics(data: bytes) -> Metrics:
    if len(data) > MAX_METRICS:
        return Metrics(problem=f"it is larger than {MAX_METRICS} bytes")
    try:
        values = parse_json(data.decode("utf-8"))
    except ValueError as error:
        return Metrics(problem=f"it is not valid JSON: {error}")
    return Metrics(values) if isinstance(values, dict) else Metrics(problem="it is not a JSON object")


def _nearest(folder: Path) -> Path:
    """Return the folder itself, or the nearest above it that exists."""
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    return folder
