"""Looking at processes that are not this one's children."""

from __future__ import annotations

from pathlib import Path


def running(pid: int) -> bool:
    """Return whether the process exists and is no zombie that its parent has yet to collect."""
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False
