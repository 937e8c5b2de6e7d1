"""How tests are spread over the workers of pytest-xdist."""

from __future__ import annotations

import re

from xdist.scheduler import LoadScopeScheduling
from xdist.workermanage import WorkerController

# Hosts have numbers. Those of tests/nfs have the upper ones, and stay up from test to test; the others boot the lower
# ones. Their tests last longest and wait most of the time: two workers begin with them, so both sets run at once.
# A test takes nodes away from a cluster, and ends every job that the test before it left there: one at a time.
_SHARED = {
    "slurm_nodes": re.compile(r"tests/\w+/test_slurm"),
    "kubernetes": re.compile(r"tests/\w+/test_kubernetes"),
    "nfs_hosts, which stay up": re.compile(r"tests/nfs/"),
    "nfs_hosts": re.compile(r"tests/(labs/|\w+/test_nfs)"),
}
# Each of these takes minutes on a busy machine, or waits that long: begun last, one of them would run alone.
_LONG = re.compile(
    r"tests/(real/|test_hanging|upkeep/test_(gc_rounds|year)|counts/test_requests|cli/test_(demo|verify)"
    r"|stores/test_(names_moving|winners_that_change|names_elsewhere|policies))"
)
_ONE_WORKER = re.compile(r"(tests/(test_layers|test_site|counts/test_walks|counts/test_filesystem)\.py)::")
"""Their tests look at one thing that takes ten seconds to make, which one worker makes for all of them."""
EXCLUSIVE = {
    "nfs_hosts": "test_nfs*.py",
    "slurm_nodes": "test_slurm*.py",
    "kubernetes": "test_kubernetes*.py",
}
"""The fixtures that only one test may use at a time, with the files that such tests lie in."""


def shared_by(nodeid: str) -> str | None:
    """The hosts or the cluster that a test has for itself while it runs, by its file; None: none."""
    return next((name for name, files in _SHARED.items() if files.match(nodeid)), None)


class Scheduling(LoadScopeScheduling):  # type: ignore[misc]
    """Each test goes to any worker that is free, but all of one set of hosts or of one cluster to one worker."""

    long_first = True

    def _split_scope(self, nodeid: str) -> str:
        one = _ONE_WORKER.match(nodeid)
        return shared_by(nodeid) or (one[1] if one else nodeid)

    def remove_node(self, node: WorkerController) -> str | None:
        """As the base does, but the test that ended its worker has failed, and is not begun again by the next one."""
        units = self.assigned_work[node]
        crashed = next((test for unit in units.values() for test, done in unit.items() if not done), None)
        for scope, unit in list(units.items()):
            if crashed in unit:
                unit[crashed] = True
            if all(unit.values()):
                del units[scope]
        super().remove_node(node)
        return crashed

    def schedule(self) -> None:
        """As the base does, but long tests come first, after those that share hosts or a cluster.

        A worker that takes the place of another begins even if there is only one unit for it.
        """
        replaces = self.collection is not None
        super().schedule()
        first = [scope for scope in self.workqueue if scope in _SHARED]
        if self.long_first:
            first += [scope for scope in self.workqueue if _LONG.match(scope)]
        for scope in reversed(first):
            self.workqueue.move_to_end(scope, last=False)
        for node in self.nodes if replaces else ():
            self._reschedule(node)  # a worker runs a test when it knows the next one, or that there is none


class NearestFirst(Scheduling):
    """Begins the tests in the order of their files, although some are long."""

    long_first = False
