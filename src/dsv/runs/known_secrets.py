"""The secrets of a run, as far as whoever completes its record knows them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Self

from dsv.model.json_values import Json
from dsv.model.node_env import PASSED
from dsv.model.run import RunRecord
from dsv.model.secret_shapes import HIDDEN
from dsv.model.secrets import Masker


@dataclass(frozen=True, slots=True)
class KnownSecrets:
    """masker: hides those that are known. unknown: what may hold others, in words."""

    masker: Masker = field(repr=False)
    unknown: tuple[str, ...]

    @classmethod
    def elsewhere(cls, record: RunRecord, environ: Mapping[str, str]) -> Self:
        """On a machine that has no more than the record and an environment of its own."""
        given = {name: environ[name] for name in record.env if name in environ}
        return cls._of(record, given, environ, record.command, record.params)

    @classmethod
    def on_node(cls, record: RunRecord, environ: Mapping[str, str], command: Sequence[str] | None) -> Self:
        """On a node of the run, which has the values that the job was given. command: as it was typed."""
        given = {name: environ[PASSED + name] for name in record.env if PASSED + name in environ}
        params: Mapping[str, Json] = record.params
        with suppress(KeyError, ValueError):
            params = json.loads(environ[f"{PASSED}DSV_PARAMS"])
        return cls._of(record, given, environ, record.command if command is None else command, params)

    @classmethod
    def _of(
        cls,
        record: RunRecord,
        given: Mapping[str, str],
        environ: Mapping[str, str],
        command: Sequence[str],
        params: Mapping[str, Json],
    ) -> Self:
        masker = Masker.of(given, environ, command, params)
        unknown = [name for name in record.env if name not in given]
        told = [record.engine_args]
        told += [record.command] if tuple(command) == record.command else []
        shown = [*told, record.params] if params == record.params else told
        if HIDDEN in json.dumps(shown):
            unknown.append("the command or the parameters")
        return cls(masker, tuple(unknown))
