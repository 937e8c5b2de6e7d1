"""How tests are spread over the workers of pytest-xdist."""

from __future__ import annotations

import re

from xdist.scheduler import LoadScopeScheduling

# Hosts have numbers, and their tests last longest: one worker begins with them and keeps them.
ON_HOSTS = re.compile(r"tests/(nfs/|labs/|\w+/test_nfs)")


class Scheduling(LoadScopeScheduling):  # type: ignore[misc]
    """Each test goes to whoever is free, but all that boot hosts on NFS to one worker."""

    def _split_scope(self, nodeid: str) -> str:
        return "hosts" if ON_HOSTS.match(nodeid) else nodeid
