"""What the README promises of itself."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_every_page_of_the_documentation_is_linked() -> None:
    linked = set(re.findall(r"\]\(([\w./-]+)\)", (ROOT / "README.md").read_text()))
    assert {f"docs/{page.name}" for page in (ROOT / "docs").glob("*.md")} <= linked
    assert [link for link in sorted(linked) if not (ROOT / link).exists()] == []


def test_ci_runs_the_readmes_test_command() -> None:
    readme = (ROOT / "README.md").read_text()
    commands = re.findall(r"^ {4}(python3 -m venv .*)$", readme, flags=re.MULTILINE)
    (tests,) = [command for command in commands if "pytest" in command]
    assert any(command.endswith("dsv demo") for command in commands)
    assert (ROOT / ".ci" / "run").read_text().rstrip().endswith(f"\n{tests}")
