"""Settings, and the origin of each.

Pure: the caller passes the flags, the environment and the texts of the config files. The first source that
has a key decides: flag, workspace, environment, the user's file, the machine's file, built-in. A workspace comes before
the environment, as its base is in its own store, and a variable is often set for a whole login.
"""

from __future__ import annotations

import os.path
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import msgspec

from dsv.errors import NoStore, UsageError
from dsv.values.json import Json, is_text
from dsv.values.names import HERE
from dsv.values.units import parse_duration, parse_size

PARSED: Mapping[str, tuple[Callable[[str], int], str]] = {  # how values are parsed, and an example
    "runs.keep_local": (parse_duration, "30d"),
    "metadata.max_size": (parse_size, "512M"),
    "metadata.max_files": (int, "50000"),
    "prefer": (("cached", "order").index, "cached, or: dsv config prefer order"),
}
PLAIN_KEYS = ("store", "cache", "author", "pool", "lineage.openlineage", *PARSED)
STORE_FIELDS = ("url", "endpoint", "region", "profile", "ca_bundle", "names", "mirrors")
POOL_FIELDS = (
    *("engine", "cache", "out", "gpu_type", "tpu", "tpu_topology", "shm_size", "engine_args"),
    *("forward_credentials", "log", "wait", "jobs"),
)
TABLES = {"stores": STORE_FIELDS, "caches": ("path",), "pools": POOL_FIELDS}
"""The tables of a config file: each has named tables with these keys, which docs/operations explains."""
WORKSPACE_KEYS = ("store", "names", "dataset", "branch")
BUILT_IN = "built in"
"""The origin of defaults."""
ENVIRONMENT_KEYS = {"DSV_STORE": "store", "DSV_CACHE": "cache", "DSV_AUTHOR": "author"}


class Setting(msgspec.Struct, frozen=True):
    """A value in effect. `origin` is a flag, a variable, a file's path, or 'built in'."""

    key: str
    value: str
    origin: str


class SettingsSource(msgspec.Struct, frozen=True):
    """The settings of one file or of the environment, by flat key such as `stores.lake.url`."""

    origin: str
    values: Mapping[str, str]
    unknown: tuple[str, ...] = ()
    """Keys that are no settings."""
    raw: Mapping[str, Json] = msgspec.field(default_factory=dict)
    """Values of engine options that are not text; `values` has them as JSON."""

    def setting(self, key: str) -> Setting | None:
        value = self.values.get(key)
        return None if value is None else Setting(key, value, self.origin)


def parse_setting(setting: Setting) -> int:
    """Return the value of one of `PARSED`. Raises `UsageError`."""
    parse, example = PARSED[setting.key]
    with suppress(UsageError, ValueError):
        if (value := parse(setting.value)) >= 0:
            return value
    what = f"{setting.key} from {setting.origin} can't be {setting.value!r}"
    raise UsageError(what, subject=setting.key, hint=f"dsv config {setting.key} {example}")


class StoreChoice(msgspec.Struct, frozen=True):
    """A store to open, with its configured options."""

    url: str
    origin: str
    name: str | None = None
    endpoint: str | None = None
    region: str | None = None
    profile: str | None = None
    ca_bundle: str | None = None
    names: str | None = None
    names_kept: str | None = None
    """The part of `names` that a workspace stores; None if the configuration has them."""
    names_origin: str | None = None
    """The flag, variable or file that `names` is from."""

    @property
    def called(self) -> str:
        """Return what a workspace stores: the name, if any, so that it follows changes of its settings.

        Raises `UsageError` if a folder's name is not UTF-8.
        """
        if not is_text(self.url):
            raise UsageError(
                f"the store from {self.origin} is not valid UTF-8, so no workspace can be bound to it: {self.url}",
                subject=self.url,
                hint="name a folder, or a symlink to it, whose name is UTF-8",
            )
        return self.name or self.url


class CacheChoice(msgspec.Struct, frozen=True):
    """A cache's absolute folder."""

    path: Path
    origin: str
    name: str | None = None


class Settings(msgspec.Struct, frozen=True):
    """Sources in order of precedence. Relative folders and `~` refer to `cwd` and `home`."""

    sources: Sequence[SettingsSource]
    cwd: Path
    home: Path
    state: Path
    """The folder of this user's run outputs and unsent records."""

    def get(self, key: str) -> Setting | None:
        return next(filter(None, (source.setting(key) for source in self.sources)), None)

    def table(self, prefix: str) -> dict[str, tuple[Json, str]]:
        """Return the keys with this prefix, without it: each with its value and origin."""
        found: dict[str, tuple[Json, str]] = {}
        for source in self.sources:
            for key in source.values:
                if key.startswith(prefix):
                    value = source.raw.get(key, source.values[key])
                    found.setdefault(key.removeprefix(prefix), (value, source.origin))
        return found

    def all(self) -> list[Setting]:
        """Return every setting in effect, by key."""
        seen: dict[str, Setting] = {}
        for source in self.sources:
            for key in source.values:
                seen.setdefault(key, Setting(key, source.values[key], source.origin))
        return [seen[key] for key in sorted(seen)]

    def unknown(self) -> Iterator[tuple[str, str]]:
        """Yield (origin, key) of all keys that are no settings."""
        for source in self.sources:
            for key in source.unknown:
                yield source.origin, key

    def names(self, table: str) -> list[str]:
        """Return the names of the configured `stores`, `caches` or `pools`."""
        return sorted({key.partition(".")[0] for key in self.table(f"{table}.")})

    def store(self, text: str | None = None) -> StoreChoice:
        """Return the store that `text` names, or else the current one. Raises `UsageError`, `NotFound`."""
        setting = Setting("store", text, "--store") if text is not None else self.get("store")
        if setting is None:
            raise UsageError("no store is named", hint="dsv config store URL")
        kept = self._names_given_with(setting.origin)
        if not is_name(setting.value):
            choice = StoreChoice(self._location(setting), setting.origin)
            return _with_names(choice, kept, self._configured_names(choice.url))
        name = setting.value
        known = {part: self.get(f"stores.{name}.{part}") for part in STORE_FIELDS}
        address = known.pop("url")
        if address is None:
            raise self._no_such("stores", "url", setting)
        names, _ = known.pop("names"), known.pop("mirrors")
        rest = {
            part: self._location(found) if part == "ca_bundle" else found.value
            for part, found in known.items()
            if found is not None
        }
        choice = StoreChoice(self._location(address), setting.origin, name, **rest)
        return _with_names(choice, kept, None if names is None else self._located(names))

    def mirrors(self) -> list[StoreChoice]:
        """Return the stores to read if the current store does not answer. Raises like `store`."""
        choice = self.store()
        found = None if choice.name is None else self.get(f"stores.{choice.name}.mirrors")
        words = [] if found is None else [word.strip() for word in found.value.split(",")]
        assert found is not None or not words
        return [self._mirror(Setting(found.key, word, found.origin)) for word in words if found and word]

    def _mirror(self, setting: Setting) -> StoreChoice:
        if is_name(setting.value):
            return self.store(setting.value)
        return StoreChoice(self._location(setting), setting.origin)

    def place_of_names(self) -> Setting | None:
        """Return where the settings put the current store's names; None: in itself. Raises like `store`."""
        choice = self.store()
        if choice.names is None or choice.names_origin is None:
            return None
        return Setting("names", choice.names, choice.names_origin)

    def _names_given_with(self, origin: str) -> Setting | None:
        """Return the location of names given by --names, or by the same source as the store."""
        for source in self.sources:
            said = source.setting("names")
            if said is not None and source.origin in ("--names", origin):
                return self._located(said)
        return None

    def _configured_names(self, url: str) -> Setting | None:
        """Return the location of the names of a configured store with this URL."""
        for name in self.names("stores"):
            place, named = self.get(f"stores.{name}.names"), self.get(f"stores.{name}.url")
            if place is not None and named is not None and self._location(named) == url:
                return self._located(place)
        return None

    def _located(self, setting: Setting) -> Setting:
        return Setting(setting.key, self._location(setting), setting.origin)

    def location(self, text: str) -> str:
        """Return a URL unchanged, or a folder of the command line made absolute. Raises `UsageError`."""
        return self._location(Setting("LOCATION", text, "the command line"))

    def cache(self, text: str | None = None) -> CacheChoice:
        """Return the cache that `text` names, or else the current one. Raises `UsageError`, `NotFound`."""
        setting = Setting("cache", text, "--cache") if text is not None else self.get("cache")
        if setting is None:
            raise UsageError("no cache is named", hint="dsv config cache DIR")
        return self.cache_of(setting)

    def cache_of(self, setting: Setting) -> CacheChoice:
        """Return the cache that a setting names. Raises `UsageError`, `NotFound`."""
        name = None
        if is_name(setting.value):
            name = setting.value
            path = self.get(f"caches.{name}.path")
            if path is None:
                raise self._no_such("caches", "path", setting)
            setting = path
        if "://" in setting.value:
            raise no_folder(setting)
        return CacheChoice(Path(self._location(setting)), setting.origin, name)

    def _location(self, setting: Setting) -> str:
        """Return a URL unchanged, or a folder made absolute.

        A relative folder in a file is refused: it would mean a different folder in every working directory.
        """
        text = setting.value
        if not text:
            raise UsageError(f"{setting.key} from {setting.origin} is empty", subject=setting.key)
        if "://" in text:
            return text
        if text == "~" or text.startswith("~/"):
            return str(self.home / text[2:])
        if not text.startswith("/") and setting.origin.startswith("/"):
            raise UsageError(
                f"{setting.key} in {setting.origin} is the relative folder {text}",
                subject=setting.key,
                hint=f"give the whole path: dsv config {setting.key} /…/{text.removeprefix('./')}",
            )
        # Not resolved: a symlink in the path is the user's name for the folder, and may be moved on purpose.
        return os.path.normpath(self.cwd / text)

    def _no_such(self, table: str, part: str, setting: Setting) -> NoStore:
        from difflib import get_close_matches

        close = get_close_matches(setting.value, self.names(table), 1)
        what = table.removesuffix("s")
        hint = (
            f"--{what} {close[0]}"
            if close
            else f"dsv config {table}.{setting.value}.{part} {'URL' if part == 'url' else 'DIR'}, "
            f"or --{what} ./{setting.value} for a folder of that name"
        )
        return NoStore(
            f"no {what} named {setting.value} is configured (requested by {setting.origin})",
            subject=setting.value,
            hint=hint,
        )


def _with_names(choice: StoreChoice, kept: Setting | None, configured: Setting | None) -> StoreChoice:
    """kept: the location given with the store, which overrides the configured one."""
    names = kept or configured
    if names is None:
        return choice
    return msgspec.structs.replace(
        choice, names=names.value, names_kept=None if kept is None else kept.value, names_origin=names.origin
    )


def is_name(text: str) -> bool:
    """Return whether this names a configured store or cache, instead of being a URL or a folder."""
    return bool(text) and "/" not in text and text not in (".", "..", "~")


def no_folder(setting: Setting) -> UsageError:
    """Return the error for a cache that is a URL."""
    return UsageError(
        f"a cache is a folder, not {setting.value}",
        subject=setting.value,
        hint=f"dsv config {setting.key} DIR",
    )


def is_engines_key(key: str) -> bool:
    """Return whether only a pool's engine knows this key and its values: `pools.a100.slurm.partition`."""
    table, *rest = key.split(".")
    return table == "pools" and len(rest) == 3 and all(rest)


def check_key(key: str) -> None:
    """Raises `UsageError` for a key that no config file has, with the closest key as a hint."""
    if is_key(key):
        return
    table, *rest = key.split(".")
    if is_reserved(key):
        raise UsageError(
            f"the pool {HERE} is this machine, and has no settings",
            subject=key,
            hint="give the pool another name: dsv config pools.NAME.engine ENGINE",
        )
    if is_engines_key(deep := ".".join(key.split(".")[:4])):
        hint = f"dsv config {deep} '{{…}}', or write it into the file"
        raise UsageError(f"{key} lies within {deep}, which takes one value: JSON", subject=key, hint=hint)
    known = [*PLAIN_KEYS, *(f"{name}.NAME.{part}" for name, parts in TABLES.items() for part in parts)]
    known.append("pools.NAME.ENGINE.KEY")
    asked = ".".join([table, "NAME", rest[1]]) if len(rest) == 2 else key
    from difflib import get_close_matches

    close = get_close_matches(asked, known, 1)
    hint = f"dsv config {close[0]}" if close else f"keys: {', '.join(known)}"
    raise UsageError(f"there is no setting {key}", subject=key, hint=hint)


def pool_names(text: str) -> list[str]:
    names = [name.strip() for name in text.split(",")]
    if "" in names or len(set(names)) < len(names):
        raise UsageError(f"{text!r} is not a list of different pools", subject=text, hint="--on A,B")
    return names


def is_reserved(key: str) -> bool:
    """Return whether the key is of the pool that has no settings."""
    return key.startswith(f"pools.{HERE}.")


def is_key(key: str) -> bool:
    """Return whether a config file may have this key, such as `stores.lake.url`."""
    table, *rest = key.split(".")
    if key in PLAIN_KEYS:
        return True
    if is_reserved(key):
        return False
    if is_engines_key(key):
        return True
    return table in TABLES and len(rest) == 2 and bool(rest[0]) and rest[1] in TABLES[table]


def read_environment(environ: Mapping[str, str]) -> list[SettingsSource]:
    """Return a source for each dsv variable that is set and not empty."""
    return [
        SettingsSource(variable, {key: environ[variable]})
        for variable, key in ENVIRONMENT_KEYS.items()
        if environ.get(variable)
    ]


def read_workspace(values: Mapping[str, str], origin: str) -> SettingsSource:
    """Return the settings that a workspace is bound to; other values are ignored."""
    return SettingsSource(origin, {key: values[key] for key in WORKSPACE_KEYS if key in values})
