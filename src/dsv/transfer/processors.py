"""How many processors there are to work with."""

from __future__ import annotations

import os
import sys


def processors() -> int:
    """Those that this process may use, which a batch system may have made fewer than the machine has."""
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
