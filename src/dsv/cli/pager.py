"""Show output in a pager, as git does."""

from __future__ import annotations

import shutil
import signal
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from typing import Final

from dsv.cli.output import CommandOutput

NOT_STARTED: Final = (126, 127)
"""Exit codes of a shell that could not start the command."""


def show_in(line: str, out: CommandOutput, environ: Mapping[str, str]) -> None:
    """Show what `out` holds in a pager, and wait for its end. If it can't be started, `out` holds everything still.

    line: the command line, for the shell."""
    if not any(out.held()) or (" " not in line and shutil.which(line, path=environ.get("PATH")) is None):
        return
    # -F: end at once if everything fits; R: show colours; X: leave the text on the screen.
    environ = {"LESS": "FRX", "LV": "-c", **environ}
    before = signal.signal(signal.SIGINT, lambda *_: None)  # Ctrl-C is for the pager, which has the terminal
    try:
        with subprocess.Popen(line, shell=True, stdin=subprocess.PIPE, bufsize=0, env=environ) as pager:
            assert pager.stdin is not None
            with suppress(BrokenPipeError):  # its user has read enough
                for data in out.held():
                    view = memoryview(data)
                    while view:
                        view = view[pager.stdin.write(view) :]
    finally:
        signal.signal(signal.SIGINT, before)
    if pager.returncode not in NOT_STARTED:
        out.discard()
