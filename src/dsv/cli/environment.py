"""Gathers settings from where they are kept, and asks git who the author is."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path

from dsv.api.config_file import parse_toml, read_config
from dsv.api.settings import BUILT_IN, Setting, Settings, Source, read_environment, read_workspace
from dsv.cli.surroundings import Surroundings
from dsv.errors import Denied, NotFound, UsageError
from dsv.fs.process import host_name, user_name
from dsv.model.text import is_text
from dsv.model.toml import MAX_BYTES

SYSTEM_CONFIG = Path("/etc/dsv/config.toml")
WORKSPACE_CONFIG = Path(".dsv/config.toml")
GIT_SECONDS = 5.0


def user_config(around: Surroundings) -> Path:
    """DSV_CONFIG, or the user's config.toml where XDG puts it."""
    named = around.environ.get("DSV_CONFIG")
    return working_folder(around) / named if named else around.config_home() / "config.toml"


def working_folder(around: Surroundings) -> Path:
    """Raises `NotFound` if it was removed while the caller stood in it."""
    try:
        return Path.cwd()
    except FileNotFoundError:
        name = around.environ.get("PWD")
        raise NotFound(
            f"the working folder{f' {name}' if name else ''} is gone",
            subject=name,
            hint="cd into a folder that is there, or name one: dsv -C DIR",
        ) from None


def gather(around: Surroundings, flags: Mapping[str, str]) -> Settings:
    """All sources in order. `flags` are --store and --cache, where given. Raises `UsageError`, `Denied`."""
    cwd = working_folder(around)
    sources = [Source(f"--{key}", {key: value}) for key, value in flags.items()]
    workspace = find_workspace(cwd)
    if workspace is not None:
        config = workspace / WORKSPACE_CONFIG
        bound = parse_toml(read_settings(config) or b"", str(config))
        texts = {key: value for key, value in bound.items() if isinstance(value, str)}
        sources.append(read_workspace(texts, str(config)))
    sources += read_environment(around.environ)
    for path in (user_config(around), SYSTEM_CONFIG):
        data = read_settings(path)
        if data is not None:
            sources.append(read_config(data, str(path)))
    built_in = {"store": str(around.data_home() / "store"), "cache": str(around.cache_home())}
    sources.append(Source(BUILT_IN, built_in))
    return Settings(sources, cwd, around.home(), around.state_home())


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
        with path.open("rb") as file:
            return file.read(MAX_BYTES + 1)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise Denied(
            f"{path} can't be read: {error.strerror}", subject=str(path), hint=f"ls -ld {path}"
        ) from None
