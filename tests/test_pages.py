"""What pages of docs/ say of the code, and what the code says of them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
PROTOCOL = ROOT / "docs/cache-protocol.md"


def rules() -> list[str]:
    """The numbers of the cache protocol's rules, in the order of the page."""
    return re.findall(r"^- \*\*([A-Z]\d+)\.", PROTOCOL.read_text(), re.MULTILINE)


def citations() -> Iterator[tuple[Path, str]]:
    """Each rule that code, tests or other pages cite beside the page's name."""
    files = [*ROOT.glob("src/**/*.py"), *ROOT.glob("tests/**/*.py"), *ROOT.glob("docs/*.md")]
    for file in files:
        if file == Path(__file__):
            continue
        for line in file.read_text("utf-8").splitlines():
            if "cache-protocol.md" in line:
                yield from ((file, rule) for rule in re.findall(r"\b[A-Z]\d+\b", line))


def test_rules_of_the_cache_protocol_are_numbered_without_gaps() -> None:
    numbers: dict[str, int] = {}
    for rule in rules():
        numbers[rule[0]] = numbers.get(rule[0], 0) + 1
        assert rule == f"{rule[0]}{numbers[rule[0]]}"


def test_every_rule_that_is_cited_exists() -> None:
    cited = list(citations())
    assert len(cited) > 5
    assert [(file.name, rule) for file, rule in cited if rule not in rules()] == []


def test_pages_about_the_protocol_cite_only_its_rules() -> None:
    text = "".join(
        (ROOT / "docs" / f"{page}.md").read_text() for page in ("cache-protocol", "nfs", "architecture")
    )
    cited = set(re.findall(r"(?<![\w-])([A-Z]\d+)\b", text))
    assert cited <= set(rules())
