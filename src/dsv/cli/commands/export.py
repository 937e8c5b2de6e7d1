"""dsv export."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dsv.api.export import export_folder, export_stream, export_tar
from dsv.cli.call import Call
from dsv.cli.declare import command
from dsv.errors import UsageError
from dsv.model.names import Target
from dsv.model.units import format_bytes, format_count

TARS = (".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tar.xz")


@command(
    "export",
    unused=["--cache"],
    examples=[
        ("dsv export chest-xray@v1 xrays.tar.gz", "one file to hand on"),
        ("dsv export chest-xray@v1:val - | ssh lab tar x -C /data", "a folder, as a tar on stdout"),
        ("dsv export chest-xray@v1 xrays", "a folder of plain files that nobody has to release"),
    ],
    result={
        "commit": "the commit",
        "to": "what was written",
        "paths": "paths written, with symlinks and empty folders",
        "files": "files written",
        "bytes": "their size",
    },
)
def export(
    call: Call,
    typed: Annotated[str, typer.Argument(metavar="TARGET")],
    to: Annotated[str, typer.Argument(metavar="DIR|FILE.tar|-")],
) -> None:
    """Write the files of a commit as a tar or a folder.

    TARGET is [DATASET][@REV][:PATH]; names in the tar begin below PATH. A file that ends with .tar, .tar.gz, .tgz,
    .tar.bz2 or .tar.xz is a tar, - is a tar on stdout, and anything else is a folder, which must not be there yet.
    Every byte is checked against its id. A file or a folder appears when it is whole. Of a tar on stdout the exit code
    says whether it is.
    """
    target = Target.parse(typed)
    if "://" in to:
        raise UsageError(
            f"{to} is a URL, and dsv exports to files and folders", subject=to, hint="dsv export TARGET -"
        )
    with call.context() as context:
        if to == "-":
            call.out.stream()
            export_stream(context, target, call.out)  # type: ignore[arg-type]
            return
        done = (export_tar if to.endswith(TARS) else export_folder)(context, target, Path(to))
    if call.json:
        document = {"commit": str(done.commit), "to": to, "paths": done.paths}
        call.document({**document, "files": done.files, "bytes": done.bytes})
    else:
        call.say(f"{to}: {format_count(done.files, 'file')}, {format_bytes(done.bytes)}")
