"""Gathers settings from where they are kept: what a caller names, the workspace, an environment, and config files.

The environment is handed over, so that a program decides which one it is.
"""

from __future__ import annotations

import os
import stat
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from dsv.api.config_file import parse_toml, read_config
from dsv.api.settings import BUILT_IN, Setting, Settings, Source, read_environment, read_workspace
from dsv.errors import Denied, NotFound, UsageError
from dsv.fs.process import host_name, user_name
from dsv.model.text import SHORT_MAX, check_length, is_text
from dsv.model.toml import MAX_BYTES, binding

SYSTEM_CONFIG = Path("/etc/dsv/config.toml")
WORKSPACE_CONFIG = Path(".dsv/config.toml")
GIT_SECONDS = 5.0
_OPEN = ("/dev/fd/", "/proc/")
"""Where what a shell has opened already lies, such as `<(command)`."""


@dataclass(frozen=True, slots=True)
class Folders:
    """Where a user's files lie, by HOME and the XDG variables."""

    environ: Mapping[str, str]

    def home(self) -> Path:
        """The user's home, even if the uid has no name and HOME isn't set."""
        text = self.environ.get("HOME") or os.path.expanduser("~")  # noqa: PTH111 (Path.home() raises there)
        return Path(text) if text.startswith("/") else Path("/")

    def config(self) -> Path:
        return self._folder("XDG_CONFIG_HOME", ".config")

    def data(self) -> Path:
        return self._folder("XDG_DATA_HOME", ".local/share")

    def cache(self) -> Path:
        return self._folder("XDG_CACHE_HOME", ".cache")

    def state(self) -> Path:
        return self._folder("XDG_STATE_HOME", ".local/state")

    def _folder(self, variable: str, below_home: str) -> Path:
        """An XDG base directory; a relative value is ignored, as the specification says."""
        text = self.environ.get(variable, "")
        base = Path(text) if text.startswith("/") else self.home() / below_home
        return base / "dsv"


def user_config(environ: Mapping[str, str], cwd: Path) -> Path:
    """DSV_CONFIG, or the user's config.toml where XDG puts it."""
    named = environ.get("DSV_CONFIG")
    return cwd / named if named else Folders(environ).config() / "config.toml"


def working_folder(environ: Mapping[str, str]) -> Path:
    """Raises `NotFound` if it was removed while the caller stood in it."""
    try:
        return Path.cwd()
    except FileNotFoundError:
        name = environ.get("PWD")
        raise NotFound(
            f"the working folder{f' {name}' if name else ''} is gone",
            subject=name,
            hint="cd into a folder that is there, or name one: dsv -C DIR",
        ) from None


def gather(environ: Mapping[str, str], cwd: Path, flags: Mapping[str, str]) -> Settings:
    """All sources in order. `flags` are --store and --cache, if given. Raises `UsageError`, `Denied`."""
    sources = [Source(f"--{key}", {key: value}) for key, value in flags.items()]
    workspace = find_workspace(cwd)
    if workspace is not None:
        config = workspace / WORKSPACE_CONFIG
        bound = binding(parse_toml(read_settings(config) or b"", str(config)))
        texts = {key: value for key, value in bound.items() if isinstance(value, str)}
        sources.append(read_workspace(texts, str(config)))
    sources += read_environment(environ)
    for path in (user_config(environ, cwd), SYSTEM_CONFIG):
        data = read_settings(path)
        if data is not None:
            sources.append(read_config(data, str(path)))
    folders = Folders(environ)
    built_in = {"store": str(folders.data() / "store"), "cache": str(folders.cache())}
    sources.append(Source(BUILT_IN, built_in))
    return Settings(sources, cwd, folders.home(), folders.state())


def find_workspace(start: Path) -> Path | None:
    """The nearest folder, from `start` upwards, that is bound to a dataset."""
    for folder in (start, *start.parents):
        if (folder / WORKSPACE_CONFIG).is_file():
            return folder
    return None


def author(settings: Settings, flag: str | None) -> Setting:
    """--author, DSV_AUTHOR, the config, git's, else user@host. Raises `UsageError` for what is no text."""
    found = (
        Setting("author", flag, "--author") if flag else settings.get("author") or _git_author(settings.cwd)
    )
    found = found or Setting("author", user_at_host(), BUILT_IN)
    if not is_text(found.value):
        raise UsageError(
            f"the author from {found.origin} is not valid UTF-8: {found.value}",
            subject=found.origin,
            hint="DSV_AUTHOR='Ann Lee <ann@example.org>', or --author",
        )
    check_length(found.value, SHORT_MAX, f"the author from {found.origin}")
    return found


def user_at_host() -> str:
    return f"{user_name(os.getuid())}@{host_name()}"


def _git_author(cwd: Path) -> Setting | None:
    """What `git commit` would use here; None where git or its user.name is missing."""
    try:
        answer = subprocess.run(
            ["git", "config", "--null", "--get-regexp", r"^user\.(name|email)$"],
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=GIT_SECONDS,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    # Each as "key\nvalue"; of several values the last one counts.
    said = dict(
        part.split("\n", 1) for part in answer.stdout.decode("utf-8", "replace").split("\0") if "\n" in part
    )
    name, email = said.get("user.name", "").strip(), said.get("user.email", "").strip()
    if not name:
        return None
    return Setting("author", f"{name} <{email}>" if email else name, "git config")


def read_settings(path: Path) -> bytes | None:
    """What a file of settings holds, of one that is too large a little more than may be; None if there is none."""
    try:
        if stat.S_ISFIFO(path.stat().st_mode) and not str(path).startswith(_OPEN):
            raise UsageError(
                f"{path} is a named pipe, and settings stand in a file",
                subject=str(path),
                hint=f"ls -l {path}",
            )
        with path.open("rb") as file:
            return file.read(MAX_BYTES + 1)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise Denied(
            f"{path} can't be read: {error.strerror}", subject=str(path), hint=f"ls -ld {path}"
        ) from None
