"""What is asked of a cluster before it gets jobs."""

from __future__ import annotations

import pytest

from dsv.engines.kubernetes.api import too_old


@pytest.mark.parametrize(
    ("major", "minor", "refused"),
    [
        ("1", "26", True),
        ("1", "28+", True),
        ("1", "29", False),
        ("1", "35+", False),
        ("2", "0", False),
        ("", "", False),
    ],
)
def test_a_cluster_without_init_containers_that_go_on_is_refused(
    major: str, minor: str, refused: bool
) -> None:
    said = too_old({"major": major, "minor": minor})
    assert (said is not None) == refused
    assert said is None or said.startswith(
        f"it is Kubernetes {major}.{minor.rstrip('+')}, and runs need 1.29"
    )
