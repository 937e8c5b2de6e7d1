"""What pages of docs/ say of the code, and what the code says of them."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
PROTOCOL = ROOT / "docs/internals/cache-protocol.md"


def rules() -> list[str]:
    """The numbers of the cache protocol's rules, in the order of the page."""
    return re.findall(r"^- \*\*([A-Z]\d+)\.", PROTOCOL.read_text(), re.MULTILINE)


def citations() -> Iterator[tuple[Path, str]]:
    """Each rule that code, tests or other pages cite beside the page's name."""
    files = [*ROOT.glob("src/**/*.py"), *ROOT.glob("tests/**/*.py"), *ROOT.glob("docs/**/*.md")]
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
        (ROOT / "docs" / f"{page}.md").read_text()
        for page in ("internals/cache-protocol", "internals/architecture", "internals/nfs")
    )
    cited = set(re.findall(r"(?<![\w-])([A-Z]\d+)\b", text))
    assert cited <= set(rules())


def test_every_message_of_the_troubleshooting_page_is_in_the_code() -> None:
    known = set(texts())
    quoted = messages()
    assert len(quoted) > 50
    assert [message for message in quoted if not any(_fits(message, text) for text in known)] == []


def test_no_page_has_the_marks_of_a_conflict() -> None:
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    assert [page.name for page in pages if re.search(r"^(<{7}|>{7}) ", page.read_text(), re.MULTILINE)] == []


def test_every_link_leads_to_a_heading_that_a_checkout_has() -> None:
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "benchmarks").glob("*.md")]
    links = [(page, link) for page in pages for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text())]
    dead = []
    for page, link in links:
        path, _, anchor = link.partition("#")
        target = page.parent / path if path else page
        if not re.match(r"[a-z]+:", link) and not (
            target.exists() and (not anchor or anchor in anchors(target.read_text()))
        ):
            dead.append((page.name, link))
    assert len(links) > 300 and dead == []


def anchors(text: str) -> set[str]:
    """The anchors of a page's headings, as GitHub and mkdocs make them."""
    text = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
    found = re.findall(r"^#{1,6} (.*)$", text, re.MULTILINE)
    plain = [re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading).lower() for heading in found]
    return {re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", heading).strip()) for heading in plain}


def test_json_in_the_pages_is_json() -> None:
    found = [
        block
        for page in (ROOT / "docs").rglob("*.md")
        for block in re.findall(r"^```json\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)
    ]
    assert found
    for block in found:
        json.loads(block)


def messages() -> list[str]:
    """Return the messages in the first column of the tables of docs/operations/troubleshooting.md."""
    return re.findall(
        r"^\| `([^`]+)`", (ROOT / "docs/operations/troubleshooting.md").read_text(), re.MULTILINE
    )


def texts() -> Iterator[str]:
    """Each string of the code that is no docstring, with … for what an f-string puts in."""
    for file in ROOT.glob("src/dsv/**/*.py"):
        tree = ast.parse(file.read_text("utf-8"))
        told = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
        for node in ast.walk(tree):
            if isinstance(node, ast.JoinedStr):
                yield "".join(
                    str(part.value) if isinstance(part, ast.Constant) else "…" for part in node.values
                )
            elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in told:
                yield node.value


def _fits(message: str, text: str) -> bool:
    """Return whether the words of the message are in the text, in their order; … stands for anything."""
    at = 0
    for part in message.split("…"):
        at = text.find(part.strip(), at)
        if at < 0:
            return False
        at += len(part.strip())
    return True


def test_paths_that_the_pages_for_developers_name_exist() -> None:
    text = "".join(
        (ROOT / f"docs/internals/{page}.md").read_text() for page in ("contributing", "architecture")
    )
    named = set(re.findall(r"`((?:src|tests|docs|store|run|cli)/[\w./-]+)`", text))
    assert len(named) > 10
    assert [
        path for path in sorted(named) if not any((top / path).exists() for top in (ROOT, ROOT / "src/dsv"))
    ] == []


UNIT = re.compile(
    r"seconds?\b|since 1970|from 0 to 1|per cent|share\b|pixels\b|factor\b|ratio\b", re.IGNORECASE
)
IN_NAME = re.compile(r"(seconds|_ms|_at|_usd|_per_gb|_per_second|cpus|ratio)$", re.IGNORECASE)


def floats_without_a_unit(file: Path) -> Iterator[str]:
    """Each public float, a constant or a field, whose unit neither its name, nor the text at it or its class has."""
    lines = file.read_text("utf-8").splitlines()
    tree = ast.parse("\n".join(lines))
    classes = [node for node in tree.body if isinstance(node, ast.ClassDef) and not node.name.startswith("_")]
    for owner in (tree, *classes):
        about = (ast.get_docstring(owner) or "") if isinstance(owner, ast.ClassDef) else ""
        for node, after in zip(owner.body, [*owner.body[1:], None], strict=True):
            if isinstance(node, ast.AnnAssign) and isinstance(owner, ast.ClassDef):
                kind, target = ast.unparse(node.annotation), node.target
                is_float = "float" in kind and "Callable" not in kind
            elif isinstance(node, ast.Assign | ast.AnnAssign) and isinstance(node.value, ast.Constant):
                target = node.targets[0] if isinstance(node, ast.Assign) else node.target
                is_float = isinstance(node.value.value, float)
            else:
                continue
            name = ast.unparse(target)
            literal = ast.unparse(after) if isinstance(after, ast.Expr) else ""
            text = f"{about} {literal} {lines[node.lineno - 1].partition('#')[2]}"
            if is_float and not name.startswith("_") and not IN_NAME.search(name) and not UNIT.search(text):
                yield f"{file.name}:{node.lineno} {name}"


def test_every_public_float_has_its_unit() -> None:
    found = [each for file in sorted(ROOT.glob("src/dsv/**/*.py")) for each in floats_without_a_unit(file)]
    assert found == []
