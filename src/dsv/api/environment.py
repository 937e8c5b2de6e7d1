"""Gather settings from flags, the workspace, the environment and config.toml; and change a config.toml."""

from __future__ import annotations

import os
import os.path
import stat
from collections.abc import Iterator, Mapping, MutableMapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from dsv.api.settings import (
    BUILT_IN,
    PARSED,
    PLAIN_KEYS,
    TABLES,
    Setting,
    Settings,
    SettingsSource,
    check_key,
    is_engines_key,
    is_key,
    is_name,
    is_reserved,
    no_folder,
    parse_setting,
    pool_names,
    read_environment,
    read_workspace,
)
from dsv.errors import Denied, NotFound, UsageError
from dsv.files.folders import bound_folder
from dsv.files.git import GitError, run_git
from dsv.files.process import host_name, user_name
from dsv.values.json import SHORT_MAX, Json, check_length, is_text, json_or_text
from dsv.values.toml import BINDING, MAX_BYTES, binding, read_toml


def read_config(data: bytes, origin: str) -> SettingsSource:
    """Return the settings of a config.toml. Raises `UsageError` for invalid TOML or a wrong type of value."""
    values: dict[str, str] = {}
    raw: dict[str, Json] = {}
    unknown: list[str] = []
    for key, value in _flat(parse_toml(data, origin)):
        table, *below = key.split(".")
        if table in TABLES and len(below) < 2:
            raise UsageError(
                f"{key} in {origin} has to be a table",
                subject=key,
                hint=f"dsv config {table}.NAME.{TABLES[table][0]} VALUE",
            )
        if not is_key(key):
            unknown.append(key)
        elif isinstance(value, str) or (key in PARSED and type(value) is int):
            values[key] = str(value)
        elif (
            key.endswith(".mirrors")
            and isinstance(value, list)
            and all(isinstance(one, str) for one in value)
        ):
            values[key] = ",".join(value)
        elif is_engines_key(key):
            from json import dumps, loads  # takes a while to import

            values[key] = dumps(value, ensure_ascii=False, default=str)  # a date becomes text
            raw[key] = loads(values[key])
        else:
            raise UsageError(
                f"{key} in {origin} has to be text in quotes", subject=key, hint=f"dsv config {key} VALUE"
            )
    return SettingsSource(origin, values, tuple(unknown), raw)


def lasting(key: str, value: str, cwd: Path) -> str:
    """Return `value` as a config file stores it: with relative folders made absolute, so that it means the
    same in every working folder. Raises `UsageError` for a value that no command could use.
    """
    if key.endswith(".mirrors"):
        parsed = json_or_text(value)
        places = parsed if isinstance(parsed, list) else value.split(",")
        if not all(isinstance(place, str) and place[:1] not in ("[", "{", '"') for place in places):
            what = f"{key} has to be a list of stores, and {value} is not one"
            raise UsageError(what, subject=key, hint=f"dsv config {key} backup,s3://bucket/prefix")
        value = ",".join(places)
    if not value.strip():
        raise UsageError(f"{key} can't be empty", subject=key, hint=f"dsv config --unset {key}")
    if key in PARSED:
        parse_setting(Setting(key, value, "the command line"))
    if key == "pool":
        pool_names(value)
    if key.startswith("pools."):
        _check_pool_setting(key, value)
    last = key.rpartition(".")[2]
    of_stores = key == "store" or (key.startswith("stores.") and last in ("url", "names", "mirrors"))
    if of_stores or last in ("endpoint", "ca_bundle"):
        from dsv.stores.open import check_location  # takes a while to import

        for place in value.split(",") if of_stores else [value]:
            check_location(place.strip(), is_store=of_stores and "://" in place)
    if is_engines_key(key) or last not in ("store", "cache", "url", "path", "ca_bundle", "names", "out"):
        return value
    if key.startswith("pools.") and (is_name(value) or (":" in value and not value.startswith("."))):
        return value  # a name under caches, or a name that only the pool's engine understands
    if "://" in value:
        if last in ("cache", "path"):
            raise no_folder(Setting(key, value, ""))
        return value
    if value == "~" or value.startswith(("/", "~/")) or (key in PLAIN_KEYS and is_name(value)):
        return value
    return os.path.normpath(cwd / value)


def _check_pool_setting(key: str, value: str) -> None:
    """Raises `UsageError` for an engine that there is not, and a value that it or `dsv run` could not use."""
    from dsv.run.engine_list import engine_of
    from dsv.run.resources import Pool
    from dsv.run.spec import POOL_OPTIONS

    check_key(key)
    _, name, last, *below = key.split(".")
    parse = {option.flag: option.parse for option in POOL_OPTIONS.values()}.get(last)
    try:
        if below or last == "engine":
            options = {below[0]: json_or_text(value)} if below else {}
            engine_of(Pool(name=name, engine=last if below else value, options=options))
        elif parse is not None:
            parse(value)
    except UsageError as error:
        said = error.message if key in error.message else f"{key}: {error.message}"
        error.message, error.subject, error.hint = said, key, None if below else error.hint
        raise


def parse_toml(data: bytes, origin: str) -> dict[str, object]:
    """Parse a config file. Raises `UsageError` that names the file, and the line if known."""
    try:
        return read_toml(data)
    except ValueError as error:
        raise UsageError(
            f"{origin} is not valid TOML: {error}", subject=origin, hint=f"edit {origin}"
        ) from None


def with_value(data: bytes, key: str, value: Json, origin: str) -> str:
    """Return a config file in which `key` has this value, or (for None) is removed.

    Comments outside of a removed part, the order of tables and the notation of values are kept. Raises
    `NotFound` if a key to remove is not set, and `UsageError`, also for a notation that can't be kept.
    """
    import tomlkit
    from tomlkit.exceptions import TOMLKitError

    if value is not None or not is_reserved(key):  # older versions could set it, so it can be removed
        check_key(key)
    if isinstance(value, str) and is_engines_key(key):
        value = json_or_text(value)
    wanted = dict(_flat(parse_toml(data, origin)))
    if value is not None:
        wanted[key] = value
    elif wanted.pop(key, None) is None:
        hint = "dsv config shows where values come from"
        raise NotFound(f"{key} is not set in {origin}", subject=key, hint=hint)
    with suppress(TOMLKitError, ValueError, TypeError, KeyError):
        document = tomlkit.parse(data.decode())
        _edit(document, key.split("."), value)
        found = tomlkit.dumps(document)
        if dict(_flat(read_toml(found.encode()))) == wanted:
            return found
    raise UsageError(
        f"{origin} is written in a way that dsv can't change", subject=key, hint=f"edit {origin}"
    )


def _edit(table: MutableMapping[str, Any], parts: list[str], value: object) -> None:
    import tomlkit

    name, *below = parts
    if not below:
        if value is None:
            table.pop(name)
        else:
            table[name] = value
        return
    if not isinstance(table.get(name), MutableMapping):
        inline = isinstance(table, tomlkit.items.InlineTable)
        table[name] = tomlkit.inline_table() if inline else tomlkit.table(is_super_table=len(below) > 1)
    _edit(table[name], below, value)
    if not table[name]:
        table.pop(name)


def _flat(document: Mapping[str, object], prefix: str = "") -> Iterator[tuple[str, object]]:
    for key, value in document.items():
        if isinstance(value, dict) and not is_key(f"{prefix}{key}"):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


SYSTEM_CONFIG = Path("/etc/dsv/config.toml")
GIT_SECONDS = 5.0
_OPEN = ("/dev/fd/", "/proc/")
"""Folders of files that a shell has already opened, such as `<(command)`."""


_BASES = {"config": ".config", "data": ".local/share", "cache": ".cache", "state": ".local/state"}
"""The XDG base directories, relative to the home."""


def home(environ: Mapping[str, str]) -> Path:
    """Return the user's home, even if the uid has no name and HOME is not set."""
    text = environ.get("HOME") or os.path.expanduser("~")  # noqa: PTH111 (Path.home() raises there)
    return Path(text) if text.startswith("/") else Path("/")


def own_folder(environ: Mapping[str, str], base: str) -> Path:
    """Return dsv's folder in an XDG base directory. As XDG specifies, a relative value is ignored."""
    text = environ.get(f"XDG_{base.upper()}_HOME", "")
    return (Path(text) if text.startswith("/") else home(environ) / _BASES[base]) / "dsv"


def user_config(environ: Mapping[str, str], cwd: Path) -> Path:
    """Return DSV_CONFIG, or the user's config.toml in its XDG folder."""
    named = environ.get("DSV_CONFIG")
    return cwd / named if named else own_folder(environ, "config") / "config.toml"


def working_folder(environ: Mapping[str, str]) -> Path:
    """Return the working folder. Raises `NotFound` if it was deleted."""
    try:
        return Path.cwd()
    except FileNotFoundError:
        name = environ.get("PWD")
        raise NotFound(
            f"the working folder{f' {name}' if name else ''} is gone",
            subject=name,
            hint="cd into an existing folder, or name one: dsv -C DIR",
        ) from None


def gather(environ: Mapping[str, str], cwd: Path, flags: Mapping[str, str | None]) -> Settings:
    """Read all sources, in order. flags: --store, --names, --cache. Raises `UsageError`, `Denied`."""
    sources = [SettingsSource(f"--{key}", {key: value}) for key, value in flags.items() if value is not None]
    workspace = bound_folder(cwd)
    if workspace is not None:
        config = workspace / BINDING
        bound = binding(parse_toml(read_settings(config) or b"", str(config)))
        texts = {key: value for key, value in bound.items() if isinstance(value, str)}
        sources.append(read_workspace(texts, str(config)))
    sources += read_environment(environ)
    for path in (user_config(environ, cwd), SYSTEM_CONFIG):
        data = read_settings(path)
        if data is not None:
            sources.append(read_config(data, str(path)))
    built_in = {
        "store": str(own_folder(environ, "data") / "store"),
        "cache": str(own_folder(environ, "cache")),
    }
    sources.append(SettingsSource(BUILT_IN, built_in))
    return Settings(sources, cwd, home(environ), own_folder(environ, "state"))


def author(settings: Settings, flag: str | None) -> Setting:
    """Return --author, DSV_AUTHOR, the config's, Git's, or user@host. Raises `UsageError` if not UTF-8."""
    found = Setting("author", flag, "--author") if flag else settings.get("author")
    found = found or _git_author(settings.cwd) or Setting("author", user_at_host(), BUILT_IN)
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
    """Return the author that `git commit` would use here; None if Git or its user.name is missing."""
    try:
        wanted = ("--null", "--get-regexp", r"^user\.(name|email)$")
        answer = run_git("config", *wanted, cwd=cwd, timeout=GIT_SECONDS)
    except GitError:
        return None
    # Each value is "key\nvalue"; the last of several values counts.
    said = dict(part.split("\n", 1) for part in answer.decode("utf-8", "replace").split("\0") if "\n" in part)
    name, email = said.get("user.name", "").strip(), said.get("user.email", "").strip()
    if not name:
        return None
    return Setting("author", f"{name} <{email}>" if email else name, "git config")


def read_settings(path: Path) -> bytes | None:
    """Read a settings file, up to one byte more than is allowed; None if there is none."""
    try:
        if stat.S_ISFIFO(path.stat().st_mode) and not str(path).startswith(_OPEN):
            raise UsageError(
                f"{path} is a named pipe, not a file with settings",
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
