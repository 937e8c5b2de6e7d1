"""Ends of names, by which files are known to be tars, or other data."""

from __future__ import annotations

import re
from typing import Final

TARS: Final = (".tar", ".tar.gz", ".tgz", ".tar.xz", ".tar.bz2")
DATA: Final = re.compile(
    r"\.(7z|arrow|bz2|csv|gz|h5|jpg|jsonl?|lz4|np[yz]|parquet|pdf|png|pt"
    r"|rar|safetensors|tar|tgz|tif|tsv|txt|xz|zip|zst)$",
    re.IGNORECASE,
)
"""Ends of names of files that are neither web pages nor folders."""
