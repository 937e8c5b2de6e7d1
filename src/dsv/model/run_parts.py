"""The part of a run that one node leaves in one attempt, as an object of its own beside the run's record.

part-<node>-<attempt>    how it ended there: JSON
log-<node>-<attempt>     what it wrote there
"""

from __future__ import annotations

import json
import re
from dataclasses import asdict
from typing import Final

import msgspec

from dsv.errors import IntegrityError, Unsupported
from dsv.model.json_values import finite_number, whole_number
from dsv.model.run import Usage
from dsv.model.run_end import RunPart

MAX_PART: Final = 1 << 20
"""Bytes of one part: little but the error in it can be long."""

_NAME = re.compile(r"(part|log)-(0|[1-9][0-9]{0,4})-([1-9][0-9]{0,4})", re.ASCII)
_VERSION: Final = 1


def part_name(node: int, attempt: int) -> str:
    """The last component of its key."""
    return f"part-{node}-{attempt}"


def node_log_name(node: int, attempt: int) -> str:
    """The last component of its key."""
    return f"log-{node}-{attempt}"


def parse_part_name(name: str) -> tuple[str, int, int] | None:
    """`part` or `log`, the node, the attempt; None for any other name."""
    match = _NAME.fullmatch(name)
    return None if match is None else (match[1], int(match[2]), int(match[3]))


def encode_part(part: RunPart, usage: Usage | None = None) -> bytes:
    """ASCII JSON. usage: what the command took there."""
    document = {"kind": "dsv run part", "version": _VERSION, **asdict(part)}
    if usage is not None:
        document["usage"] = asdict(usage)
    return json.dumps(document, indent=1, allow_nan=False).encode("ascii") + b"\n"


def decode_part(data: bytes, subject: str) -> tuple[RunPart, Usage | None]:
    """Raises `IntegrityError`, or `Unsupported` for a newer version; `subject` is the key."""
    try:
        document = json.loads(
            data, parse_int=whole_number, parse_float=finite_number, parse_constant=finite_number
        )
    except (ValueError, RecursionError) as error:
        raise IntegrityError(f"{subject} is no JSON", subject=subject) from error
    if not isinstance(document, dict) or document.get("kind") != "dsv run part":
        raise IntegrityError(f"{subject} is no part of a run", subject=subject)
    version = document.get("version")
    if isinstance(version, int) and version > _VERSION:
        raise Unsupported(f"{subject} was written by a newer dsv", subject=subject, hint="update dsv")
    try:
        part = msgspec.convert(document, RunPart)
        usage = msgspec.convert(document.get("usage"), Usage | None)
    except msgspec.ValidationError as error:
        raise IntegrityError(f"{subject} is no part of a run: {error}", subject=subject) from error
    named = parse_part_name(subject.rpartition("/")[2])
    if named is not None and named[1:] != (part.node, part.attempt):
        raise IntegrityError(f"{subject} holds the part of another node or attempt", subject=subject)
    return part, usage


# msgspec learns a dataclass when it first meets it; see `run`.
msgspec.json.Decoder(RunPart)
