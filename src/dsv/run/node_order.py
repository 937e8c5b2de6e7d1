"""The order for the nodes of a run: the data, the store, and the variables of their rendezvous."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from dsv.errors import IntegrityError, Unsupported, UsageError
from dsv.run.record import RunId
from dsv.values.ids import CommitId
from dsv.values.json import Json
from dsv.values.names import DatasetName, Rev, Target


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


def node_environment(rank: int, addresses: Sequence[str], port: int) -> dict[str, str]:
    """Return the variables of node `rank` of a job, so that `torchrun` and `jax.distributed` need no further flags.

    addresses: of all nodes by their ranks, as each of the others can reach them; the first is the one that they meet
    at. WORLD_SIZE and NODE_RANK count nodes: `torchrun` replaces WORLD_SIZE for the processes that it starts, and a
    job with one process for each node can use it as it is.
    """
    if not 0 <= rank < len(addresses):
        raise ValueError(f"there is no node {rank} of {len(addresses)}")
    count, main = str(len(addresses)), addresses[0]
    return {
        "MASTER_ADDR": main,
        "MASTER_PORT": str(port),
        "WORLD_SIZE": count,
        "NODE_RANK": str(rank),
        "PET_NNODES": count,
        "PET_NODE_RANK": str(rank),
        "PET_MASTER_ADDR": main,
        "PET_MASTER_PORT": str(port),
    }


def meeting_port(run: str) -> int:
    """Return the port at which the nodes of a run meet: the same on each node without asking, and hardly that of
    another run on the same machine. run: the id, which ends with random digits."""
    return LOWEST_PORT + int(run.rpartition("-")[2], 16) % PORTS


MAX_ORDER: Final = 4 << 20
OUTPUT_SECONDS: Final = 3600
"""Seconds that a machine of a cluster may take, once the command has ended, to send the output to the store."""
_VERSION: Final = 1


class OrderedData(msgspec.Struct, frozen=True, kw_only=True):
    """One commit, or a path of it."""

    name: str = ""
    """Of `--data`; empty for the target itself."""
    dataset: str
    commit: str
    path: str | None = None
    at: str | None = None
    """The path that the command sees, if it is not the one in the cache: in a container for instance."""

    def target(self) -> Target:
        """Return the data's target. Raise `UsageError` if a part of it is invalid."""
        path = None if self.path is None else self.path.encode("utf-8", "surrogateescape")
        return Target(DatasetName.parse(self.dataset), Rev(str(CommitId.parse(self.commit))), path)


class NodeOrder(msgspec.Struct, frozen=True, kw_only=True):
    """The instructions for dsv on the nodes of a run."""

    version: int = _VERSION
    run: str
    data: tuple[OrderedData, ...]
    """The target of the run comes first."""
    code: OrderedData | None = None
    """The commit of the code, if it was committed."""
    out: str | None = None
    """The output folder; None if dsv makes one on the node."""
    out_at: str | None = None
    """The path of the output folder for the command."""
    params: dict[str, Json] = {}
    nodes: int = 1
    """The number of nodes."""
    retries: int = 0
    """The number of further attempts, to tell whether the run is over."""
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
            RunId.parse(order.run)
            for each in order.all_data:
                each.target()
        except (msgspec.DecodeError, UsageError) as error:
            raise IntegrityError(
                f"{subject} is no order for the nodes of a run: {error}", subject=subject
            ) from error
        if order.version > _VERSION:
            raise Unsupported(
                f"{subject} was written by a newer dsv", subject=subject, hint="update dsv on the nodes"
            )
        if not order.data or order.data[0].name or order.nodes < 1:
            raise IntegrityError(f"{subject} is no order for the nodes of a run", subject=subject)
        return order

    @property
    def all_data(self) -> tuple[OrderedData, ...]:
        """The data that a node stages, and the code if there is any."""
        return self.data if self.code is None else (*self.data, self.code)

    @property
    def dataset(self) -> DatasetName:
        """Of the target, and so of the run's record."""
        return DatasetName.parse(self.data[0].dataset)


_DECODER = msgspec.json.Decoder(NodeOrder)
