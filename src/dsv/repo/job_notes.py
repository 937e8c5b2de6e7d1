"""Notes of a job: which commits its processes read and make, in a folder from which the record of its run gets them.

A job in a container can't write to the records of the store, and mostly must not. So each process appends to a file
of its own in the job's output folder, which every engine gives it, and whoever completes the record reads the files.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final, Literal, NamedTuple

from dsv.errors import DsvError, UsageError
from dsv.files.descriptors import Opened
from dsv.files.process import host_name
from dsv.files.small_files import list_names, read_small
from dsv.format.keys import run_key
from dsv.stores.base import StoreBackend
from dsv.values.ids import CommitId, NodeId
from dsv.values.names import DatasetName

VARIABLE: Final = "DSV_NOTES"
"""The variable with the folder for a job's notes."""
FOLDER: Final = ".dsv-notes"
"""The folder in a job's output that has a folder of notes for each run. No commit of an output has it."""
_MOST_FILES: Final = 1_000
_MOST_BYTES: Final = 4 << 20
_MOST_COMMITS: Final = 1_000
_MOST_LINES: Final = 4 * _MOST_COMMITS
How = Literal["read", "made"]


class NotedCommit(NamedTuple):
    dataset: DatasetName
    commit: CommitId
    root: NodeId


class JobNotes:
    """The run whose job this process belongs to, and the folder for its notes. Safe in threads."""

    _noted: Final = set[tuple[str, How, NotedCommit]]()
    """By this process, and by those that it was forked from."""

    def __init__(self, dataset: DatasetName, run: str, folder: Path | None) -> None:
        self._key = run_key(dataset, run, "record")
        self._folder = folder
        self._over: bool | None = None
        self.run: Final = f"{dataset}/{run}"

    @classmethod
    def of(cls, environ: Mapping[str, str]) -> JobNotes | None:
        """Return the run that the variables of this process name; None outside of a job."""
        with suppress(UsageError, ValueError, KeyError):
            folder = environ.get(VARIABLE)
            dataset, run = DatasetName.parse(environ["DSV_DATASET"]), environ["DSV_RUN"]
            return cls(dataset, run, Path(folder) if folder else None)
        return None

    def is_over(self, store: StoreBackend) -> bool:
        """Check that the store has the end of the run: a terminal multiplexer that the job started keeps its variables.
        False if the store may not be asked, as in most jobs. It is asked once."""
        if self._over is None:
            self._over = False
            with suppress(DsvError):
                store.modified(self._key)
                self._over = True
        return self._over

    def note(self, how: How, commit: NotedCommit) -> None:
        """Note once that this process read or made a commit. Failures are ignored: they must not end a job."""
        if self._folder is None or (self.run, how, commit) in self._noted:
            return
        self._noted.add((self.run, how, commit))
        line = {
            "how": how,
            "dataset": commit.dataset,
            "commit": commit.commit.hex(),
            "root": commit.root.hex(),
        }
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        with suppress(OSError):
            for folder in (self._folder.parent, self._folder):  # none where the run and its output are gone
                folder.mkdir(exist_ok=True)
            path = self._folder / f"{host_name()}-{os.getpid()}"
            with Opened(os.open(path, flags, 0o644)) as file:
                os.write(file, json.dumps(line).encode() + b"\n")


class Notes(NamedTuple):
    """What the processes of a job noted, each commit once."""

    read: tuple[NotedCommit, ...] = ()
    made: tuple[NotedCommit, ...] = ()
    problem: str | None = None
    """The reason why it may not be all."""


def read_notes(out: Path, run: str) -> Notes:
    """Read the notes of a run in its output folder. The job may have left anything there."""
    folder = out / FOLDER / run
    if folder.parent.is_symlink() or folder.is_symlink():
        return Notes(problem="the folder of its notes is a symlink")
    data = bytearray()
    try:
        names = list_names(folder) if folder.is_dir() else []
        complete = len(names) <= _MOST_FILES
        for name in names[:_MOST_FILES]:
            piece = read_small(folder / name, _MOST_BYTES - len(data))
            complete = complete and piece is not None
            data += piece or b""
    except OSError as error:
        return Notes(problem=f"its notes can't be read: {error.strerror}")
    return parse_notes(data, complete=complete)


def parse_notes(data: bytes | bytearray, *, complete: bool = True) -> Notes:
    """Parse the lines of the files. complete: `data` has all of them"""
    known: dict[How, dict[NotedCommit, None]] = {"read": {}, "made": {}}
    lines = [*dict.fromkeys(filter(None, bytes(data).split(b"\n")))]
    problem = None if complete and len(lines) <= _MOST_LINES else "it left more notes than a record takes"
    for line in lines[:_MOST_LINES]:
        try:
            fields = json.loads(line)
            dataset, commit = DatasetName.parse(fields["dataset"]), CommitId.parse(fields["commit"])
            of_kind = known[fields["how"]]
            of_kind[NotedCommit(dataset, commit, NodeId.parse(fields["root"]))] = None
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError, DsvError):
            problem = "a line of its notes can't be read"
    read, made = ([*of_kind] for of_kind in known.values())
    if max(len(read), len(made)) > _MOST_COMMITS:
        problem = f"it read or made more than {_MOST_COMMITS:,} commits"
    return Notes(tuple(read[:_MOST_COMMITS]), tuple(made[:_MOST_COMMITS]), problem)
