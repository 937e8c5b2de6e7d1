"""For tests that watch, or upset, the system calls of a process."""

from __future__ import annotations

import os
import shutil
import subprocess

import pytest


def needs_strace() -> None:
    """Skips the test where strace is missing, or may not trace."""
    if shutil.which("strace") is None:
        reason = "needs strace (apt install strace)"
    elif subprocess.run(["strace", "-c", "true"], capture_output=True, check=False).returncode:
        reason = "strace may not trace here (ptrace is not allowed)"
    else:
        return
    if os.environ.get("DSV_REQUIRE_LABS") == "1":
        pytest.fail(f"{reason}, and DSV_REQUIRE_LABS=1 allows no skip")
    pytest.skip(reason)
