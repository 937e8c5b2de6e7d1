"""What a dataset says about its licence: in the card of the Hugging Face Hub that it has, or in a file LICENSE."""

from __future__ import annotations

import re

from dsv.repo.tree.reader import TreeReader
from dsv.transfer.download import Fetcher, WantedFile

_FILE = re.compile(rb"(licen[cs]e|copying)(\.(md|txt|rst))?|readme\.md", re.IGNORECASE)
_CARD = re.compile(r"---\s*\n(?:(?!---).*\n)*?license:\s*(?:- *)?[\"']?([A-Za-z0-9][\w.+-]{0,63})[\"']?\s*\n")
_MOST = 1 << 20


def licence_of(tree: TreeReader) -> dict[str, str]:
    """Return the `id` that the card has, such as `mit`, and the `file` with its first line, the `title`, as far as
    there are such. Files that are erased or large say nothing. Raises `IntegrityError`."""
    licence: dict[str, str] = {}
    for path, entry, where in tree.children(b""):
        if entry is None or not _FILE.fullmatch(path) or not 0 < entry.size <= _MOST:
            continue
        for _, pieces in Fetcher(tree.objects).files(
            [] if tree.objects.erasures.of(entry) else [WantedFile(entry, where)]
        ):
            text = b"".join(pieces).decode("utf-8", "replace")
            if path.lower() != b"readme.md":
                licence |= {"file": path.decode(), "title": text.strip().partition("\n")[0].strip()[:200]}
            elif card := _CARD.match(text):
                licence["id"] = card[1]
    return licence
