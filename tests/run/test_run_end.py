"""Which part of a run says how it ended, and when a further attempt makes sense."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsv.run.node_order import LOWEST_PORT, PORTS, meeting_port, node_environment
from dsv.run.part import EndCause, RunPart, deciding_part, exit_signal, may_try_again


def part(node: int, ended_ms: int | None, code: int | None = 0, **more: object) -> RunPart:
    end = None if ended_ms is None else EndCause.EXITED
    given_ = {"end": end, "exit_signal": exit_signal(code), **more}
    return RunPart(node=node, ended_ms=ended_ms, exit_code=code, **given_)  # type: ignore[arg-type]


def test_the_node_that_failed_first_decides() -> None:
    parts = [part(0, 300, 143), part(1, 100, 7), part(2, 200, 143)]
    assert deciding_part(parts) == parts[1]


def test_of_those_that_ended_at_once_the_killed_ones_are_consequences() -> None:
    parts = [part(0, 100, 143), part(1, 100, 1), part(2, 100, 137)]
    assert deciding_part(parts) == parts[1]
    oom = [part(0, 100, 143), part(1, 100, 137, end=EndCause.OUT_OF_MEMORY)]
    assert deciding_part(oom) == oom[1]


def test_only_the_last_attempt_counts() -> None:
    parts = [part(0, 100, 1), part(1, 101, 0), part(0, 200, 0, attempt=2), part(1, 250, 0, attempt=2)]
    assert deciding_part(parts) == parts[2]


def test_nothing_is_decided_while_nodes_run_and_none_failed() -> None:
    assert deciding_part([]) is None
    assert deciding_part([part(0, 100), part(1, None, None)]) is None
    failed = [part(0, None, None), part(1, 100, 3)]
    assert deciding_part(failed) == failed[1]


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 1000)), min_size=1, max_size=8))
def test_a_run_succeeds_only_if_all_nodes_do(ends: list[tuple[int, int]]) -> None:
    parts = [part(node, ended, code) for node, (code, ended) in enumerate(ends)]
    decided = deciding_part(parts)
    assert decided is not None
    assert decided.succeeded is all(code == 0 for code, _ in ends)
    if not decided.succeeded:
        assert decided.ended_ms == min(ended for code, ended in ends if code != 0)


@pytest.mark.parametrize("cause", list(EndCause))
def test_every_cause_says_whether_another_attempt_makes_sense(cause: EndCause) -> None:
    again = {
        EndCause.EXITED, EndCause.OUT_OF_MEMORY, EndCause.EVICTED, EndCause.PREEMPTED, EndCause.NODE_LOST
    }  # fmt: skip
    assert may_try_again(part(0, 1, 1, end=cause)) is (cause in again)


def test_a_part_that_succeeded_or_still_runs_is_not_tried_again() -> None:
    assert not may_try_again(part(0, 1, 0))
    assert not may_try_again(part(0, None, None))


@pytest.mark.parametrize(
    ("code", "name"), [(0, None), (1, None), (128, None), (137, "SIGKILL"), (143, "SIGTERM"), (255, None)]
)
def test_the_signal_in_an_exit_code(code: int, name: str | None) -> None:
    assert exit_signal(code) == name


def test_the_nodes_of_a_job_find_each_other() -> None:
    assert node_environment(["job-0.job", "job-1.job"], 29500) == {
        "MASTER_ADDR": "job-0.job",
        "MASTER_PORT": "29500",
        "WORLD_SIZE": "2",
        "PET_NNODES": "2",
        "PET_MASTER_ADDR": "job-0.job",
        "PET_MASTER_PORT": "29500",
    }


def test_a_run_has_one_port() -> None:
    run = "20261120-132145-1f2e3d4c"
    assert meeting_port(run) == meeting_port(run)
    assert LOWEST_PORT <= meeting_port(run) < LOWEST_PORT + PORTS
    assert meeting_port("no id of a run") == LOWEST_PORT
