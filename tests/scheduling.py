"""How tests are spread over the workers of pytest-xdist."""

from __future__ import annotations

import re

from xdist.scheduler import LoadScopeScheduling

# Hosts have numbers. Those of tests/nfs have the upper ones, and stay up from test to test; the others boot the lower
# ones. Their tests last longest and wait most of the time: two workers begin with them, so both sets go on at once.
_HOSTS = {
    "hosts that stay up": re.compile(r"tests/nfs/"),
    "hosts of one test": re.compile(r"tests/(labs/|\w+/test_nfs)"),
}


def hosts_of(nodeid: str) -> str | None:
    """Which set of hosts a test is for, by its file; None: for none."""
    return next((name for name, files in _HOSTS.items() if files.match(nodeid)), None)


class Scheduling(LoadScopeScheduling):  # type: ignore[misc]
    """Each test goes to any worker that is free, but all of one set of hosts to one worker."""

    def _split_scope(self, nodeid: str) -> str:
        return hosts_of(nodeid) or nodeid
