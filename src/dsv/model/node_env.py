"""The variables by which the nodes of one job find each other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

LOWEST_PORT: Final = 20_000
PORTS: Final = 10_000
"""How many ports are in use from the lowest on: below those that Linux gives to outgoing connections."""
PASSED: Final = "DSV_JOB_"
"""With this the names begin under which dsv on a node has the job's own variables, which thus change nothing there."""


def node_environment(rank: int, addresses: Sequence[str], port: int) -> dict[str, str]:
    """What node `rank` of a job gets, so that `torchrun` and `jax.distributed` need no further flags.

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
    """The port at which the nodes of a run meet: the same on each node without asking, and hardly that of another run
    on the same machine. run: the id, which ends with random digits."""
    return LOWEST_PORT + int(run.rpartition("-")[2], 16) % PORTS
