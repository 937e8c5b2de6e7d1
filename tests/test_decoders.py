"""Records are read by several threads at once, and msgspec can't learn a type in two of them at the same moment.

It then ends the process (0.22: SIGSEGV), so what a type is made of is learned at import.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import dsv
from tests.run.test_record import RECORD

SOURCES = Path(dsv.__file__).parent
PROCESSES = 12
FIRST_READ_BY_THREADS = """
import sys, threading
from dsv.{module} import {decode}
data = sys.stdin.buffer.read()
sys.setswitchinterval(1e-6)
start = threading.Barrier(16)
def read():
    start.wait()
    for _ in range(3):
        read_by_each.append({decode}{method}(data, "key"))
read_by_each = []
threads = [threading.Thread(target=read) for _ in range(16)]
for thread in threads: thread.start()
for thread in threads: thread.join()
assert len(read_by_each) == 48 and all(each == read_by_each[0] for each in read_by_each)
"""


SETTINGS = b"""
max_size = "5T"
protected = ["xrays"]
[datasets.masks]
max_size = 5
"""


@pytest.mark.parametrize(
    ("module", "decode", "method", "data"),
    [
        ("run.record", "RunRecord", ".decode", RECORD.encode()),
        ("cache.settings", "parse_settings", "", SETTINGS),
    ],
)
def test_the_first_ones_of_a_kind_are_read_by_threads(
    module: str, decode: str, method: str, data: bytes
) -> None:
    program = FIRST_READ_BY_THREADS.format(module=module, decode=decode, method=method)
    for _ in range(PROCESSES):
        done = subprocess.run(
            [sys.executable, "-c", program],
            input=data,
            capture_output=True,
            check=False,
        )
        assert done.returncode == 0, done


def calls(name: str) -> list[tuple[Path, ast.Call]]:
    texts = [(path, path.read_text()) for path in SOURCES.rglob("*.py")]
    return [
        (path.relative_to(SOURCES), call)
        for path, text in texts
        if name in text
        for call in ast.walk(ast.parse(text))
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr == name
    ]


def test_nothing_is_decoded_by_a_type_named_on_the_spot() -> None:
    late = [
        f"{path}:{call.lineno}"
        for path, call in calls("decode")
        if any(keyword.arg == "type" for keyword in call.keywords)
    ]
    assert late == []


def test_only_what_is_learned_at_import_is_converted() -> None:
    found = [path for path, call in calls("convert") if ast.unparse(call.func) == "msgspec.convert"]
    assert {str(path) for path in found} == {
        "cache/settings.py",
        "workspace/workspace.py",
        "run/record.py",
        "run/remembered.py",
    }
