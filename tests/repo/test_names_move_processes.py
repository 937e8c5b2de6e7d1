"""Names that move, with processes that stand still, or are killed, between two requests."""

from __future__ import annotations

import signal
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

from dsv.format import keys
from dsv.values.names import MAIN, DatasetName
from tests.kit.dsv import Dsv, plain_environment, write_files
from tests.waiting import PATIENCE, until

STANDS_STILL = """
import sys, time
from pathlib import Path
from dsv.cli.main import main
from {module} import {owner}

mark, call = Path(sys.argv.pop(1)), {owner}.{step}

def stand_still(*arguments, **options):
    mark.touch()
    while mark.exists():
        time.sleep(0.01)
    return call(*arguments, **options)

{owner}.{step} = stand_still
sys.exit(main())
"""
KILLED = """
import os, signal, sys
from dsv.cli.main import main
from dsv.repo.refs_location import NamesPlace
NamesPlace._changed = lambda place: os.kill(os.getpid(), signal.SIGKILL)
sys.exit(main())
"""


def test_a_rule_is_noted_on_no_move_that_was_left_behind(tmp_path: Path) -> None:
    """Somebody is killed whose sync came too late for the copy. Another reads it as the head, and hears that the
    names have moved when it adds a rule; the note behind that is a move of the branch, and follows what is there now.
    """
    home, work, copy = (tmp_path / name for name in ("home", "work", "copy"))
    data, old, new = (tmp_path / name for name in ("data", "old", "new"))
    for folder in (home, work, data):
        folder.mkdir()
    ann = Dsv(home, work, plain_environment(home))
    ann.ok("config", "stores.grid.url", str(data))
    ann.ok("config", "stores.grid.names", str(old))
    ann.ok("config", "store", "grid")
    ann.ok("init", "xrays")
    write_files(work, {"a.txt": b"a"})
    first = ann.ok("sync", "--json").json["commit"]
    ann.ok("clone", "xrays", str(copy))
    with ExitStack() as stack:

        def begin(script: str, *arguments: str, cwd: Path = work) -> subprocess.Popen[bytes]:
            argv = [sys.executable, "-c", script, *arguments]
            process = subprocess.Popen(argv, cwd=cwd, env=dict(ann.environ), stderr=subprocess.PIPE)
            stack.enter_context(process)
            stack.callback(process.kill)
            return process

        def begin_and_stop(step: str, mark: Path, *arguments: str) -> subprocess.Popen[bytes]:
            module, owner, name = step.split()
            script = STANDS_STILL.format(module=module, owner=owner, step=name)
            process = begin(script, str(mark), *arguments)
            until(lambda: mark.exists() or process.poll() is not None)
            assert process.poll() is None, process.communicate()[1]
            return process

        copied, read = tmp_path / "copied", tmp_path / "read"
        mover = begin_and_stop("dsv.repo.move_refs NamesMove decide", copied, "store", "move-names", str(new))
        write_files(copy, {"late.txt": b"late"})
        assert begin(KILLED, "sync", cwd=copy).wait(PATIENCE) == -signal.SIGKILL
        protecting = begin_and_stop(
            "dsv.repo.repository Repository add_feature", read, "branch", "--protect", "main", "--only-merge"
        )
        copied.unlink()
        assert mover.wait(PATIENCE) == 0
        read.unlink()
        assert protecting.wait(PATIENCE) == 0, protecting.communicate()[1]
    ann.ok("config", "stores.grid.names", str(new))
    prefix = new / keys.branch_prefix(DatasetName.parse("xrays"), MAIN)
    assert all(
        (new / keys.branch_key(DatasetName.parse("xrays"), MAIN, number)).exists() for number in range(3)
    )
    assert len([path for path in prefix.iterdir() if path.is_file()]) == 4  # and the rule
    moves = ann.ok("log", "--reflog", "main", "--json").json["moves"]
    assert [item["commit"] for item in moves if item["commit"]] == [first, first]
