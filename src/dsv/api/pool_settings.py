"""The pools of the configuration: read, and found to be right before anything is asked of them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from dsv.api.settings import POOL_FIELDS, Setting, Settings, check_key, is_name
from dsv.errors import NotFound, UsageError
from dsv.model.pool import HERE, Pool
from dsv.runs.engines import Engines, engine_of


def all_pools(settings: Settings) -> dict[str, Pool]:
    """Those that can be read, by name; nothing is checked."""
    return {name: _read(settings, name) for name in settings.names("pools")}


def engines_of(environ: Mapping[str, str], settings: Settings) -> Engines:
    """What makes the engine of a run that was started some time ago, perhaps by somebody else."""
    return Engines(environ, all_pools(settings))


def pools_to_try(settings: Settings, on: str | None) -> tuple[Pool, ...]:
    """The pools that a run may go to, in order: those that were typed, else those of the setting `pool`.

    None means this machine. Raises `UsageError`, `NotFound`.
    """
    setting = Setting("pool", on, "--on") if on is not None else settings.get("pool")
    if setting is None:
        return ()
    names = [name.strip() for name in setting.value.split(",")]
    for name in names:
        if not name:
            raise UsageError(
                f"{setting.value!r} has an empty name of a pool", subject=setting.value, hint="--on A,B"
            )
        if names.count(name) > 1:
            raise UsageError(f"the pool {name} is named twice", subject=name, hint="--on A,B")
    return tuple(load_pool(settings, name, setting.origin) for name in names)


def load_pool(settings: Settings, name: str, origin: str) -> Pool:
    """One pool, checked. origin: who asked for it. Raises `UsageError`, `NotFound`."""
    if name == HERE:
        return Pool(name=HERE, engine=None)
    if name not in settings.names("pools"):
        known = ", ".join([*settings.names("pools"), HERE])
        raise NotFound(
            f"no pool named {name} is configured (requested by {origin})",
            subject=name,
            hint=f"dsv config pools.{name}.engine ENGINE, or one of {known}",
        )
    for _, key in settings.unknown():
        if key.startswith(f"pools.{name}."):
            check_key(key)
    pool = _read(settings, name)
    if pool.engine is None:
        raise UsageError(
            f"the pool {name} has no engine", subject=name, hint=f"dsv config pools.{name}.engine docker"
        )
    engine_of(pool)
    for key in settings.table(f"pools.{name}."):
        table = key.partition(".")[0]
        if table not in (*POOL_FIELDS, pool.engine):
            raise UsageError(
                f"the pool {name} has the engine {pool.engine}, and settings of {table}",
                subject=f"pools.{name}.{table}",
                hint=f"dsv config --unset pools.{name}.{key}",
            )
    if pool.out is not None and not pool.out.startswith("/"):
        raise UsageError(
            f"pools.{name}.out is the relative folder {pool.out}",
            subject=f"pools.{name}.out",
            hint=f"dsv config pools.{name}.out /…/{pool.out}",
        )
    return pool


def cache_folder(settings: Settings, pool: Pool) -> Path | None:
    """The folder of its cache, as far as this machine may see it; None for what only its engine understands.

    Raises `UsageError`, `NotFound` for a name that is not configured.
    """
    if pool.cache is None:
        return settings.cache().path
    if is_name(pool.cache) and ":" not in pool.cache:
        return settings.cache_of(Setting("cache", pool.cache, f"pools.{pool.name}.cache")).path
    if pool.cache.startswith(("/", "~/")):
        return settings.home / pool.cache[2:] if pool.cache.startswith("~/") else Path(pool.cache)
    return None


def _read(settings: Settings, name: str) -> Pool:
    table = settings.table(f"pools.{name}.")
    plain = {field: str(table[field][0]) for field in POOL_FIELDS if field in table}
    engine = plain.get("engine")
    prefix = f"{engine}."
    options = {key.removeprefix(prefix): value for key, (value, _) in table.items() if key.startswith(prefix)}
    return Pool(name=name, engine=engine, cache=plain.get("cache"), out=plain.get("out"), options=options)
