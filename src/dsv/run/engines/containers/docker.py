"""Docker Engine, rootful or rootless."""

from __future__ import annotations

from typing import Any, ClassVar

from dsv.run.engines.base import Facts, ImageIdentity, Job, NoEngine
from dsv.run.engines.containers.engine import ContainerEngine
from dsv.run.engines.gpu import pick
from dsv.run.engines.machine import Machine
from dsv.run.resources import ALL_GPUS


class Docker(ContainerEngine):
    name: ClassVar[str] = "docker"
    gpu_hint: ClassVar[str] = (
        "install the NVIDIA Container Toolkit, then: nvidia-ctk runtime configure --runtime=docker"
    )

    def read_facts(self, info: dict[str, Any]) -> Facts | NoEngine:
        if "ServerVersion" not in info:  # podman-docker answers in podman's words
            return NoEngine("the docker program is podman's")
        if info.get("ServerErrors"):
            return NoEngine(f"docker does not answer: {info['ServerErrors'][0]}")
        if info.get("OSType") not in (None, "", "linux"):
            return NoEngine(f"docker runs {info['OSType']} containers")
        options = [str(option).split(",")[0] for option in info.get("SecurityOptions") or ()]
        return Facts(
            machine=Machine.read(self.environ),
            where=str(info.get("ID") or info.get("Name") or ""),
            version=str(info["ServerVersion"]) or None,
            rootless="name=rootless" in options,
            remapped="name=userns" in options,
            init=("--init",) if info.get("InitBinary") else (),
        )

    def user_options(self, job: Job, facts: Facts) -> list[str]:
        """A rootful daemon would write as root; in a rootless one the container's root is the caller."""
        if facts.rootless:
            return ["--user", "0:0"]
        machine = facts.machine
        options = ["--userns=host"] if facts.remapped else []
        options += ["--user", f"{machine.uid}:{machine.gid}"]
        for group in machine.groups:  # a shared cache may be readable by one of these alone
            options += ["--group-add", str(group)]
        return options

    def gpu_options(self, wanted: int, gpu_type: str | None, facts: Facts) -> list[str]:
        names = pick(wanted, facts.machine, gpu_type)
        if names is None:
            return ["--gpus", "all" if wanted == ALL_GPUS else str(wanted)]
        return ["--gpus", f'"device={",".join(names)}"']  # the value is CSV: the quotes are docker's

    def read_image(self, image: dict[str, Any]) -> ImageIdentity:
        digests = image.get("RepoDigests") or [None]
        return ImageIdentity(str(image.get("Id", "")), digests[0])
