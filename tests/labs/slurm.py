"""A real Slurm: a controller, and three nodes of two pretended GPUs each, all on loopback.

Each node is a set of namespaces with a host name, processes and a view of /etc/hosts of its own. So a node that loses
power is one process that is killed, with all that ran there, and a command can be run as if typed on a node. There is
no accounting: slurmctld forgets a job some time after its end, and sacct answers nothing.
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from tests.labs.machine import (
    LabError,
    MissingError,
    alive,
    environment,
    free_ports,
    require,
    start,
    stop,
    wait_ready,
    wait_until,
)
from tests.waiting import PATIENCE

PROGRAMS = {
    "slurmctld": "slurmctld",
    "slurmd": "slurmd",
    "sbatch": "slurm-client",
    "munged": "munge",
    "unshare": "util-linux",
}
NODES = ("n1", "n2", "n3")
CONFIGURATION = """\
ClusterName=lab
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket,cred_expire=5
SlurmUser=root
SlurmdUser=root
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.own-pid
SlurmdPidFile={folder}/slurmd-%n.own-pid
Prolog={folder}/prolog
ProctrackType=proctrack/cgroup
TaskPlugin=task/cgroup
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
DefMemPerNode=500
GresTypes=gpu
SlurmdParameters=config_overrides
ReturnToService=2
SlurmdTimeout=4
MessageTimeout=5
TCPTimeout=2
KillWait=3
MinJobAge=60
CompleteWait=0
JobRequeue=1
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
SchedulerParameters=batch_sched_delay=0,sched_interval=2,bf_interval=2
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
MpiDefault=none
{nodes}
PartitionName=debug Nodes=n[1-3] Default=YES MaxTime=INFINITE PriorityTier=1 OverSubscribe=NO
PartitionName=urgent Nodes=n[1-3] MaxTime=INFINITE PriorityTier=10 OverSubscribe=NO
"""
NODE = "NodeName={name} NodeHostname={name} NodeAddr=127.0.0.1 Port={port} CPUs=2 RealMemory=4000 Gres=gpu:fake:2"
LIMITS = """\
CgroupPlugin=cgroup/v1
CgroupAutomount=no
CgroupMountpoint={folder}/cgroup
ConstrainRAMSpace=yes
ConstrainCores=no
ConstrainDevices=no
"""
GROUPS = Path("/sys/fs/cgroup")
KINDS = ("memory", "freezer")
PROLOG = """\
#!/bin/sh
held={folder}/held.$SLURMD_NODENAME
while [ -e $held ]; do touch $held.waits; sleep 0.1; done
"""
BOOT = """\
hostname {name} && mount --bind {folder}/hosts /etc/hosts && {mounts} || exit
while :; do
  [ -e {folder}/{name}.off ] || slurmd -D -N {name}
  sleep 0.2
done
"""


@dataclass(frozen=True, slots=True)
class SlurmNodes:
    """Slurm's own programs under `env` reach this cluster."""

    folder: Path
    env: dict[str, str]

    def call(self, *argv: str, timeout: float = PATIENCE) -> str:
        """Return the output of one of Slurm's programs; raises `LabError`."""
        done = subprocess.run(
            argv,
            env=environment(self.env),
            capture_output=True,
            text=True,
            timeout=timeout,
            stdin=subprocess.DEVNULL,
        )
        if done.returncode != 0:
            raise LabError(f"{' '.join(argv)} ended with {done.returncode}: {done.stderr.strip()}")
        return done.stdout

    def on_node(self, name: str, argv: Sequence[str]) -> list[str]:
        """The command line that runs this one on a node, with the environment of whoever starts it."""
        init = _children(_pid(self.folder, name))[0]
        return ["nsenter", "--target", str(init), "--mount", "--uts", "--pid", "--", *argv]

    def stop_controller(self) -> None:
        """Jobs keep running, and nobody answers for them."""
        stop(self.folder, "slurmctld")

    def start_controller(self) -> None:
        start(self.folder, "slurmctld", ["slurmctld", "-D"], env=self.env)
        wait_ready(self.folder, "slurmctld", self.answers)

    def kill_slurmd(self, name: str) -> None:
        """Only the daemon: processes on the node keep running, unseen by the controller."""
        (self.folder / f"{name}.off").touch()
        shell = _children(_pid(self.folder, name))[0]
        for pid in _children(shell):
            if Path(f"/proc/{pid}/comm").read_text().strip() == "slurmd":
                os.kill(pid, signal.SIGKILL)

    def start_slurmd(self, name: str) -> None:
        (self.folder / f"{name}.off").unlink(missing_ok=True)

    def kill_program(self, words: str) -> None:
        """One process of a job, by SIGKILL: the first whose command line has these words."""
        left = [_pid(self.folder, name) for name in NODES]
        while left:
            pid = left.pop(0)
            try:
                line = (
                    Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8", "replace")
                )
                if words in line:
                    os.kill(pid, signal.SIGKILL)
                    return
                left += _children(pid)
            except FileNotFoundError:
                continue
        raise LabError(f"no process has the words {words!r}")

    def power_off(self, name: str) -> None:
        """Everything on the node is gone at once."""
        stop(self.folder, name, grace=0)

    def power_on(self, name: str) -> None:
        self.start_slurmd(name)
        for path in self.folder.glob(f"held.{name}*"):
            path.unlink()
        mounts = [
            f"mount --bind {group} {self.folder}/cgroup/{kind}"
            for kind, group in _groups(self.folder).items()
        ]
        boot = BOOT.format(name=name, folder=self.folder, mounts=" && ".join(mounts))
        namespaces = ["unshare", "--uts", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]
        start(self.folder, name, [*namespaces, "sh", "-c", boot], env=self.env)

    def hold_prolog(self, name: str) -> None:
        """The node begins no job, nor a node's part of one, before it is powered off and on."""
        (self.folder / f"held.{name}").touch()

    def is_in_prolog(self, name: str) -> bool:
        return (self.folder / f"held.{name}.waits").exists()

    def drain(self, name: str) -> None:
        self.call("scontrol", "update", f"NodeName={name}", "State=DRAIN", "Reason=maintenance")

    def state(self, name: str) -> str:
        """As sinfo has it: idle, mixed, allocated, drained, down, …; with a `*` if the node does not answer."""
        return self.call("sinfo", "--noheader", "--format=%T", f"--nodes={name}", "--partition=debug").strip()

    def make_ready(self) -> None:
        """No job is left, and every node can take one, whatever a test did to them."""
        if not alive(self.folder, "slurmctld"):
            self.start_controller()
        self.call("scancel", "--quiet", f"--user={os.geteuid()}")
        for name in NODES:
            if not alive(self.folder, name):
                self.power_on(name)
            self.start_slurmd(name)
        if not wait_until(self._idle, PATIENCE):
            raise LabError(f"not all nodes are idle: {self.call('sinfo', '--Node', '--long')}")

    def _idle(self) -> bool:
        """The reported state of a node may be old if jobs end within a second, so the jobs are asked for too."""
        states = {name: self.state(name) for name in NODES}
        for name, state in states.items():
            if state.startswith(("drain", "down")) and not state.endswith("*"):
                self.call("scontrol", "update", f"NodeName={name}", "State=RESUME")
        return not self.call("squeue", "--noheader") and set(states.values()) <= {
            "idle",
            "mixed",
            "allocated",
        }

    def answers(self) -> bool:
        try:
            return "UP" in self.call("scontrol", "ping", timeout=10)
        except (LabError, subprocess.TimeoutExpired):
            return False


def up(folder: Path) -> SlurmNodes:
    """Start the controller and all nodes in an empty folder, and wait until they are idle."""
    require("Slurm", PROGRAMS)
    if not all((GROUPS / kind).is_dir() for kind in KINDS):
        raise MissingError(f"Slurm needs control groups of version 1 in {GROUPS}, to limit and end jobs")
    controller, *ports = free_ports(1 + len(NODES))
    cluster = SlurmNodes(folder, {"SLURM_CONF": f"{folder}/slurm.conf"})
    (folder / "state").mkdir(parents=True)
    nodes = [NODE.format(name=name, port=port) for name, port in zip(NODES, ports, strict=True)]
    host = os.uname().nodename.split(".")[0]
    settings = CONFIGURATION.format(host=host, controller=controller, folder=folder, nodes="\n".join(nodes))
    (folder / "slurm.conf").write_text(settings)
    (folder / "prolog").write_text(PROLOG.format(folder=folder))
    (folder / "prolog").chmod(0o755)
    (folder / "cgroup.conf").write_text(LIMITS.format(folder=folder))
    for kind, group in _groups(folder).items():
        (folder / "cgroup" / kind).mkdir(parents=True)
        group.mkdir()
    gpus = [f"NodeName={name} Name=gpu Type=fake Count=2 File=/dev/tty[0-1]\n" for name in NODES]
    (folder / "gres.conf").write_text("".join(gpus))
    known = Path("/etc/hosts").read_text()
    (folder / "hosts").write_text(known + "".join(f"127.0.0.1 {name}\n" for name in NODES))
    _start_munge(folder)
    cluster.start_controller()
    for name in NODES:
        (folder / f"spool-{name}").mkdir()
        cluster.power_on(name)
    cluster.make_ready()
    return cluster


def down(folder: Path) -> None:
    for name in NODES:
        stop(folder, name, grace=0)
    for name in ("slurmctld", "munged"):
        stop(folder, name, grace=5)
    for top in _groups(folder).values():
        for group, _, _ in os.walk(top, topdown=False):
            wait_until(partial(_removed, Path(group)), 5)


def _start_munge(folder: Path) -> None:
    key = folder / "munge.key"
    key.write_bytes(os.urandom(64))
    key.chmod(0o400)
    socket = folder / "munge.socket"
    own = {"key-file": key, "socket": socket, "pid-file": folder / "munged.own-pid", "seed-file": folder / "munge.seed",
           "log-file": folder / "munge.log"}  # fmt: skip
    options = [f"--{option}={path}" for option, path in own.items()]
    start(folder, "munged", ["munged", "--foreground", "--force", *options])
    wait_ready(folder, "munged", socket.exists)


def _groups(folder: Path) -> dict[str, Path]:
    """Return where the jobs of this lab are limited and found, apart from those of another lab."""
    return {kind: GROUPS / kind / f"dsv-lab-{folder.stat().st_ino}" for kind in KINDS}


def _removed(group: Path) -> bool:
    """A group can be removed once the last process in it is gone."""
    try:
        group.rmdir()
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True


def _pid(folder: Path, name: str) -> int:
    return int((folder / f"{name}.pid").read_text().split()[0])


def _children(pid: int) -> list[int]:
    return [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
