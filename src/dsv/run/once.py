"""The key of a run that is not repeated: a digest of all that decides its result, and of nothing else.

Runs with equal keys have equal results. The key is made of a document, which can be made again from the run's record.
docs/internals/format-writing.md has its members.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from difflib import SequenceMatcher
from typing import Final

from blake3 import blake3

from dsv.errors import IntegrityError
from dsv.run.record import RunRecord
from dsv.values.json import Json, as_text, flattened, is_text

CONTEXT: Final = "dsv 2026-11 once v1"
_SHOWN: Final = 60
"""Characters of a value in a difference."""


def document(record: RunRecord, values: Mapping[str, str]) -> dict[str, Json]:
    """Return what decides the result of a run, whose `once` has all but the key.

    values: of the variables whose values count. Raises `IntegrityError` if the record lacks the root of a tree.
    """
    once, code = record.once, record.code
    if once is None or any(data.root is None for data in record.data) or (code is not None and not code.root):
        raise IntegrityError(f"the record of run {record.run} does not have all that decides its result")
    members = {
        "data": {data.name: data.root for data in record.data},
        "code": None if code is None else code.root,
        **({"image": once.image} if once.image else {"engine": "process", "system": once.system}),
        "command": list(record.command),
        "params": record.params,
        "files": once.files,
        "env": {name: values.get(name) for name in record.env},
        **{name: getattr(record, name) for name in ("gpus", "gpu_type", "tpu", "tpu_topology", "nodes")},
        "engine_args": list(record.engine_args),
        "keys": once.keys,
        "erased": sorted(once.erased),
    }
    return {name: value for name, value in members.items() if value not in (None, [], {})}


def key_of(document: Mapping[str, Json]) -> str:
    """Return the key as 64 hex digits."""
    import rfc8785

    return blake3(rfc8785.dumps(in_rfc8785(document)), derive_key_context=CONTEXT).hexdigest()


def in_rfc8785(value: Json) -> Json:
    """Return a JSON value as RFC 8785 can hold it, so that different values stay different: integers beyond 2^53 and
    floats without a fraction as `$int:` and `$float:` with the number, text with half characters as `$text:` with
    its UTF-16BE in hex. Other text that begins with `$` gets another `$`."""
    if isinstance(value, Mapping):
        return {in_rfc8785(name): in_rfc8785(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [in_rfc8785(each) for each in value]
    if isinstance(value, str) and not is_text(value):
        return f"$text:{value.encode('utf-16-be', 'surrogatepass').hex()}"
    if isinstance(value, str) and value.startswith("$"):
        return f"${value}"
    if isinstance(value, float) and value.is_integer():
        return f"$float:{value!r}"
    return f"$int:{value}" if isinstance(value, int) and abs(value) >= 1 << 53 else value


def computed_again(record: RunRecord) -> str | None:
    """Return the key of a recorded run, made from its record alone; None if that does not have all of it."""
    with suppress(IntegrityError):
        return None if record.once is None or record.once.values else key_of(document(record, {}))
    return None


def differences(mine: Mapping[str, Json], theirs: Mapping[str, Json]) -> tuple[str, ...]:
    """Return what changed from their document to mine, in words: `command --size 64 -> --size 96`. The values of
    variables are not shown."""
    before, now = flattened(theirs), flattened(mine)
    changed = []
    for name in dict.fromkeys((*before, *now)):
        old, new = before.get(name), now.get(name)
        if name in before and name in now and json.dumps(old) == json.dumps(new):
            continue
        if name.startswith("env."):
            old, new = ("set" if name in side else None for side in (before, now))
        elif name in ("command", "engine_args", "erased"):
            old, new = _words_that_differ(old or [], new or [])
        shown = _short(old), _short(new)
        what = " -> ".join(shown) if shown[0] != shown[1] else "has another value"
        changed.append(f"{name.rstrip('.')} {what}")
    return tuple(changed)


def _words_that_differ(before: list[str], now: list[str]) -> tuple[list[str], list[str]]:
    """Return the words that differ, after the option that they belong to."""
    changes = [row for row in SequenceMatcher(None, before, now, False).get_opcodes() if row[0] != "equal"]
    start = changes[0][1]
    start -= start > 0 and before[start - 1].startswith("-")
    return before[start : changes[-1][2]], now[start : changes[-1][4]]


def _short(value: Json) -> str:
    text = "none" if value in (None, "", []) else as_text(value)
    if len(text) == 64 and not text.strip("0123456789abcdef"):
        return text[:12]
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"
