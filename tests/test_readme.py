"""What the README promises of itself."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md", "docs/index.md"])
def test_every_link_leads_to_a_file(page: str) -> None:
    linked = set(re.findall(r"\]\(([\w./-]+)\)", (ROOT / page).read_text()))
    assert linked
    assert [link for link in sorted(linked) if not ((ROOT / page).parent / link).exists()] == []


def test_ci_runs_the_readmes_test_command() -> None:
    readme = (ROOT / "README.md").read_text()
    commands = re.findall(r"^ {4}(python3 -m venv .*)$", readme, flags=re.MULTILINE)
    (tests,) = [command for command in commands if "pytest" in command]
    assert any(command.endswith("dsv demo") for command in commands)
    assert (ROOT / ".ci" / "run").read_text().rstrip().endswith(f"\n{tests}")
