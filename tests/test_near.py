"""Which tests `python -m tests.near` takes for near, and what its exit code says."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from tests import near

FILES = {
    "src/dsv/values.py": "",
    "src/dsv/cache/fill.py": "from dsv import values\n",
    "src/dsv/cli/commands/restore.py": "def restore():\n    from dsv.cache.fill import fill\n",
    "tests/cache/test_a.py": "from dsv.cache import (\n    fill,\n)\n",
    "tests/cache/test_fill.py": "import dsv.cache.fill\n" + "# longer than test_a\n" * 9,
    "tests/api/test_b.py": "PROGRAM = 'from dsv.cache.fill import fill'\n",
    "tests/cli/conftest.py": "from dsv.values import x\n",
    "tests/cli/test_c.py": 'def test_c(dsv):\n    dsv.ok("rollback")\n',
    "tests/cli/test_d.py": 'def test_d(dsv):\n    assert dsv.ok().json["rollback"]\n',
    "tests/run/test_e.py": "import dsv.run\n",
}


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ("src/dsv/cache/fill.py", "1 cache/test_fill, 1 cache/test_a, 1 api/test_b, 2 cli/test_c"),
        ("src/dsv/cli/commands/restore.py", "1 cli/test_c"),
        ("src/dsv/values.py", "2 cache/test_a, 2 cli/test_c, 2 api/test_b, 2 cli/test_d, 2 cache/test_fill"),
        ("tests/cli/conftest.py", "1 cli/test_c, 1 cli/test_d"),
        ("tests/run/test_e.py", "0 run/test_e"),
    ],
)
def test_the_nearest_come_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changed: str, expected: str
) -> None:
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(near, "ROOT", tmp_path)
    found = near.Imports.read().tests_near([tmp_path / changed])
    said = [
        f"{distance} {path.relative_to(tmp_path / 'tests').with_suffix('')}"
        for path, distance in found.items()
    ]
    assert ", ".join(said) == expected


def test_the_tests_of_a_command_are_in_the_file_of_its_name() -> None:
    graph = near.Imports.read()
    for name in ("ls", "sync", "evict", "tag"):
        first = next(iter(graph.tests_near([near.ROOT / f"src/dsv/cli/commands/{name}.py"])))
        assert first == near.ROOT / f"tests/cli/test_{name}.py"


@pytest.mark.parametrize(
    ("over", "failed", "pytests_code", "expected"),
    [
        (True, False, 2, 0),
        (True, True, 2, 1),
        (False, False, 2, 2),  # an interrupt from the keyboard, or a module that can't be imported
        (False, True, 1, 1),
        (False, False, 0, 0),
    ],
)
def test_only_tests_that_ran_make_the_exit_code_0(
    monkeypatch: pytest.MonkeyPatch, over: bool, failed: bool, pytests_code: int, expected: int
) -> None:
    def run(arguments: list[str], plugins: list[Any]) -> int:
        assert "tests/merge/test_paths.py" in arguments
        plugins[0].over, plugins[0].failed = over, failed
        return pytests_code

    monkeypatch.setattr(pytest, "main", run)
    monkeypatch.setattr(sys, "argv", ["near", "src/dsv/merge/paths.py"])
    monkeypatch.chdir(near.ROOT)
    assert near.main() == expected


def test_a_file_that_is_not_there_is_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["near", "src/dsv/nowhere.py"])
    with pytest.raises(SystemExit) as ended:
        near.main()
    assert ended.value.code == 2
    assert "src/dsv/nowhere.py is not a Python file of src, tests or benchmarks" in capsys.readouterr().err
