"""dsv datasets."""

from __future__ import annotations

from dsv.api.ls_cat import datasets as list_datasets
from dsv.cli.call import Call
from dsv.cli.declare import command
from dsv.cli.output import local_time
from dsv.values.units import format_bytes


@command(
    "datasets",
    unused=["--cache"],
    examples=[
        ("dsv datasets", "of the store in effect"),
        ("dsv datasets --store s3://lake/dsv --json | jq -r '.items[].dataset'", ""),
    ],
    result={
        "items.dataset": "its name",
        "items.commit": "head of its main; null before the first commit",
        "items.time": "when that was committed",
        "items.files": "how many files it has",
        "items.bytes": "their size",
    },
)
def datasets(call: Call) -> None:
    """List what the store holds.

    Every dataset by name, with the head of its main.
    """
    with call.context() as context:
        found = list_datasets(context)
    if call.json:
        call.results(found)
        return
    columns = ["dataset", "commit", "committed~", "files>", "size>"]
    rows = [
        [
            str(item.dataset),
            "-" if item.commit is None else str(item.commit)[:12],
            local_time(item.time_ms),
            f"{item.files:,}",
            format_bytes(item.bytes),
        ]
        for item in found
    ]
    call.table(columns, rows)
    if not found:
        call.say("no datasets yet; run 'dsv init' in a folder to create one")
