"""A real Docker Engine with a socket, storage and state of its own, and locally made images."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path

from tests.labs import images
from tests.labs.machine import LabError, environment, require, start, stop, wait_ready
from tests.waiting import PATIENCE

PROGRAMS = {"dockerd": "docker.io", "docker": "docker.io", "busybox": "busybox-static"}


@dataclass(frozen=True, slots=True)
class ContainerEngine:
    """An engine to test with: `program` under `env` reaches it, and nobody else's."""

    program: str
    env: dict[str, str]
    busybox: str

    def call(self, *arguments: str, timeout: float = PATIENCE) -> str:
        """Return the output of the engine's own command; raises `LabError`."""
        argv = [self.program, *arguments]
        done = subprocess.run(
            argv,
            env=environment(self.env) | self.env,
            capture_output=True,
            text=True,
            timeout=timeout,
            stdin=subprocess.DEVNULL,
        )
        if done.returncode != 0:
            raise LabError(f"{' '.join(argv)} ended with {done.returncode}: {done.stderr.strip()}")
        return done.stdout

    def python_image(self) -> str:
        """An image with Python, NumPy, Pillow and scikit-learn; slow the first time on a machine."""
        if not self.has(images.PYTHON):
            self.load(images.python_tar(), images.PYTHON)
        return images.PYTHON

    def has(self, image: str) -> bool:
        try:
            self.call("image", "inspect", image)
        except LabError:
            return False
        return True

    def load(self, root: Path, image: str) -> None:
        self.call("import", "--change", f"ENV PATH={images.SEARCH_PATH}", str(root), image, timeout=600)


def up(folder: Path) -> ContainerEngine:
    """Start the engine in an empty folder; it has one small image, dsv-labs/busybox."""
    require("a Docker Engine", PROGRAMS)
    (folder / "config").mkdir(parents=True, exist_ok=True)
    address = f"unix://{folder}/docker.sock"
    roots = [
        "--data-root",
        f"{folder}/data",
        "--exec-root",
        f"{folder}/exec",
        "--pidfile",
        f"{folder}/own.pid",
    ]
    engine = ContainerEngine(
        "docker", {"DOCKER_HOST": address, "DOCKER_CONFIG": f"{folder}/config"}, images.BUSYBOX
    )
    start(folder, "dockerd", ["dockerd", "--host", address, *roots, "--bridge=none", "--iptables=false"])
    wait_ready(folder, "dockerd", lambda: _answers(engine))
    engine.load(images.busybox_tar(), images.BUSYBOX)
    return engine


def down(folder: Path) -> None:
    """The engine ends its containers and its own containerd when it is asked to go."""
    stop(folder, "dockerd", grace=40)
    for mount in sorted(_mounts_below(folder), reverse=True):
        subprocess.run(["umount", "-l", mount], check=False)


def _answers(engine: ContainerEngine) -> bool:
    try:
        engine.call("version", timeout=10)
    except (LabError, subprocess.TimeoutExpired):
        return False
    return True


def _mounts_below(folder: Path) -> list[str]:
    points = [line.split()[1] for line in Path("/proc/self/mounts").read_text().splitlines()]
    return [point for point in points if point.startswith(f"{folder}/")]
