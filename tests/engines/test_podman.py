"""Real podman."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest

from dsv.run.engines.containers.engine import Podman
from dsv.run.resources import ALL_GPUS
from tests.engines.container_conformance import ContainerConformance
from tests.engines.harness import Bench
from tests.labs.docker_engine import ContainerEngine


@pytest.fixture
def bench(tmp_path: Path, podman: ContainerEngine) -> Bench:
    return Bench.of(Podman({**os.environ, **podman.env}), tmp_path, podman.busybox)


class TestPodman(ContainerConformance):
    name = "podman"
    # Where podman has a program, a monitor or a mapping of users of its own. Docker's tests have the rest.
    runs = (
        "test_is_the_registered_engine",
        "test_the_exit_code_is_the_commands_own",
        "test_a_command_killed_by_a_signal_is_128_and_more",
        "test_a_missing_command_is_127",
        "test_a_command_that_cannot_be_run_is_126",
        "test_streams_stay_apart_and_the_log_has_both",
        "test_environment_values_arrive_as_they_are",
        "test_environment_values_are_not_in_argv",
        "test_what_the_job_writes_belongs_to_the_caller",
        "test_much_output_arrives_whole_and_is_kept_in_part",
        "test_a_signal_is_for_the_job_to_handle",
        "test_a_job_that_ignores_signals_is_ended_after_its_grace",
        "test_memory_and_processor_time_are_seen",
        "test_what_the_job_left_running_ends_with_it",
        "test_nothing_is_left_behind",
        "test_a_command_that_cannot_be_started_was_never_launched",
        "test_an_image_that_is_not_there_is_125",
        "test_a_mount_that_is_not_there_is_125",
        "test_a_name_in_use_is_125_and_its_owner_lives_on",
        "test_what_is_mounted_read_only_cannot_be_written",
        "test_files_belong_to_a_caller_who_is_not_root",
        "test_a_container_beyond_its_memory_is_ended",
        "test_a_job_that_outlives_a_child_beyond_its_memory_ends_as_it_wants",
        "test_the_image_is_known_afterwards",
        "test_what_is_planned_is_what_is_run",
        "test_values_are_in_no_file_that_others_can_read",
        "test_a_job_that_is_ended_while_its_image_is_fetched",
        "test_output_is_whole_if_the_program_that_delivers_it_dies",
        "test_another_process_attaches_to_a_job_that_runs",
        "test_the_exit_code_of_a_job_that_is_over_can_be_read",
        "test_a_job_can_be_cancelled_by_its_reference",
        "test_a_submitter_that_is_killed_before_the_job_begins",
        "test_a_job_ends_if_the_process_that_supervises_it_is_killed",
        "test_a_job_that_lost_its_reaper_too_is_ended_by_its_reference",
    )

    @pytest.mark.parametrize(("wanted", "seen"), [(1, b"0\n"), (2, b"0 1\n"), (ALL_GPUS, b"all\n")])
    def test_gpus_come_by_the_container_device_interface(
        self, bench: Bench, podman: ContainerEngine, wanted: int, seen: bytes
    ) -> None:
        """A specification as the NVIDIA toolkit would write it, with variables in place of devices."""
        assert isinstance(bench.engine, Podman)
        if any(folder.is_dir() and any(folder.iterdir()) for folder in (Path("/etc/cdi"), Path("/run/cdi"))):
            pytest.skip("this machine has real device specifications")
        devices = [
            {"name": name, "containerEdits": {"env": [f"GPU_{name}={name}"]}} for name in ("0", "1", "all")
        ]
        folder = bench.folder / "cdi"
        folder.mkdir()
        (folder / "nvidia.json").write_text(
            json.dumps({"cdiVersion": "0.3.0", "kind": "nvidia.com/gpu", "devices": devices})
        )
        shim = bench.folder / "bin" / "podman"
        shim.parent.mkdir()
        shim.write_text(
            "#!/bin/sh\nmkdir -p /run/cdi\n"
            f'exec unshare --mount sh -c \'mount --bind {folder} /run/cdi && exec {podman.program} "$@"\' sh "$@"\n'
        )
        shim.chmod(0o755)
        bench.engine.environ = {
            **bench.engine.environ,
            "PATH": f"{shim.parent}:{bench.engine.environ['PATH']}",
        }
        bench.facts = replace(bench.facts, machine=replace(bench.facts.machine, gpus=2))
        done = bench.run(bench.shell("echo $GPU_0 $GPU_1 $GPU_all", gpus=wanted))
        assert (done.code, done.stdout) == (0, seen)

    def test_gpus_without_a_specification_are_125(self, bench: Bench) -> None:
        if Path("/etc/cdi").is_dir():
            pytest.skip("this machine has real device specifications")
        bench.facts = replace(bench.facts, machine=replace(bench.facts.machine, gpus=1))
        done = bench.run(bench.job("sh", "-c", "exit 0", gpus=1))
        assert (done.code, done.outcome.launched) == (125, False)
