"""A command's one JSON document."""

from __future__ import annotations

from typing import Any

from tests.kit.dsv import Dsv


def document(dsv: Dsv, *arguments: str, timeout: float = 900) -> dict[str, Any]:
    """Return the command's output with --json, run in a process of its own; it must succeed."""
    result = dsv.process(*arguments, "--json", timeout=timeout)
    assert result.code == 0, result.err
    told = result.json
    assert told["schema"] == 1
    assert isinstance(told, dict)
    return told
