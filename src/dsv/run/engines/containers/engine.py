"""Docker and podman: the same command line, except for a few options."""

from __future__ import annotations

import csv
import io
import re
from abc import abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from shutil import which
from threading import Event
from time import sleep
from typing import Any, ClassVar

from dsv.errors import LaunchError, Unreachable, UsageError
from dsv.run.engines.base import (
    NO_OPTIONS,
    Facts,
    ImageIdentity,
    Job,
    JobPlan,
    JobStatus,
    LocalEngine,
    Mount,
    NotInstalled,
    PrivateFile,
    SubmittedJob,
    check_given,
    check_image,
    until_over,
)
from dsv.run.engines.containers.container import (
    CALL_SECONDS,
    ContainerProgram,
    ContainerRun,
    create,
    first_line,
    is_id,
    load_json,
    status_of,
)
from dsv.run.engines.machine import Machine, check_machine, choose_gpus
from dsv.run.engines.output import JobOutput
from dsv.run.engines.reaper import Guard
from dsv.run.record import JobRef, RunState
from dsv.run.resources import ALL_GPUS
from dsv.values.json import Json

PROBE_SECONDS = 5.0
LABEL = "dsv.run"

_NAME = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9_.-]{0,127}", re.ASCII)
_CLIENTS_OWN = re.compile(
    r"PATH|HOME|USER|LOGNAME|SHELL|TMPDIR|TMP|TEMP|ENV|BASH_ENV|IFS|NOTIFY_SOCKET|.*_proxy|.*_PROXY|GO[A-Z]+"
    r"|_?(?:LD|XDG|DOCKER|BUILDKIT|BUILDX|COMPOSE|CONTAINERS?|PODMAN|BUILDAH|STORAGE|REGISTRY|REGISTRIES|CNI"
    r"|NETAVARK|SSL|SSH|DBUS|LISTEN|OTEL|GRPC)_.*"
)


class ContainerEngine(ContainerProgram):
    """docker or podman, called through its program."""

    needs_image: ClassVar[bool] = True
    log_seconds: ClassVar[float] = 0.0
    """Seconds before an ended container is removed: a followed log ends with it, and podman polls the log
    four times a second."""
    gives: ClassVar[frozenset[str]] = LocalEngine.gives | {"image", "shm_bytes", "engine_args"}

    def __init__(self, environ: Mapping[str, str], options: Mapping[str, Json] = NO_OPTIONS) -> None:
        super().__init__(environ, options)
        self._where: str | None = None

    @abstractmethod
    def read_facts(self, info: dict[str, Any]) -> Facts:
        """Read the answer of `info`. Raises `Unreachable` if it is not from this engine."""

    @abstractmethod
    def user_options(self, job: Job, facts: Facts) -> list[str]:
        """Return options that make the job's files belong to the caller."""

    @abstractmethod
    def gpu_options(self, wanted: int, gpu_type: str | None, facts: Facts) -> list[str]:
        """Return options that give the job its GPUs."""

    def probe(self) -> Facts:
        if which(self.name, path=self.environ.get("PATH")) is None:
            raise NotInstalled(f"there is no {self.name} program")
        done = self.call("info", "--format", "{{json .}}", seconds=PROBE_SECONDS)
        if done is None:
            raise Unreachable(f"{self.name} did not answer in {PROBE_SECONDS:.0f} s")
        info = load_json(done.stdout)
        if done.returncode != 0 or not isinstance(info, dict):
            raise Unreachable(
                f"{self.name} does not answer: {first_line(done) or f'exit code {done.returncode}'}"
            )
        return self.read_facts(info)

    def plan(self, job: Job, facts: Facts) -> JobPlan:
        image = check_image(job.image)
        check_given(self, job)
        if _NAME.fullmatch(job.name) is None:
            raise UsageError(
                f"{job.name!r} is not a name for a container: letters, digits, '_', '.', '-'",
                subject=job.name,
            )
        check_machine(job, facts.machine)
        memory = facts.machine.memory_bytes if job.memory_bytes is None else job.memory_bytes
        shm_bytes = job.shm_bytes if job.shm_bytes is not None else memory // 2
        named, files = self._environment(job, facts)
        options = ["--name", job.name, "--label", f"{LABEL}={job.run}", *facts.init]
        options += self.user_options(job, facts)
        if facts.machine.selinux:  # else it denies access to mounts; relabelling would write to the cache
            options += ["--security-opt", "label=disable"]
        for mount in job.mounts:
            options += ["--mount", mount_option(mount)]
        if job.workdir is not None:
            options += ["--workdir", job.workdir]
        options += ["--shm-size", f"{shm_bytes}b"]
        if job.gpus is not None:
            options += self.gpu_options(job.gpus, job.gpu_type, facts)
        if job.cpus is not None:
            options += ["--cpus", f"{job.cpus:g}"]
        if job.memory_bytes is not None:  # without the second one it could use as much swap as well
            options += ["--memory", f"{job.memory_bytes}b", "--memory-swap", f"{job.memory_bytes}b"]
        for name in named:
            options += ["--env", name]
        for file in files:
            options += ["--env-file", str(file.path)]
        argv = (self.name, "run", *options, *job.engine_args, image, *job.command)
        if any("\0" in argument for argument in argv):
            raise UsageError("an argument holds a NUL byte")
        notes = () if facts.init else (
            f"{self.name} has no init program here: what has no handler for SIGTERM will be killed",
        )  # fmt: skip
        return JobPlan(
            engine=self.name, run=job.run, where=facts.where, argv=argv, env=named, files=files, image=image,
            shm_bytes=shm_bytes, notes=notes,
        )  # fmt: skip

    def submit(self, plan: JobPlan, output: JobOutput, cancelled: Event) -> SubmittedJob:
        guard = Guard(plan.run, self.environ, container=self.name, files=[file.path for file in plan.files])
        try:
            container = create(self, plan, output, cancelled, guard.watch)
        except BaseException:
            guard.abandon()  # the reaper removes a container that may still be created
            raise
        return ContainerRun(self, JobRef(self.name, plan.run, plan.where, container), guard)

    def status(self, ref: JobRef) -> JobStatus | None:
        if not is_id(ref.id):
            return None
        details = self.inspect(ref.id)
        if details:
            return status_of(details)
        with suppress(Unreachable):
            if details is not None and self._identity() == ref.where:
                return JobStatus(RunState.CUT_OFF)
        return None

    def logs(self, ref: JobRef, follow: bool) -> AbstractContextManager[Iterator[bytes]] | None:
        return self.read_logs(ref.id, follow) if is_id(ref.id) else None

    def cancel(self, ref: JobRef, grace: float) -> JobStatus | None:
        if not is_id(ref.id):
            return None
        self.call("stop", "--time", str(int(grace)), ref.id, seconds=grace + CALL_SECONDS)
        status = self.status(ref)
        if status is not None and status.state is RunState.RUNNING:  # a busy engine notices an end late
            status = until_over(lambda: self.status(ref), 5.0) or status
        if status is None or not status.lives:
            return status
        self.forget(ref)  # it never began, or could not be stopped
        return self.status(ref)

    def forget(self, ref: JobRef) -> None:
        if is_id(ref.id):
            sleep(self.log_seconds)
            self.call("rm", "--force", "--volumes", ref.id)

    def list(self, run: str | None = None) -> tuple[JobRef, ...]:
        wanted = LABEL if run is None else f"{LABEL}={run}"
        done = self.call("ps", "--all", "--quiet", "--no-trunc", "--filter", f"label={wanted}")
        if done is None or done.returncode != 0:
            raise Unreachable(f"{self.name} does not answer", subject=self.name)
        where, ids = self._identity(), done.stdout.decode("ascii", "replace").split()
        inspected = ((container, self.inspect(container) or {}) for container in ids)
        return tuple(
            JobRef(self.name, labels[LABEL], where, container)
            for container, details in inspected
            if LABEL in (labels := (details.get("Config") or {}).get("Labels") or {})
        )

    def _identity(self) -> str:
        """Return the identity of the engine that answers. Raises `Unreachable` if it doesn't."""
        if self._where is None:
            self._where = self.probe().where
        return self._where

    def _environment(self, job: Job, facts: Facts) -> tuple[dict[str, str], tuple[PrivateFile, ...]]:
        """Return the variables for the program's own environment, and files with the others."""
        env = dict(job.env)
        if facts.machine.uid != 0:  # a user unknown to the image: no home, no name
            env = {"HOME": "/tmp", "USER": facts.machine.user, "LOGNAME": facts.machine.user, **env}
        named = {name: value for name, value in env.items() if _CLIENTS_OWN.fullmatch(name) is None}
        lines = []
        for name, value in ((name, value) for name, value in env.items() if name not in named):
            if "\n" in value or "\r" in value:
                raise UsageError(
                    f"the value of {name} has more than one line, which {self.name} can't be given",
                    subject=name,
                )
            lines.append(f"{name}={value}\n".encode("utf-8", "surrogateescape"))
        return named, ((PrivateFile(job.scratch / "environment", b"".join(lines)),) if lines else ())


def mount_option(mount: Mount) -> str:
    """Return the value of `--mount`: one line of CSV, so a path may hold commas, colons and quotes."""
    fields = ["type=bind", f"source={mount.source}", f"target={mount.target}"]
    if not mount.writable:
        fields.append("readonly")
    if any(c in field for field in fields for c in "\n\r\0"):
        raise LaunchError(
            f"{str(mount.source)!r} can't be mounted: line breaks in its name", subject=str(mount.source)
        )
    text = io.StringIO()
    csv.writer(text, lineterminator="").writerow(fields)
    return text.getvalue()


class Docker(ContainerEngine):
    name: ClassVar[str] = "docker"
    start: ClassVar[tuple[str, ...]] = ("--log-level", "fatal", "start", "--attach")
    gpu_hint: ClassVar[str] = (
        "install the NVIDIA Container Toolkit, then: nvidia-ctk runtime configure --runtime=docker"
    )

    def read_facts(self, info: dict[str, Any]) -> Facts:
        if info.get("ServerErrors"):  # the exit code may be 0
            raise Unreachable(f"docker does not answer: {info['ServerErrors'][0]}")
        if "ServerVersion" not in info:  # podman-docker answers in podman's words
            raise NotInstalled("the docker program is podman's")
        if info.get("OSType") not in (None, "", "linux"):
            raise Unreachable(f"docker runs {info['OSType']} containers")
        options = [str(option).split(",")[0] for option in info.get("SecurityOptions") or ()]
        return Facts(
            Machine.read(self.environ), str(info.get("ID") or info.get("Name") or ""),
            version=str(info["ServerVersion"]) or None, rootless="name=rootless" in options,
            remapped="name=userns" in options, init=("--init",) if info.get("InitBinary") else (),
        )  # fmt: skip

    def user_options(self, job: Job, facts: Facts) -> list[str]:
        """A rootful daemon would write as root; in a rootless one the container's root is the caller."""
        if facts.rootless:
            return ["--user", "0:0"]
        machine = facts.machine
        options = ["--userns=host"] if facts.remapped else []
        options += ["--user", f"{machine.uid}:{machine.gid}"]
        for group in machine.groups:  # a shared cache may be readable only by one of these
            options += ["--group-add", str(group)]
        return options

    def gpu_options(self, wanted: int, gpu_type: str | None, facts: Facts) -> list[str]:
        anyone = gpu_type is None and facts.machine.visible_gpus is None
        names = choose_gpus(wanted, facts.machine, gpu_type)
        if anyone or names is None:
            return ["--gpus", "all" if wanted == ALL_GPUS else str(wanted)]
        return ["--gpus", f'"device={",".join(names)}"']  # the value is CSV: the quotes are docker's

    def read_image(self, image: dict[str, Any]) -> ImageIdentity:
        return ImageIdentity(str(image.get("Id", "")), (image.get("RepoDigests") or [None])[0])


_CATATONIT = [f"/usr/{folder}/podman/catatonit" for folder in ("libexec", "lib", "local/libexec")]
_OTHER_INITS = ("catatonit", "docker-init", "tini-static")
"""Static programs: they run in any image."""


class Podman(ContainerEngine):
    name: ClassVar[str] = "podman"
    start: ClassVar[tuple[str, ...]] = ("start", "--attach", "--sig-proxy=false")
    log_seconds: ClassVar[float] = 1.0
    gpu_hint: ClassVar[str] = (
        "install the NVIDIA Container Toolkit, then: nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml"
    )

    def read_facts(self, info: dict[str, Any]) -> Facts:
        host = info.get("host")
        if not isinstance(host, dict):
            raise Unreachable("podman does not answer as podman does")
        machine = Machine.read(self.environ)
        rootless = bool((host.get("security") or {}).get("rootless"))
        runtime = str((host.get("ociRuntime") or {}).get("name", ""))
        return Facts(
            machine, f"{host.get('hostname', '')}:{(info.get('store') or {}).get('graphRoot', '')}",
            version=str((info.get("version") or {}).get("Version", "")) or None, rootless=rootless,
            init=self._init_options(), keep_groups=rootless and runtime == "crun" and bool(machine.groups),
        )  # fmt: skip

    def user_options(self, job: Job, facts: Facts) -> list[str]:
        machine = facts.machine
        options = ["--userns=keep-id"] if facts.rootless else []
        options += ["--user", f"{machine.uid}:{machine.gid}"]
        if facts.keep_groups:  # group numbers differ in a user namespace; crun can keep the groups
            options += ["--group-add", "keep-groups"]
        elif not facts.rootless:
            for group in machine.groups:
                options += ["--group-add", str(group)]
        return options

    def gpu_options(self, wanted: int, gpu_type: str | None, facts: Facts) -> list[str]:
        """Use names of the Container Device Interface, which numbers GPUs from 0."""
        names = choose_gpus(wanted, facts.machine, gpu_type, by_index=True) or ("all",)
        return [word for name in names for word in ("--device", f"nvidia.com/gpu={name}")]

    def read_image(self, image: dict[str, Any]) -> ImageIdentity:
        """Ignore digests of images built here, which no registry has: they begin with `localhost/`. An image for
        several kinds of machines has two: that of its list, which docker names too, and its own."""
        digests = [str(digest) for digest in image.get("RepoDigests") or ()]
        known = [digest for digest in digests if not digest.startswith("localhost/")]
        known.sort(key=lambda digest: digest.endswith(str(image.get("Digest"))))
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
