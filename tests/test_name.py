"""The distribution is called dsv-data. `dsv` on PyPI is another project, and no text may advise to install it."""

from __future__ import annotations

import ast
import os
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from dsv.repo.format_log import README

ROOT = Path(__file__).parents[1]
SKIPPED = {".git", ".venv", "venv", "build", "dist", "node_modules", "__pycache__"}

_INSTALLER = re.compile(
    r"\b(?:pip[\d.]*\s+(?:install|download|wheel)|pipx\s+(?:install|run|upgrade)|uvx"
    r"|uv\s+(?:add|tool\s+(?:install|run)|pip\s+install))\s+([^&|;`()\n]*)"
)
_THEIRS = re.compile(r"dsv(?:\[.*\])?(?:[=<>~!@].*)?", re.IGNORECASE)


def installs_theirs(text: str) -> list[str]:
    """The places in `text` that install the package called dsv."""
    found = []
    for match in _INSTALLER.finditer(text.replace("\\\n", " ")):
        words = [word.strip("'\"<>.,:") for word in match[1].split()]
        if any(_THEIRS.fullmatch(word) for word in words):
            found.append(match[0])
    return found


def files() -> Iterator[Path]:
    for folder, folders, names in os.walk(ROOT):
        folders[:] = [name for name in folders if name not in SKIPPED and not name.endswith("_cache")]
        for name in names:
            yield Path(folder, name)


def strings(source: str) -> Iterator[str]:
    """The strings of a program, put together where they stand in pieces."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value
        elif isinstance(node, ast.JoinedStr):
            yield "".join(str(part.value) for part in node.values if isinstance(part, ast.Constant))


@pytest.mark.parametrize(
    "words",
    ["dsv", "--upgrade dsv", "'dsv[test]'", "-q dsv==0.1.0", "dsv && dsv demo", "\\\n    dsv", "numpy dsv"],
)
def test_a_command_that_installs_the_other_project_is_seen(words: str) -> None:
    for installer in (
        "pip install",
        "python3 -m pip install",
        "uv pip install",
        "uv tool install",
        "pipx install",
    ):
        assert installs_theirs(f"first `{installer} {words}`, then")


@pytest.mark.parametrize(
    "words", [".", "dsv-data", "dsv_data-0.1.0-py3-none-any.whl", "-e '.[test]' && dsv demo"]
)
def test_other_commands_are_not(words: str) -> None:
    following = "    dsv demo"
    assert not installs_theirs(f"    .venv/bin/pip install {words}\n{following}")


def test_no_file_says_to_install_the_other_project() -> None:
    found = {}
    for path in files():
        data = path.read_bytes()
        if b"\0" in data:
            continue
        text = data.decode(errors="replace")
        pieces = [text]
        if re.search("pip|uv", text) and path.suffix == ".py" and path.is_relative_to(ROOT / "src"):
            pieces += strings(text)
        if bad := [line for piece in pieces for line in installs_theirs(piece)]:
            found[str(path.relative_to(ROOT))] = bad
    assert found == {}


def test_the_readme_in_a_store_does_not_either() -> None:
    assert "dsv_data" in README and not installs_theirs(README)


def test_the_distribution_has_a_name_of_its_own_and_the_command_is_dsv() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["name"] == "dsv-data"
    assert list(project["scripts"]) == ["dsv"]


def test_the_hint_for_a_newer_version_names_no_package_of_an_index() -> None:
    from dsv.errors import UPGRADE

    assert UPGRADE.endswith("pip install --upgrade DSV_CHECKOUT_OR_WHEEL")
