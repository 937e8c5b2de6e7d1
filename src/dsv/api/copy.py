"""Copy datasets to another store, which receives only the objects that it lacks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import islice
from shlex import quote
from typing import Literal

from dsv.api.branches import dataset_of, moved_by_other
from dsv.api.context import Context
from dsv.api.copy_runs import CopiedRuns, copy_runs
from dsv.errors import Conflict, IntegrityError, NotFound, Unsupported, UsageError
from dsv.format import keys
from dsv.format.records import ExpiryAction, RefEntry
from dsv.repo.expiry import ExpiryLog, keep_named, read_expiry
from dsv.repo.format_log import has_layout
from dsv.repo.history import is_ancestor, lacking, walk
from dsv.repo.merge_indexes import tidy
from dsv.repo.objects.erasures import Erasures
from dsv.repo.refs.branches import Head, LostRace
from dsv.repo.refs.listing import parts
from dsv.repo.refs.tags import named_parts
from dsv.repo.repository import Repository
from dsv.repo.session import Session, check_whole
from dsv.repo.tracking import file_of
from dsv.repo.tracking import read as read_tracking
from dsv.repo.tree.reader import TreeReader
from dsv.stores.base import NoAnswer, both, together
from dsv.stores.memory import MemoryStore
from dsv.stores.open import local_folder
from dsv.upkeep.copy import CommitCopy, CopyPlan, Receiver, TreeCopy, expire_without_content, unnamed
from dsv.upkeep.roots import read_names
from dsv.values.ids import CommitId
from dsv.values.names import MAIN, BranchName, DatasetName, TagName, Target
from dsv.values.units import format_count

State = Literal["copied", "up to date", "ahead", "diverged"]
PACK_BYTES = 32 << 20
_SEARCHED = 100
"""How many commits only in the other store are searched for one that both stores have."""


@dataclass(frozen=True, slots=True)
class CopyRequest:
    every: bool = False
    """Copy every dataset."""
    tags: bool = False
    create: bool = False
    """Make the other store if it does not exist."""
    dry_run: bool = False
    history: int | None = None
    """Copy the content of this many commits of each branch, by first parents; None for all."""
    runs: bool = False
    """Copy the records of ended runs on the datasets too."""


@dataclass(frozen=True, slots=True)
class CopiedName:
    """A branch or tag, and the result for it in the other store."""

    dataset: DatasetName
    name: str
    kind: Literal["branch", "tag"]
    state: State
    """`ahead`: it has later commits in the other store. `diverged`: its commit there is not in this store's,
    or the tag names another commit.
    """
    commit: CommitId | None
    """The commit in this store; None for a branch without a commit."""
    before: CommitId | None
    """The commit in the other store before the copy."""
    commits: int = 0
    expired: int = 0
    """Further commits that are expired in the other store from the start: only their records were copied."""


@dataclass(frozen=True, slots=True)
class CopyResult:
    source: str
    to: str
    names: tuple[CopiedName, ...]
    commits: int
    bytes: int
    """Bytes of packs and index files that were sent."""
    objects: int | None
    """Objects that would be sent; None if this was no dry run."""
    requests: int
    """Requests to both stores; for a dry run, about as many as the copy would make."""
    erasures: int = 0
    """Erasures that were adopted."""
    runs: CopiedRuns | None = None


def copy(context: Context, target: Target, to: str, request: CopyRequest | None = None) -> CopyResult:
    """Copy a dataset, or with a revision one branch or tag of it, to the store that `to` names.

    Commits keep their ids. A branch there is only moved forward. Objects sent by a killed call are not sent
    again. If one of several datasets can't be copied, the others still are. Raises `Conflict` at the end if a
    branch there has other commits, and `Unsupported` for a store of another kind.
    """
    request = request or CopyRequest()
    with (
        context.repository(target if target.rev is not None else None) as source,
        _other(context, to, request, partial(_check_new, context, source, target, request)) as there,
    ):
        _check_kinds(source, there)
        began = _requests(source, there)
        failures: list[Conflict | IntegrityError | NotFound] = []
        erasures = source.objects.erasures.known.keys() - there.objects.erasures.known.keys()
        if erasures and not request.dry_run:
            from dsv.upkeep.erase import adopt  # imports numpy, which few copies need

            adopt(there, context.writer, source.objects.erasures)
        copying = _Copying(context, source, there, to, request)
        datasets = list(_datasets(context, source, target, request))
        for dataset in datasets:
            try:
                copying.dataset(dataset, target.rev.text if target.rev is not None else None)
            except (Conflict, IntegrityError, NotFound) as error:
                if not request.every:
                    raise
                main = source.refs.newest(dataset, MAIN)
                if main is None or main.entry.deleted:  # since the datasets were listed
                    context.progress.note(f"{dataset} was deleted or renamed meanwhile, and is not copied")
                else:
                    failures.append(error)
        if not request.dry_run and copying.moved:
            tidy(there, context.writer)
        runs = None
        if request.runs:
            note = context.progress.note
            runs = copy_runs(
                context, source, there, datasets, lambda error: note(error.message), dry_run=request.dry_run
            )
        done = copying.result(_requests(source, there) - began, len(erasures), runs)
        diverged = [one for one in done.names if one.state == "diverged"]
        if diverged and not request.dry_run and not failures:
            raise copying.refused(diverged)
    for failure in sorted(failures, key=lambda one: -one.exit_code):
        if len(failures) > 1:
            failure.message += f" (not copied either: {format_count(len(failures) - 1, 'dataset')})"
        raise failure
    return done


def _requests(*repositories: Repository) -> int:
    return sum(one.store.counts.requests for one in repositories if hasattr(one.store, "counts"))


@contextmanager
def _other(
    context: Context, to: str, request: CopyRequest, check_new: Callable[[str], None]
) -> Iterator[Repository]:
    """Open the other store. check_new: called with its URL before it may be created."""
    choice = context.settings.store(to)
    folder = local_folder(choice.url)

    def exists() -> bool:
        if folder is not None and not folder.exists():
            return False
        with context.store(to) as store:
            return has_layout(store)

    if request.create:
        check_new(choice.url)
    if request.create and request.dry_run and not exists():
        store = MemoryStore()
        store.url = choice.url
        yield Repository.create(store, None, author=context.writer.author, tool=context.writer.tool)
        return
    if not request.create and folder is not None and not folder.exists():
        raise NoAnswer(
            f"the store's folder {folder} is not there",
            subject=choice.url,
            hint=f"check that it is mounted (ls -ld {quote(str(folder))}); --create makes a new store",
            maybe_done=False,
        )
    create = request.create and not request.dry_run
    with context.store(to, create=create) as opened:
        if create and not has_layout(opened):
            from dsv.api.store import create_repository

            create_repository(context, opened, single_writer=False)
        try:
            repository = context.open_repository(opened, tracked=True)
        except NotFound as error:
            raise NotFound(
                f"there is no store in {choice.url} to copy to", subject=choice.url, hint="--create makes it"
            ) from error
        yield repository


def _check_new(context: Context, source: Repository, target: Target, request: CopyRequest, url: str) -> None:
    """Raises before a store is created that would remain empty, or if one store lies in the other."""
    for dataset in _datasets(context, source, target, request):
        if not request.every:
            source.refs.require(dataset)
    if target.rev is not None:
        context.resolve(source, target)
    folders = [local_folder(source.store.url), local_folder(url)]
    places = [
        one if folder is None else folder.resolve().as_posix()
        for one, folder in zip((source.store.url, url), folders, strict=True)
    ]
    inner, outer = sorted((f"{one.rstrip('/')}/" for one in places), key=len, reverse=True)
    if inner != outer and inner.startswith(outer):
        raise UsageError(
            f"one of {source.store.url} and {url} lies in the other, which would count its keys as its own",
            subject=url,
            hint="name a place beside it",
        )


def _check_kinds(source: Repository, there: Repository) -> None:
    """Raises for stores between which commits can't be copied unchanged."""
    url = there.store.url
    if source.id == there.id:
        raise UsageError(
            f"{url} is {source.store.url} itself, or a copy of all its keys",
            subject=url,
            hint="name another store, or a place for a new one with --create",
        )
    there.format.check(url, writing=True)
    for repository, other in ((source, there), (there, source)):
        if not repository.format.named_records or not repository.format.node_locators:
            raise Unsupported(
                f"{repository.store.url} was made by an older dsv, and nothing is copied from or to such a store",
                subject=repository.store.url,
                hint=f"dsv clone there, and dsv init --store in a copy of the files; {other.store.url} is a newer one",
            )


def _datasets(
    context: Context, source: Repository, target: Target, request: CopyRequest
) -> Iterable[DatasetName]:
    if request.every:
        if target.dataset is not None or target.rev is not None:
            raise UsageError(f"--all copies every dataset, not {target} alone", subject=str(target))
        return [one for one in source.refs.datasets() if source.refs.dataset_tombstone(one) is None]
    if target.path is not None:
        raise UsageError(f"whole commits are copied, and {target} names a path", subject=str(target))
    rev = target.rev
    if rev is not None and (rev.commit_prefix is not None or rev.ancestor):
        raise UsageError(
            f"{rev} is neither a branch nor a tag, and the copy needs a name",
            subject=str(rev),
            hint=f"dsv tag NAME {target} gives it one; then dsv copy {target.dataset or ''}@NAME",
        )
    return [dataset_of(context, source, target.dataset)]


class _Copying:
    """Copies the names of one store to another, each with all objects it needs."""

    def __init__(
        self, context: Context, source: Repository, there: Repository, to: str, request: CopyRequest
    ) -> None:
        self._context = context
        self._source = source
        self._there = there
        self._to = to
        self._request = request
        self._names: list[CopiedName] = []
        self._bytes = 0
        self._plan = CopyPlan(there.objects) if request.dry_run else None
        self._planned: set[CommitId] = set()
        self._kept: set[CommitId] = set()
        """With a limited history, the commits of the dataset whose content is copied."""
        self._lacks_main = False
        """The dataset is new there, and `main` is not copied: it gets an empty one with the first name."""

    @property
    def moved(self) -> bool:
        return any(one.state == "copied" for one in self._names)

    def result(self, requests: int, erasures: int, runs: CopiedRuns | None) -> CopyResult:
        commits = len(self._planned) if self._plan is not None else sum(one.commits for one in self._names)
        plan = self._plan
        if plan is not None:
            named = sum(one.state == "copied" for one in self._names)
            requests += 15 * named + 3 * commits + 3 * (plan.bytes // PACK_BYTES)
        return CopyResult(
            self._source.store.url,
            self._there.store.url,
            tuple(self._names),
            commits,
            (self._bytes if plan is None else plan.bytes) + (0 if runs is None else runs.bytes),
            None if plan is None else plan.objects,
            requests,
            erasures,
            runs,
        )

    def dataset(self, dataset: DatasetName, name: str | None) -> None:
        """Copy one dataset's branches, and its tags if requested. name: only this branch or tag."""
        source, there = self._source.refs, self._there.refs
        if name is not None:
            heads, tags = self._named(dataset, name)
            known = both(lambda: None, partial(there.heads, dataset))[1]
        else:
            heads, known = both(partial(source.heads, dataset), partial(there.heads, dataset))
            if all(head.branch != MAIN for head in heads):
                source.head(dataset, MAIN)  # raises: a deletion begins with `main`
            tags = self._new_tags(dataset) if self._request.tags else []
        if self._request.history is not None:
            self._kept = self._recent(dataset, heads, tags, self._request.history)
        heads.sort(key=lambda head: head.branch != MAIN)
        found = {head.branch: head for head in known}
        if not known and (heads or tags):
            there.check_new_dataset(dataset)
        self._lacks_main = MAIN not in found and all(head.branch != MAIN for head in heads)
        whole = [head.commit for head in known if head.commit is not None]
        for head in heads:
            self._branch(head, found.get(head.branch), whole)
        for tag in tags:
            self._tag(dataset, tag, whole)

    def _recent(
        self, dataset: DatasetName, heads: list[Head], tags: list[TagName], count: int
    ) -> set[CommitId]:
        """Return the last `count` commits of each branch, by first parents, and the commits of tags."""
        values = [self._source.refs.tag(dataset, tag) for tag in tags]
        kept = {value.commit for value in values if value is not None}
        for head in heads:
            commit = head.commit
            for _ in range(count):
                if commit is not None:
                    kept.add(commit)
                    commit = next(iter(self._source.objects.commit(commit).parents), None)
        return kept

    def _expired(self, dataset: DatasetName, commits: list[CommitId], named: CommitId) -> set[CommitId]:
        """Return the commits to copy without content: expired in either store, or before the wanted history.

        Raises `Conflict` if the commit to name is expired.
        """
        here, there = (read_expiry(one.refs, dataset) for one in (self._source, self._there))
        for repository, log in ((self._source, here), (self._there, there)):
            if named in log.states:
                raise self._names_expired(repository, log, named)
        limited = self._request.history is not None
        expired = here.states.keys() | there.states.keys()
        return {one for one in commits if one in expired or (limited and one not in self._kept)}

    def _names_expired(self, repository: Repository, log: ExpiryLog, commit: CommitId) -> Conflict:
        """Return the error for a branch or tag whose commit is expired in one of the stores."""
        short, url = str(commit)[:12], repository.store.url
        store = f" --store {quote(self._to)}" if repository is self._there else ""
        hint = f"dsv expire {log.dataset} --undo {short}{store} brings it back"
        if commit in log.freed:
            hint = (
                f"this can't be undone, because its content was removed or never copied; "
                f"dsv branch --list {log.dataset} and dsv tag --list {log.dataset} show what names it"
            )
        elif log.states[commit].entry.action is ExpiryAction.DELETE:
            hint = f"dsv datasets --undelete {log.dataset}{store} brings it back"
        return Conflict(
            f"commit {short} of {log.dataset} is expired in {url}, so nothing can name it there",
            subject=str(commit),
            hint=hint,
        )

    def _named(self, dataset: DatasetName, name: str) -> tuple[list[Head], list[TagName]]:
        refs = self._source.refs
        found = refs.branch_or_tag(dataset, name)
        if isinstance(found, Head):
            return [found], []
        if found is None:
            refs.require(dataset)
            raise refs.no_name(dataset, name, "branch or tag")
        tag = TagName.parse(name)
        known = self._there.refs.tag(dataset, tag)
        if known is None:
            return [], [tag]
        if known.commit == found.commit:
            self._names.append(CopiedName(dataset, name, "tag", "up to date", found.commit, known.commit))
        self._compare(dataset, tag, found.commit, known.commit)
        return [], []

    def _new_tags(self, dataset: DatasetName) -> list[TagName]:
        """Return the tags that the other store never had. Note those with another commit there."""
        prefix = keys.tags_prefix(dataset)
        here, there = both(
            partial(parts, self._source.store, prefix), partial(parts, self._there.store, prefix)
        )
        deleted = keys.tag_deleted_key
        names = [
            tag for tag in named_parts(TagName, here) if deleted(dataset, tag) not in here[tag.component]
        ]
        common = [tag for tag in names if deleted(dataset, tag) not in there.get(tag.component, [""])]
        common = [tag for tag in common if tag.component in there]
        commits = [self._tagged(repository, dataset, common) for repository in (self._source, self._there)]
        for tag, mine, theirs in zip(common, *commits, strict=True):
            self._compare(dataset, tag, mine, theirs)
        return [tag for tag in names if tag.component not in there]

    def _tagged(
        self, repository: Repository, dataset: DatasetName, tags: list[TagName]
    ) -> list[CommitId | None]:
        """Return the commit of each tag. Tags never move, so the store is asked only for unknown tags."""
        folder = self._context.metadata_folder(repository.id).parent
        tracked = read_tracking(file_of(folder, dataset)).tags
        known = {tag: tracked[str(tag)].commit_id for tag in tags if str(tag) in tracked}
        asked = [tag for tag in tags if known.get(tag) is None]
        values = together([partial(repository.refs.tag, dataset, tag) for tag in asked])
        known.update(
            (tag, None if value is None else value.commit) for tag, value in zip(asked, values, strict=True)
        )
        return [known[tag] for tag in tags]

    def _compare(
        self, dataset: DatasetName, tag: TagName, mine: CommitId | None, theirs: CommitId | None
    ) -> None:
        """Note a tag that names two commits. None: it was deleted while this ran."""
        if mine is not None and theirs is not None and mine != theirs:
            self._names.append(CopiedName(dataset, str(tag), "tag", "diverged", mine, theirs))

    def _branch(self, head: Head, known: Head | None, whole: list[CommitId]) -> None:
        """Copy a branch. known: its head there. whole: complete commits there; its commit is added."""
        dataset, branch = head.dataset, head.branch
        before = None if known is None else known.commit
        done = partial(CopiedName, dataset, str(branch), "branch", commit=head.commit, before=before)
        if head.commit is None or head.commit == before:
            if head.commit is None and known is None:
                self._make_main(dataset)
                self._first_move(dataset, branch)
            self._names.append(done(state="up to date"))
            return
        commits, below = self._lacking(head.commit, whole)
        if before is not None and before not in below:
            state: State = "ahead" if self._is_ahead(head.commit, before) else "diverged"
            self._names.append(done(state=state))
            return
        refs, after = self._there.refs, known
        if self._plan is None and after is None:
            after = refs.newest(dataset, branch)
            if after is None:
                refs.check_new_branch(dataset, branch)

        def move() -> None:
            entry = RefEntry.of(self._context.writer, self._context.clock(), head.commit, "copy")
            moved = refs.move(dataset, branch, after, entry)
            if isinstance(moved, LostRace) and moved.winner.commit != head.commit:
                raise moved_by_other(moved.winner)

        base = before or (None if self._plan is not None else next(iter(whole), None))
        full, expired = self._copy(dataset, head.commit, commits, base, f"branch {branch}", move, after)
        whole.append(head.commit)
        self._names.append(done(state="copied", commits=full, expired=expired))

    def _tag(self, dataset: DatasetName, tag: TagName, whole: list[CommitId]) -> None:
        value = self._source.refs.tag(dataset, tag)
        if value is None:
            return
        commits, _ = self._lacking(value.commit, whole)
        refs, base = self._there.refs, next(iter(whole), None)
        if self._plan is None:
            refs.check_new_tag(dataset, tag)
        put = partial(refs.set_tag, dataset, tag, value)
        counts = self._copy(dataset, value.commit, commits, base, f"tag {tag}", put)
        whole.append(value.commit)
        self._names.append(CopiedName(dataset, str(tag), "tag", "copied", value.commit, None, *counts))

    def _lacking(self, commit: CommitId, whole: list[CommitId]) -> tuple[list[CommitId], frozenset[CommitId]]:
        known = [one for one in whole if self._source.objects.commit_or_none(one) is not None]
        return lacking(self._source.objects, commit, known)

    def _is_ahead(self, commit: CommitId, there: CommitId) -> bool:
        """Return whether the other store's commit is a descendant of this store's."""
        for objects in (self._source.objects, self._there.objects):
            if all(objects.commit_or_none(one) is not None for one in (commit, there)):
                return is_ancestor(objects, commit, there)
        return False

    def _copy(
        self,
        dataset: DatasetName,
        named: CommitId,
        commits: list[CommitId],
        base: CommitId | None,
        name: str,
        write: Callable[[], object],
        after: Head | None = None,
    ) -> tuple[int, int]:
        """Copy commits, then write the name of one (a dry run only counts). Return how many have content, and
        how many have none. name: such as `tag v1`. after: the previous move.
        """
        objects, there, writer = self._source.objects, self._there, self._context.writer
        expired = self._expired(dataset, commits, named)
        if expired:
            names = (one.commit for one in read_names(there, dataset))
            commits = unnamed(objects, there.objects, named, commits, names)
            expired.intersection_update(commits)
        counts = len(commits) - len(expired), len(expired)
        if self._plan is not None:
            self._count(commits, expired, base)
            return counts
        with Session.open(there, writer, resumed=False) as session:
            with Receiver(session) as receiver:
                copying = CommitCopy(objects, session, receiver, self._context.progress, base)
                copying.copy(commits, expired)
                self._bytes += receiver.uploaded_bytes
            if named not in commits:
                check_whole(session, dataset, named)
            if expired:
                expire_without_content(objects, there, writer, (dataset, named), expired)
            session.declare(named, after)
            with session.ending():
                self._make_main(dataset)
                write()
                keep_named(there, writer, dataset, named, name)
        return counts

    def _count(self, commits: list[CommitId], expired: set[CommitId], base: CommitId | None) -> None:
        assert self._plan is not None
        near = None if base is None or base in self._planned else TreeReader(self._there.objects, base)
        # An object erased in either store is erased in the other after the copy.
        erased = {**self._source.objects.erasures.known, **self._there.objects.erasures.known}
        trees = TreeCopy(self._source.objects, self._plan, self._context.progress, near, Erasures(erased))
        unplanned = [commit for commit in commits if commit not in self._planned and commit not in expired]
        self._planned.update(commit for commit, _ in zip(unplanned, trees.copy(unplanned), strict=True))

    def _make_main(self, dataset: DatasetName) -> None:
        if self._lacks_main:
            self._first_move(dataset)

    def _first_move(self, dataset: DatasetName, branch: BranchName = MAIN) -> None:
        if self._plan is None and self._there.refs.newest(dataset, branch) is None:
            entry = RefEntry.of(self._context.writer, self._context.clock(), None, "copy")
            self._there.refs.move(dataset, branch, None, entry)

    def refused(self, diverged: list[CopiedName]) -> Conflict:
        """Return the error for branches with other commits in the other store, and tags of two commits."""
        first = min(diverged, key=lambda one: one.kind == "tag")
        assert first.commit is not None and first.before is not None
        where = f"{first.dataset}@{first.name}"
        more = f" (and {format_count(len(diverged) - 1, 'further name')})" if len(diverged) > 1 else ""
        if first.kind == "tag":
            return Conflict(
                f"tag {first.name} of {first.dataset} names {str(first.before)[:12]} in {self._there.store.url} and "
                f"{str(first.commit)[:12]} here, and a tag never moves, so it was not copied{more}",
                subject=where,
                hint=f"dsv tag NAME {where} gives the commit another name here, which can be copied",
            )
        objects, back = self._source.objects, "COMMIT"
        for commit, _ in islice(walk(self._there.objects, [first.before]), _SEARCHED):
            if objects.commit_or_none(commit) is not None and is_ancestor(objects, commit, first.commit):
                back = str(commit)[:12]
                break
        return Conflict(
            f"{where} of {self._there.store.url} is at {str(first.before)[:12]}, which is not in the history of "
            f"{str(first.commit)[:12]}, so it was not moved{more}",
            subject=where,
            hint=f"dsv log {where} --store {self._to} shows what it has; dsv branch {where} "
            f"{first.dataset}@{back} --reset --store {self._to} moves it back, and the same copy then forward",
        )
