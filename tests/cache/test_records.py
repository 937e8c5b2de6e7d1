"""The cache's records are read by several threads at once."""

from __future__ import annotations

import ast
from pathlib import Path

import dsv.cache

SOURCES = Path(dsv.cache.__file__).parent


def test_decoders_are_made_once_at_import() -> None:
    """Two threads that are the first to decode a Struct by `type=` at the same moment crash (msgspec 0.22: SIGSEGV)."""
    late = [
        f"{path.relative_to(SOURCES)}:{call.lineno}"
        for path in SOURCES.rglob("*.py")
        for call in ast.walk(ast.parse(path.read_text()))
        if isinstance(call, ast.Call)
        and isinstance(call.func, ast.Attribute)
        and call.func.attr == "decode"
        and any(keyword.arg == "type" for keyword in call.keywords)
    ]
    assert late == []
