"""What dsv is measured against, each with the settings its own documentation recommends for this work."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from tests.labs.s3_server import S3Server

from benchmarks.measure import Command, run
from benchmarks.server import Running


@dataclass(frozen=True, slots=True)
class Job:
    """One peer's turn: its own copy of the data, a place to store it, and a folder to bring it back to.

    `inside` is put in front of every command: it enters a network namespace, where there is one. `running` is the
    server itself, for looking at what it answered.
    """

    work: Path
    server: S3Server | None
    bucket: str
    inside: Sequence[str] = ()
    running: Running | None = None

    @property
    def data(self) -> Path:
        return self.work / "data"

    @property
    def back(self) -> Path:
        return self.work / "back"

    @property
    def depot(self) -> Path:
        """The directory that stands in for the bucket where there is no server."""
        return self.work / "depot"

    def command(
        self, *argv: str | Path, cwd: Path | None = None, env: Mapping[str, str] | None = None
    ) -> Command:
        own = {"HOME": str(self.work / "home"), **(self.server.env if self.server else {}), **(env or {})}
        return Command([*self.inside, *argv], cwd or self.work, own)


class Peer(Protocol):
    """`prepare` and `arrive` are not timed: making repositories, cloning them elsewhere."""

    @property
    def name(self) -> str: ...
    def version(self) -> str: ...
    def prepare(self, job: Job) -> None: ...
    def up(self, job: Job) -> list[Command]: ...
    def arrive(self, job: Job) -> None: ...
    def down(self, job: Job) -> list[Command]: ...


@dataclass(frozen=True, slots=True)
class Dsv:
    """The dsv that is installed beside the running Python."""

    name: str = "dsv"
    program: Path = field(default_factory=lambda: Path(sys.executable).with_name("dsv"))

    def version(self) -> str:
        return _first_line(self.program, "--version")

    def call(self, job: Job, *arguments: str) -> Command:
        store = f"s3://{job.bucket}/lake" if job.server else str(job.depot)
        places = {"DSV_STORE": store, "DSV_CACHE": str(job.back)}
        return job.command(self.program, "--quiet", *arguments, cwd=job.data, env=places)

    def prepare(self, job: Job) -> None:
        run(self.call(job, "init", "bench"))

    def up(self, job: Job) -> list[Command]:
        return [self.call(job, "sync", "-m", "benchmark")]

    def arrive(self, job: Job) -> None:
        shutil.rmtree(job.work / "home")
        (job.work / "home").mkdir()

    def down(self, job: Job) -> list[Command]:
        return [self.call(job, "cache", "bench")]


@dataclass(frozen=True, slots=True)
class Copy:
    """`cp -r`: what the disk and the kernel can do with one thread. `synced`: the disk has it all at the end."""

    name: str = "cp -r"
    synced: bool = False

    def version(self) -> str:
        return _first_line("cp", "--version")

    def prepare(self, job: Job) -> None:
        pass

    def up(self, job: Job) -> list[Command]:
        return [job.command("cp", "-r", job.data, job.depot), *self._sync(job, job.depot)]

    def arrive(self, job: Job) -> None:
        pass

    def down(self, job: Job) -> list[Command]:
        return [job.command("cp", "-r", job.depot, job.back), *self._sync(job, job.back)]

    def _sync(self, job: Job, path: Path) -> list[Command]:
        return [job.command("sync", "-f", path)] if self.synced else []


@dataclass(frozen=True, slots=True)
class S5cmd:
    """Copies files one to one, 256 at a time."""

    tools: Path
    name: str = "s5cmd"

    def version(self) -> str:
        return f"s5cmd {_first_line(self.tools / 's5cmd', 'version')}"

    def prepare(self, job: Job) -> None:
        pass

    def _copy(self, job: Job, source: str, target: str) -> list[Command]:
        assert job.server
        words: list[str | Path] = [
            self.tools / "s5cmd",
            "--endpoint-url",
            job.server.endpoint,
            "--log",
            "error",
            "cp",
        ]
        return [job.command(*words, source, target)]

    def up(self, job: Job) -> list[Command]:
        return self._copy(job, f"{job.data}/", f"s3://{job.bucket}/data/")

    def arrive(self, job: Job) -> None:
        pass

    def down(self, job: Job) -> list[Command]:
        return self._copy(job, f"s3://{job.bucket}/data/*", f"{job.back}/")


@dataclass(frozen=True, slots=True)
class Dvc:
    """`dvc add` and `dvc push` of a folder with its S3 remote; `dvc pull` in a clone with an empty cache."""

    tools: Path
    name: str = "dvc"

    def version(self) -> str:
        return f"dvc {_first_line(self.tools / 'dvc', '--version')}"

    def _call(self, job: Job, *arguments: str, cwd: Path) -> Command:
        env = {"DVC_NO_ANALYTICS": "1", "DVC_SITE_CACHE_DIR": str(job.work / "site")}
        return job.command(self.tools / "dvc", *arguments, cwd=cwd, env=env)

    def prepare(self, job: Job) -> None:
        repository = job.work / "repository"
        repository.mkdir()
        shutil.move(job.data, repository / "data")
        run(job.command("git", "init", "--quiet", repository))
        url = f"s3://{job.bucket}/dvc" if job.server else str(job.depot)
        setup = [["init", "--quiet"], ["remote", "add", "--default", "lake", url]]
        if job.server:
            setup.append(["remote", "modify", "lake", "endpointurl", job.server.endpoint])
        for words in setup:
            run(self._call(job, *words, cwd=repository))

    def up(self, job: Job) -> list[Command]:
        repository = job.work / "repository"
        return [
            self._call(job, "add", "--quiet", "data", cwd=repository),
            self._call(job, "push", "--quiet", cwd=repository),
        ]

    def arrive(self, job: Job) -> None:
        who = ["-c", "user.name=b", "-c", "user.email=b@localhost"]
        repository = job.work / "repository"
        run(job.command("git", *who, "add", ".", cwd=repository))
        run(job.command("git", *who, "commit", "--quiet", "-m", "data", cwd=repository))
        run(job.command("git", "clone", "--quiet", repository, job.back))
        shutil.rmtree(job.work / "site", ignore_errors=True)

    def down(self, job: Job) -> list[Command]:
        return [self._call(job, "pull", "--quiet", cwd=job.back)]


@dataclass(frozen=True, slots=True)
class Restic:
    """A backup program: packs, chunks and encrypts."""

    tools: Path
    name: str = "restic"

    def version(self) -> str:
        return _first_line(self.tools / "restic", "version")

    def _call(self, job: Job, *arguments: str | Path, cwd: Path | None = None) -> Command:
        place = f"s3:{job.server.endpoint}/{job.bucket}" if job.server else str(job.depot)
        cache = str(job.work / "restic-cache")
        env = {"RESTIC_REPOSITORY": place, "RESTIC_PASSWORD": "benchmark", "RESTIC_CACHE_DIR": cache}
        return job.command(self.tools / "restic", "--quiet", *arguments, cwd=cwd, env=env)

    def prepare(self, job: Job) -> None:
        run(self._call(job, "init"))

    def up(self, job: Job) -> list[Command]:
        return [self._call(job, "backup", ".", cwd=job.data)]

    def arrive(self, job: Job) -> None:
        shutil.rmtree(job.work / "restic-cache", ignore_errors=True)

    def down(self, job: Job) -> list[Command]:
        return [self._call(job, "restore", "latest", "--target", job.back)]


@dataclass(frozen=True, slots=True)
class Rclone:
    """Copies files one to one, here 64 at a time (its default is 4)."""

    name: str = "rclone"

    def version(self) -> str:
        return _first_line("rclone", "--version")

    def _copy(self, job: Job, source: str, target: str) -> list[Command]:
        assert job.server
        remote = {
            "RCLONE_CONFIG_LAKE_TYPE": "s3",
            "RCLONE_CONFIG_LAKE_PROVIDER": "Ceph",
            "RCLONE_CONFIG_LAKE_ENDPOINT": job.server.endpoint,
            "RCLONE_CONFIG_LAKE_ACCESS_KEY_ID": job.server.access_key,
            "RCLONE_CONFIG_LAKE_SECRET_ACCESS_KEY": job.server.secret_key,
        }
        how = ["--quiet", "--transfers", "64", "--checkers", "64", "--s3-no-check-bucket"]
        return [job.command("rclone", "copy", *how, source, target, env=remote)]

    def prepare(self, job: Job) -> None:
        pass

    def up(self, job: Job) -> list[Command]:
        return self._copy(job, str(job.data), f"lake:{job.bucket}/data")

    def arrive(self, job: Job) -> None:
        pass

    def down(self, job: Job) -> list[Command]:
        return self._copy(job, f"lake:{job.bucket}/data", str(job.back))


def _first_line(*argv: str | Path) -> str:
    done = subprocess.run([str(word) for word in argv], capture_output=True, text=True, check=True)
    return done.stdout.splitlines()[0].strip()
