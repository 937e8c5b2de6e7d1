"""The order that the nodes of a run are given: the access to the store, how to complete the record, and the variables
by which they meet."""

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
    """A configuration file that names the store as here; empty if it has no name."""
    certificates: str = ""
    """The authorities to trust, as PEM."""
    folders: tuple[str, ...] = ()
    """The folders of a store in the file system."""
    profile: str | None = None
    """The key of the setting that names a profile of credentials, which other machines lack; None without one."""


NO_ACCESS: Final = StoreAccess()


LOWEST_PORT: Final = 20_000
PORTS: Final = 10_000
"""The number of ports from the lowest on: below those that Linux gives to outgoing connections."""
PASSED: Final = "DSV_JOB_"
"""With this the names begin under which dsv on a node has the job's own variables, which thus change nothing there."""


def node_environment(addresses: Sequence[str], port: int) -> dict[str, str]:
    """Return the variables that all nodes of a job share, so that `torchrun` and `jax.distributed` need no further
    flags; each node has its NODE_RANK and PET_NODE_RANK besides.

    addresses: of all nodes by their ranks, as each of the others can reach them; the first is the one that they meet
    at. WORLD_SIZE counts nodes: `torchrun` replaces it for the processes that it starts, and a job with one process
    for each node can use it as it is.
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
    """Return the port at which the nodes of a run meet: the same on each node without asking, and hardly that of
    another run on the same machine. run: the id, which ends with random digits."""
    digits = re.search(r"-([0-9a-f]+)$", run)
    return LOWEST_PORT + (0 if digits is None else int(digits[1], 16) % PORTS)


MAX_ORDER: Final = 4 << 20
OUTPUT_SECONDS: Final = 3600
"""Seconds that a machine of a cluster may take, once the command has ended, to send the output to the store."""
_VERSION: Final = 1


class NodeOrder(msgspec.Struct, frozen=True, kw_only=True):
    """The order to complete the record of a run where its job ran."""

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

    def encode(self) -> bytes:
        """Return a JSON object in one line."""
        return msgspec.json.encode(self, enc_hook=str)  # names and ids are strings of their own kinds

    @staticmethod
    def sends_output(text: str, run: str) -> bool:
        """Check that an order sends the output to the store. text: as it was encoded; empty for none."""
        return bool(text) and NodeOrder.decode(text.encode(), run).keep_output

    @classmethod
    def decode(cls, data: bytes, subject: str) -> NodeOrder:
        """Decode the order that came from `subject`. Raise `IntegrityError`, or `Unsupported` for a newer version."""
        try:
            order = _DECODER.decode(data)
        except msgspec.DecodeError as error:
            raise IntegrityError(
                f"{subject} is no order for the nodes of a run: {error}", subject=subject
            ) from error
        if order.version > _VERSION:
            raise Unsupported(
                f"{subject} was written by a newer dsv", subject=subject, hint="update dsv on the nodes"
            )
        return order


_DECODER = msgspec.json.Decoder(NodeOrder, dec_hook=parse_name)
