"""dsv config: show settings with their origin, or set one in the user's config.toml."""

from __future__ import annotations

from pathlib import Path

from msgspec import structs

from dsv.api import environment
from dsv.api.environment import lasting, with_value
from dsv.api.settings import PLAIN_KEYS, Setting, Settings, check_key, is_name
from dsv.cli.call import Call
from dsv.cli.declare import argument, command, option, text
from dsv.errors import NotFound, UsageError
from dsv.files.small_files import replace_file
from dsv.values.names import HERE
from dsv.values.secrets import hide_in_urls

NAMES = "names"
"""Shown like a setting, but set for a store, as `stores.NAME.names`."""


@command(
    "config",
    examples="""
        dsv config  # every setting, and where it comes from
        dsv config stores.lake.url s3://lake/dsv  # name a store; then --store lake works
        dsv config store lake  # the default store
        dsv config pools.a100.engine docker  # name a pool of machines; then dsv run --on a100 works
    """,
    result="items(key value origin)",
)
def config(
    call: Call,
    key: str | None = argument("[KEY]"),
    value: str | None = argument("[VALUE]", parser=text),
    unset: bool = option("--unset", "Remove KEY from the user's config file."),
) -> None:
    """Show settings with their origin, or set one.

    A value is looked for on the command line, in the workspace (.dsv/config.toml), in the environment
    (DSV_STORE, DSV_CACHE, DSV_AUTHOR), in the user's config.toml (DSV_CONFIG names another file) and in
    /etc/dsv/config.toml. VALUE is written to the user's file; what else is in it stays as it is, comments included.

    names is where the store in effect keeps its names, if that is elsewhere.
    """
    if unset or value is not None:
        _change(call, key, value, unset)
        return
    if key is not None:
        if key != NAMES:
            check_key(key)
        _show_one(call, key)
        return
    settings = [one for one in call.settings.all() if one.key != NAMES]
    names = _names(call.settings)
    if names is not None:
        settings = sorted([*settings, names], key=lambda one: one.key)
    if call.settings.get("author") is None:
        settings.insert(0, environment.author(call.settings, None))
    call.results(map(_without_password, settings))
    columns = ["key", "value", "origin"]
    call.table(columns, [[setting.key, hide_in_urls(setting.value), setting.origin] for setting in settings])
    for origin, unknown in call.settings.unknown():
        call.warn(f"{origin} has {unknown}, which is not a setting of this version")


def _without_password(setting: Setting) -> Setting:
    return structs.replace(setting, value=hide_in_urls(setting.value))


def _names(settings: Settings) -> Setting | None:
    """Return where the names of the store in effect are; None if it has them itself, or does not exist."""
    try:
        return settings.place_of_names()
    except (UsageError, NotFound):
        return None


def _show_one(call: Call, key: str) -> None:
    if key == NAMES:
        setting = call.settings.place_of_names()
        if setting is None:
            raise NotFound(
                f"names is not set: {call.settings.store().url} keeps its names itself",
                subject=key,
                hint="dsv config stores.NAME.names LOCATION says that they are elsewhere",
            )
    else:
        setting = environment.author(call.settings, None) if key == "author" else call.settings.get(key)
    if setting is None:
        raise NotFound(f"{key} is not set", subject=key, hint=f"dsv config {key} VALUE")
    call.results([_without_password(setting)])
    call.line(hide_in_urls(setting.value))
    call.say(f"from {setting.origin}")


def _change(call: Call, key: str | None, value: str | None, unset: bool) -> None:
    if key is None or (unset and value is not None):
        raise UsageError("--unset takes a key and no value", hint="dsv config --unset KEY")
    environ = call.around.environ
    cwd = environment.working_folder(environ)
    path = environment.user_config(environ, cwd)
    if key == NAMES:
        raise UsageError(
            "names belong to a store, so they are set with it",
            subject=key,
            hint="dsv config stores.NAME.names LOCATION, or --names LOCATION",
        )
    if value is not None:
        check_key(key)
        typed, value = value, lasting(key, value, cwd)
        if value != typed and not typed.startswith("["):
            typed, kept = hide_in_urls(typed), hide_in_urls(value)
            call.say(f"{typed} is written as {kept}: a config file means the same in every folder")
    after = with_value(environment.read_settings(path) or b"", key, value, str(path))
    _write(path, after)
    if value is not None:
        _warn(call, key, value, str(path))
    call.results([] if value is None else [_without_password(Setting(key, value, str(path)))])
    call.line(f"{key} {'removed from' if value is None else 'set in'} {path}")


def _warn(call: Call, key: str, value: str, path: str) -> None:
    """Warn if the new value has no effect. The file is written, so this is no failure."""
    try:
        effective = call.settings.get(key)
    except UsageError as error:
        call.warn(f"{error.message}, so no command can start")
        return
    if key not in PLAIN_KEYS:
        return
    if effective is not None and effective.origin != path:
        call.warn(f"{effective.origin} says {key} = {hide_in_urls(effective.value)}, which overrides this")
    elif key == "pool":
        for name in value.split(","):
            if name.strip() not in (HERE, *call.settings.names("pools")):
                call.warn(f"no pool named {name} is configured yet: dsv config pools.{name}.engine ENGINE")
    elif key in ("store", "cache") and is_name(value) and value not in call.settings.names(f"{key}s"):
        part = "url URL" if key == "store" else "path DIR"
        call.warn(f"no {key} named {value} is configured yet: dsv config {key}s.{value}.{part}")


def _write(path: Path, text: str) -> None:
    """Replace the file, through a symlink if the path is one, and keep its mode. A new one, and one with a
    secret, is for its user alone."""
    real = path.resolve()
    if real.exists() and not real.is_file():
        raise UsageError(
            f"{path} is not a regular file, so settings can't be saved in it",
            subject=str(path),
            hint="DSV_CONFIG=FILE names another file",
        )
    real.parent.mkdir(parents=True, exist_ok=True)
    mode = real.stat().st_mode & 0o7777 if real.exists() and hide_in_urls(text) == text else 0o600
    replace_file(real, text.encode(), mode=mode)
