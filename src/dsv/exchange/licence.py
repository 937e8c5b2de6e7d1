"""What a dataset says about its licence: in the card of the Hugging Face Hub that it has, or in a file LICENSE."""

from __future__ import annotations

import re

from dsv.repo.tree.reader import TreeReader
from dsv.transfer.download import Fetcher, WantedFile

_FILE = re.compile(rb"(licen[cs]e|copying)(\.(md|txt|rst))?|readme\.md", re.IGNORECASE)
_CARD = re.compile(
    r"---[ \t\r]*\n(?:(?!---).*\n)*?license:[ \t\r]*(?:\n[ \t]*- *)?[\"']?([A-Za-z0-9][\w.+-]{0,63})[\"']?[ \t\r]*\n"
)
_MOST = 1 << 20


def licence_of(tree: TreeReader) -> dict[str, str]:
    """Return the `id` that the card has, such as `mit`, and the `file` with its first line, the `title`, as far as
    there are such. Files that are erased or large say nothing. Raises `IntegrityError`."""
    licence, erased = dict[str, str](), tree.objects.erasures.of
    named = [(entry, at) for name, entry, at in tree.children(b"") if entry and _FILE.fullmatch(name)]
    small = [WantedFile(entry, at) for entry, at in named if 0 < entry.size <= _MOST and not erased(entry)]
    for file, pieces in Fetcher(tree.objects).files(small):
        text = b"".join(pieces).decode("utf-8", "replace")
        if file.entry.path.lower() == b"readme.md":
            licence |= {"id": card[1]} if (card := _CARD.match(text)) else {}
        else:
            first = text.strip().partition("\n")[0].strip()[:200]
            licence |= {"file": file.entry.path.decode(), "title": first or file.entry.path.decode()}
    return licence
