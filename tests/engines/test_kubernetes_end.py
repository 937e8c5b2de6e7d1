"""The end of a job on Kubernetes, computed from its objects: without a cluster."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from dsv.run.completing import completed
from dsv.run.engines.kubernetes.capacity import refusal_of_pods
from dsv.run.engines.kubernetes.job import JobSnapshot, ended, gone, status, waits_for_ended_nodes
from dsv.run.engines.kubernetes.pod import Obstacle, Pod, is_over
from dsv.run.part import EndCause, RunPart
from dsv.run.record import RunState
from tests.run.test_record import RECORD


def a_job(**more: Any) -> dict[str, Any]:
    conditions = [{"type": each, "status": "True"} for each in more.pop("conditions", ())]
    annotations = more.pop("annotations", {})
    return {
        "metadata": {"name": "j", "uid": "u", "annotations": annotations},
        "spec": {"completions": 1, **more},
        "status": {"conditions": conditions},
    }


def a_pod(number: int = 0, failed: int = 0, *, phase: str = "Failed", **more: Any) -> Pod:
    """code, at, reason: of the end of its container; condition: the reason of its disruption; status: all else."""
    state: dict[str, Any] = {}
    if "code" in more:
        state["terminated"] = {
            "exitCode": more["code"],
            "reason": more.get("reason", "Error"),
            "startedAt": "2026-11-22T10:00:00Z",
            "finishedAt": f"2026-11-22T10:00:{more.get('at', 10):02}Z",
            "message": more.get("message", ""),
        }
    elif phase == "Running":
        state["running"] = {"startedAt": "2026-11-22T10:00:00Z"}
    conditions = (
        [{"type": "DisruptionTarget", "status": "True", "reason": more["condition"]}]
        if "condition" in more
        else []
    )
    return Pod(
        {
            "metadata": {
                **({"deletionTimestamp": "2026-11-22T10:00:05Z"} if more.get("deleted") else {}),
                "name": f"p{number}{failed}",
                "uid": f"{number}{failed}",
                "annotations": {
                    "batch.kubernetes.io/job-completion-index": str(number),
                    "batch.kubernetes.io/job-index-failure-count": str(failed),
                },
            },
            "spec": {"nodeName": f"host{number}"},
            "status": {
                "phase": phase,
                "conditions": conditions,
                "containerStatuses": [{"name": "main", "state": state}],
                **more.get("status", {}),
            },
        }
    )


GANG = {
    "template": {
        "spec": {"initContainers": [{"name": "hold", "env": [{"name": "DSV_GANG_PORT", "value": "1"}]}]}
    }
}
"""Of a job whose nodes begin and end together."""
SENDS_OUTPUT = {
    "template": {
        "spec": {
            "initContainers": [{"name": "hold", "env": [{"name": "DSV_CLOSE_SECONDS", "value": "3595"}]}]
        }
    }
}
LEFT_RUNNING = {
    "containerStatuses": [{"name": "main", "state": {"running": {"startedAt": "2026-11-22T10:00:00Z"}}}]
}
"""Of a pod that the cluster has given up: nobody says any more what became of its container."""
TOGETHER = "end=together memory= cpu= code=143\nnode 0 failed first, with exit code 137"
OOM = {"code": 137, "reason": "OOMKilled"}
STAGE_FAILED = {
    "initContainerStatuses": [
        {
            "name": "stage",
            "state": {"terminated": {"exitCode": 7, "message": "note\nerror: no room\nhint: x\n"}},
        }
    ],
    "containerStatuses": [],
}


@pytest.mark.parametrize(
    ("job", "pods", "code", "cause", "words"),
    [
        (a_job(), [a_pod(phase="Succeeded", code=0)], 0, EndCause.EXITED, None),
        (a_job(), [a_pod(code=3)], 3, EndCause.EXITED, None),
        (a_job(completions=2), [a_pod(0, code=143, at=12), a_pod(1, code=4, at=11)], 4, EndCause.EXITED,
         r"node 1 \(host1\) failed first"),
        (a_job(), [a_pod(**OOM)], 137, EndCause.OUT_OF_MEMORY, "memory"),
        (a_job(), [a_pod(code=143, condition="PreemptionByScheduler")], 143, EndCause.PREEMPTED, None),
        (a_job(), [a_pod(code=137, condition="EvictionByEvictionAPI")], 137, EndCause.EVICTED, None),
        (a_job(), [a_pod(code=137, condition="DeletionByTaintManager")], 137, EndCause.NODE_LOST, None),
        (a_job(), [a_pod(code=124, message="end=time-limit memory=1 cpu=2")], 124, EndCause.TIME_LIMIT,
         "reached its time limit"),
        (a_job(), [a_pod(code=125, message="end=lease-lost memory= cpu=")], 125, EndCause.LEASE_LOST, "not held"),
        (a_job(), [a_pod(code=124)], 124, EndCause.EXITED, None),
        (a_job(), [a_pod(code=143, deleted=True)], 143, EndCause.CANCELLED, "^its pod was deleted$"),
        (a_job(completions=2), [a_pod(0, code=137, deleted=True, at=12), a_pod(1, code=190, at=11, message=TOGETHER)],
         137, EndCause.CANCELLED, "^its pod was deleted$"),
        (a_job(completions=2), [a_pod(0, code=143, deleted=True, at=10), a_pod(1, code=3, at=11)], 3, EndCause.EXITED,
         "node 1"),
        (a_job(), [Pod(a_pod(phase="Running").raw, gone=True, lost=(EndCause.NODE_LOST, "host0 is lost"))],
         137, EndCause.NODE_LOST, "^host0 is lost$"),
        (a_job(conditions=["Failed"]), [a_pod(status=LEFT_RUNNING, condition="DeletionByPodGC")],
         137, EndCause.NODE_LOST, "DeletionByPodGC"),
        (a_job(), [Pod(a_pod(phase="Running").raw, gone=True, lost=(EndCause.CANCELLED, "its pod was deleted"))],
         137, EndCause.CANCELLED, "^its pod was deleted$"),
        (a_job(), [a_pod(code=3, deleted=True)], 3, EndCause.EXITED, None),
        (a_job(annotations={"dsv.run/stopped": "ann on h"}), [a_pod(code=143)], 143, EndCause.CANCELLED, "by ann on h"),
        (a_job(conditions=["Failed"]), [a_pod(status=STAGE_FAILED)], 125, EndCause.NOT_STARTED, "^no room$"),
    ],
)  # fmt: skip
def test_the_end_is_reported_correctly(
    job: dict[str, Any], pods: list[Pod], code: int, cause: EndCause, words: str | None
) -> None:
    import re

    done = ended(JobSnapshot(job, tuple(pods)))
    assert done is not None and (done.exit_code, done.cause) == (code, cause)
    assert (words is None) == (done.reason is None) or words is None
    assert words is None or re.search(words, done.reason or "")


def test_a_job_with_retries_lives_until_the_last() -> None:
    pods = (a_pod(0, 0, code=1), a_pod(0, 1, phase="Running"))
    assert ended(JobSnapshot(a_job(backoffLimit=1), pods)) is None
    assert ended(JobSnapshot(a_job(backoffLimit=1), pods[:1])) is None
    assert status(JobSnapshot(a_job(backoffLimit=1), pods)).state is RunState.RUNNING
    done = ended(JobSnapshot(a_job(backoffLimit=1), (pods[0], a_pod(0, 1, phase="Succeeded", code=0))))
    assert done is not None and done.exit_code == 0 and [each.attempt for each in done.parts] == [1, 2]


def test_nobody_knows_how_pods_ended_that_no_look_has_seen() -> None:
    job = a_job(conditions=["Failed"])
    job["status"]["failed"] = 1
    done = ended(JobSnapshot(job))
    assert done is not None and (done.launched, done.cause) == (True, EndCause.LOST_SIGHT)


def test_a_job_that_was_deleted_was_cancelled() -> None:
    done = gone(JobSnapshot(a_job(), (a_pod(phase="Running"),)))
    assert (done.exit_code, done.cause, done.launched) == (143, EndCause.CANCELLED, True)
    assert gone(JobSnapshot(a_job(), ())).launched is False


def test_the_exit_code_of_a_job_that_was_deleted_is_that_of_its_last_attempt() -> None:
    pods = (a_pod(0, 0, condition="DeletionByPodGC", status=LEFT_RUNNING), a_pod(0, 1, code=9, deleted=True))
    done = gone(JobSnapshot(a_job(annotations={"dsv.run/stopped": "ann on h"}), pods))
    assert (done.exit_code, done.cause) == (9, EndCause.CANCELLED)
    assert [(each.end, each.exit_code) for each in done.parts] == [
        (EndCause.NODE_LOST, 137),
        (EndCause.CANCELLED, 9),
    ]


@pytest.mark.parametrize(
    ("waiting", "cause", "patient"),
    [
        ({"reason": "ErrImagePull", "message": "manifest unknown"}, EndCause.IMAGE_NOT_PULLED, False),
        (
            {"reason": "ErrImagePull", "message": "lookup nowhere: no such host"},
            EndCause.IMAGE_NOT_PULLED,
            False,
        ),
        ({"reason": "ImagePullBackOff", "message": "i/o timeout"}, EndCause.IMAGE_NOT_PULLED, True),
        ({"reason": "CreateContainerConfigError", "message": "runAsNonRoot"}, EndCause.NOT_STARTED, True),
    ],
)
def test_what_keeps_a_pod_from_beginning(waiting: dict[str, str], cause: EndCause, patient: bool) -> None:
    found = a_pod(
        phase="Pending", status={"containerStatuses": [{"name": "main", "state": {"waiting": waiting}}]}
    ).obstacle(False)
    assert found is not None and found.cause is cause and found.reason == waiting["message"]
    assert found.patience is not None and (found.patience > 10) == patient


@pytest.mark.parametrize(
    ("message", "autoscaling", "ends"),
    [
        ("0/2 nodes are available: 2 Insufficient nvidia.com/gpu.", False, False),
        ("0/2 nodes are available: 2 node(s) didn't match Pod's node affinity/selector.", False, True),
        ("0/2 nodes are available: 2 node(s) didn't match Pod's node affinity/selector.", True, False),
        ('persistentvolumeclaim "datasets" not found', True, True),
    ],
)
def test_a_lack_of_room_is_waited_for(message: str, autoscaling: bool, ends: bool) -> None:
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}
    found = a_pod(phase="Pending", status={"conditions": [condition]}).obstacle(autoscaling)
    assert found is not None and found.reason == message and (found.patience is not None) == ends


@pytest.mark.parametrize(
    ("said", "reason", "hint"),
    [
        (
            "error: the pool's image of dsv has no program dsv",
            "the pool's image of dsv has no program dsv",
            "image",
        ),
        (
            "/usr/bin/python3: No module named dsv.run.engines.kubernetes.rendezvous",
            "the pool's image has a dsv that is too old for this one",
            "image",
        ),
        ("note\nerror: no room\nhint: dsv evict\n", "no room", "dsv evict"),
        ('{"error": {"message": "no room", "hint": "dsv evict"}}', "no room", "dsv evict"),
        ("error: no room\n", "no room", None),
    ],
)
def test_what_helps_if_the_data_cannot_be_held(said: str, reason: str, hint: str | None) -> None:
    stage = {"name": "stage", "state": {"terminated": {"exitCode": 1, "message": said}}}
    pod = a_pod(status={"initContainerStatuses": [stage], "containerStatuses": []})
    found = ended(JobSnapshot(a_job(conditions=["Failed"]), (pod,)))
    assert found is not None and found.reason == reason
    assert found.hint == hint or (hint == "image" and "pools.NAME.kubernetes.image" in str(found.hint))


def test_refusals_of_pods() -> None:
    quota = 'pods "x" is forbidden: exceeded quota: q, requested: pods=1, used: pods={}, limited: pods={}'
    assert refusal_of_pods([]) is None
    full, never = quota.format(2, 2), quota.format(0, 0)
    assert refusal_of_pods([f"Error creating: {full}"]) == Obstacle(full)
    assert refusal_of_pods([never]) == Obstacle(never, patience=5.0)
    insecure = 'pods "x" is forbidden: violates PodSecurity "restricted:latest"'
    assert refusal_of_pods([full, insecure]) == Obstacle(insecure, patience=5.0)


def test_a_refusal_that_passes_by_itself_is_waited_for() -> None:
    for words in (
        'pods "x" is forbidden: status unknown for quota: q, resources: pods',
        "Operation cannot be fulfilled on resourcequotas: the object has been modified",
        'Internal error occurred: failed calling webhook "w": connection refused',
    ):
        assert refusal_of_pods([f"Error creating: {words}"]) == Obstacle(words)


def test_the_parts_of_a_run_that_was_stopped_say_so_too() -> None:
    job = a_job(annotations={"dsv.run/stopped": "ann on h"}, backoffLimit=1)
    pods = (a_pod(0, 0, code=3), a_pod(0, 1, code=143))
    for done in (ended(JobSnapshot({**job, "spec": {"completions": 1}}, pods)), gone(JobSnapshot(job, pods))):
        assert done is not None and (done.cause, done.stopped) == (EndCause.CANCELLED, "ann on h")
        assert [(each.end, each.cancelled_by) for each in done.parts] == [
            (EndCause.EXITED, None),
            (EndCause.CANCELLED, "ann on h"),
        ]


def test_a_run_of_three_nodes_that_was_stopped_has_no_node_that_failed_first() -> None:
    """A command that SIGTERM has ended is the first failure for the others, which end with it."""
    together = "end=together code=143\nnode 2 failed first, with exit code 143"
    others: dict[str, Any] = {"code": 190, "message": together}
    pods = (a_pod(0, 0, **others), a_pod(1, 0, **others), a_pod(2, 0, code=143))
    job = a_job(completions=3, annotations={"dsv.run/stopped": "ann@h"}, template=GANG["template"])
    done = ended(JobSnapshot(job, pods))
    assert done is not None and (done.cause, done.reason) == (EndCause.CANCELLED, "it was cancelled by ann@h")
    assert {(part.end, part.cancelled_by, part.error) for part in done.parts} == {
        (EndCause.CANCELLED, "ann@h", None)
    }


def test_a_command_that_the_image_does_not_have_was_not_started() -> None:
    """As on a machine and on Slurm; a shell that exits with 127 has begun."""
    for word, cause, launched in (("missing", EndCause.NOT_STARTED, False), ("", EndCause.EXITED, True)):
        pod = a_pod(code=127, message=f"end={word} code=127")
        done = ended(JobSnapshot(a_job(), [pod]))
        assert done is not None and (done.cause, done.launched, done.exit_code) == (cause, launched, 127)


def test_the_part_of_a_lost_machine_ends_when_the_cluster_lost_sight_of_it() -> None:
    """Not when its pod was given up, which is a minute later."""
    unready = {"type": "Ready", "status": "False", "lastTransitionTime": "2026-11-22T10:00:40Z"}
    lost = {"type": "DisruptionTarget", "status": "True", "reason": "DeletionByTaintManager"}
    pod = a_pod(status={"conditions": [unready, lost], **LEFT_RUNNING})
    assert pod.part is not None and pod.part.end is EndCause.NODE_LOST
    assert pod.part.ended_ms is not None and pod.part.started_ms is not None
    assert pod.part.ended_ms - pod.part.started_ms == 40_000


def test_a_suspended_job_without_pods_is_not_over() -> None:
    gone_pod = (Pod(a_pod(phase="Running").raw, gone=True),)
    assert ended(JobSnapshot(a_job(suspend=True), gone_pod)) is None
    stopped = a_job(suspend=True, annotations={"dsv.run/stopped": "ann on h"})
    assert ended(JobSnapshot(stopped, gone_pod)) is not None


def test_the_exit_code_of_what_was_killed_is_that_of_sigkill() -> None:
    assert gone(JobSnapshot(a_job(), (a_pod(phase="Running"),)), killed=True).exit_code == 137


def test_a_container_that_was_never_made_has_not_begun() -> None:
    pod = a_pod(code=137, reason="ContainerStatusUnknown")
    assert not pod.begun
    pod.raw["status"]["containerStatuses"][0]["containerID"] = "containerd://1"
    assert Pod(pod.raw).begun


@pytest.mark.parametrize(
    ("states", "untouched"),
    [
        ((), True),
        (({"waiting": {"reason": "PodInitializing"}}, {"waiting": {"reason": "PodInitializing"}}), True),
        (({"running": {}}, {"waiting": {"reason": "PodInitializing"}}), False),
        (({"terminated": {"exitCode": 0}}, {"waiting": {}}), False),
    ],
)
def test_a_pod_is_untouched_until_one_of_its_containers_has_started(
    states: tuple[dict[str, Any], ...], untouched: bool
) -> None:
    found = [{"name": str(number), "state": state} for number, state in enumerate(states)]
    pod = a_pod(phase="Pending", status={"initContainerStatuses": found, "containerStatuses": []})
    assert pod.has_no_container is untouched


@pytest.mark.parametrize(
    ("code", "sidecar", "over"), [(0, "terminated", True), (0, "running", False), (1, "terminated", False)]
)
def test_a_pod_whose_command_succeeded_is_over_once_nothing_runs_in_it(
    code: int, sidecar: str, over: bool
) -> None:
    """The cluster says so of the pod later; how one ended that failed, it says only then."""
    others = {"initContainerStatuses": [{"name": "hold", "state": {sidecar: {}}}]}
    done = ended(JobSnapshot(a_job(), (a_pod(phase="Running", code=code, status=others),)))
    assert (done is not None) is over
    assert done is None or done.exit_code == 0


@pytest.mark.parametrize(
    ("job", "code", "message", "over"),
    [
        ({}, 0, "code=0 stopped=no", True),
        ({}, 3, "code=3 stopped=no", True),
        ({}, 3, "code=3 stopped=yes", False),  # the cluster says only later why it stopped the command
        ({}, 143, "code=143 stopped=no", False),
        ({"backoffLimit": 1}, 0, "code=0 stopped=no", True),
        ({"backoffLimit": 1}, 3, "code=3 stopped=no", False),
        (SENDS_OUTPUT, 0, "code=0 stopped=no", False),
    ],
)
def test_a_job_is_over_once_its_command_has_ended_by_itself_though_its_data_is_still_held(
    job: dict[str, Any], code: int, message: str, over: bool
) -> None:
    holds = {"initContainerStatuses": [{"name": "hold", "state": {"running": {}}}]}
    pod = a_pod(phase="Running", code=code, message=f"end= memory= cpu= {message}", status=holds)
    done = ended(JobSnapshot(a_job(**job), (pod,)))
    assert (done is not None) is over
    assert done is None or (done.exit_code, done.cause) == (code, EndCause.EXITED)


@pytest.mark.parametrize(
    "ends, over",
    [
        ("0", True),
        ("3", False),
        ("3 0", True),
        ("3 4", True),
        ("124", True),
        ("- 0", None),
        ("0,0", True),
        ("3,c c,4", True),
        ("3,c", False),
        ("c,c", None),
        ("c,c 3,c", False),
        ("c,c 3,c c,3", True),
        ("3,c -,0", None),
        ("3,124", True),
        ("e 0", True),
        ("e 3", None),
        ("e,e 0,-", None),
    ],
)
def test_whether_another_attempt_follows_what_its_nodes_left(ends: str, over: bool | None) -> None:
    """As the cluster counts them, with one retry: an attempt counts in which a node failed by itself. By attempts, then
    by nodes; c: ended with the others; e: stopped by a queue; -: nothing is known."""
    attempts = [each.split(",") for each in ends.split()]
    causes = {"c": EndCause.CANCELLED, "e": EndCause.EVICTED, "124": EndCause.TIME_LIMIT}
    parts = [
        RunPart(
            node=node, attempt=attempt, ended_ms=1, exit_code=int(end) if end.isdecimal() else 143,
            end=causes.get(end, EndCause.EXITED),
        )
        for attempt, nodes in enumerate(attempts, 1) for node, end in enumerate(nodes) if end != "-"
    ]  # fmt: skip
    assert is_over(parts, len(attempts[0]), retries=1) is over


@pytest.mark.parametrize("nodes_agree", [True, False])
@pytest.mark.parametrize(
    ("killed", "job", "waits"),
    [
        ((a_pod(0, 0, code=137, deleted=True), a_pod(0, 1, phase="Pending")), {"backoffLimit": 3}, True),
        ((a_pod(0, 0, code=137, deleted=True),), {"backoffLimit": 3}, True),  # the next pod is yet to come
        ((a_pod(0, 0, code=137, condition="EvictionByEvictionAPI"),), {"conditions": ["Failed"]}, False),
    ],
)
def test_a_node_that_is_killed_once_all_are_done_does_not_undo_that(
    killed: tuple[Pod, ...], job: dict[str, Any], waits: bool, nodes_agree: bool
) -> None:
    """Of nodes that know nothing of each other, each has to succeed itself."""
    raw = a_job(completions=2, **(GANG if nodes_agree else {}), **job)
    facts = JobSnapshot(raw, (*killed, a_pod(1, 0, phase="Succeeded", code=0)))
    found = ended(facts)
    assert (found is not None and found.exit_code == 0) == nodes_agree
    assert waits_for_ended_nodes(facts) == (waits and nodes_agree)


NEW = a_pod(1, 1, phase="Pending")
LOST = Pod(a_pod(1, 0, phase="Running", condition="DeletionByTaintManager").raw, gone=True)
DRAINED = a_pod(0, phase="Succeeded", code=0, condition="EvictionByEvictionAPI")


@pytest.mark.parametrize(
    ("pods", "completed", "over"),
    [
        ((DRAINED, LOST, NEW), "0", True),
        ((Pod(DRAINED.raw, gone=True), LOST, NEW), "0", True),
        ((NEW,), "0", True),  # whoever looks has not seen the others
        ((a_pod(1, 0, phase="Running"),), "0", False),  # it may still send what it has left
        ((NEW,), "", False),
    ],
)
def test_nodes_that_were_done_stay_done_though_their_pods_are_taken_away(
    pods: tuple[Pod, ...], completed: str, over: bool
) -> None:
    """One machine is lost, then another is drained: that evicts pods that have succeeded, too."""
    raw = a_job(completions=2, backoffLimit=3, **GANG)
    raw["status"]["completedIndexes"] = completed
    facts = JobSnapshot(raw, pods)
    found = ended(facts)
    assert (found is not None) == waits_for_ended_nodes(facts) == over
    assert found is None or (found.exit_code, found.cause) == (0, EndCause.EXITED)
    ends = [(each.end, each.exit_code) for each in found.parts] if found else []
    assert ends == ([(EndCause.EXITED, 0), (EndCause.NODE_LOST, 137)] if len(pods) > 1 else [])


@pytest.mark.parametrize(
    "pods",
    [
        (a_pod(0, phase="Running"), a_pod(1, phase="Succeeded", code=0)),
        (a_pod(0, code=137, deleted=True), a_pod(1, phase="Running", code=0)),
    ],
)
def test_the_others_may_still_have_to_send_what_they_left(pods: tuple[Pod, ...]) -> None:
    """And the cluster takes a pod away, with its log, that it doesn't know to be over."""
    facts = JobSnapshot(a_job(completions=2, backoffLimit=3, **GANG), pods)
    assert ended(facts) is None and not waits_for_ended_nodes(facts)


def _at(seconds: float) -> str:
    return datetime.fromtimestamp(1_800_000_000 + seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


@pytest.mark.parametrize("wrong", [-7200, 0, 7200])
@pytest.mark.parametrize("is_lost", [False, True])
def test_no_time_is_negative_though_the_clock_of_a_machine_is_wrong(wrong: int, is_lost: bool) -> None:
    """A command that runs for 50 s. Its machine reports its beginning, and the cluster that the machine is lost."""
    status: dict[str, Any] = {
        "startTime": _at(1 + wrong),
        "conditions": [
            {"type": "PodScheduled", "status": "True", "lastTransitionTime": _at(1)},
            {"type": "Ready", "status": "False", "lastTransitionTime": _at(55)},
        ],
    }
    main: dict[str, Any] = {"running": {"startedAt": _at(5 + wrong)}}
    if not is_lost:
        main = {"terminated": {"exitCode": 0, "startedAt": _at(5 + wrong), "finishedAt": _at(55 + wrong)}}
    status |= {"containerStatuses": [{"name": "main", "state": main}]}
    lost = (EndCause.NODE_LOST, "host0 is lost") if is_lost else None
    raw = a_pod(phase="Running" if is_lost else "Succeeded", status=status).raw
    done = ended(JobSnapshot(a_job(), (Pod(raw, gone=is_lost, lost=lost),)))
    assert done is not None
    start = replace(RECORD, started_ms=1_800_000_000_000, state=RunState.RUNNING, parts=())
    record = completed(start, done, 1_800_000_060_000)
    assert record.ended_ms is not None and record.ended_ms - record.started_ms == 50_000
    (part,) = record.parts
    assert part.started_ms is not None and part.ended_ms == part.started_ms + 50_000
    assert start.started_ms <= part.started_ms and part.ended_ms <= 1_800_000_060_000
