"""A pool: machines with one engine and one cache, as the configuration names them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from dsv.model.json_values import Json

DEFAULT_WAIT: Final = 15 * 60
"""Seconds that a job waits in the queue of one pool before it moves to the next."""
HERE: Final = "here"
"""The name of what needs no configuration: this machine, with the cache in effect."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool:
    """cache: its folder, as the machines of the pool have it; None for the cache in effect here. out: the folder in
    which runs get their output folders; None for one among the user's state. options: what its engine needs to know,
    as its table in the configuration has it. engine: None for `HERE`, which takes the one that answers."""

    name: str
    engine: str | None
    cache: str | None = None
    out: str | None = None
    options: Mapping[str, Json] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PassedOver:
    """A pool that a run did not go to, and why: in half a sentence."""

    pool: str
    reason: str
