"""A test that hangs ends, whatever it hangs in, and says where it stood."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

# After an exception in the main thread, such as a signal's, a wait may never end: a thread that was stuck in its
# start holds the lock which every wait for the end of a thread needs.
DEADLOCKED = """
import threading
import pytest

def test_before():
    pass

@pytest.mark.timeout(6)
def test_deadlocked():
    def hold():
        lock.acquire()
        held.set()
        threading.Event().wait()

    lock, held = threading.Lock(), threading.Event()
    threading.Thread(target=hold, daemon=True).start()
    held.wait()
    try:
        threading.Event().wait()
    finally:
        while True:
            try:
                lock.acquire()
            except BaseException:
                pass

def test_after():
    pass
"""


# Up to three processes import all that tests share: that takes long on a machine that is busy with other tests.
@pytest.mark.timeout(600)
@pytest.mark.parametrize("workers", [0, 1])
def test_a_deadlocked_test_ends_with_the_stacks_of_all_threads(tmp_path: Path, workers: int) -> None:
    (tmp_path / "test_dead.py").write_text(DEADLOCKED)
    limits = ["-o", "faulthandler_timeout=3"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-c", str(ROOT / "pyproject.toml"), "--rootdir", str(tmp_path),
         "-p", "tests.conftest", "-p", "no:cacheprovider", "-n", str(workers), *limits, "test_dead.py"],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False, cwd=tmp_path, timeout=500,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    said = done.stdout
    assert done.returncode == 1, said
    for place in ("in hold\n", "in test_deadlocked\n"):
        assert place in said, said
    if workers:  # another worker has taken the place of the one that was ended
        assert "crashed while running 'test_dead.py::test_deadlocked'" in said
        assert "1 failed, 2 passed" in said
