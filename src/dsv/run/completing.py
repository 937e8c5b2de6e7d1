"""Completing the record of a run whose job is over."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import replace
from functools import cache
from pathlib import Path
from signal import Signals as SignalName
from typing import Final, TypeVar, cast

from dsv.errors import DsvError, NoRoom, NotFound, Unreachable
from dsv.files.small_files import replace_file
from dsv.periodic import now_ms
from dsv.repo.job_notes import NotedCommit, Notes
from dsv.run.active_runs import Marks
from dsv.run.dirs import Metrics, job_folder, left_in, metrics_stamps, parse_left, remove_scratch
from dsv.run.engine_list import Engines, FoundJob, find_job
from dsv.run.engines.base import CANNOT_LAUNCH, Ended, Engine, JobStatus
from dsv.run.engines.output import KeptLog, LogKeeper, read_live
from dsv.run.node_order import PASSED
from dsv.run.part import EndCause, RunPart, deciding_part, ended_at, on_one_clock
from dsv.run.record import LogInfo, RunCommit, RunId, RunOutput, RunRecord, RunState
from dsv.run.record_store import RunStore, Spool
from dsv.values.json import Json
from dsv.values.names import DatasetName
from dsv.values.secrets import HIDDEN, Masker
from dsv.values.units import rfc3339

_T = TypeVar("_T")
_NEVER_BEGAN: Final = (EndCause.NOT_STARTED, EndCause.IMAGE_NOT_PULLED, EndCause.UNSCHEDULABLE)
GONE: Final = "dsv was killed or its machine went down before the job had ended"
_NO_SECRETS: Final = Masker()
_KEPT_MS: Final = 8 * 86_400_000
"""Clusters remove a job by themselves a week after its end."""
_SUPERVISOR_HAS: Final = 30.0
"""Seconds after a job's end that are left to its supervisor, on any machine: it knows the secrets."""


def completed(
    start: RunRecord,
    ended: Ended,
    noticed_ms: int | None = None,
    *,
    kept: KeptLog | None = None,
    metrics: Callable[[RunRecord], Metrics] = lambda record: Metrics(),
    masker: Masker = _NO_SECRETS,
) -> RunRecord:
    """Return the record of a run whose job is over, complete except for its output.

    Every machine that completes records uses this, so the same end gives the same record.

    noticed_ms: when the end was seen, by the clock of `start`; used if the job reports no times
    kept: its log, if one is kept
    metrics: reads the job's metrics, given the record without them
    masker: hides the secrets in the metrics and the errors
    """
    state = RunState.ENDED if ended.launched else RunState.NOT_LAUNCHED
    if not ended.seen or ended.cause in (EndCause.LEASE_LOST, EndCause.LOST_SIGHT):
        state = RunState.CUT_OFF

    def hidden(text: str | None) -> str | None:
        return None if text is None else salvaged(lambda: masker.text(text), lambda problem: problem)

    parts = tuple(
        replace(part, error=hidden(part.error), cancelled_by=part.cancelled_by and ended.stopped)
        for part in on_one_clock(ended.parts, start.started_ms, noticed_ms)
    )
    started_ms, ended_ms = run_times(start, parts if ended.launched else (), noticed_ms)
    staged = [part for part in parts if part.cache_hit is not None]
    first = [part for part in staged if part.attempt == 1]
    cancelled = ended.cause is EndCause.CANCELLED
    record = replace(
        start,
        state=state,
        exit_code=ended.exit_code,
        error=hidden(ended.reason),
        end=ended.cause,
        cancelled_by=ended.stopped if cancelled else None,
        parts=parts or start.parts,
        started_ms=started_ms,
        ended_ms=ended_ms,
        cache_hit=all(part.cache_hit for part in first) if first else start.cache_hit,
        stage_seconds=max((part.stage_seconds or 0.0 for part in first), default=0.0) or start.stage_seconds,
        stage_bytes=sum(part.stage_bytes or 0 for part in staged) or start.stage_bytes,
        image_id=start.image_id if ended.image is None else ended.image.id,
        image_digest=start.image_digest if ended.image is None else ended.image.digest,
        signal=None if ended.signal is None else SignalName(ended.signal).name,
        usage=ended.usage,
        log=None if kept is None else LogInfo(kept.total, len(kept.data)),
    )

    return _with_what_it_left(record, metrics, masker)


def _with_what_it_left(
    record: RunRecord, metrics: Callable[[RunRecord], Metrics], masker: Masker
) -> RunRecord:
    """Add the metrics, and the commits that the job noted."""

    def left() -> Metrics:
        its = metrics(record)
        found = its.values if its.values is not None or its.problem else its.curves.last(masker) or None
        values = None if found is None else cast("dict[str, Json]", masker.value(found))
        return replace(its, values=values, problem=None if its.problem is None else masker.text(its.problem))

    its = salvaged(left, lambda problem: Metrics(problem=problem))
    read, made = of_notes(record, its.notes)
    record = replace(record, metrics=its.values, metrics_error=its.problem)
    curves = salvaged(lambda: its.curves.encode(masker) if its.curves.last(masker) else b"", lambda _: b"")
    return replace(record, read=read, made=made, notes_error=its.notes.problem, curves=curves)


def of_notes(record: RunRecord, notes: Notes) -> tuple[tuple[RunCommit, ...], tuple[RunCommit, ...]]:
    """Return what a job read beside its data, and what it made. With `--once`, the commit of which it got a part is
    beside it: the key has only that part."""
    given = [data for data in record.data if record.once is None or data.path is None]
    known = {(data.dataset, data.commit) for data in given} | {each[:2] for each in notes.made}
    read = [each for each in notes.read if each[:2] not in known]
    return tuple(map(_run_commit, read)), tuple(map(_run_commit, notes.made))


def _run_commit(noted: NotedCommit) -> RunCommit:
    return RunCommit(noted.dataset, noted.commit, noted.root.hex())


def lost(why: str | None) -> Ended:
    """Return the end of a job whose end is unknown."""
    return Ended(exit_code=CANNOT_LAUNCH, launched=True, seen=False, reason=why, cause=EndCause.LOST_SIGHT)


def run_times(start: RunRecord, parts: Sequence[RunPart], noticed_ms: int | None) -> tuple[int, int | None]:
    """Return when the command began and when it ended, in milliseconds since 1970.

    Clocks of machines differ, so only times of one machine are subtracted: an attempt takes as long as its
    slowest node, and pauses are never negative. noticed_ms is used if a node has no end.
    """
    begun = [(part.attempt, part.started_ms) for part in parts if part.started_ms is not None]
    began = min(begun)[1] if begun else start.started_ms
    over = ended_at(parts)
    if over is None:
        return began, None if noticed_ms is None else max(noticed_ms, began)
    if len({part.host for part in parts}) < 2:
        return began, max(over, began)
    first: dict[int, int] = {}
    longest: dict[int, int] = {}
    for part in parts:
        if part.started_ms is not None and part.ended_ms is not None:
            first[part.attempt] = min(part.started_ms, first.get(part.attempt, part.started_ms))
            took = max(part.ended_ms - part.started_ms, 0)
            longest[part.attempt] = max(took, longest.get(part.attempt, 0))
    last = max(first, default=None)
    return began, over if last is None else max(first[last] + longest[last], began + sum(longest.values()))


def end_of_parts(start: RunRecord, parts: Iterable[RunPart]) -> Ended:
    """Return how a run ended, from the parts of its nodes."""
    ordered = tuple(sorted(parts, key=lambda part: (part.attempt, part.node)))
    decided = deciding_part(ordered)
    if decided is None or decided.end is None:
        return replace(lost(None), parts=ordered)
    return Ended(
        exit_code=CANNOT_LAUNCH if decided.exit_code is None else decided.exit_code,
        launched=decided.end not in _NEVER_BEGAN,
        cause=decided.end,
        reason=decided.error or _who_failed_first(start, decided),
        stopped=decided.cancelled_by,
        parts=ordered,
    )


def _who_failed_first(start: RunRecord, part: RunPart) -> str | None:
    if start.nodes == 1 or part.succeeded or part.end is not EndCause.EXITED:
        return None
    return f"node {part.node} ({part.host}) failed first, with exit code {part.exit_code}"


def join_logs(logs: Iterable[tuple[int, int, bytes]], nodes: int) -> bytes:
    """Join logs, given as node, attempt and content. With several nodes, a line marks where each begins."""
    ordered = sorted(logs, key=lambda log: (log[1], log[0]))
    if nodes == 1:
        return b"".join(data for _, _, data in ordered)
    return b"".join(
        b"[dsv: node %d, attempt %d]\n%s" % (node, attempt, data) for node, attempt, data in ordered
    )


def completed_by(
    job: FoundJob | None,
    start: RunRecord,
    ended: Ended,
    masker: Masker,
    noticed_ms: int | None = None,
    *,
    logged: bool,
    live: Path | None = None,
) -> tuple[RunRecord, bytes | None]:
    """Return the `completed` record with the job's log and metrics, if they can be read here, and the log.

    job: None if no engine has it; then its output folder is one of this machine
    logged: the run keeps a log
    live: the log that its supervisor wrote until it was killed, without secrets; it counts if it is longer
    """
    logs = []
    if logged and job is not None:
        logs.append(kept_log(start, lambda: _read(job.logs(follow=False)), masker))
    if logged and live is not None and live.exists():
        logs.append(kept_log(start, lambda: _read(read_live(live, None)), _NO_SECRETS))
    kept = max((log for log in logs if log is not None), key=lambda log: log.total, default=None)
    record = completed(
        start, ended, noticed_ms, kept=kept, metrics=lambda record: _metrics(record, job), masker=masker
    )
    return record, None if kept is None else kept.data


def _read(log: AbstractContextManager[Iterator[bytes]] | None) -> LogKeeper | None:
    if log is None:
        return None
    keeper = LogKeeper()
    with log as pieces:
        for data in pieces:
            keeper.add(data)
    return keeper


def kept_log(record: RunRecord, read: Callable[[], LogKeeper | None], masker: Masker) -> KeptLog | None:
    """Return the kept part of the log; only the reason if it may show a secret that is unknown here."""
    if masker.unknown:
        names = ", ".join(masker.unknown)
        return no_log(f"it may show values of {names}, which only {record.host} knows")

    def masked() -> KeptLog | None:
        keeper = read()
        return None if keeper is None else keeper.kept(masker)

    return salvaged(masked, no_log)


def _metrics(record: RunRecord, job: FoundJob | None) -> Metrics:
    """Read the metrics of a job. A file that is older than the run is ignored."""
    if job is not None and not job.engine.shares_folders:
        ended = job.status.ended
        return Metrics() if ended is None else parse_left(ended)
    out = Path(record.out)
    before = [] if out.name == record.run else metrics_stamps(out, record.started_ms * 1_000_000)
    return left_in(out, record.run, before)


def no_log(problem: str) -> KeptLog:
    return KeptLog(f"[dsv: the log is not kept: {problem}]\n".encode(), 0)


def salvaged(make: Callable[[], _T], instead: Callable[[str], _T]) -> _T:
    """Return what `make` returns, or `instead` of the problem: a job may leave anything, and an error in one
    part must not cost the rest of the record, or the exit code."""
    try:
        return make()
    except Exception as error:  # noqa: BLE001 (the record has it, in place of that part)
        return instead(f"dsv failed with an unexpected {type(error).__name__}")


class Completer:
    """Completes records of runs without a supervisor, from what their engines report of the jobs. An engine
    that gave no answer is not asked again."""

    def __init__(self, engines: Engines, runs: RunStore, spool: Spool, marks: Marks) -> None:
        self._engines = engines
        self._runs = runs
        self._spool = spool
        self._marks = marks
        self._supervised = marks.supervised()
        self._engine_of = engine_of = cache(engines.make)
        self._ended_jobs = cache(lambda name, pool: _ended_jobs(engine_of(name, pool)))
        self._jobs_of = cache(lambda engine: salvaged(engine.list, lambda _: ()))
        self._silent: dict[tuple[str, str | None], DsvError | None] = {}
        """Why an engine does not answer, by its name and its pool; None if it does."""
        self.last_known: dict[RunId, DsvError] = {}
        """Why the cluster of a run could not tell its state."""

    def settle(self, record: RunRecord, *, whole: bool = False) -> tuple[RunRecord, bool]:
        """Return the record as it is now; False if the store does not have its end.

        whole: a run whose record another process is still to complete has not ended
        """
        engine = self._engine_of(record.engine, record.pool)
        if record.state.is_terminal or record.job is None or engine is None or not engine.queues:
            return record, True
        status = None if self._silent.get((record.engine, record.pool)) else engine.status(record.job)
        if status is None or (status.ended is None and status.state is RunState.ENDED):
            if status is not None:  # the job says so itself
                self._remember(record, status)
            return self._as_last_known(record, self._why_silent(record, engine), whole=whole), True
        if status.lives:
            self._remember(record, status)
            return replace(record, state=status.state, error=status.reason or record.error), True
        if status.ended is None or not self._is_left_to_us(record, status):
            return self._left_to_others(record, status, whole=whole)
        ended, log = self._whole(record, status.ended, FoundJob(engine, record.job, status))
        try:
            ended = self._runs.add_end(ended, log)
        except DsvError:  # left to a dsv that may write to the store
            return ended, False
        forget_job(ended, self._engines)
        self._marks.tidy(ended)
        return ended, True

    def remove_job(self, record: RunRecord) -> None:
        """Remove the job of a whole record if its cluster still keeps it: nodes leave jobs to a later dsv. End one that
        the cluster took after nobody waited for its answer any more."""
        engine = self._engine_of(record.engine, record.pool)
        if engine is None or not engine.queues or record.run in self._supervised:
            return
        if now_ms() - (record.ended_ms or record.started_ms) > _KEPT_MS:
            return
        self._marks.tidy(record)
        if record.job is None:
            for late in (ref for ref in self._jobs_of(engine) if ref.run == record.run):
                engine.cancel(late, 0)
        elif record.job.id in self._ended_jobs(record.engine, record.pool):
            forget_job(record, self._engines)

    def complete_cut_off(
        self, warn: Callable[[str], None], stop: Mapping[RunId, float] | None = None
    ) -> list[RunRecord]:
        """Complete and return the records of runs of this store whose supervisor on this machine is gone.

        A run stays as it is, with a warning, if its engine doesn't answer, its job outlived the reaper, or neither
        this machine nor the store takes its record.

        stop: runs whose jobs are ended first, each with its seconds of grace
        """
        done = []
        for early in self._marks.orphaned():
            stored = self._known(early.dataset, early.run)
            if stored is None or not stored.state.is_terminal:
                end = self._end(early, warn, (stop or {}).get(early.run))
                if end is None or not self._keep_end(*end, warn):
                    continue
                done.append(end[0])
            forget_job(early, self._engines)  # not before: a container has the log
            self._marks.clear(early)
        return done

    def _end(
        self, early: RunRecord, warn: Callable[[str], None], grace: float | None
    ) -> tuple[RunRecord, bytes | None] | None:
        """Return what `_whole` does, from the mark, not the store: it has the last pool. None as `_end_of_job`"""
        if early.state.is_terminal:
            kept = early.output or RunOutput()
            return replace(early, output=kept.missed("dsv was killed while it sent it")), None
        end = self._end_of_job(early, warn, grace)
        return None if end is None else self._whole(early, *end)

    def _whole(self, record: RunRecord, ended: Ended, job: FoundJob | None) -> tuple[RunRecord, bytes | None]:
        """Return the whole record and the log. job: None if no engine keeps what the job left"""
        engine = self._engine_of(record.engine, record.pool)
        if job is None and (engine is None or not engine.shares_folders):
            return completed(record, ended), None
        masker, live = known_secrets(record, self._engines.environ), self._marks.live_log(record)
        logged = record.log is not None and record.job is not None  # else its command never began
        seen = now_ms() if job is not None and (job.engine.queues or job.status.lives) else None
        return completed_by(job, record, ended, masker, seen, logged=logged, live=live)

    def _left_to_others(self, record: RunRecord, status: JobStatus, *, whole: bool) -> tuple[RunRecord, bool]:
        """Return a run without a job as another process has completed it, or else as the cluster reports it."""
        supervised = record.run in self._supervised
        if not supervised:
            try:
                stored = self._runs.newest(record.dataset, record.run)
            except DsvError as error:  # somebody may have completed it
                return self._as_last_known(record, error, whole=whole), True
            if stored is not None and stored.state.is_terminal:
                self._marks.tidy(stored)
                return stored, True
        gone = status.state is RunState.CUT_OFF
        if status.ended is not None and status.ended.seen and not gone and not self._moves(record, status):
            self._remember(record, status)
            if whole:
                return record, True
            masker = known_secrets(record, self._engines.environ)
            return completed(record, status.ended, now_ms(), masker=masker), False
        if (status.ended is None or gone) and status.reason is not None and not supervised:
            return completed(record, status.ended or lost(status.reason)), True  # removed after completion
        if supervised or self._moves(record, status):
            return self._last_seen(record)[0], True
        why = NotFound(
            f"{record.engine} has no job of run {record.run} any more, and its end is not known here",
            hint=f"dsv runs {record.run}, on {record.host}; to give it up: dsv runs --delete --force {record.run}",
        )
        return self._as_last_known(record, why, whole=whole), True

    def _why_silent(self, record: RunRecord, engine: Engine) -> DsvError:
        key = record.engine, record.pool
        if key not in self._silent:
            self._silent[key] = None
            try:
                engine.probe()
            except DsvError as error:
                self._silent[key] = error
        return self._silent[key] or Unreachable(f"{key[0]} answers, but not about this job", hint="dsv pools")

    def _as_last_known(self, record: RunRecord, why: DsvError, *, whole: bool) -> RunRecord:
        self.last_known[record.run] = why
        last, since = self._last_seen(record)
        said = f"{last.state} is the last known state, of {rfc3339(since)}: {why}"
        return replace(record if whole and last.state.is_terminal else last, error=said)

    def _last_seen(self, record: RunRecord) -> tuple[RunRecord, int]:
        """Return the record with the last state that a cluster reported here, and when that was."""
        with suppress(OSError, ValueError):
            path = self._marks.answer(record.run)
            since = path.stat().st_mtime_ns // 1_000_000
            state, _, code = path.read_text().partition(" ")
            return replace(record, state=RunState(state), exit_code=int(code) if code else None), since
        return record, record.started_ms

    def _remember(self, record: RunRecord, status: JobStatus) -> None:
        code = "" if status.exit_code is None else f" {status.exit_code}"
        with suppress(OSError):
            path = self._marks.answer(record.run)
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            replace_file(path, f"{status.state}{code}".encode(), mode=0o600, sync=False)

    def _is_left_to_us(self, record: RunRecord, status: JobStatus) -> bool:
        """Check that no other dsv completes the record. Its submitter may still move it to another pool."""
        assert status.ended is not None  # checked by settle
        is_idle = (status.idle_seconds or 0.0) >= _SUPERVISOR_HAS and status.state is not RunState.CUT_OFF
        moves, supervised = self._moves(record, status), record.run in self._supervised
        return status.ended.seen and is_idle and not moves and not supervised

    def _moves(self, record: RunRecord, status: JobStatus) -> bool:
        return bool(record.then) and status.ended is not None and not status.ended.launched

    def _known(self, dataset: DatasetName, run: RunId) -> RunRecord | None:
        """Read the newest record of a run: an unsent one is never older than the stored one."""
        waiting = self._spool.records(lambda part: (part.dataset, part.run) == (dataset, run), lambda _: None)
        return next(waiting, None) or self._runs.newest(dataset, run)

    def _keep_end(self, record: RunRecord, log: bytes | None, warn: Callable[[str], None]) -> bool:
        try:
            self._spool.keep_end(record, log, self._runs)
        except NoRoom as error:
            warn(error.message)
            return False
        with suppress(DsvError, OSError):  # it waits here, and is shown as unsent
            self._spool.send(self._runs, only=record.run)
        return True

    def _end_of_job(
        self, record: RunRecord, warn: Callable[[str], None], grace: float | None
    ) -> tuple[Ended, FoundJob | None] | None:
        """Return how the job of a dead supervisor ended, and the job if its engine keeps what it left; None if it may
        live. grace: the seconds that it gets if it is to be ended"""
        try:
            job = find_job(record, self._engines)
        except Unreachable as error:
            warn(f"lost track of run {record.run}: its supervisor died, and {error.message}")
            return None
        if job is None:
            return lost(GONE), None
        if job.status.state in (RunState.QUEUED, RunState.RUNNING) and grace is None:
            warn(
                f"the supervisor of run {record.run} died, but its job still runs; to end it: dsv stop {record.run}"
            )
            return None
        status = job.cancel(grace or 0.0)
        if status.lives:
            return None
        if status.ended is not None:
            return status.ended, job
        code = "" if status.exit_code is None else f"; the job's exit code was {status.exit_code}"
        kept = not job.engine.queues and status.state is not RunState.CUT_OFF
        return lost(GONE + code), job if kept else None


def _ended_jobs(engine: Engine | None) -> frozenset[str]:
    return frozenset() if engine is None else frozenset(each.id for each in engine.ended_jobs())


def forget_job(record: RunRecord, engines: Engines) -> None:
    """Remove the job from its engine, and its folder in the pool, once the record has all of it."""
    engine = None if record.job is None else engines.make(record.engine, record.pool)
    if engine is not None and record.job is not None:
        engine.forget(record.job)
    pool = None if record.pool is None else engines.pools.get(record.pool)
    if pool is not None and pool.out is not None:
        remove_scratch(job_folder(pool.out, record.dataset, record.run))


def known_secrets(
    record: RunRecord,
    environ: Mapping[str, str],
    *,
    on_node: bool = False,
    command: Sequence[str] | None = None,
) -> Masker:
    """Return the secrets of a run known from its record and the environment of this machine.

    on_node: this is a node of the run, whose environment has the values that the job was given
    command: as it was typed, if that is known
    """
    prefix = PASSED if on_node else ""
    given = {name: environ[prefix + name] for name in record.env if prefix + name in environ}
    params: Mapping[str, Json] = record.params
    if on_node:
        with suppress(KeyError, ValueError):
            params = json.loads(environ[f"{PASSED}DSV_PARAMS"])
    typed = record.command if command is None else command
    unknown = [name for name in record.env if name not in given]
    texts = [record.engine_args]
    texts += [record.command] if tuple(typed) == record.command else []
    shown = [*texts, record.params] if params == record.params else texts
    if HIDDEN in json.dumps(shown):
        unknown.append("the command or the parameters")
    return Masker.of(given, environ, typed, params, unknown)
