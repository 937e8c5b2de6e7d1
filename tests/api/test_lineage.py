"""Where commits come from and what was made of them, from records and edges made by hand."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest

from dsv.api.erased_runs import runs_that_read
from dsv.format.keys import commit_key, lineage_key, run_key
from dsv.run.lineage import Lineage
from dsv.run.record import RunCommit, RunOutput, RunState
from dsv.stores.base import LARGEST, ListedObject
from dsv.stores.memory import MemoryStore
from dsv.values.ids import CommitId, FileId, NodeId
from dsv.values.names import DatasetName
from tests.kit.lineage import MODELS, RAW, RESIZED, Lab, edges

LABELS = DatasetName.parse("labels")


@pytest.fixture
def lab() -> Lab:
    return Lab(MemoryStore())


def kinds(found: Lineage) -> dict[str, int]:
    counts: dict[str, int] = {}
    for node in found.nodes:
        counts[node.kind] = counts.get(node.kind, 0) + 1
    return counts


def raw(found: Lineage) -> set[CommitId | None]:
    return {node.commit for node in found.raw}


def test_two_versions_of_raw_data_with_an_equal_result_are_both_origins(lab: Lab) -> None:
    """The second resize made no new commit, and the model was trained before it."""
    v1 = lab.commit(RAW, {"1.png": b"big"})
    resize, resized = lab.step(RESIZED, {"1.png": b"small"}, lab.data(RAW, v1), target="raw@v1")
    train, model = lab.step(MODELS, {"model.pt": b"m"}, lab.data(RESIZED, resized))
    v2 = lab.commit(RAW, {"1.png": b"big", "note": b"n"}, v1)
    again = lab.record(lab.data(RAW, v2))
    output = replace(lab.output(again, {"1.png": b"small"}), into=lab.into(RESIZED, resized, new=False))
    again = lab.end(replace(again, output=output))

    found = lab.lineage(MODELS, model)
    names = {v1: "v1", v2: "v2", resized: "resized", model: "model"}
    names |= {resize.run: "resize", train.run: "train", again.run: "again"}
    assert edges(found, names) == {
        ("train", "output", "model"),
        ("resized", "data", "train"),
        ("resize", "output", "resized"),
        ("again", "again", "resized"),
        ("v1", "data", "resize"),
        ("v2", "data", "again"),
    }
    assert raw(found) == {v1, v2}
    assert found.moved and not found.problems and not found.cut
    states = {node.commit: node.branch_state for node in found.nodes if node.commit}
    assert states == {model: "head", resized: "head", v1: "moved", v2: "head"}
    (first,) = [node for node in found.nodes if node.commit == v1]
    assert first.rev == "v1"
    assert repr(found).startswith(f"<lineage of models@{model}: 7 nodes, raw data ['raw@")


def test_a_commit_by_hand_has_the_origins_of_its_parents_and_a_merge_those_of_both(lab: Lab) -> None:
    v1 = lab.commit(RAW, {"a": b"a"})
    run, labels = lab.step(LABELS, {"a.txt": b"0"}, lab.data(RAW, v1))
    fixed = lab.commit(LABELS, {"a.txt": b"7"}, labels, message="fixed sevens")
    names = {v1: "v1", labels: "labels", fixed: "fixed", run.run: "run"}
    found = lab.lineage(LABELS, fixed)
    assert edges(found, names) == {
        ("labels", "history", "fixed"),
        ("run", "output", "labels"),
        ("v1", "data", "run"),
    }
    assert raw(found) == {v1}

    other = lab.commit(LABELS, {"b.txt": b"1"}, message="another start")
    merged = lab.commit(LABELS, {"a.txt": b"7", "b.txt": b"1"}, fixed, other)
    assert raw(lab.lineage(LABELS, merged)) == {v1, merged}
    alone = lab.lineage(LABELS, other)
    assert raw(alone) == {other} and alone.edges == ()


def test_a_commit_made_in_a_job_counts_if_the_record_agrees(lab: Lab) -> None:
    """By the edge, or by the message if the record has no root; the trailer of a cherry-pick counts for nothing."""
    start = lab.commit(LABELS, {"a": b"0"})
    record = lab.record(lab.data(LABELS, start))
    said = f"relabelled\n\nMade-by-run: labels/{record.run}"
    made = lab.commit(LABELS, {"a": b"1"}, start, message=said)
    record = lab.end(replace(record, made=(RunCommit(LABELS, made),)))
    names = {start: "start", made: "made", record.run: "run"}
    confirmed = {("run", "made", "made"), ("start", "data", "run"), ("start", "history", "made")}
    found = lab.lineage(LABELS, made)
    assert edges(found, names) == confirmed and raw(found) == {start}

    picked = lab.commit(LABELS, {"a": b"2"}, start, message=said)
    found = lab.lineage(LABELS, picked)
    assert found.edges == () and raw(found) == {picked}


def test_all_runs_of_a_long_history_are_found_back_to_one_that_made_the_whole(lab: Lab) -> None:
    v1 = lab.commit(RAW, {"a": b"a"})
    first = lab.commit(LABELS, {"0": b"0"})
    run, whole = lab.step(LABELS, {"1": b"1"}, lab.data(RAW, v1), parents=[first])
    last, runs = whole, {whole: run.run}
    for number in range(30):
        by_hand = number % 3
        record = lab.record(lab.data(RAW, v1))
        last = lab.commit(LABELS, {"1": b"%d" % (number + 2)}, last)
        if not by_hand:
            lab.end(replace(record, made=(lab.made(LABELS, last),)))
            runs[last] = record.run
    found = lab.lineage(LABELS, last)
    history = {node.commit for node in found.nodes if node.kind == "commit"} - {v1, last}
    assert history == runs.keys() - {last} and raw(found) == {v1}
    assert {node.run for node in found.nodes if node.kind == "run"} == {*runs.values()}


def test_forged_edges_and_records_show_no_origin(lab: Lab) -> None:
    bad, good = lab.commit(RAW, {"a": b"bad"}), lab.commit(RAW, {"a": b"good"})
    run, model = lab.step(MODELS, {"m": b"m"}, lab.data(RAW, good))
    copied, _ = lab.step(MODELS, {"x": b"x"}, lab.data(RAW, bad))
    root = NodeId.parse(lab.root(model))
    lab.store.put_if_absent(lineage_key(root, "made", RAW, copied.run), b"")  # its record says something else
    lab.store.put_if_absent(f"lineage/{root.hex()}/made/raw/no-run", b"")
    liar = lab.record(lab.data(RAW, bad))
    tree = lab.output(liar, {"y": b"y"}).tree
    lab.end(
        replace(liar, output=RunOutput(tree, 1, 1, root=root.hex()))
    )  # the tree that it names has another root
    cheat = lab.record(lab.data(RAW, bad))
    lab.end(replace(cheat, made=(RunCommit(MODELS, bad, root.hex()),)))
    found = lab.lineage(MODELS, model)
    names = {good: "good", model: "model", run.run: "run"}
    assert edges(found, names) == {
        ("run", "output", "model"),
        ("good", "data", "run"),
        ("raw/no-run", "said", "model"),
    }
    assert raw(found) == {good}


def test_records_that_are_gone_are_nodes_and_damaged_ones_problems(lab: Lab) -> None:
    v1 = lab.commit(RAW, {"a": b"a"})
    gone, model = lab.step(MODELS, {"m": b"m"}, lab.data(RAW, v1))
    lab.store.delete(run_key(RAW, gone.run, "record"))
    found = lab.lineage(MODELS, model)
    assert kinds(found) == {"commit": 1, "missing": 1} and not found.problems
    assert [edge.name for edge in found.edges] == ["said"] and raw(found) == {model}

    lab.store.put_if_absent(run_key(RAW, gone.run, "record"), b"{}")
    found = lab.lineage(MODELS, model)
    assert kinds(found) == {"commit": 1, "missing": 1}
    assert [error.exit_code for error in found.problems] == [5]


def test_a_commit_that_the_store_lacks_is_explained_by_the_root_that_the_record_has(lab: Lab) -> None:
    v1 = lab.commit(RAW, {"a": b"a"})
    resize, resized = lab.step(RESIZED, {"a": b"s"}, lab.data(RAW, v1))
    train, model = lab.step(MODELS, {"m": b"m"}, lab.data(RESIZED, resized))
    lab = lab_without(lab, commit_key(resized), f"locators/{resized}")
    found = lab.lineage(MODELS, model)
    names = {v1: "v1", resized: "resized", model: "model", resize.run: "resize", train.run: "train"}
    assert edges(found, names) == {
        ("train", "output", "model"),
        ("resized", "data", "train"),
        ("resize", "output", "resized"),
        ("v1", "data", "resize"),
    }
    assert kinds(found) == {"commit": 2, "run": 2, "missing": 1} and raw(found) == {v1}


def lab_without(lab: Lab, *keys: str) -> Lab:
    """The same store without these keys, opened anew."""
    from dsv.repo.repository import Repository

    for key in keys:
        lab.store.delete(key)
    lab.repository = Repository.open(lab.store, None)
    return lab


def test_a_run_whose_output_equals_its_input_hides_no_raw_data(lab: Lab) -> None:
    v1 = lab.commit(RAW, {"a": b"a"})
    record = lab.record(lab.data(RAW, v1))
    output = replace(lab.output(record, {"a": b"a"}), into=lab.into(RAW, v1, new=False))
    record = lab.end(replace(record, output=output))
    found = lab.lineage(RAW, v1)
    names = {v1: "v1", record.run: "run"}
    assert edges(found, names) == {("run", "again", "v1"), ("v1", "data", "run")}
    assert raw(found) == {v1}
    assert edges(lab.lineage(RAW, v1, down=True), names) == {("run", "output", "v1"), ("v1", "data", "run")}


def test_with_a_path_only_commits_that_changed_it_count(lab: Lab) -> None:
    v1 = lab.commit(RAW, {"a": b"a"})
    first = lab.record(lab.data(RAW, v1))
    one = lab.commit(MODELS, {"x/m": b"1", "z": b""})
    first = lab.end(replace(first, output=RunOutput(into=lab.into(MODELS, one, path="x"))))
    v2 = lab.commit(RAW, {"a": b"b"}, v1)
    second = lab.record(lab.data(RAW, v2))
    two = lab.commit(MODELS, {"x/m": b"1", "y/m": b"2", "z": b""}, one)
    second = lab.end(replace(second, output=RunOutput(into=lab.into(MODELS, two, path="y"))))
    notes = lab.commit(MODELS, {"x/m": b"1", "y/m": b"2", "z": b"", "README": b"r"}, two)
    names = {
        v1: "v1",
        v2: "v2",
        first.run: "first",
        second.run: "second",
        one: "one",
        two: "two",
        notes: "notes",
    }
    assert edges(lab.lineage(MODELS, notes, "x"), names) == {
        ("one:x", "history", "notes:x"),
        ("first", "output", "one:x"),
        ("v1", "data", "first"),
    }
    assert raw(lab.lineage(MODELS, notes, "y")) == {v2}
    assert raw(lab.lineage(MODELS, notes, "README")) == {notes}
    assert raw(lab.lineage(MODELS, notes)) == {v1, v2}


def test_a_part_that_equals_an_output_comes_from_that_run(lab: Lab) -> None:
    """Somebody has put the output of a run into a folder of a dataset."""
    v1 = lab.commit(RAW, {"a": b"a"})
    run = lab.record(lab.data(RAW, v1))
    run = lab.end(replace(run, output=lab.output(run, {"m": b"1", "n/o": b"2"})))
    put = lab.commit(MODELS, {"best/m": b"1", "best/n/o": b"2", "z": b"z"})
    names = {v1: "v1", put: "put", run.run: "run"}
    expected = {("run", "output", "put:best"), ("v1", "data", "run")}
    assert edges(lab.lineage(MODELS, put, "best"), names) == expected
    assert raw(lab.lineage(MODELS, put, "z")) == {put}


def test_reads_and_runs_inside_others_are_edges(lab: Lab) -> None:
    v1, words = lab.commit(RAW, {"a": b"a"}), lab.commit(LABELS, {"b": b"b"})
    outer = lab.end(lab.record(lab.data(RAW, v1)))
    inner, model = lab.step(
        MODELS, {"m": b"m"}, lab.data(RAW, v1), read=(lab.made(LABELS, words),), within=f"raw/{outer.run}"
    )
    names = {v1: "v1", words: "words", outer.run: "outer", inner.run: "inner", model: "model"}
    assert edges(lab.lineage(MODELS, model), names) == {
        ("inner", "output", "model"),
        ("v1", "data", "inner"),
        ("words", "read", "inner"),
        ("outer", "within", "inner"),
        ("v1", "data", "outer"),
    }


def test_a_run_from_a_terminal_of_an_ended_run_is_not_within_that(lab: Lab) -> None:
    v1 = lab.commit(RAW, {"a": b"a"})
    outer = lab.record(lab.data(RAW, v1))
    lab.end(replace(outer, ended_ms=1_700_000_000_000))  # 2023, and the id of the other is of 2026
    _, model = lab.step(MODELS, {"m": b"m"}, lab.data(RAW, v1), within=f"raw/{outer.run}")
    assert outer.run not in {node.run for node in lab.lineage(MODELS, model).nodes}


def test_a_job_that_restores_or_notes_an_older_commit_has_not_made_it(lab: Lab) -> None:
    v1 = lab.commit(RAW, {"a": b"1"})
    v2 = lab.commit(RAW, {"a": b"2"}, v1)
    record = lab.record(lab.data(RAW, v2))
    v3 = lab.commit(RAW, {"a": b"1"}, v2, message=f"as before\n\nMade-by-run: raw/{record.run}")
    lab.end(replace(record, made=(lab.made(RAW, v3), lab.made(RAW, v2))))
    names = {v1: "v1", v2: "v2", v3: "v3", record.run: "run"}
    found = lab.lineage(RAW, v1)
    assert ("run", "again", "v1") in edges(found, names) and v1 in raw(found)
    found = lab.lineage(RAW, v3)
    assert ("run", "made", "v3") in edges(found, names) and raw(found) == {v2}


def test_records_from_before_roots_count_once_they_have_edges(lab: Lab) -> None:
    v1 = lab.commit(RAW, {"a": b"a"})
    run, model = lab.step(MODELS, {"m": b"m"}, lab.data(RAW, v1))
    lab.runs.delete(lab.runs.find(run.run, [RAW]))
    assert run.output is not None
    old = replace(run.data[0], root=None, commit_root=None)
    lab.end(replace(run, data=(old,), output=replace(run.output, root=None, into=None)))
    assert lab.runs.repair_edges(lab.root, lambda _: None) == (2, 0)
    names = {v1: "v1", model: "model", run.run: "run"}
    found = lab.lineage(MODELS, model)
    assert edges(found, names) == {("run", "output", "model"), ("v1", "data", "run")} and raw(found) == {v1}
    down = lab.lineage(RAW, v1, down=True)
    assert {edge.name for edge in down.edges} == {"data", "output"}


def test_an_erasure_names_the_runs_that_read_the_file_without_declaring_it(lab: Lab) -> None:
    v1, words = lab.commit(RAW, {"a": b"a"}), lab.commit(LABELS, {"b": b"b"})
    run = lab.end(lab.record(lab.data(RAW, v1), read=(lab.made(LABELS, words),)))
    lab.end(lab.record(lab.data(RAW, v1)))
    found = runs_that_read(lab.repository, [FileId.hash(b"b")], [(LABELS, b"b")])
    assert [each.run for each in found] == [run.run]


def test_the_depth_bounds_the_steps(lab: Lab) -> None:
    v1 = lab.commit(RAW, {"a": b"a"})
    _, resized = lab.step(RESIZED, {"a": b"s"}, lab.data(RAW, v1))
    _, model = lab.step(MODELS, {"m": b"m"}, lab.data(RESIZED, resized))
    found = lab.lineage(MODELS, model, depth=1)
    assert {node.commit for node in found.nodes if node.kind == "commit"} == {model, resized} and found.cut
    assert not lab.lineage(MODELS, model, depth=3).cut
    assert kinds(lab.lineage(MODELS, model, depth=0)) == {"commit": 1}


def test_down_finds_who_read_it_and_what_was_made(lab: Lab) -> None:
    v1 = lab.commit(RAW, {"a": b"a", "b": b"b"})
    part, cropped = lab.step(RESIZED, {"a": b"s"}, lab.data(RAW, v1, path="a"))
    failed = lab.end(lab.record(lab.data(RAW, v1, "masks"), state=RunState.CUT_OFF))
    train, model = lab.step(MODELS, {"m": b"m"}, lab.data(RESIZED, cropped))
    found = lab.lineage(RAW, v1, down=True)
    names = {v1: "v1", cropped: "cropped", model: "model"}
    names |= {part.run: "part", failed.run: "failed", train.run: "train"}
    assert edges(found, names) == {
        ("v1", "data", "part"),
        ("v1", "data masks", "failed"),
        ("part", "output", "cropped"),
        ("cropped", "data", "train"),
        ("train", "output", "model"),
    }
    below_b = edges(lab.lineage(RAW, v1, "b", down=True), names)
    assert below_b == {("v1:b", "data masks", "failed")}
    assert len(lab.lineage(RAW, v1, down=True, depth=1).nodes) == 4


def test_down_shows_no_forged_reader_or_result(lab: Lab) -> None:
    v1, other = lab.commit(RAW, {"a": b"a"}), lab.commit(RAW, {"a": b"x"})
    liar = lab.record(replace(lab.data(RAW, other), root=lab.root(v1), commit_root=lab.root(v1)))
    lab.end(liar)
    wrong = lab.record(lab.data(RAW, v1))
    tree = lab.output(wrong, {"y": b"y"}).tree
    wrong = lab.end(replace(wrong, output=RunOutput(tree, 1, 1, root=lab.root(other))))
    names = {v1: "v1", wrong.run: "wrong"}
    assert edges(lab.lineage(RAW, v1, down=True), names) == {("v1", "data", "wrong")}


class Counting(MemoryStore):
    """Counts what it is asked: a listing is one request for each 1,000 keys."""

    asked = 0

    def get(self, key: str, limit: int = LARGEST) -> bytes:
        self.asked += 1
        return super().get(key, limit)

    def get_range(self, key: str, start: int, length: int) -> memoryview:
        self.asked += 1
        return super().get_range(key, start, length)

    def list(self, prefix: str, start_after: str | None = None) -> Iterator[ListedObject]:
        rows = [*super().list(prefix, start_after)]
        self.asked += max(1, -(-len(rows) // 1000))
        return iter(rows)


def asked(lab: Lab, store: Counting, *target: object, **options: bool) -> tuple[int, int]:
    """The requests and the nodes of a lineage that is asked for without copies on this machine."""
    lab = lab_without(lab)
    store.asked = 0
    found = lab.lineage(*target, **options)  # type: ignore[arg-type]
    return store.asked, len(found.nodes)


def test_up_takes_three_requests_a_node() -> None:
    store = Counting()
    lab = Lab(store)
    first = lab.commit(RAW, {"a": b"a"})
    dataset, last, few = RAW, first, (0, 0)
    for number in range(10):
        after = DatasetName.parse(f"step-{number}")
        _, last = lab.step(after, {"x": b"%d" % number}, lab.data(dataset, last))
        dataset = after
        few = asked(lab, store, dataset, last) if not number else few
    many = asked(lab, store, dataset, last)
    assert (few[1], many[1]) == (3, 21)
    assert many[0] - few[0] <= 3 * (many[1] - few[1]), (few, many)
    assert few[0] <= 12


def test_down_takes_a_few_requests_for_each_run_that_used_the_commit_and_none_for_others() -> None:
    store = Counting()
    lab = Lab(store)
    v1, other = lab.commit(RAW, {"a": b"a"}), lab.commit(RAW, {"b": b"b"})
    for number in range(5):
        lab.step(MODELS, {"m": b"%d" % number}, lab.data(RAW, v1))
    before = asked(lab, store, RAW, v1, down=True)
    for number in range(5, 25):
        lab.step(MODELS, {"m": b"%d" % number}, lab.data(RAW, other))
    assert asked(lab, store, RAW, v1, down=True) == before
    assert before[1] == 11 and before[0] <= 3 * 5 + 10
