"""Podman with storage, settings and limits of its own, also inside a machine that is itself confined.

Where both cgroup hierarchies are mounted crun gives up, so podman stands behind a script of its own name that
hides the second one in a mount namespace. Its usual limits are above what a confined root may set, so a
container gets what is allowed here. Containers have no network, so that no firewall rule is left behind.
"""

from __future__ import annotations

import os
import resource
import subprocess
from pathlib import Path

from tests.labs import images
from tests.labs.docker_engine import ContainerEngine
from tests.labs.machine import SEARCH_PATH, find, require

PROGRAMS = {"podman": "podman", "crun": "crun", "conmon": "conmon", "busybox": "busybox-static"}

SCRIPT = """\
#!/bin/sh
export CONTAINERS_CONF={folder}/containers.conf
exec unshare --mount sh -c 'umount /sys/fs/cgroup/unified 2>/dev/null; exec "$0" "$@"' \\
  {podman} --root {folder}/storage --runroot {folder}/run "$@"
"""
SETTINGS = """\
[containers]
netns = "none"
default_ulimits = ["nofile={files}:{files}", "nproc={processes}:{processes}"]
[network]
network_backend = "netavark"
network_config_dir = "{folder}/networks"
[engine]
cgroup_manager = "cgroupfs"
events_logger = "file"
"""


def up(folder: Path) -> ContainerEngine:
    """Nothing is started, as podman has no daemon; makes the script and one small image."""
    require("podman", PROGRAMS)
    program = folder / "bin" / "podman"
    program.parent.mkdir(parents=True, exist_ok=True)
    program.write_text(SCRIPT.format(podman=find("podman"), folder=folder))
    program.chmod(0o755)
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    processes = min(4096, resource.getrlimit(resource.RLIMIT_NPROC)[1])  # podman lowers its own a good deal
    settings = SETTINGS.format(folder=folder, files=files, processes=processes)
    (folder / "containers.conf").write_text(settings)
    path = os.pathsep.join([str(program.parent), SEARCH_PATH])
    engine = ContainerEngine(str(program), {"PATH": path}, images.BUSYBOX)
    engine.load(images.busybox_tar(), images.BUSYBOX)
    return engine


def down(folder: Path) -> None:
    program = folder / "bin" / "podman"
    if program.exists():
        subprocess.run([program, "rm", "--all", "--force", "--time", "0"], check=False, capture_output=True)
