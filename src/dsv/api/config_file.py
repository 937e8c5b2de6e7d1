"""A config.toml: what it says, and what it says once a setting has changed."""

from __future__ import annotations

import json
import os.path
from collections.abc import Iterator, Mapping, MutableMapping
from pathlib import Path
from typing import Any

from dsv.api.settings import (
    PLAIN_KEYS,
    TABLES,
    Setting,
    Source,
    check_key,
    is_engines_key,
    is_key,
    is_name,
    is_reserved,
    no_folder,
)
from dsv.errors import UsageError
from dsv.model.json_values import Json, json_or_text
from dsv.model.toml import read_toml


def read_config(data: bytes, origin: str) -> Source:
    """What a config.toml says. Raises `UsageError` if it's not TOML, or a value isn't text."""
    values: dict[str, str] = {}
    raw: dict[str, Json] = {}
    unknown: list[str] = []
    document = parse_toml(data, origin)
    _check_tables(document, origin)
    for key, value in _flat(document):
        if not is_key(key):
            unknown.append(key)
        elif isinstance(value, str):
            values[key] = value
        elif is_engines_key(key):
            raw[key] = _jsonable(value)
            values[key] = json.dumps(raw[key], ensure_ascii=False)
        else:
            raise UsageError(
                f"{key} in {origin} has to be text in quotes", subject=key, hint=f"dsv config {key} VALUE"
            )
    return Source(origin, values, tuple(unknown), raw)


def _jsonable(value: object) -> Json:
    """What TOML has and JSON lacks is a date: as text."""
    if isinstance(value, dict):
        return {key: _jsonable(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_jsonable(inner) for inner in value]
    return value if isinstance(value, bool | int | float | str) else str(value)


def _check_tables(document: Mapping[str, object], origin: str) -> None:
    """Raises `UsageError` if `stores` or `caches`, or one of them by name, is not a table."""
    for table, parts in TABLES.items():
        named = document.get(table, {})
        rows = {table: named}
        if isinstance(named, dict):
            rows = {f"{table}.{name}": row for name, row in named.items()}
        for name, row in rows.items():
            if not isinstance(row, dict):
                key = f"{name}.{next(iter(parts))}" if name != table else f"{table}.NAME.{next(iter(parts))}"
                raise UsageError(
                    f"{name} in {origin} has to be a table", subject=name, hint=f"dsv config {key} VALUE"
                )


def lasting(key: str, value: str, cwd: Path) -> str:
    """`value` as a config file keeps it: it has to mean the same in every working folder, so that a relative folder
    becomes an absolute one. Raises `UsageError` for what no command could use.
    """
    if not value.strip():
        raise UsageError(f"{key} can't be empty", subject=key, hint=f"dsv config --unset {key}")
    last = key.rpartition(".")[2]
    if is_engines_key(key) or last not in ("store", "cache", "url", "path", "ca_bundle", "names", "out"):
        return value
    if key.startswith("pools.") and (is_name(value) or (":" in value and not value.startswith("."))):
        return value  # a name under caches, or what the engine of the pool calls so
    if "://" in value:
        if last in ("cache", "path"):
            raise no_folder(Setting(key, value, ""))
        return value
    if value == "~" or value.startswith(("/", "~/")) or (key in PLAIN_KEYS and is_name(value)):
        return value
    return os.path.normpath(cwd / value)


def parse_toml(data: bytes, origin: str) -> dict[str, object]:
    """Raises `UsageError` that names the file, and the line if there is one."""
    try:
        return read_toml(data)
    except ValueError as error:
        raise UsageError(
            f"{origin} is not valid TOML: {error}", subject=origin, hint=f"edit {origin}"
        ) from None


def with_value(document: dict[str, object], key: str, value: Json) -> dict[str, object]:
    """A copy of a config document with `key` set, or taken out where `value` is None. Raises `UsageError`."""
    if value is not None or not is_reserved(key):  # an older dsv let it be set, and it can be taken out
        check_key(key)
    if isinstance(value, str) and is_engines_key(key):
        value = json_or_text(value)
    return _placed(document, key.split("."), value)


def edited(text: str, key: str, changed: Mapping[str, object]) -> str | None:
    """A config file in which `key` has the value, or the absence, that `changed` says. Comments, the order of the
    tables and how values are written stay; only comments within what is removed go with it. None if the file is
    written in a way that can't be kept.
    """
    import tomlkit
    from tomlkit.exceptions import TOMLKitError

    wanted: object = changed
    for part in (parts := key.split(".")):
        wanted = wanted.get(part) if isinstance(wanted, Mapping) else None
    try:
        document = tomlkit.parse(text)
        _edit(document, parts, wanted)
        found = tomlkit.dumps(document)
        if read_toml(found.encode()) == changed:
            return found
    except (TOMLKitError, ValueError, TypeError, KeyError):
        pass
    return None


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


def _placed(document: dict[str, object], parts: list[str], value: Json) -> dict[str, object]:
    copy = dict(document)
    if len(parts) > 1:
        inner = copy.get(parts[0])
        changed = _placed(dict(inner) if isinstance(inner, dict) else {}, parts[1:], value)
        if changed:
            copy[parts[0]] = changed
        else:
            copy.pop(parts[0], None)
    elif value is None:
        copy.pop(parts[0], None)
    else:
        copy[parts[0]] = value
    return copy


def _flat(document: Mapping[str, object], prefix: str = "") -> Iterator[tuple[str, object]]:
    for key, value in document.items():
        if isinstance(value, dict) and not is_key(f"{prefix}{key}"):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value
