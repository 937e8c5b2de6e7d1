"""Where a run comes from: the state of its code, its interpreter and packages, and the run that started it."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Mapping
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path
from typing import Final

from blake3 import blake3

from dsv.errors import UsageError
from dsv.files.git import GitError, GitView
from dsv.files.small_files import read_small
from dsv.run.record import CodeState, LockFile, RunId
from dsv.values.names import DatasetName

_GIT_SECONDS: Final = 20.0
_LOCK_FILES: Final = (
    *("uv.lock", "pixi.lock", "poetry.lock", "pdm.lock", "pylock.toml", "Pipfile.lock", "conda-lock.yml"),
    *("requirements.txt", "environment.yml"),
)
"""In the order in which they count, if a folder has several."""
_LARGEST_LOCK: Final = 64 << 20
_REMOTE: Final = re.compile(
    r"(?!\w[\w.+-]*::)([A-Za-z][A-Za-z0-9+.-]*://)?(?:[^@/?#]*@)?([^@?#\s]+)(?:[?#][^@]*)?", re.ASCII
)
"""URL, [user@]host:path or folder, without what may be part of a password, or the address of a remote helper."""


def code_state(folder: Path, environ: Mapping[str, str]) -> CodeState:
    """Return the git commit of a folder, its remote, and whether the folder differs; none outside a work tree."""
    found = CodeState(str(folder))
    with suppress(GitError), closing(GitView(folder, env=dict(environ), timeout=_GIT_SECONDS)) as git:
        head = git.ask("rev-parse", "--verify", "HEAD").decode("utf-8", "replace").strip()
        if re.fullmatch(r"[0-9a-f]{40,64}", head):
            remote = without_credentials(git.setting("remote.origin.url") or "")
            found = CodeState(str(folder), head, remote=remote)
            found = replace(found, dirty=git.is_changed())
    return found


def without_credentials(url: str) -> str | None:
    """Return a remote's URL without user, password, query and fragment; None if it can't be taken apart."""
    remote = _REMOTE.fullmatch(url)
    return None if remote is None else f"{remote[1] or ''}{remote[2]}"


def interpreter(environ: Mapping[str, str]) -> str | None:
    """Return the path of the Python that a command finds first in this environment, links followed."""
    path = environ.get("PATH")
    python = shutil.which("python", path=path) or shutil.which("python3", path=path)
    return None if python is None else os.path.realpath(python)


def lock_file(folder: Path) -> LockFile | None:
    """Return the file in this folder that pins the packages of its code; None if there is none to read."""
    for name in _LOCK_FILES:
        with suppress(OSError):
            data = read_small(folder / name, _LARGEST_LOCK)
            if data is not None:
                return LockFile(name, blake3(data).hexdigest())
    return None


def run_around(environ: Mapping[str, str]) -> tuple[DatasetName, RunId] | None:
    """Return the dataset and the id of the run whose job this process belongs to; None outside of a job."""
    with suppress(UsageError, KeyError):
        return DatasetName.parse(environ["DSV_DATASET"]), RunId.parse(environ["DSV_RUN"])
    return None
