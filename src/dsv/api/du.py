"""The space that datasets, branches, ranges of commits and folders take in a store."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from dsv.api.consistent_read import read_consistently, room
from dsv.errors import UsageError
from dsv.repo.expiry import read_expiry
from dsv.repo.resolve import resolve
from dsv.values.names import DatasetName, Rev, Target

if TYPE_CHECKING:
    from dsv.api.context import Context
    from dsv.repo.repository import Repository
    from dsv.upkeep.roots import Name, Parents
    from dsv.upkeep.usage import Packs, Part, Sum
    from dsv.values.ids import CommitId

Kind = Literal["dataset", "branch", "commit", "range", "folder", "trees", "expired"]


@dataclass(frozen=True, slots=True)
class Used:
    """What something takes. Bytes are those in packs, with locators and rows of tables; original ones are those before
    compression."""

    name: str
    kind: Kind
    commits: int
    objects: int
    stored: int
    alone: int
    """Of `stored`, what nothing else in the store has."""
    shared: int
    original: int
    alone_original: int
    shared_original: int


@dataclass(frozen=True, slots=True)
class StoreUsed:
    """What a whole store takes."""

    total: int
    """Bytes of all keys."""
    needed: Sum
    """Objects that a commit has."""
    expired: Used
    """Commits that are expired, and whose content gc has not freed yet: it frees what they have alone, in the end."""
    unused: Sum
    """Objects that no commit has."""
    duplicates: Sum
    """Further places of objects that a commit has."""
    packs: Packs
    indexes: int
    commits: int
    """Bytes of commits and their locators."""
    names: int
    runs: int
    other: int


@dataclass(frozen=True, slots=True)
class Usage:
    """What was measured."""

    url: str
    items: list[Used]
    lost: int
    """Objects that commits have and no index lists."""
    store: StoreUsed | None = None


def usage(
    context: Context, texts: Sequence[str], *, depth: int | None = None, only_unused: bool = False
) -> Usage:
    """Measure each `[DATASET][@REV]` or `[DATASET]@REV..REV`; without any, the store and each of its datasets.

    A branch is all commits of its history, a tag or an id that commit alone, a range the commits that its end has and
    its beginning has not. depth: measure the folders of one target instead. only_unused: the store without datasets.
    """
    if depth is not None and len(texts) != 1:
        raise UsageError("--by-folder measures one target", hint="dsv du DATASET@REV --by-folder 1")
    if only_unused and (texts or depth is not None):
        raise UsageError("--unused is about the whole store, and takes no target", hint="dsv du --unused")
    return read_consistently(
        context,
        lambda repository: _usage(context, repository, texts, depth, only_unused),
        lambda found: not found.lost and (found.store is None or not found.store.packs.missing),
    )


def _usage(
    context: Context, repository: Repository, texts: Sequence[str], depth: int | None, only_unused: bool
) -> Usage:
    from dsv.upkeep import usage as measuring
    from dsv.upkeep.roots import Parents, kept, read_names

    with room(context) as folder:
        wanted = [_Wanted.parse(context, repository, text) for text in texts]
        context.progress.start(None, None)
        names, parents = read_names(repository), Parents(repository.objects)
        logs = {
            one: read_expiry(repository.refs, one)
            for one in {name.dataset for name in names}
            if one is not None
        }
        roots = kept(parents, names, lambda one: logs[one].freed)
        if not texts and not only_unused:
            datasets = sorted(
                {one.dataset for one in names if one.dataset is not None and one.branch is not None}
            )
            wanted = [_Wanted(str(one), "dataset", one) for one in datasets]
        groups = [one.commits(parents, names, roots) for one in wanted]
        unexpired = kept(parents, names, lambda one: logs[one].states)
        expired = [one for one in roots if one not in unexpired]
        if depth is not None:
            folders, found = measuring.measure_folders(
                repository, roots, groups[0], depth, folder, context.progress
            )
            ordered = sorted(folders.items(), key=lambda one: (one[0] == measuring.TREES, one[0]))
            items = [_folder(name, part, len(groups[0])) for name, part in ordered]
            return Usage(repository.store.url, items, found.unlisted + found.gone)
        found = measuring.measure(
            repository, roots, [*groups, expired], folder, context.progress, packs=not texts
        )
        items = [
            _used(one.name, one.kind, len(group), part)
            for one, group, part in zip(wanted, groups, found.groups[:-1], strict=True)
        ]
        store = None
        if found.packs is not None:
            sizes = measuring.list_sizes(repository.store)
            shown = [sizes.pop("index/"), sizes.pop("commits/") + sizes.pop("locators/")]
            shown += [sizes.pop("refs/"), sizes.pop("runs/"), sum(sizes.values())]
            total = found.packs.bytes + sum(shown)
            store = StoreUsed(
                total, found.reached, _used("", "expired", len(expired), found.groups[-1]),
                found.unused, found.duplicates, found.packs, *shown,
            )  # fmt: skip
        return Usage(repository.store.url, items, found.unlisted + found.gone, store)


@dataclass(frozen=True, slots=True)
class _Wanted:
    name: str
    kind: Kind
    dataset: DatasetName
    commit: CommitId | None = None
    since: CommitId | None = None
    """The beginning of a range."""

    @classmethod
    def parse(cls, context: Context, repository: Repository, text: str) -> _Wanted:
        """Raise `UsageError`, `NotFound`."""
        names, at, revs = text.partition("@")
        first, dots, last = revs.partition("..")
        target = Target.parse(f"{names}{at}{first}")
        if target.path is not None or ":" in last:
            raise UsageError(
                f"dsv du is about whole commits, and {text} names a path",
                subject=text,
                hint=f"dsv du {text.partition(':')[0]} --by-folder 1",
            )
        if dots and not last:
            raise UsageError(
                f"{text!r} names no revision after the ..", subject=text, hint=f"dsv du {text}main"
            )
        dataset = target.dataset or context.workspace_of(text).dataset
        if target.rev is None:
            repository.refs.require(dataset)
            return cls(str(dataset), "dataset", dataset)
        found = resolve(repository.refs, repository.objects, dataset, target.rev)
        if dots:
            end = resolve(repository.refs, repository.objects, dataset, Rev.parse(last)).commit
            return cls(f"{dataset}@{revs}", "range", dataset, end, found.commit)
        return cls(f"{dataset}@{revs}", "commit" if found.branch is None else "branch", dataset, found.commit)

    def commits(self, parents: Parents, names: Sequence[Name], roots: Collection[CommitId]) -> set[CommitId]:
        """Return the commits that are meant, but for those whose content is freed."""
        from dsv.upkeep.roots import kept

        if self.commit is None:
            return {
                one
                for one in kept(parents, [name for name in names if name.dataset == self.dataset])
                if one in roots
            }
        if self.kind == "commit":
            return {self.commit}
        met: set[CommitId] = set()
        if self.since is not None:
            for _ in parents.walk([self.since], met):
                pass
        return {one for one in parents.walk([self.commit], met) if one in roots}


def _folder(name: bytes, part: Part, commits: int) -> Used:
    if not name:
        return _used("(nodes and segments)", "trees", commits, part)
    return _used(name.decode("utf-8", "surrogateescape"), "folder", commits, part)


def _used(name: str, kind: Kind, commits: int, part: Part) -> Used:
    total, alone, shared = part.total, part.alone, part.shared
    return Used(
        name, kind, commits, total.objects, total.stored, alone.stored, shared.stored,
        total.original, alone.original, shared.original,
    )  # fmt: skip
