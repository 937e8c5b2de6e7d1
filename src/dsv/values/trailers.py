"""The lines at the end of a commit's message by which dsv says where it comes from."""

from __future__ import annotations

import re
from contextlib import suppress
from typing import Final

from dsv.errors import UsageError
from dsv.values.names import DatasetName

MADE_BY: Final = "Made-by-run: "
IMPORTED: Final = "Imported-from: "
_TRAILER: Final = re.compile(r"[A-Z][A-Za-z-]*: \S.*")


def with_made_by(message: str, run: str) -> str:
    """Return the message with a line for this run (DATASET/RUN) in its last paragraph. An `Imported-from:` line
    stays the last line, by which later imports find it."""
    lines = message.rstrip("\n").split("\n")
    last = [lines.pop()] if lines[-1].startswith(IMPORTED) else []
    while lines and not lines[-1]:
        lines.pop()
    start = next((at for at in range(len(lines), 0, -1) if not lines[at - 1]), 0)  # of the last paragraph
    own = MADE_BY + run
    if own in lines[start:]:
        return message
    together = start > 0 and all(map(_TRAILER.fullmatch, lines[start:]))
    return "\n".join([*lines, *([] if together or not lines else [""]), own, *last])


def made_by(message: str) -> tuple[str, ...]:
    """Return the runs, as DATASET/RUN, that the last paragraph of a message names. Anybody can write such a line,
    and a copied message has it too: it counts if the record of the run agrees."""
    paragraph = message.rstrip("\n").rpartition("\n\n")[2]
    return tuple(line.removeprefix(MADE_BY) for line in paragraph.split("\n") if line.startswith(MADE_BY))


def parse_run(text: str) -> tuple[DatasetName, str] | None:
    """Return the dataset and the id of `DATASET/RUN`."""
    dataset, _, run = text.rpartition("/")
    with suppress(UsageError):
        return DatasetName.parse(dataset), run
    return None


def imported_from(message: str) -> str | None:
    """Return the URL that a message names in its last line, with the revision and the path if it has them."""
    last = message.rstrip("\n").rpartition("\n")[2]
    return last.removeprefix(IMPORTED) if last.startswith(IMPORTED) else None
