"""Data for the nodes of a run: access to the store, the order for the record, and variables to meet."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

import msgspec

from dsv.errors import IntegrityError, Unsupported
from dsv.run.record import RunId, parse_name
from dsv.values.names import DatasetName


class StoreAccess(msgspec.Struct, frozen=True):
    """The data with which another machine can reach the store."""

    settings: str = ""
    """A configuration file that names the store as here; empty if the store has no name."""
    certificates: str = ""
    """The authorities to trust, as PEM."""
    folders: tuple[str, ...] = ()
    """The folders of a store in the file system."""
    profile: str | None = None
    """The key of the setting that names a profile of credentials, which other machines lack; None without one."""


NO_ACCESS: Final = StoreAccess()


LOWEST_PORT: Final = 20_000
PORTS: Final = 10_000
"""The number of ports from `LOWEST_PORT` on: below those that Linux gives to outgoing connections."""
BEATING: Final = "DSV_NODE_BEATS"
"""The variable that tells `dsv with` on a node whose signs of life to show."""
MEASURING: Final = "DSV_NODE_METRICS"
"""The variable that tells it whose metrics, as DATASET/RUN:FOLDER with the output folder."""
PASSED: Final = "DSV_JOB_"
"""The prefix of the job's variables in the environment of dsv on a node, where they thus have no effect."""


def node_environment(addresses: Sequence[str], port: int) -> dict[str, str]:
    """Return the variables that all nodes share, so that `torchrun` and `jax.distributed` need no flags.

    Each node also has NODE_RANK and PET_NODE_RANK. WORLD_SIZE counts nodes: `torchrun` replaces it for its
    processes, and a job with one process for each node can use it as it is.

    addresses: of the nodes, by rank, as the other nodes reach them; they meet at the first
    """
    count, main = str(len(addresses)), addresses[0]
    return {
        "MASTER_ADDR": main,
        "MASTER_PORT": str(port),
        "WORLD_SIZE": count,
        "PET_NNODES": count,
        "PET_MASTER_ADDR": main,
        "PET_MASTER_PORT": str(port),
    }


def meeting_port(run: str) -> int:
    """Return the port where a run's nodes meet, from the random digits of its id: hardly another run's."""
    digits = re.search(r"-([0-9a-f]+)$", run)
    return LOWEST_PORT + (0 if digits is None else int(digits[1], 16) % PORTS)


MAX_ORDER: Final = 4 << 20
OUTPUT_SECONDS: Final = 3600
"""Seconds that a machine of a cluster may take, once the command has ended, to send the output to the store."""
_VERSION: Final = 1


class NodeOrder(msgspec.Struct, frozen=True, kw_only=True):
    """The order to complete the record of a run on the node where its job ran."""

    version: int = _VERSION
    run: RunId
    dataset: DatasetName
    """Of the run's record."""
    out: str
    """The output folder."""
    log: bool = True
    """Keep the output of the command."""
    keep_output: bool = False
    """Commit the output folder into the store when the run is over."""
    author: str | None = None
    """The author of that commit."""
    beats: bool = False
    """Show signs of life of the run, for which others wait."""

    def encode(self) -> bytes:
        """Return a JSON object in one line."""
        return msgspec.json.encode(self, enc_hook=str)  # names and ids are subclasses of str

    @staticmethod
    def sends_output(text: str, run: str) -> bool:
        """Check that an order commits the output to the store. text: the encoded order; empty for none"""
        return bool(text) and NodeOrder.decode(text.encode(), run).keep_output

    @staticmethod
    def shown(text: str, run: str) -> dict[str, str]:
        """Return the variables that tell `dsv with` what to show of a run. text: the encoded order; empty for none"""
        if not text:
            return {}
        order = NodeOrder.decode(text.encode(), run)
        name = f"{order.dataset}/{order.run}"
        return {MEASURING: f"{name}:{order.out}", **({BEATING: name} if order.beats else {})}

    @classmethod
    def decode(cls, data: bytes, subject: str) -> NodeOrder:
        """Decode the order from `subject`. Raises `IntegrityError`, or `Unsupported` for a newer version."""
        try:
            order = _DECODER.decode(data)
        except msgspec.DecodeError as error:
            raise IntegrityError(
                f"{subject} is not an order for the nodes of a run: {error}", subject=subject
            ) from error
        if order.version > _VERSION:
            raise Unsupported(
                f"{subject} was written by a newer dsv", subject=subject, hint="update dsv on the nodes"
            )
        return order


_DECODER = msgspec.json.Decoder(NodeOrder, dec_hook=parse_name)
