"""The key of a run that is not repeated: what is in it, and that anybody computes the same."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import rfc8785
from blake3 import blake3
from hypothesis import given
from hypothesis import strategies as st

from dsv.errors import IntegrityError
from dsv.run.once import computed_again, differences, document, in_rfc8785, key_of
from dsv.run.record import CodeState, IntoBranch, OnceKey, RunData, RunId, RunOutput, RunRecord, RunState
from dsv.values.ids import CommitId
from dsv.values.names import BranchName, DatasetName

SCANS = DatasetName.parse("team/scans")
MASKS = DatasetName.parse("team/masks")
ONCE = OnceKey(
    key="", system="linux/x86_64", files={"resize.py": "f1" * 32}, keys={"gpu=A100": None, "uv.lock": "a0" * 32},
    erased=("e2" * 32, "e1" * 32),
)  # fmt: skip
RECORD = RunRecord(
    run=RunId.parse("20261120-132145-1f2e3d4c"), dataset=SCANS, commit=CommitId(b"c" * 32), target="team/scans@v1",
    data=(
        RunData("", SCANS, CommitId(b"c" * 32), None, 5, 6, "11" * 32, "11" * 32),
        RunData("masks", MASKS, CommitId(b"d" * 32), "x", 1, 2, "22" * 32, "33" * 32),
    ),
    state=RunState.SUBMITTED, engine="process", pool="lab", params={"lr": 0.1, "deep": {"x": [1, None, True]}},
    command=("python", "resize.py", "--size", "64"), engine_args=("--partition=long",), env=("HF_TOKEN", "LEVEL"),
    gpus="2", gpu_type="A100", tpu="v5e-8", tpu_topology="2x4", nodes=2, cpus=4.0, memory_bytes=1 << 30,
    time_seconds=60, shm_bytes=9, code=CodeState("/c", "a" * 40, True, "c1" * 32, "c0" * 32), out="/o",
    output=RunOutput(into=IntoBranch(MASKS, BranchName("main"))),
    host="gpu1", user="ben", started_ms=1, once=ONCE, dsv="1.0",
)  # fmt: skip
IMAGE = replace(
    RECORD, engine="docker", image="x/y:1", once=replace(ONCE, image="sha256:" + "d0" * 32, system=None)
)

# Words of a command may have half characters, in place of bytes that are not UTF-8; they never make a whole one.
TEXT = st.text(max_size=5) | st.binary(max_size=5).map(lambda raw: raw.decode("utf-8", "surrogateescape"))
JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.sampled_from([2**53 - 1, 2**53, -(2**53), 2**53 + 1, 0.0, -0.0, 1.0, 1e21, 2.0**53])
    | st.floats(allow_nan=False, allow_infinity=False)
    | TEXT
    | st.sampled_from(["\udc80", "$text:dc80", "$int:9007199254740992", "$$float:1.0", "9007199254740992"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(TEXT | st.sampled_from(["\udc80", "$text:dc80", "$$text:dc80"]), inner, max_size=3)
    ),
    max_leaves=8,
)


def key(record: RunRecord, **values: str) -> str:
    return key_of(document(record, values))


def changed_once(**members: Any) -> Callable[[RunRecord], RunRecord]:
    return lambda record: replace(record, once=replace(record.once or ONCE, **members))


def changed_data(at: int, **members: Any) -> Callable[[RunRecord], RunRecord]:
    return lambda record: replace(
        record,
        data=tuple(replace(each, **members) if n == at else each for n, each in enumerate(record.data)),
    )


def changed(**members: Any) -> Callable[[RunRecord], RunRecord]:
    return lambda record: replace(record, **members)


INSIDE = {
    "root of the target": changed_data(0, root="12" * 32),
    "root of further data": changed_data(1, root="12" * 32),
    "name of further data": changed_data(1, name="labels"),
    "code": changed(code=CodeState("/c", root="12" * 32)),
    "no code": changed(code=None),
    "system": changed_once(system="linux/aarch64"),
    "an image": changed_once(image="sha256:" + "12" * 32),
    "command": changed(command=("python", "resize.py", "--size", "96")),
    "words of the command": changed(command=("python", "resize.py", "--size 64")),
    "parameter": changed(params={"lr": 0.1, "deep": {"x": [1, None, False]}}),
    "kind of a number": changed(params={"lr": 0.1, "deep": {"x": [1.0, None, True]}}),
    "content of a file": changed_once(files={"resize.py": "12" * 32}),
    "variable": changed(env=("HF_TOKEN",)),
    "gpus": changed(gpus="3"),
    "gpu_type": changed(gpu_type="H100"),
    "tpu": changed(tpu="v5e-4"),
    "tpu_topology": changed(tpu_topology="4x2"),
    "nodes": changed(nodes=3),
    "engine_args": changed(engine_args=("--partition=short",)),
    "text given as key": changed_once(keys={"gpu=H100": None, "uv.lock": "a0" * 32}),
    "file given as key": changed_once(keys={"gpu=A100": None, "uv.lock": "a1" * 32}),
    "erased file": changed_once(erased=("e1" * 32,)),
}
OUTSIDE = {
    "run": changed(run=RunId.parse("20261121-132145-1f2e3d4c"), again_of=RECORD.run),
    "commits": changed_data(0, commit=CommitId(b"e" * 32), dataset=MASKS, path=None, commit_root="12" * 32),
    "dataset": changed(dataset=MASKS, commit=CommitId(b"e" * 32), target="team/masks@v2"),
    "place": changed(host="gpu2", user="eve", pool="other", out="/elsewhere", within="a/b"),
    "size": changed(cpus=8.0, memory_bytes=1, shm_bytes=None, time_seconds=None, retries=3),
    "output": changed(output=None, name="other", sweep=None),
    "code's commits": changed(code=CodeState("/d", None, None, None, "c0" * 32)),
    "engine": changed(engine="slurm", engine_version="9", argv=("sbatch",), passed_over=(), then=("b",)),
    "versions": changed(dsv="2.0", python="/usr/bin/python3.99", lock=None),
    "end": changed(state=RunState.ENDED, started_ms=5, ended_ms=9, exit_code=0, metrics={"a": 1}),
    "order": changed_once(erased=tuple(sorted(ONCE.erased)), keys=dict(reversed(ONCE.keys.items()))),
    "hit": changed_once(hit_of="team/scans/20261120-132145-1f2e3d4c", key="12" * 32),
}


@pytest.mark.parametrize("what", INSIDE)
def test_each_thing_that_decides_changes_the_key(what: str) -> None:
    assert key(INSIDE[what](RECORD)) != key(RECORD)


@pytest.mark.parametrize("what", OUTSIDE)
@pytest.mark.parametrize("record", [RECORD, IMAGE], ids=["process", "image"])
def test_nothing_else_changes_the_key(what: str, record: RunRecord) -> None:
    assert key(OUTSIDE[what](record)) == key(record)


def test_the_image_counts_by_its_digest_for_every_engine() -> None:
    assert key(replace(IMAGE, engine="kubernetes", image="mirror/y@sha256:x", image_id="z")) == key(IMAGE)
    assert "engine" not in document(IMAGE, {}) and "system" not in document(IMAGE, {})


def test_the_value_of_a_variable_changes_the_key_which_the_record_alone_does_not_have() -> None:
    assert len({key(RECORD), key(RECORD, LEVEL="1"), key(RECORD, LEVEL="2"), key(RECORD, LEVEL="")}) == 4
    valued = replace(RECORD, once=replace(ONCE, key=key(RECORD, LEVEL="1"), values=("LEVEL",)))
    assert computed_again(valued) is None


def test_the_key_is_blake3_of_the_canonical_document() -> None:
    expected = {
        "data": {"": "11" * 32, "masks": "22" * 32}, "code": "c0" * 32, "engine": "process", "system": "linux/x86_64",
        "command": ["python", "resize.py", "--size", "64"], "params": {"lr": 0.1, "deep": {"x": [1, None, True]}},
        "files": {"resize.py": "f1" * 32}, "env": {"HF_TOKEN": None, "LEVEL": "1"}, "gpus": "2", "gpu_type": "A100",
        "tpu": "v5e-8", "tpu_topology": "2x4", "nodes": 2, "engine_args": ["--partition=long"],
        "keys": {"gpu=A100": None, "uv.lock": "a0" * 32}, "erased": ["e1" * 32, "e2" * 32],
    }  # fmt: skip
    assert document(RECORD, {"LEVEL": "1"}) == expected
    canonical = json.dumps(expected, sort_keys=True, separators=(",", ":")).encode()
    assert key(RECORD, LEVEL="1") == blake3(canonical, derive_key_context="dsv 2026-11 once v1").hexdigest()


def test_the_format_pages_name_the_members() -> None:
    page = (Path(__file__).parents[2] / "docs/internals/format-writing.md").read_text()
    section = page.partition("### The key of a run\n")[2].partition("\n##")[0]
    rows = [line.split(" | ")[0] for line in section.splitlines() if line.startswith("| `")]
    named = {name for row in rows for name in re.findall(r"`(\w+)`", row)}
    assert named == document(RECORD, {}).keys() | document(IMAGE, {}).keys()
    assert "`dsv 2026-11 once v1`" in section


def test_a_record_without_a_root_has_no_document() -> None:
    for lacking in (changed_data(1, root=None)(RECORD), replace(RECORD, code=CodeState("/c"))):
        with pytest.raises(IntegrityError, match="does not have all that decides"):
            document(lacking, {})
        assert computed_again(lacking) is None


@given(st.dictionaries(TEXT, JSON, max_size=4), st.lists(TEXT, max_size=4))
def test_a_key_computed_again_from_the_stored_record_is_the_same(
    params: dict[str, Any], command: list[str]
) -> None:
    record = replace(RECORD, params=params, command=tuple(command))
    stored = RunRecord.decode(replace(record, once=replace(ONCE, key=key(record))).encode(), "key")
    assert stored.once is not None
    assert computed_again(stored) == stored.once.key == key(record)


@given(JSON, JSON)
def test_different_values_have_different_canonical_forms(one: Any, other: Any) -> None:
    def canonical(value: Any) -> bytes:
        return rfc8785.dumps(in_rfc8785(value))

    same = json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True)
    assert (canonical(one) == canonical(other)) == same


@given(st.dictionaries(TEXT, JSON, max_size=5))
def test_the_order_of_names_does_not_count(params: dict[str, Any]) -> None:
    assert key(replace(RECORD, params=dict(reversed(params.items())))) == key(replace(RECORD, params=params))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (changed(command=("python", "resize.py", "--size", "96")), ("command --size 64 -> --size 96",)),
        (changed(command=("python", "resize.py", "--size", "64", "--fast")), ("command none -> --fast",)),
        (
                changed(params={"lr": 0.2, "more": False}),
                ("params.lr 0.1 -> 0.2", "params.deep.x [1, null, true] -> none", "params.more none -> false"),
            ),
        (changed(params={**RECORD.params, "lr": "0.1"}), ('params.lr has another value',)),
        (changed_data(0, root="12" * 32), ("data 111111111111 -> 121212121212",)),
        (changed_data(1, root="12" * 32), ("data.masks 222222222222 -> 121212121212",)),
        (changed(code=None), ("code c0c0c0c0c0c0 -> none",)),
        (changed(env=("HF_TOKEN",)), ("env.LEVEL set -> none",)),
        (changed(nodes=1, gpus=None), ("gpus 2 -> none", "nodes 2 -> 1")),
        (changed_once(erased=("e1" * 32,)), ("erased e2e2e2e2e2e2 -> none",)),
        (changed_once(), ()),
    ],
)  # fmt: skip
def test_differences_in_words(change: Callable[[RunRecord], RunRecord], said: tuple[str, ...]) -> None:
    assert differences(document(change(RECORD), {}), document(RECORD, {})) == said


def test_differences_do_not_show_the_values_of_variables() -> None:
    mine, theirs = document(RECORD, {"LEVEL": "one"}), document(RECORD, {"LEVEL": "two"})
    assert differences(mine, theirs) == ("env.LEVEL has another value",)
