"""What staging on a node of a cluster said of itself."""

from __future__ import annotations

import json
from typing import Any


def stage_facts(text: str) -> dict[str, Any]:
    """Fields of a `RunPart`, from the result that `dsv cache` and `dsv with` write as JSON.

    None of them if it is no such result: it may be half written.
    """
    try:
        items = json.loads(text)["items"]
        return {
            "cache_hit": all(bool(each["hit"]) for each in items),
            "stage_bytes": sum(int(each["fetched_bytes"]) for each in items),
        }
    except (ValueError, KeyError, TypeError):
        return {}
