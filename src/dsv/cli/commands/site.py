"""dsv site."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from dsv.api.context import Context
from dsv.cli.call import Call
from dsv.cli.declare import argument, command, option
from dsv.errors import UsageError
from dsv.files.errors import about
from dsv.files.small_files import replace_file
from dsv.values.names import DatasetName
from dsv.values.units import format_bytes, format_count

Html = Annotated[str | None, option("--html FILE", "Write a page for a browser, all in one file.")]


def write_page(
    call: Call, context: Context, file: str, datasets: Sequence[DatasetName], kind: str, *ids: object
) -> None:
    """Write a page as one file. datasets: those that it is about. kind, ids: as `one_page` takes them."""
    from dsv.site.build import one_page

    path, data = Path(file).absolute(), one_page(context, call.around.environ, datasets, kind, *ids)
    with about(path):
        replace_file(path, data)
    call.say(f"{path}: {format_bytes(len(data))}")


@command(
    "site",
    examples="""
        dsv site pages  # of all datasets, their runs and the cache; then open pages/index.html
        dsv site pages chest-xray  # of one dataset
        dsv site --serve chest-xray  # the same, always as it is now; open the address that it prints
    """,
    result="index pages written removed",
)
def site(
    call: Call,
    words: list[str] | None = argument("[DIR] [DATASET]..."),
    live: bool = option("--serve", "Show the pages as they are now, to this user of this machine."),
) -> int:
    """Write pages that show datasets, runs and caches in a browser.

    The pages need no server and no network: they open from DIR, a bucket or a mail attachment. The same command later
    writes what has changed, and deletes the pages and images of what is no longer there, or was erased. DIR has to be
    new, or from an earlier call. With --serve there is no DIR: the address has a token, without which nothing is shown.
    """
    folder, *names = ["", *(words or [])] if live else words or [""]
    chosen = [DatasetName.parse(text) for text in names]
    if not live and not folder:
        raise UsageError("dsv site needs a folder", hint="dsv site DIR, or dsv site --serve")
    with call.context() as context:
        if live:
            from dsv.site.serve import serve

            call.out.stream()
            serve(context, call.around.environ, chosen, call.line)
            return 0
        from dsv.site.build import make_site

        made, problems = make_site(context, call.around.environ, Path(folder).absolute(), chosen)
    call.result(made)
    call.line(str(made.index))
    for problem in problems:
        call.complain(problem)
    call.say(f"{format_count(made.pages, 'page')}; {made.written:,} written, {made.removed:,} deleted")
    return problems[0].exit_code if problems else 0
