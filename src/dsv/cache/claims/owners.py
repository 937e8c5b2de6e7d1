"""Who holds a claim: a random id, and enough about the process to see at once, on its own host, that it died.

The id decides; the rest only lets a process of the same kernel, which alone can know, skip the wait for an expiry.
"""

from __future__ import annotations

import os

import msgspec

from dsv.fs.process import Fate, Process, host_name, user_name


class Owner(msgspec.Struct, frozen=True, forbid_unknown_fields=False):
    """One holder of claims. Two are the same only if their `id` is.

    kernel, pid, start: see `fs.process.Process`.
    host, user: for people to read, never compared.
    """

    id: str
    host: str = ""
    user: str = ""
    kernel: str = ""
    pid: int = 0
    start: int = 0

    @classmethod
    def new(cls) -> Owner:
        """A new owner in this process; ask for one per claim or worker, and again after a fork."""
        here = Process.here()
        return cls(os.urandom(16).hex(), host_name(), user_name(), here.kernel, here.pid, here.start)

    def same_process(self, other: Owner) -> bool:
        """False only if it is known that these are claims of two processes."""
        return self._process == other._process

    def surely_dead(self) -> bool:
        """True only if this kernel knows that the process is gone; False: alive, or not for us to know."""
        return self._process.fate() is Fate.DEAD

    @property
    def _process(self) -> Process:
        return Process(self.kernel, self.pid, self.start)
