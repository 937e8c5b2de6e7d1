"""The store and the cache of one pool, as a run needs them."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

from msgspec.structs import replace

from dsv.api.cache import NoLease, Stager
from dsv.api.context import Context
from dsv.cache.leases import Lease
from dsv.cache.root import CacheRoot
from dsv.errors import Denied, DsvError, Unreachable
from dsv.repo.repository import Repository
from dsv.repo.session import Session
from dsv.run.node_order import StoreAccess
from dsv.run.record import RunId, RunOutput, RunRecord
from dsv.run.record_store import RunStore
from dsv.run.spec import JobSpec
from dsv.run.staged import Staged
from dsv.values.ids import CommitId
from dsv.values.names import Rev, Target


class RunStaging:
    """The store and the cache of one pool, as `dsv.run.staging.Staging` needs them.

    Each target is resolved only once, because a branch may move before it is staged. `opened` closes this object.
    `sessions` collects the sessions that protect the code from gc until a record in the store names it.
    """

    def __init__(
        self,
        context: Context,
        cache: Path,
        spec: JobSpec,
        opened: ExitStack,
        sessions: list[Session],
        *,
        offline: bool = False,
        force: bool = False,
    ) -> None:
        self._context = context
        self._opened = opened
        self._offline = offline
        self.force = force
        self._sessions = sessions
        jobs = None if spec.pool is None else spec.pool.run.get("jobs")
        self._stager = opened.enter_context(Stager(context, CacheRoot(cache), offline=offline, jobs=jobs))
        opened.callback(close_sessions, sessions)
        self.found = {
            target: self._stager.targets.find(_pinned(spec, target))
            for target in (spec.target, *spec.data.values())
        }
        self.main = self.found[spec.target]
        if spec.into is not None:
            from dsv.api.run_into import check_into

            check_into(context, spec.into)
        self._roots: dict[Target, tuple[str | None, str | None]] = {}
        self._needs_roots = spec.once

    @property
    def repository(self) -> Repository:
        return self._stager.targets.repository

    def elsewhere(self) -> tuple[str, ...]:
        store = self._context.settings.store()
        return ("--store", store.name or store.url, "--cache", str(self._stager.root.path))

    def access(self) -> StoreAccess:
        from dsv.api.store_access import store_access

        store = self._context.settings.store()
        return store_access(store, self._context.store_options(store))

    def locate(self, target: Target) -> Staged:
        return self._with_roots(target, self._stager.locate(self._exact(target)))

    def stage(self, target: Target, run: RunId | None) -> tuple[Staged, Lease | NoLease]:
        staged, lease = self._stager.stage(self._exact(target), run)
        if target in self.found:
            self._stager.targets.remember(self.found[target])
        return self._with_roots(target, staged), lease

    def _with_roots(self, target: Target, staged: Staged) -> Staged:
        """Add the roots of the trees, if they are known here or the store is open already: a run of cached data
        does not wait for a store that does not answer, unless the roots are in its key."""
        if target not in self._roots:
            self._roots[target] = self._stager.roots(self._exact(target), must=self._needs_roots)
        root, commit_root = self._roots[target]
        return replace(staged, root=root, commit_root=commit_root)

    def _exact(self, target: Target) -> Target:
        one = self.found.get(target)
        return target if one is None else Target(one.dataset, Rev(str(one.commit)), target.path)

    def commit_code(self, folder: Path) -> CommitId | None:
        """Commit the code. Return None if this user can't write to the store now: a run may lack that."""
        from dsv.api.run_code import commit_code

        why = "the store is not asked with --offline"
        if not self._offline:
            try:
                repository = self.repository
                code, session = commit_code(
                    self._context, repository, self.main.dataset, folder, force=self.force
                )
                self._sessions.append(session)
                return code
            except (Denied, Unreachable) as error:
                why = error.message
        self._context.progress.note(
            f"the code is not committed, and the run sees {folder} as it changes: {why}"
        )
        return None

    def into(self, record: RunRecord) -> RunOutput:
        from dsv.api.run_into import move_into

        return move_into(self._context, record)

    def output(self, folder: Path | None, record: RunRecord) -> RunOutput:
        dataset, targets = self.main.dataset, self._stager.targets
        if folder is not None and self._offline:
            return RunOutput(error="the store is not asked with --offline")
        if folder is not None:
            from dsv.api.run_output import commit_output

            return commit_output(
                self._context, lambda: targets.repository, dataset, folder, record, self._opened
            )
        try:
            found = RunStore(targets.repository.store).newest(dataset, record.run)
            if found is not None and found.output is not None and (found.output.tree or found.output.error):
                return found.output
        except DsvError as error:
            return RunOutput(error=error.message)
        return RunOutput(error="the machine of the job could not send it")


def close_sessions(sessions: list[Session]) -> None:
    while sessions:
        sessions.pop().close()


def _pinned(spec: JobSpec, target: Target) -> Target:
    pin = spec.pins.get(str(target))
    return target if pin is None else Target(target.dataset, Rev(pin), target.path)
