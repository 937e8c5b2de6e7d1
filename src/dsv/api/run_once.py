"""Runs that are not repeated: the result of an equal run is served; else this run claims the key, and others wait."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice

from dsv.api.context import Context
from dsv.api.once_key import MadeKey, nearest, once_key
from dsv.api.run_into import put_output
from dsv.api.run_output import serve_output
from dsv.api.run_staging import RunStaging
from dsv.api.runs import Runs, open_runs
from dsv.errors import Conflict, Denied, DsvError, IntegrityError, NotFound, Unsupported
from dsv.files.errors import as_error
from dsv.periodic import now_ms
from dsv.repo.expiry import check_not_expired
from dsv.repo.repository import Repository
from dsv.repo.tree.diff import diff_trees, difference
from dsv.repo.tree.reader import TreeReader
from dsv.run.active_runs import RunRecords
from dsv.run.dirs import PARAMS_FILE, first_time, write_params
from dsv.run.listing import RunView
from dsv.run.once import computed_again
from dsv.run.once_claims import (
    Beats,
    Claimant,
    Hit,
    Judge,
    KeyClaim,
    KeyClaims,
    Miss,
    NotEnded,
    Verdict,
    Wait,
    look,
    settle,
)
from dsv.run.plan import Launch
from dsv.run.record import RECORD, IntoBranch, OnceKey, RunRecord, RunState
from dsv.run.record_store import RunStore, StoredRun
from dsv.values.ids import CommitId
from dsv.values.json import Json
from dsv.values.paths import show
from dsv.values.units import format_duration

_NAMED = 3
"""The most paths that a note about different outputs names."""


@dataclass(slots=True)
class Gate:
    """Decides for one run with `--once` whether it has to run; see `dsv.run.staging.OnceGate`."""

    context: Context
    staging: RunStaging
    records: RunRecords
    environ: Mapping[str, str]
    opened: ExitStack
    _made: MadeKey | None = None
    """None if this run is not to be claimed."""
    _beats: Beats | None = None
    _runs: Runs | None = None
    _waited: bool = False

    def look(self, launch: Launch) -> RunView | None:
        try:
            self._make(launch)
            verdict = None if launch.spec.fresh else look(self._claims(), self._judge)[1]
        except Denied as error:  # who may not read the claims; any other error of the store is one of the run
            self._say_unclaimed(error.message)
            return None
        return self._served(launch, verdict.record) if isinstance(verdict, Hit) else None

    def around(self, launch: Launch, run: Callable[[Launch], RunView]) -> RunView:
        if self._made is not None and (why := _former_content(launch)) is not None:
            self._say_unclaimed(why)
        if self._made is None:
            return run(launch)
        last, place, store, note = None, launch.place, self._repository.store, self.context.progress.note
        mine = Claimant(dataset=launch.main.dataset, run=launch.run, host=place.host, user=place.user)
        beats = Beats(store, mine.dataset, mine.run)
        try:
            if launch.spec.fresh:
                last = look(self._claims(), self._judge)[1]
            self._repository.format.check(store.url, writing=True)
            decided = self._settled(launch, mine, beats)
        except (Denied, Unsupported) as error:
            self._say_unclaimed(error.message)
        else:
            if isinstance(decided, Hit):
                return self._served(launch, decided.record)
            launch, self._beats = replace(launch, once=self._once), beats
            if not self._claims().one_wins and first_time(place, "once-without-winner"):
                note("in this store, two equal runs that begin at once may both run")
        try:
            view = run(launch)
        finally:
            beats.stop()
            if not self.records.begun:
                beats.remove()  # no record will come
        if self._made is not None and view.sent and view.record.state.is_terminal:
            beats.remove()  # one may have come as the record did
        if self._made is not None and view.record.exit_code == 0:
            with suppress(DsvError):
                if (why := next(_faults(self._repository, view.record), None)) is not None:
                    self._say_unclaimed(f"it {why}")
        if isinstance(last, Hit):
            self._compare(view.record, last.record)
        return view

    def _settled(self, launch: Launch, mine: Claimant, beats: Beats) -> Hit | KeyClaim:
        """Return the result or the claim of this run. After waiting for another run the key is made again: inputs may
        have been erased meanwhile."""
        judge: Judge = (lambda _: Miss("it is to run anyway")) if launch.spec.fresh else self._judge
        while True:
            self._waited, key = False, self._once.key
            decided = settle(
                self._claims(), mine, judge, beats, Wait(self.context.progress.note, self._complete)
            )
            if not self._waited:
                return decided
            self._repository.objects.check_erasures()  # reads them anew
            self._make(launch)
            if isinstance(decided, KeyClaim):
                if self._once.key == key:
                    return decided
                beats.remove()  # nobody is to wait for that claim

    def checked(self, launch: Launch) -> Launch:
        if launch.once is None:
            return launch
        why = "its code is not in the store"
        if launch.code is None or launch.staged_code is not None:
            why = "its code has changed as it began, or its pool gives it another key"
            try:
                self._make(launch)
                if self._once.key == launch.once.key:
                    return launch
            except DsvError as error:
                why = error.message
        self._say_unclaimed(why)
        if self._beats is not None:
            self._beats.remove()  # nobody is to wait for it
        return replace(launch, once=None)

    def submitted(self, *, queues: bool) -> None:
        if self._beats is not None and self._made is not None:
            with suppress(DsvError):
                self._beats.last() if queues else self._beats.start()

    def explain(self, launch: Launch) -> dict[str, Json]:
        note, made = self.context.progress.note, self._make(launch, pull=False)
        claim, verdict = look(self._claims(), self._judge)
        hit = why = near = None
        if isinstance(verdict, Hit):
            hit = verdict.record.run
            note(f"run {hit} has the result: it would not run again")
        else:
            under_way = claim and claim.by and f"run {claim.by.run} is under way, and it would wait for that"
            why = verdict.why if isinstance(verdict, Miss) else under_way
            note(f"it would run: {why}" if isinstance(verdict, Miss) else f"{why}")
            near = None if claim else nearest(made, self._repository, RunStore(self._repository.store))
        if near is not None:
            note(f"the nearest run is {near[0].run}: {'; '.join(near[1])}")
        for text in made.left_out:
            note(text)
        differs = None if near is None else {"run": near[0].run, "differs": list(near[1])}
        left_out = list(made.left_out)
        return {"key": made.once.key, "hit": hit, "why": why, "nearest": differs, "not_in_key": left_out}

    @property
    def _repository(self) -> Repository:
        return self.staging.repository

    @property
    def _once(self) -> OnceKey:
        assert self._made is not None  # made before
        return self._made.once

    def _make(self, launch: Launch, *, pull: bool = True) -> MadeKey:
        self._made = once_key(launch, self.staging, self.context.progress, pull=pull)
        return self._made

    def _claims(self) -> KeyClaims:
        return KeyClaims(self._repository.store, self._once.key)

    def _complete(self, by: Claimant) -> None:
        self._waited = True
        with suppress(DsvError, OSError):
            self._runs = self._runs or self.opened.enter_context(open_runs(self.context, self.environ))
            self._runs.settle_claimed(by)

    def _say_unclaimed(self, why: str) -> None:
        self._made = None
        self.context.progress.note(f"this run is nobody's result, so it may be repeated: {why}")

    def _judge(self, by: Claimant) -> Verdict:
        try:
            return self._judged(by)
        except (IntegrityError, Unsupported) as error:
            return Miss(f"run {by.run} has a record or an output that can't be read: {error.message}")

    def _judged(self, by: Claimant) -> Verdict:
        runs = RunStore(self._repository.store)
        try:
            record: RunRecord | None = runs.read(StoredRun(by.dataset, by.run, frozenset((RECORD,))))
        except NotFound:
            record = runs.newest(by.dataset, by.run)
        if record is None:
            return NotEnded(None)
        if record.once is None or record.once.key != self._once.key:
            return Miss(f"run {by.run} turned out to have another key")
        if not record.state.is_terminal:
            return NotEnded(record)
        why = next(_faults(self._repository, record), None)
        return Hit(record) if why is None else Miss(f"run {by.run} {why}")

    def _served(self, launch: Launch, result: RunRecord) -> RunView:
        """Give the output of a run where this one's was to go, and return this one, which has its result."""
        assert self._made is not None and result.output is not None  # it is a result
        spec, note, now, kept = launch.spec, self.context.progress.note, now_ms(), result.output
        took = format_duration(((result.ended_ms or 0) - result.started_ms) / 1000)
        note(f"same as run {result.run} ({result.user}@{result.host}, {took}): not run again")
        for text in self._made.left_out:
            note(text)
        error, into = None, None if spec.into is None else IntoBranch.due(spec.into)
        try:
            if spec.out is not None:
                self._fill(launch, result)
            if spec.into is not None:
                into = put_output(self.context, result, spec.into)
        except (DsvError, OSError) as refusal:
            error = refusal if isinstance(refusal, DsvError) else as_error(refusal, launch.out)
            if isinstance(error, IntegrityError):
                error.hint = "the same command with --fresh computes it again"
            into = into and replace(into, error=error.message)
        hit = replace(
            self._made.record, once=replace(self._once, hit_of=f"{result.dataset}/{result.run}"),
            state=RunState.ENDED, exit_code=0, started_ms=now, ended_ms=now, metrics=result.metrics,
            output=replace(kept, tree=None, error=None, into=into), log=None,
        )  # fmt: skip
        view = RunView(hit, sent=False, error=error, out=None if spec.out is None else launch.out)
        mine, its = ([(data.name, data.commit) for data in each.data] for each in (hit, result))
        if not self.records.under_way and (error is not None or (mine == its and spec.sweep is None)):
            return view
        self.records.finish(hit, None)
        problem = self.records.send()
        return replace(view, sent=self.records.is_in_store(problem), problem=problem)

    def _fill(self, launch: Launch, result: RunRecord) -> None:
        """Make the folder of `--out` as the job would have left it."""
        assert self._made is not None
        if not launch.chosen.engine.shares_folders:
            what = f"{launch.out} is on the cluster's machines, where nothing can be written from here"
            raise Conflict(what, subject=str(launch.out), hint=f"dsv runs {result.run} --out DIR")
        params, given = launch.out / PARAMS_FILE, self._made.record.params
        launch.out.mkdir(parents=True, exist_ok=True)
        if not params.is_file() or params.read_bytes() != json.dumps(given).encode() + b"\n":
            write_params(launch.out, given)
        serve_output(self._repository, result, launch.out, self.context.progress)

    def _compare(self, record: RunRecord, last: RunRecord) -> None:
        """Say whether the output of a run differs from the last result's."""
        trees = [
            CommitId.parse(each.output.tree) for each in (last, record) if each.output and each.output.tree
        ]
        if len(trees) < 2 or record.exit_code != 0:
            return
        before, now = map(partial(TreeReader, self._repository.objects), trees)
        rows = (row for row in diff_trees(before, now) if difference(row.before, row.after) is not None)
        paths = ", ".join(show(row.path) for row in islice(rows, _NAMED)) + (
            ", …" if next(rows, None) else ""
        )
        how, which = "differs from" if paths else "is the same as", f"that of run {last.run}"
        self.context.progress.note(f"its output {how} {which}{paths and ': '}{paths}")


def _former_content(launch: Launch) -> str | None:
    """Return why something that the job has not made may be in its output, or None."""
    if launch.spec.out is None:
        return None
    if not launch.chosen.engine.shares_folders:
        return f"nobody knows here what lies in {launch.out} already"
    with suppress(OSError):
        if {path.name for path in launch.out.iterdir()} - {PARAMS_FILE}:
            return f"{launch.out} is not empty, and its files become part of the output; --out NEW has none"
    return None


def _faults(repository: Repository, record: RunRecord) -> Iterator[str]:
    """Yield why an ended run is nobody's result, as what follows `run ID`; nothing if it is one."""
    output, once = record.output, record.once
    # Slurm says no more of an image than the name, which has the digest.
    named = [image.rpartition("@")[2] for image in (record.image, record.image_digest) if image]
    if record.state is not RunState.ENDED or record.exit_code != 0:
        yield f"has failed (exit code {record.exit_code})"
    if once is None or record.hit_of or (not once.values and computed_again(record) != once.key):
        yield "has a record that does not agree with its key"
    elif once.image not in (None, record.image_id, *named):
        yield f"has run in another image: {record.image_digest or record.image_id}"
    for read in record.read:
        yield f"has read {read.dataset}@{str(read.commit)[:12]} beside its --data"
    for made in record.made:
        yield f"has made {made.dataset}@{str(made.commit)[:12]} itself, which is not done again"
    if record.notes_error:
        yield f"may have read more than its --data: {record.notes_error}"
    if output is None or output.tree is None:
        yield "has no output in the store"
        return
    yield from (f"has an output that the store lacks a part of: {path}" for path in output.left_out)
    commit, refs, objects = CommitId.parse(output.tree), repository.refs, repository.objects
    try:
        check_not_expired(refs, refs.home(record.dataset), commit)
    except NotFound as error:
        yield f"has an output that has expired: {error.message}"
    if objects.commit_or_none(commit) is None:
        yield "has an output that was deleted"
    for entry, _ in TreeReader(objects, commit).below(b"") if objects.erasures else ():
        if objects.erasures.of(entry) is not None:
            yield f"has an output of which {show(entry.path)} was erased"
