"""`UPath("dsv://DATASET@REV/PATH")`, for the package universal_pathlib."""

from __future__ import annotations

from fsspec import get_filesystem_class
from upath import UPath

get_filesystem_class("dsv")  # UPath takes how paths are split from the file systems that are loaded


class DsvPath(UPath):  # type: ignore[misc]
    """A dataset, or a file or folder in it."""

    __slots__ = ()
