"""How a program reaches a store: `Connection`, and the `Context` that the functions of `dsv.api` take."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from dsv import __version__
from dsv.api import environment
from dsv.api.context import Context
from dsv.files.process import host_name
from dsv.format.records import WriterIdentity
from dsv.stores.options import StoreOptions
from dsv.values.cached import cached
from dsv.values.progress import NoProgress, Progress

if TYPE_CHECKING:
    from dsv.api.settings import Settings
    from dsv.repo.job_notes import JobNotes
    from dsv.repo.repository import Repository
    from dsv.values.names import Target

_TAKEN_ALONG: Final = (
    "DSV_",
    "HOME",
    "XDG_",
    "AWS_REGION",
    "AWS_DEFAULT_REGION",
    "AWS_ENDPOINT_URL",
    "AWS_PROFILE",
)
"""Prefixes of the variables that say where a store is. A pickle keeps only these, and no secrets.

They are needed because a process forked by a server has the environment of that server's start.
"""


class Connection(msgspec.Struct, frozen=True, dict=True):
    """The settings of a program for one store, like a command's: of the environment, the workspace around
    `cwd` and the config files. Fields set here override them. Nothing is read or opened before it is needed.
    It can be pickled, without the secrets of the environment: the other process uses its own.
    """

    environ: Callable[[], Mapping[str, str]] | Mapping[str, str]
    cwd: Path
    url: str | None = None
    """Like `--store`."""
    names: str | None = None
    """Where the store's names are, if elsewhere; like `--names`."""
    cache_folder: str | None = None
    """Like `--cache`."""
    author: str | None = None
    offline: bool = False
    """Do not ask a store, like `--offline`."""
    progress: Progress = msgspec.field(default_factory=NoProgress)

    def __reduce__(self) -> tuple[Any, ...]:
        environ = self.environ
        if callable(environ):
            kept = {key: value for key, value in self.variables.items() if key.startswith(_TAKEN_ALONG)}
            environ = partial(_overlaid, environ, kept)
        fields = (self.cwd, self.url, self.names, self.cache_folder, self.author, self.offline, self.progress)
        return type(self), (environ, *fields)

    @property
    def variables(self) -> Mapping[str, str]:
        return self.environ() if callable(self.environ) else self.environ

    @cached
    def settings(self) -> Settings:
        """Raises `UsageError`, `Denied`."""
        flags = {"store": self.url, "names": self.names, "cache": self.cache_folder}
        return environment.gather(self.variables, self.cwd, flags)

    @cached
    def context(self) -> Context:
        """The argument of every function of `dsv.api`. May ask Git for the author. Raises like `settings`."""
        return self._context(environment.author(self.settings, self.author).value)

    @cached
    def reading(self) -> Context:
        """The same for functions that sign nothing: Git is not asked."""
        return self._context(environment.user_at_host())

    def _context(self, author: str) -> Context:
        return make_context(self.settings, self.variables, author, self.progress, offline=self.offline)


def _overlaid(environ: Callable[[], Mapping[str, str]], kept: Mapping[str, str]) -> Mapping[str, str]:
    """Return an environment in which some variables are those of another process."""
    return {**environ(), **kept}


def make_context(
    settings: Settings,
    environ: Mapping[str, str],
    author: str,
    progress: Progress,
    *,
    offline: bool = False,
    offline_hint: str | None = None,
) -> Context:
    """Make a context with these settings; credentials and the user's folders are those of the environment."""
    return Context(
        settings=settings,
        options=StoreOptions.from_environment(environ),
        writer=WriterIdentity(author, host_name(), f"dsv {__version__}"),
        metadata=environment.own_folder(environ, "cache") / ".dsv",
        cwd=settings.cwd,
        progress=progress,
        offline=offline,
        offline_hint=offline_hint,
        open_offline=_open_offline,
        job=_job_of(environ) if "DSV_RUN" in environ else None,
    )


def _job_of(environ: Mapping[str, str]) -> JobNotes | None:
    from dsv.repo.job_notes import JobNotes

    return JobNotes.of(environ)


def _open_offline(context: Context, target: Target | None) -> Repository:
    from dsv.api.offline import open_offline

    return open_offline(context, target)
