"""Several real Linux hosts on one real NFSv4.2 export, on one machine.

NFS-Ganesha serves a folder inside a network namespace. Each host is a User-Mode Linux kernel, so it has its
own page cache, attribute cache, clock, host name and process table; its root is this machine's files,
read-only. Inside a host only /mnt/nfs (the export), /mnt/out (`<folder>/out`) and /run with $HOME and $TMPDIR
can be written. A host takes about 3 s to boot and can lose its power or its network at any moment.

Let hosts do the writing: what is changed in `export` behind the server's back it may notice a minute late.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import shlex
import signal
import socket
import struct
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.labs.machine import (
    SEARCH_PATH,
    LabError,
    MissingError,
    call,
    environment,
    kill,
    require,
    start,
    tail,
    wait_until,
)

PROGRAMS = {
    "ganesha.nfsd": "nfs-ganesha",
    "mount.nfs4": "nfs-common",
    "linux.uml": "user-mode-linux",
    "ip": "iproute2",
    "modprobe": "kmod",
}
VFS_MODULE = Path("/usr/lib/x86_64-linux-gnu/ganesha/libfsalvfs.so")
MAX_HOSTS = 8
SERVER = "10.77.0.1"

GANESHA = """\
NFS_CORE_PARAM {{ Protocols = 4; NFS_Port = 2049;
                  Enable_UDP = false; Enable_NLM = false; Enable_RQUOTA = false; }}
NFSv4 {{ Grace_Period = 5; Lease_Lifetime = 10; Minor_Versions = 1, 2; Only_Numeric_Owners = true;
         RecoveryBackend = fs; RecoveryRoot = {folder}/recovery; }}
EXPORT {{ Export_Id = 1; Path = {folder}/export; Pseudo = /export; Access_Type = RW; Squash = {squash};
          SecType = sys; Protocols = 4; FSAL {{ Name = VFS; }} }}
LOG {{ Default_Log_Level = EVENT; }}
"""

NETWORK = """\
set -e
ip link set lo up
ip link add br0 type bridge
ip addr add {server}/24 dev br0
ip link set br0 up
for n in $(seq {hosts}); do ip tuntap add tap$n mode tap; ip link set tap$n master br0 up; done
"""

INIT = """\
#!/bin/bash
export PATH={path} HOME=/run/home TMPDIR=/run/tmp
mount -t proc proc /proc; mount -t sysfs sys /sys; mount -t tmpfs run /run; mount -t tmpfs mnt /mnt
mkdir -p /run/home /run/tmp /run/modules/lib/modules /mnt/nfs /mnt/out /mnt/box; chmod 1777 /run/tmp
mount -t hostfs none /mnt/out -o {out}; mount -t hostfs none /mnt/box -o {box}
mount --bind /usr/lib/uml/modules /run/modules/lib/modules; modprobe -d /run/modules nfsv4
printf {identity} >/sys/module/nfs/parameters/nfs4_unique_id
hostname {hostname}; date -s "@$(( $(date +%s) + {clock_offset} ))" >/dev/null
ip link set lo up; ip addr add 10.77.0.{address}/24 dev eth0; ip link set eth0 up
if mount -t nfs4 -o {options} {server}:/export /mnt/nfs; then
  cd /mnt/nfs; bash /mnt/box/command </dev/null >/mnt/box/stdout 2>/mnt/box/stderr; echo $? >/mnt/box/status
fi
sync; cd /; umount -l /mnt/nfs; poweroff -f
"""


@dataclass(frozen=True, slots=True)
class Ended:
    """What a command on a host came to; `status` is None where the host never got so far."""

    status: int | None
    stdout: str
    stderr: str


@dataclass(frozen=True, slots=True)
class Host:
    """One booted host, running one command."""

    lab: NfsHosts
    number: int
    kernel: subprocess.Popen[bytes]

    @property
    def box(self) -> Path:
        return self.lab.folder / "hosts" / str(self.number)

    def wait(self, timeout: float = 300) -> Ended:
        """Wait until the command is done and the host is down; raises `LabError` when it takes longer."""
        try:
            self.kernel.wait(timeout)
        except subprocess.TimeoutExpired as error:
            self.power_off()
            console = tail(self.box / "console")
            raise LabError(
                f"host {self.number} took over {timeout} s; its console ends:\n{console}"
            ) from error
        status, out, err = (_text(self.box / name) for name in ("status", "stdout", "stderr"))
        return Ended(int(status) if status else None, out, err)

    def power_off(self) -> None:
        """The plug is pulled: nothing is flushed. Every process of its session is part of the host.

        Returns when all are gone, as the last one still holds the network card.
        """
        _end_session(self.kernel.pid)
        self.kernel.wait()

    def state(self) -> str:
        """Return the state of a host that doesn't answer: its processes here, and its tasks by its kernel."""
        said = []
        for pid in _session(self.kernel.pid):
            process = Path("/proc", str(pid))
            with contextlib.suppress(OSError):  # it may end meanwhile
                state = (process / "stat").read_text().rpartition(")")[2].split()[0]
                waits = (process / "wchan").read_text()
                said.append(f"process {pid}: {state} {waits} {(process / 'syscall').read_text().strip()}")
        try:
            self._ask("sysrq 9")  # shows all that it says from now on
            self._ask("sysrq t")
        except OSError as error:
            said.append(f"its kernel does not answer: {error}")
        size = -1
        while (now := (self.box / "console").stat().st_size) != size:
            size = now
            time.sleep(1)
        return "\n".join([*said, "its console ends:", tail(self.box / "console", 400)])

    def _ask(self, command: str) -> None:
        """Give a command to the kernel's management console, and wait for its answer."""
        address = str(self.box / "asker")
        Path(address).unlink(missing_ok=True)
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as asker:
            asker.bind(address)
            asker.settimeout(10)
            text = command.encode()
            request = struct.pack("=III512s", 0xCAFEBABE, 2, len(text), text)
            asker.sendto(request, str(self.box / f"host{self.number}" / "mconsole"))
            asker.recv(1024)

    def unplug(self) -> None:
        self.lab.inside("ip", "link", "set", f"tap{self.number}", "nomaster")

    def plug_in(self) -> None:
        self.lab.plug_in(self.number)


@dataclass(frozen=True, slots=True)
class NfsHosts:
    """The export (`folder/export`), what hosts report (`folder/out`), and a way to boot hosts."""

    folder: Path
    namespace: str

    @property
    def env(self) -> dict[str, str]:
        return {}  # hosts are reached through `boot`, not by a variable

    @property
    def export(self) -> Path:
        return self.folder / "export"

    @property
    def out(self) -> Path:
        return self.folder / "out"

    def boot(
        self,
        number: int,
        argv: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        hostname: str | None = None,
        identity: str | None = None,
        clock_offset: int = 0,
        options: str = "vers=4.2",
        memory: str = "1G",
    ) -> Host:
        """Boot host `number` (1 to 8) to run `argv` in /mnt/nfs, its clock off by `clock_offset` seconds.

        identity: what the server knows it by, beside its host name; by default each has its own.
        """
        box = self.folder / "hosts" / str(number)
        box.mkdir(parents=True, exist_ok=True)
        self._end_former(number, box)
        for name in ("status", "stdout", "stderr"):
            (box / name).unlink(missing_ok=True)
        settings = [f"{name}={value}" for name, value in (env or {}).items()]
        (box / "command").write_text(f"exec {shlex.join(['env', *settings, *argv])}\n")
        init = box / "init"
        init.write_text(
            INIT.format(
                path=SEARCH_PATH,
                out=self.out,
                box=box,
                hostname=hostname or f"host{number}",
                identity=identity or f"lab-{number}",
                options=options,
                clock_offset=clock_offset,
                address=10 + number,
                server=SERVER,
            )
        )
        init.chmod(0o755)
        self.plug_in(number)
        kernel = ["linux.uml", f"mem={memory}", "root=/dev/root", "rootfstype=hostfs", "rootflags=/", "ro"]
        devices = [f"init={init}", f"eth0=tuntap,tap{number}", f"uml_dir={box}/", f"umid=host{number}"]
        with (box / "console").open("wb") as console:
            child = subprocess.Popen(
                [
                    "ip",
                    "netns",
                    "exec",
                    self.namespace,
                    *kernel,
                    *devices,
                    "con=null",
                    "con0=null,fd:2",
                    "quiet",
                ],
                stdin=subprocess.DEVNULL,
                stdout=console,
                stderr=console,
                start_new_session=True,
                env=environment(_for_amx(self.folder)),
            )
        return Host(self, number, child)

    def _end_former(self, number: int, box: Path) -> None:
        """A test that failed may have left this host running, and two would write into one box."""
        pid = _text(box / f"host{number}" / "pid").strip()
        if pid and f"uml_dir={box}/" in _text(Path("/proc", pid, "cmdline")):
            _end_session(int(pid))

    def run(self, number: int, argv: Sequence[str], *, timeout: float = 300, **how: object) -> Ended:
        """Boot a host, wait until its command is done; `how` as for `boot`."""
        return self.boot(number, argv, **how).wait(timeout)  # type: ignore[arg-type]

    def plug_in(self, number: int) -> None:
        self.inside("ip", "link", "set", f"tap{number}", "master", "br0")

    def power_on_server(self) -> None:
        """Start the file server, after `power_off_server` too, and wait until it serves."""
        log, config = self.folder / "server.log", self.folder / "ganesha.conf"
        log.unlink(missing_ok=True)
        server = ["ganesha.nfsd", "-F", "-f", str(config), "-L", str(log)]
        server += ["-p", str(self.folder / "server.own.pid")]
        start(self.folder, "ganesha", ["ip", "netns", "exec", self.namespace, *server])
        if not wait_until(lambda: "NFS SERVER INITIALIZED" in _text(log), 300):
            raise LabError(f"the NFS server did not come up; its log ends:\n{tail(log)}")

    def power_off_server(self) -> None:
        """Hosts wait for it to come back."""
        kill(self.folder, "ganesha")

    def listen(self) -> socket.socket:
        """A socket that hosts can connect to, for a server in this process."""
        found: list[socket.socket] = []

        def make() -> None:  # a thread may be in another network than its process
            libc = ctypes.CDLL(None, use_errno=True)
            namespace = os.open(f"/run/netns/{self.namespace}", os.O_RDONLY | os.O_CLOEXEC)
            try:
                if libc.setns(namespace, 0):
                    raise OSError(ctypes.get_errno(), "setns")
                found.append(socket.create_server((SERVER, 0), backlog=128))
            finally:
                os.close(namespace)

        thread = threading.Thread(target=make)
        thread.start()
        thread.join()
        if not found:
            raise LabError("no socket in the hosts' network could be had")
        return found[0]

    def inside(self, *argv: str) -> None:
        """Run a command in the namespace that the server and the hosts' cables are in."""
        call(["ip", "netns", "exec", self.namespace, *argv], log=self.folder / "up.log")


def up(folder: Path, *, squash: str = "No_Root_Squash") -> NfsHosts:
    """Start the server on an empty folder; `squash` as NFS-Ganesha knows it, Root_Squash for one."""
    require("NFS hosts", PROGRAMS)
    if not VFS_MODULE.exists():
        raise MissingError("NFS hosts need Debian's nfs-ganesha-vfs (apt-get install)")
    for name in ("export", "out", "hosts", "recovery"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    (folder / "export").chmod(0o777)
    lab = NfsHosts(folder, f"dsv-nfs-{os.getpid()}-{os.urandom(2).hex()}")
    (folder / "namespace").write_text(lab.namespace)
    call(["ip", "netns", "add", lab.namespace], log=folder / "up.log")
    lab.inside("sh", "-c", NETWORK.format(server=SERVER, hosts=MAX_HOSTS))
    config = folder / "ganesha.conf"
    config.write_text(GANESHA.format(folder=folder, squash=squash))
    Path("/run/ganesha").mkdir(exist_ok=True)
    lab.power_on_server()
    return lab


def down(folder: Path) -> None:
    """Whatever lives in the namespace is ours: the server, and the hosts with all their processes."""
    if not (folder / "namespace").exists():
        return
    namespace = (folder / "namespace").read_text()
    for number in (signal.SIGTERM, signal.SIGKILL):
        for pid in _inhabitants(namespace):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)
        if wait_until(lambda: not _inhabitants(namespace), 10):
            break
    subprocess.run(["ip", "netns", "del", namespace], env=environment(), check=False, capture_output=True)


def _for_amx(folder: Path) -> dict[str, str]:
    """Return the variables for User-Mode Linux on a processor with AMX: see xstate.c, compiled once for each lab."""
    if " amx_tile " not in _text(Path("/proc/cpuinfo")):
        return {}
    library = folder / "xstate.so"
    if not library.exists():
        require("NFS hosts on a processor with AMX", {"cc": "gcc"})
        draft = folder / f"xstate-{os.urandom(4).hex()}.so"
        source = Path(__file__).with_name("xstate.c")
        flags = ["-shared", "-fPIC", "-O2", "-fno-stack-protector"]
        call(["cc", *flags, "-o", str(draft), str(source)], log=folder / "up.log")
        draft.rename(library)
    return {"LD_PRELOAD": str(library)}


def _inhabitants(namespace: str) -> list[int]:
    argv = ["ip", "netns", "pids", namespace]
    done = subprocess.run(argv, env=environment(), capture_output=True, text=True, check=False)
    return [int(pid) for pid in done.stdout.split()]


def _session(leader: int) -> list[int]:
    """Its processes, without those that are dead and only not yet reaped."""
    argv = ["ps", "-o", "pid=,stat=", "-s", str(leader)]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    rows = (line.split() for line in done.stdout.splitlines())
    return [int(pid) for pid, state in rows if not state.startswith("Z")]


def _end_session(leader: int) -> None:
    """Kill all processes of a host, and wait until they are gone.

    The leader is the kernel, which traces the processes of the host. It is stopped first and killed last: without
    it they would go on as processes of this machine, and their next system call would be this machine's.
    """
    with contextlib.suppress(ProcessLookupError):
        os.kill(leader, signal.SIGSTOP)

    def gone() -> bool:
        living = _session(leader)
        for pid in [pid for pid in living if pid != leader] or living:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return not living

    if not wait_until(gone, 120):
        raise LabError(f"these processes do not end: {_session(leader)}")


def _text(path: Path) -> str:
    return path.read_text(errors="replace") if path.exists() else ""
