"""A `Context` with the settings that the command line has, for programs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from dsv import __version__
from dsv.api import environment
from dsv.api.context import Context
from dsv.format.records import Writer
from dsv.fs.process import host_name
from dsv.store.options import StoreOptions
from dsv.values.progress import NoProgress

if TYPE_CHECKING:
    from dsv.api.settings import Settings
    from dsv.repo.repository import Repository
    from dsv.values.names import Target
    from dsv.values.progress import Progress


def connect(
    environ: Mapping[str, str],
    cwd: Path | str | None = None,
    *,
    store: str | None = None,
    names: str | None = None,
    cache: str | None = None,
    author: str | None = None,
    offline: bool = False,
    progress: Progress | None = None,
) -> Context:
    """Return what every function of `dsv.api` takes, with the settings that a command would have.

    environ: usually `os.environ`. Of it, of the workspace around `cwd` (None: the working folder), and of the config
    files come the store, the cache, the author, and credentials. store, cache, author: what `--store`, `--cache` and
    `--author` say on a command line, and as there they come first. names: where the store's names are, if elsewhere, as
    `--names` says. offline: no store is asked, as with `--offline`. progress: is told how far the work is.

    No store is opened before a function needs it, so nothing has to be closed. Raises `UsageError`, `Denied`,
    `NotFound`.
    """
    folder = environment.working_folder(environ) if cwd is None else Path(cwd).absolute()
    named = {"store": store, "names": names, "cache": cache}
    flags = {key: value for key, value in named.items() if value is not None}
    settings = environment.gather(environ, folder, flags)
    name = environment.author(settings, author).value
    return make_context(settings, environ, name, progress or NoProgress(), offline=offline)


def make_context(
    settings: Settings,
    environ: Mapping[str, str],
    author: str,
    progress: Progress,
    *,
    offline: bool = False,
    offline_hint: str | None = None,
) -> Context:
    """A context with these settings; credentials and the user's own folders by the environment."""
    return Context(
        settings=settings,
        options=StoreOptions.from_environment(environ),
        writer=Writer(author, host_name(), f"dsv {__version__}"),
        metadata=environment.Folders(environ).cache() / ".dsv",
        cwd=settings.cwd,
        progress=progress,
        offline=offline,
        offline_hint=offline_hint,
        open_offline=_open_offline,
    )


def _open_offline(context: Context, target: Target | None) -> Repository:
    from dsv.api.offline import open_offline

    return open_offline(context, target)
