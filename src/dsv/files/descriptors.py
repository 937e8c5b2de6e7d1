"""Descriptors that are closed at the end of a block."""

from __future__ import annotations

import os


class Opened:
    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def __enter__(self) -> int:
        return self._descriptor

    def __exit__(self, *_: object) -> None:
        os.close(self._descriptor)
