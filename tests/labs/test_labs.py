"""The labs are what they say: real parts that answer, in folders of their own, gone when taken down."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from botocore.exceptions import ClientError

from tests.labs import machine
from tests.labs.docker_engine import ContainerEngine
from tests.labs.nfs_hosts import NfsHosts
from tests.labs.s3_server import S3Server
from tests.waiting import PATIENCE


def test_ceph_lets_one_of_many_writers_win(ceph_s3: S3Server) -> None:
    bucket = ceph_s3.bucket()
    answers: list[int] = []

    def put(body: bytes) -> None:
        try:
            ceph_s3.client().put_object(Bucket=bucket, Key="contested", Body=body, IfNoneMatch="*")
            answers.append(200)
        except ClientError as error:
            answers.append(error.response["ResponseMetadata"]["HTTPStatusCode"])

    writers = [threading.Thread(target=put, args=(bytes([number]),)) for number in range(8)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert sorted(answers) == [200] + [412] * 7
    assert ceph_s3.objects(bucket) == {"contested": 1}
    ceph_s3.remove_bucket(bucket)


def test_moto_answers(moto_s3: S3Server) -> None:
    bucket = moto_s3.bucket()
    moto_s3.client().put_object(Bucket=bucket, Key="a/b", Body=b"12345")
    assert moto_s3.objects(bucket, "a/") == {"a/b": 5}


@pytest.mark.real
@pytest.mark.parametrize("name", ["docker_engine", "podman"])
def test_containers_see_a_folder(name: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    engine: ContainerEngine = request.getfixturevalue(name)
    (tmp_path / "note").write_text("from outside\n")
    mount = ["--volume", f"{tmp_path}:/data:ro"]
    assert engine.call("run", "--rm", *mount, engine.busybox, "cat", "/data/note") == "from outside\n"
    with pytest.raises(machine.LabError):
        engine.call("run", "--rm", *mount, engine.busybox, "touch", "/data/note")


def test_a_host_that_loses_power_leaves_what_it_wrote(nfs_hosts: NfsHosts) -> None:
    step = "n=$((n + 1)); echo $n > beat.new; sync beat.new; mv beat.new beat; sleep 0.1"
    count = f"n=0; while true; do {step}; done"
    host = nfs_hosts.boot(1, ["sh", "-c", count])
    beat = nfs_hosts.export / "beat"
    assert machine.wait_until(beat.exists, PATIENCE)
    host.power_off()
    last = beat.read_text()
    seen = nfs_hosts.run(2, ["sh", "-c", "cat beat; hostname; date +%s"], clock_offset=86_400)
    assert seen.status == 0, seen.stderr
    number, hostname, clock = seen.stdout.split()
    assert (number, hostname) == (last.strip(), "host2")
    assert int(clock) - time.time() > 86_000


def test_a_host_that_a_failed_test_left_running_is_ended_first(nfs_hosts: NfsHosts) -> None:
    left = nfs_hosts.boot(2, ["sh", "-c", "touch left; sleep 86400; echo left"])
    assert machine.wait_until((nfs_hosts.export / "left").exists, PATIENCE)
    assert nfs_hosts.run(2, ["echo", "next"]).stdout == "next\n"
    assert left.kernel.poll() is not None


def test_an_unplugged_host_waits_and_continues(nfs_hosts: NfsHosts) -> None:
    told = nfs_hosts.out / "unplugged"  # where it reads and writes without the cable
    ready, tries = nfs_hosts.out / "ready", nfs_hosts.out / "tries"
    waits = "until [ -e /mnt/out/unplugged ]; do sleep 0.1; done"
    works = "touch early; touch /mnt/out/ready"  # a file is on the server before `touch` has the last answer
    host = nfs_hosts.boot(3, ["sh", "-c", f"{works}; {waits}; touch /mnt/out/tries; touch late"])
    assert machine.wait_until(ready.exists, PATIENCE)
    host.unplug()
    told.touch()
    assert machine.wait_until(tries.exists, PATIENCE)
    time.sleep(2)
    assert not (nfs_hosts.export / "late").exists()
    host.plug_in()
    assert host.wait().status == 0
    assert (nfs_hosts.export / "late").exists()
    for path in (told, ready, tries):
        path.unlink()


def test_a_lab_goes_with_its_owner(tmp_path: Path) -> None:
    """A test run that is killed leaves no lab behind."""
    owner = subprocess.Popen(["sleep", "600"])
    place = tmp_path / "shelf"
    (place / "ceph-rgw").mkdir(parents=True)
    daemon = machine.start(place / "ceph-rgw", "rgw", ["sleep", "600"])
    argv = [sys.executable, "-m", "tests.labs", "keep", str(place), str(owner.pid)]
    keeper = subprocess.Popen(argv, cwd=Path(__file__).parents[2])
    time.sleep(0.5)
    assert machine.alive(place / "ceph-rgw", "rgw")
    owner.kill()
    owner.wait()
    assert keeper.wait(PATIENCE) == 0
    assert not place.exists()
    assert "sleep" not in _command(daemon)


def test_a_stopped_process_is_gone_and_a_foreign_one_is_left_alone(tmp_path: Path) -> None:
    pid = machine.start(tmp_path, "sleeper", ["sleep", "600"])
    assert machine.alive(tmp_path, "sleeper")
    foreign = subprocess.Popen(["sleep", "600"])
    (tmp_path / "other.pid").write_text(f"{foreign.pid} 1\n")  # the right number, another start time
    machine.stop(tmp_path, "other")
    assert foreign.poll() is None
    foreign.kill()
    foreign.wait()
    machine.stop(tmp_path, "sleeper")
    assert not machine.alive(tmp_path, "sleeper")
    assert "sleep" not in _command(pid)


def test_what_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    with pytest.raises(machine.MissingError, match="teleport needs Debian's teleportd"):
        machine.require("teleport", {"sh": "dash", "beam-me-up": "teleportd"})
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(machine.MissingError, match="needs root"):
        machine.require("teleport", {})


def _command(pid: int) -> str:
    """The command line of a process; empty for one that is gone or a zombie."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:
        return ""
