"""dsv demo: the whole tour, by real commands in a temporary folder."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from dsv.cli.call import Call
from dsv.cli.declare import command


@command(
    "demo",
    unused=["--store", "--cache", "-C"],
    examples=[
        ("dsv demo", "the whole tour, in seconds, with nothing but this machine"),
        ("dsv demo --engine process", "without a container, even if an engine is installed"),
    ],
    result={"items.command": "a command as it was typed", "items.output": "what it printed"},
)
def demo(
    call: Call,
    engine: Annotated[
        Literal["docker", "podman", "process"] | None,
        typer.Option(
            "--engine",
            metavar="[docker|podman|process]",
            help="What runs the jobs, instead of the best that answers.",
        ),
    ] = None,
) -> None:
    """Take the whole tour in a temporary folder.

    Makes a small dataset, syncs, changes and tags it, caches it, runs jobs on it and evicts it again: real
    commands with their real output, over a store and a cache in a folder that is gone afterwards. It needs no
    network, and reads and writes nothing else of yours.
    """
    import shutil
    import tempfile
    from pathlib import Path

    from dsv.cli.demo_tour import Tour

    if call.around.stdout_is_terminal and not call.json:
        call.out.stream()
    folder = Path(tempfile.mkdtemp(prefix="dsv-demo-"))
    try:
        tour = Tour(folder, call.around.environ, (lambda line: None) if call.json else call.line)
        tour.take(engine)
    finally:
        _writable(folder)
        shutil.rmtree(folder, ignore_errors=True)
    if call.json:
        call.results(tour.steps)


def _writable(folder: object) -> None:
    """Cached folders may be read-only, and then their files can't be removed."""
    import os

    for root, folders, _ in os.walk(str(folder)):
        for name in folders:
            path = os.path.join(root, name)  # noqa: PTH118 (os.walk deals in strings)
            if not os.path.islink(path):  # noqa: PTH114
                os.chmod(path, 0o700)  # noqa: PTH101
