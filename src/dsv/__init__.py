"""dsv: git-like dataset versions on any bucket or folder, cached once next to the GPUs.

`open`, `edit`, `datasets` and `runs` use the store that the command line uses; `store` can name another. See
docs/guide/python.md. Each function imports what it needs when it is called.
"""

from __future__ import annotations

import os

# Type checkers know the name, as in typing; importing typing would take a tenth of the time of --help.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from dsv.api.datasets import DatasetItem
    from dsv.api.listed import Listed, ListedRuns
    from dsv.api.program import Change, Commit, Edits, Info, Store
    from dsv.errors import (
        Conflict,
        Denied,
        DsvError,
        Erased,
        IntegrityError,
        NoRoom,
        NotFound,
        Unreachable,
        Unsupported,
        UsageError,
    )
    from dsv.run.lineage import Lineage
    from dsv.values.progress import Progress

__version__ = "0.1.0"
_CLASSES = ("Change", "Commit", "Edits", "Info", "Store")
__all__ = [
    "Change",
    "Commit",
    "Conflict",
    "Denied",
    "DsvError",
    "Edits",
    "Erased",
    "Info",
    "IntegrityError",
    "NoRoom",
    "NotFound",
    "Store",
    "Unreachable",
    "Unsupported",
    "UsageError",
    "__version__",
    "datasets",
    "edit",
    "lineage",
    "open",
    "runs",
    "store",
]


def open(target: str) -> Commit:  # noqa: A001 (dsv.open)
    """See `Store.open`."""
    return store().open(target)


def edit(target: str, *, message: str = "", create: bool = False, allow_removals: bool = False) -> Edits:
    """See `Store.edit`."""
    return store().edit(target, message=message, create=create, allow_removals=allow_removals)


def datasets() -> Listed[DatasetItem]:
    """See `Store.datasets`."""
    return store().datasets()


def lineage(target: str, *, down: bool = False, changes: bool = False, depth: int | None = None) -> Lineage:
    """See `Store.lineage`."""
    return store().lineage(target, down=down, changes=changes, depth=depth)


def runs(
    dataset: str | None = None,
    *,
    where: Sequence[str] = (),
    sort: str | None = None,
    limit: int | None = None,
) -> ListedRuns:
    """See `Store.runs`."""
    return store().runs(dataset, where=where, sort=sort, limit=limit)


def store(
    url: str | None = None,
    *,
    names: str | None = None,
    cache: str | None = None,
    author: str | None = None,
    cwd: str | Path | None = None,
    offline: bool = False,
    environ: Mapping[str, str] | None = None,
    progress: Progress | None = None,
) -> Store:
    """Return a store, which is opened at its first use.

    url: a name, URL or folder, as for `--store`; by default what the workspace around `cwd`, the environment
    or the config files name. names, cache: as for `--names` and `--cache`. author: of commits. cwd: by
    default the working folder. offline: read what caches know, and ask no store. environ: replaces that of
    this process. progress: of long work. Raises `NotFound` if the working folder no longer exists.
    """
    from pathlib import Path

    from dsv.api.connection import Connection
    from dsv.api.environment import working_folder
    from dsv.api.program import Store
    from dsv.values import notebook
    from dsv.values.progress import NoProgress

    notebook.html = _html
    folder = (
        working_folder(_environment() if environ is None else environ)
        if cwd is None
        else Path(cwd).absolute()
    )
    variables = _environment if environ is None else environ
    return Store(Connection(variables, folder, url, names, cache, author, offline, progress or NoProgress()))


def _html(value: object) -> str | None:
    from dsv.site.notebook import html

    return html(value)


def _environment() -> Mapping[str, str]:
    return os.environ


def __getattr__(name: str) -> object:
    """Import a class at its first use: most commands need no class."""
    if name in _CLASSES:
        from dsv.api import program

        return getattr(program, name)
    if name in __all__:
        from dsv import errors

        return getattr(errors, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
