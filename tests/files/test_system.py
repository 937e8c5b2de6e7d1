"""System calls that Python lacks."""

from __future__ import annotations

import subprocess
import sys

import pytest

_COUNT = """
import ctypes, resource, sys
from concurrent.futures import ThreadPoolExecutor
from dsv.files.system import reuse_freed_memory

ctypes.CDLL(None).prctl(41, 1, 0, 0, 0)  # PR_SET_THP_DISABLE: with huge pages there are few faults
if sys.argv[1] == "reused":
    reuse_freed_memory()
with ThreadPoolExecutor(8) as pool:
    for at in range(0, 160, 8):  # as ranges are read: eight at a time, each freed by another thread than made it
        for made in list(pool.map(lambda _: bytearray(b"x") * (8 << 20), range(8))):
            del made
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only glibc has the setting")
def test_freed_buffers_are_used_again_by_all_threads() -> None:
    def faults(how: str) -> int:
        done = subprocess.run([sys.executable, "-c", _COUNT, how], capture_output=True, text=True, check=True)
        return int(done.stdout)

    # 160 buffers of 2,048 pages; those of one round are 16,384.
    assert faults("reused") * 3 < faults("as it is")
