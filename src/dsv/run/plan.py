"""Turns a spec and staged data into the job for an engine, and into the record at its start."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from dsv import __version__
from dsv.errors import UsageError
from dsv.repo.job_notes import FOLDER, VARIABLE
from dsv.run.dirs import RunPlace, code_folder, data_mounts, job_folder, output_folder
from dsv.run.engine_list import PROCESS, Chosen
from dsv.run.engines.base import OUT, Engine, Job, JobPlan, Mount
from dsv.run.node_order import NO_ACCESS, NodeOrder, StoreAccess
from dsv.run.origin import code_state, interpreter, lock_file, run_around
from dsv.run.parameters import SweepSeat
from dsv.run.part import NodeReport
from dsv.run.record import (
    CodeState,
    IntoBranch,
    LogInfo,
    OnceKey,
    RunData,
    RunId,
    RunOutput,
    RunRecord,
    RunState,
)
from dsv.run.spec import JobSpec, recorded
from dsv.run.staged import Staged
from dsv.values.names import data_variable
from dsv.values.secrets import Masker, hide_env_values


@dataclass(frozen=True, slots=True)
class Launch:
    """One attempt of a run, with its engine, data and folders."""

    spec: JobSpec
    place: RunPlace
    chosen: Chosen
    run: RunId
    staged: Mapping[str, Staged]
    """Keys are the names of the data; the target's is empty."""
    own: Path
    """The folder of this run in the user's state."""
    out: Path
    code: Path | None
    """The folder of `--code`."""
    masker: Masker
    staged_code: Staged | None = None
    """The code in the cache, if it was committed."""
    attempt: int = 1
    elsewhere: tuple[str, ...] = ()
    """The options with which dsv on another machine finds the same store and cache."""
    access: StoreAccess = NO_ACCESS
    once: OnceKey | None = None
    """The key of a run that is not repeated, if this one has claimed it."""

    def masked(self, text: str | None) -> str | None:
        return None if text is None else self.masker.text(text)

    @property
    def main(self) -> Staged:
        return self.staged[""]

    @property
    def further(self) -> dict[str, Path]:
        return {name: each.path for name, each in self.staged.items() if name}

    @property
    def scratch(self) -> Path:
        """The folder of the job's own files; on a cluster in the pool's `out`, which the nodes see too."""
        pool = self.spec.pool
        engine = self.chosen.engine
        if engine.queues and engine.shares_folders and pool is not None and pool.out is not None:
            return job_folder(pool.out, self.main.dataset, self.run)
        return self.own / "scratch"

    @property
    def other_folder(self) -> str:
        """The hint if the folders of the run can't be created."""
        pool = self.spec.pool
        if pool is None or pool.out is None or self.spec.out is not None:
            return "--out FOLDER, one that you may write to"
        return f"dsv config pools.{pool.name}.out FOLDER, one that you may write to"

    @property
    def keeps_output(self) -> bool:
        """True if it is committed: on request, or on a cluster where neither run nor pool names a folder."""
        pool = self.spec.pool
        named = self.spec.out is not None or (pool is not None and pool.out is not None)
        asked = self.spec.keep_output or self.spec.into is not None or self.spec.once
        return asked or (self.chosen.engine.queues and not named)

    @property
    def skeleton(self) -> Path | None:
        """The folder with the mount points for further data; None if the engine mounts none."""
        return self.scratch / "data" if self.further and self._mounts_data() else None

    def plan(self) -> JobPlan:
        """Return the engine's plan. Pure, except for listing the commit's top. Raises as `Engine.plan`."""
        return self.chosen.engine.plan(self._job(), self.chosen.facts)

    def record(self, plan: JobPlan, started_ms: int) -> RunRecord:
        """Return the record as it is known when the job starts."""
        spec, facts = self.spec, self.chosen.facts
        command = self.masker.argv(spec.command)
        options = plan.argv[: len(plan.argv) - len(spec.command)]
        params = self.masker.by_name.value(spec.params)
        assert isinstance(params, dict)  # as is spec.params
        report, around = NodeReport.of(self.staged.values()), run_around(self.place.environ)
        is_process = plan.engine == PROCESS
        return RunRecord(
            run=self.run,
            dataset=self.main.dataset,
            commit=self.main.commit,
            target=str(spec.target),
            data=tuple(self._run_data(name, each) for name, each in self.staged.items()),
            state=RunState.RUNNING,
            engine=plan.engine,
            pool=None if spec.pool is None else spec.pool.name,
            passed_over=spec.passed_over,
            then=spec.then if self.chosen.engine.queues else (),
            engine_version=facts.version,
            image=None if spec.image is None else self.masker.name(spec.image),
            command=command,
            engine_args=self.masker.argv(hide_env_values(spec.engine_args)[0]),
            argv=self.masker.argv(hide_env_values(options)[0]) + command,
            env=tuple(sorted(spec.env)),
            params=params,
            shm_bytes=plan.shm_bytes,
            code=None if self.code is None else self._code_state(self.code),
            out=self.masker.name(str(self.out)),
            output=None if spec.into is None else RunOutput(into=IntoBranch.due(spec.into)),
            sweep=None if spec.sweep is None else self._seat(spec.sweep),
            name=None if spec.name is None else self.masker.name(spec.name),
            host=self.place.host,
            user=self.place.user,
            started_ms=started_ms,
            log=LogInfo(0, 0) if spec.log else None,
            again_of=spec.again_of,
            within=None if around is None else "/".join(around),
            python=interpreter(self.place.environ) if is_process else None,
            lock=lock_file(self.code or self.place.cwd) if is_process else None,
            once=self.once,
            dsv=__version__,
            cache_hit=bool(report.cache_hit),
            stage_seconds=report.stage_seconds or 0.0,
            stage_bytes=report.stage_bytes or 0,
            **recorded(spec),
        )

    def _seat(self, seat: SweepSeat) -> SweepSeat:
        return seat if seat.name is None else replace(seat, name=self.masker.name(seat.name))

    def _code_state(self, folder: Path) -> CodeState:
        state = self.spec.recorded_code or code_state(folder, self.place.environ)
        if (staged := self.staged_code) is not None:
            state = replace(state, tree=staged.commit.hex(), root=staged.root)
        return replace(state, path=self.masker.name(state.path))

    def _mounts_data(self) -> bool:
        """Check that the job sees the data at `/data`, not at its path on this machine."""
        probe = Mount(self.main.path, "/data")
        return self.chosen.engine.place(probe) == probe.target

    def _job(self) -> Job:
        engine = self.chosen.engine
        if engine.queues and engine.shares_folders and self.skeleton is not None:
            raise UsageError(
                f"containers of {engine.name} can't have further data",
                subject="--data",
                hint="run them in a pool without containers, or put the data into one commit",
            )
        if not engine.shares_folders:
            # No mount points can be made inside a folder that this machine doesn't see.
            own = [Mount(self.main.path, "/data")]
            others = [Mount(path, f"/dsv/data/{name}") for name, path in self.further.items()]
        elif self._mounts_data():
            own, others = data_mounts(self.main.path, self.further, self.scratch / "data")
        else:
            own = [Mount(self.main.path, "/data")]
            others = [Mount(path, f"/data/{name}") for name, path in self.further.items()]
        mounts = [*own, *others]
        out = Mount(self.out, "/out", writable=True)
        env = {
            **self.spec.env,
            "DSV_RUN": str(self.run),
            "DSV_ATTEMPT": str(self.attempt),
            "DSV_DATASET": str(self.main.dataset),
            "DSV_COMMIT": self.main.commit.hex(),
            "DSV_DATA": engine.place(own[0]),
            "DSV_OUT": engine.place(out),
            VARIABLE: f"{engine.place(out)}/{FOLDER}/{self.run}",
            "DSV_PARAMS": json.dumps(self.spec.params),
        }
        for name, mount in zip(self.further, others, strict=True):
            variable = data_variable(name)
            if variable in env:
                raise UsageError(
                    f"--data {name} gives the variable {variable}, which the job has already", subject=name
                )
            env[variable] = engine.place(mount)
        workdir = None if self._mounts_data() else str(self.place.cwd)
        if self.code is not None:
            code = Mount(self._code_place(self.code), "/code")
            env["DSV_CODE"] = engine.place(code)
            mounts.append(code)
            workdir = engine.place(code)
        return Job.of(
            self.spec,
            run=self.run,
            name=self.spec.name or f"dsv-{self.run}",
            mounts=(*mounts, out),
            env=env,
            workdir=workdir,
            scratch=self.scratch,
            **self._staging(),
        )

    def _code_place(self, folder: Path) -> Path:
        """Return the code's path on the job's machine, a placeholder if it is not committed yet."""
        if self.staged_code is not None:
            return self.staged_code.path
        return folder if self.chosen.engine.shares_folders else self.main.path.with_name("CODE")

    def _staging(self) -> dict[str, Any]:
        """Return the fields of `Job` with which machines of a queueing engine stage the data."""
        if not self.chosen.engine.queues:
            return {}
        targets = {name: self._exactly(name, each) for name, each in self.staged.items()}
        further = [word for name in self.further for word in ("--data", f"{name}={targets[name]}")]
        if self.staged_code is not None:
            code = self._code_name()
            targets[code] = f"{self.staged_code.dataset}@{self.staged_code.commit.hex()}"
            further += ["--data", f"{code}={targets[code]}"]
        return {
            "hold": ("with", *self.elsewhere, "--quiet", targets[""], *further, "--"),
            "close": ("node", *self.elsewhere, "--quiet", "-"),
            "order": self._order(),
            "access": self.access,
        }

    def _order(self) -> str:
        """Return the order for the node that completes the record."""
        order = NodeOrder(
            run=self.run,
            dataset=self.main.dataset,
            out=str(self.out),
            log=self.spec.log,
            keep_output=self.keeps_output,
            author=self.place.author if self.keeps_output else None,
            beats=self.once is not None,
        )
        try:
            return order.encode().decode()
        except UnicodeEncodeError:  # a name that is not UTF-8: a later dsv completes the record
            return ""

    def _code_name(self) -> str:
        """Return a name for the code that no further data uses."""
        name = "code"
        while data_variable(name) in map(data_variable, self.further):
            name += "_"
        return name

    def _exactly(self, name: str, staged: Staged) -> str:
        path = self._run_data(name, staged).path
        return f"{staged.dataset}@{staged.commit.hex()}" + ("" if path is None else f":{path}")

    def _run_data(self, name: str, staged: Staged) -> RunData:
        target = self.spec.data[name] if name else self.spec.target
        path = None if not target.path else target.path.decode("utf-8", "surrogateescape")
        roots = staged.root, staged.commit_root
        return RunData(name, staged.dataset, staged.commit, path, staged.files, staged.bytes, *roots)


def code_of(spec: JobSpec, place: RunPlace) -> Path | None:
    """Return the folder of the code. Check that it exists, unless the code is in the store."""
    if spec.code is None or spec.recorded_code is not None:
        return spec.code
    return code_folder(place, spec.code)


def output_of(spec: JobSpec, place: RunPlace, engine: Engine, main: Staged, own: Path) -> Path:
    """Return the output folder. Raises `UsageError` if the job's machine has none."""
    pool = spec.pool
    if engine.shares_folders:
        return output_folder(place, spec.out, _own_output(spec, main, own))
    if spec.out is not None:
        return Path(place.cwd / spec.out)
    if pool is None:
        raise UsageError(
            f"{engine.name} needs a pool", subject="--on", hint="dsv run --on POOL; dsv pools lists them"
        )
    if pool.out is None and spec.nodes == 1:
        return Path(OUT)
    if pool.out is None:
        raise UsageError(
            f"the pool {pool.name} has no folder that several nodes could write to",
            subject=pool.name,
            hint=f"dsv config pools.{pool.name}.out FOLDER, which a volume of the pool has",
        )
    return _own_output(spec, main, own)


def _own_output(spec: JobSpec, main: Staged, own: Path) -> Path:
    """Return the output folder of a run without `--out`: below the `out` of its pool, if that is set."""
    if spec.pool is None or spec.pool.out is None:
        return own / "out"
    return Path(spec.pool.out) / main.dataset.component / own.name


def masker_of(spec: JobSpec, place: RunPlace) -> Masker:
    options, given = hide_env_values(spec.engine_args)
    return Masker.of({**given, **spec.env}, place.environ, (*options, *spec.command), spec.params)
