"""Somebody who runs jobs on plain folders: the staging, the records and the surroundings that a run needs."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dsv.errors import NotFound
from dsv.run.active_runs import RunRecords
from dsv.run.dirs import RunPlace
from dsv.run.engines.attach import Signals
from dsv.run.engines.base import JobPlan
from dsv.run.listing import RunView
from dsv.run.node_order import NO_ACCESS, StoreAccess
from dsv.run.record import RunId, RunOutput, RunRecord
from dsv.run.record_store import SPOOLS, RunStore, Spool
from dsv.run.spec import Again, JobSpec, again
from dsv.run.staged import Staged
from dsv.run.supervisor import dry_run, run
from dsv.stores.base import StoreBackend
from dsv.stores.memory import MemoryStore
from dsv.values.ids import CommitId, StoreId
from dsv.values.names import DatasetName, Target

SCANS = DatasetName.parse("team/scans")
STORE = StoreId(bytes(range(16)))


class FolderLease:
    """Its file is there while it is held."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.lost = threading.Event()
        self.reason = ""
        path.touch()

    @property
    def released(self) -> bool:
        return not self.path.exists()

    def release(self) -> None:
        self.path.unlink()


@dataclass
class Folders:
    """Targets whose data are folders: a `Staging`."""

    folder: Path
    leases: list[FolderLease] = field(default_factory=list)
    staged: list[str] = field(default_factory=list)
    hit: bool = True

    def elsewhere(self) -> tuple[str, ...]:
        return ()

    def add(self, dataset: str, files: Mapping[str, str]) -> Path:
        root = self.folder / dataset.replace("/", "%2F")
        for name, content in files.items():
            path = root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            if name.endswith("@"):
                path.with_name(path.name[:-1]).symlink_to(content)
            else:
                path.write_text(content)
                path.chmod(0o444)
        return root

    def locate(self, target: Target) -> Staged:
        assert target.dataset is not None
        path = self.folder / target.dataset.component
        if not path.is_dir():
            raise NotFound(f"there is no dataset {target.dataset}", subject=target.dataset)
        count = sum(1 for each in path.rglob("*") if each.is_file())
        size = sum(each.stat().st_size for each in path.rglob("*") if each.is_file())
        commit = CommitId.hash(target.dataset.encode())
        return Staged(path, target.dataset, commit, count, size, hit=self.hit)

    def stage(self, target: Target, run: RunId) -> tuple[Staged, FolderLease]:
        found = self.locate(target)
        lease = FolderLease(self.folder / f".lease-{len(self.leases)}")
        self.leases.append(lease)
        self.staged.append(str(target))
        return Staged(
            found.path, found.dataset, found.commit, found.files, found.bytes, self.hit, 0.5, 77
        ), lease

    def access(self) -> StoreAccess:
        return NO_ACCESS

    def commit_code(self, folder: Path) -> None:
        """The run sees the folder itself."""

    def output(self, folder: Path | None, record: RunRecord) -> RunOutput:
        return RunOutput(error="there is no store")

    def into(self, record: RunRecord) -> RunOutput:
        raise AssertionError("no branch was named")


@dataclass
class Notes:
    """A `Progress` that remembers what was said."""

    said: list[str] = field(default_factory=list)
    finished: bool = False

    def start(self, total_files: int | None, total_bytes: int | None) -> None: ...

    def advance(self, files: int = 0, bytes: int = 0, transferred: int = 0) -> None: ...  # noqa: A002

    def note(self, text: str) -> None:
        self.said.append(text)

    def finish(self) -> None:
        self.finished = True


@dataclass
class Shop:
    """`run` makes a run of the words given, on the dataset team/scans unless the call names another."""

    home: Path
    environ: dict[str, str] = field(default_factory=lambda: dict(os.environ))
    store: StoreBackend = field(default_factory=lambda: MemoryStore("memory://shop"))
    notes: Notes = field(default_factory=Notes)

    def __post_init__(self) -> None:
        self.data = Folders(self.home / "cache")
        self.data.add(
            "team/scans", {"train/a.txt": "cat", "train/b.txt": "dog", "readme": "hi", "link@": "train/a.txt"}
        )
        (self.home / "here").mkdir()

    @property
    def place(self) -> RunPlace:
        return RunPlace(self.environ, self.home / "state", self.home / "here", "gpu-7", "ada")

    @property
    def spool(self) -> Spool:
        return Spool(self.place.state, STORE)

    @property
    def runs(self) -> RunStore:
        return RunStore(self.store)

    def request(self, *command: str, target: str = "team/scans@v1", **more: Any) -> JobSpec:
        return JobSpec(target=Target.parse(target), command=command, **more)

    def run(self, *command: str, offline: bool = False, **more: Any) -> RunView:
        return self.launch(self.request(*command, **more), offline=offline)

    def launch(
        self,
        spec: JobSpec,
        *,
        offline: bool = False,
        signals: Signals | None = None,
        grace: float = 20.0,
    ) -> RunView:
        records = RunRecords(self.place.state, STORE, None if offline else self.runs)
        with self.output() as (stdout, stderr):
            return run(
                spec, place=self.place, staging=self.data, records=records, stdout=stdout, stderr=stderr,
                signals=signals, progress=self.notes, grace=grace,
            )  # fmt: skip

    def dry_run(self, *command: str, **more: Any) -> JobPlan:
        return dry_run(self.request(*command, **more), place=self.place, staging=self.data)[0]

    def again(self, record: RunRecord, **more: Any) -> Again:
        return again(record, self.place, **more)

    @property
    def stdout(self) -> str:
        return (self.home / "stdout").read_text()

    @property
    def stderr(self) -> str:
        return (self.home / "stderr").read_text()

    def everything(self) -> bytes:
        """All bytes in the store and in the spool."""
        stored = b"".join(self.store.get(item.key) for item in self.store.list(""))
        return stored + b"".join(
            file.read_bytes() for file in (self.place.state / SPOOLS).rglob("*") if file.is_file()
        )

    def output(self) -> Any:
        from contextlib import contextmanager

        @contextmanager
        def opened() -> Iterator[tuple[int, int]]:
            with (self.home / "stdout").open("wb") as out, (self.home / "stderr").open("wb") as err:
                yield out.fileno(), err.fileno()

        return opened()
