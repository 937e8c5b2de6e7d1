"""Podman, rootless or as root."""

from __future__ import annotations

from pathlib import Path
from shutil import which
from typing import Any, ClassVar

from dsv.run.engines.base import Facts, ImageIdentity, Job, NoEngine
from dsv.run.engines.containers.engine import ContainerEngine
from dsv.run.engines.gpu import names_of
from dsv.run.engines.machine import Machine

_CATATONIT = (
    "/usr/libexec/podman/catatonit",
    "/usr/lib/podman/catatonit",
    "/usr/local/libexec/podman/catatonit",
)
_OTHER_INITS = ("catatonit", "docker-init", "tini-static")
"""Static programs: they run in any image."""


class Podman(ContainerEngine):
    name: ClassVar[str] = "podman"
    start_options: ClassVar[tuple[str, ...]] = ("--attach", "--sig-proxy=false")
    gpu_hint: ClassVar[str] = (
        "install the NVIDIA Container Toolkit, then: nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml"
    )

    def read_facts(self, info: dict[str, Any]) -> Facts | NoEngine:
        host = info.get("host")
        if not isinstance(host, dict):
            return NoEngine("podman does not answer as podman does")
        machine = Machine.read(self.environ)
        rootless = bool((host.get("security") or {}).get("rootless"))
        runtime = str((host.get("ociRuntime") or {}).get("name", ""))
        return Facts(
            machine=machine,
            where=f"{host.get('hostname', '')}:{(info.get('store') or {}).get('graphRoot', '')}",
            version=str((info.get("version") or {}).get("Version", "")) or None,
            rootless=rootless,
            init=self._init_options(),
            keep_groups=rootless and runtime == "crun" and bool(machine.groups),
        )

    def user_options(self, job: Job, facts: Facts) -> list[str]:
        machine = facts.machine
        options = ["--userns=keep-id"] if facts.rootless else []
        options += ["--user", f"{machine.uid}:{machine.gid}"]
        if facts.keep_groups:  # numbers mean nothing in a user namespace, and crun can leave them as they are
            options += ["--group-add", "keep-groups"]
        elif not facts.rootless:
            for group in machine.groups:
                options += ["--group-add", str(group)]
        return options

    def gpu_options(self, wanted: int, gpu_type: str | None, facts: Facts) -> list[str]:
        """By the names of the Container Device Interface; GPUs are numbered from 0 there."""
        names = names_of(wanted, facts.machine, gpu_type) or ("all",)
        return [word for name in names for word in ("--device", f"nvidia.com/gpu={name}")]

    def read_image(self, image: dict[str, Any]) -> ImageIdentity:
        """Images made here have a digest of this machine's making; `localhost/` says so."""
        digests = [str(digest) for digest in image.get("RepoDigests") or ()]
        known = [digest for digest in digests if not digest.startswith("localhost/")]
        number = str(image.get("Id", ""))
        return ImageIdentity(number if ":" in number else f"sha256:{number}", known[0] if known else None)

    def _init_options(self) -> tuple[str, ...]:
        if any(Path(path).exists() for path in _CATATONIT):
            return ("--init",)
        for name in _OTHER_INITS:
            program = which(name, path=self.environ.get("PATH"))
            if program is not None:
                return ("--init", "--init-path", program)
        return ()
