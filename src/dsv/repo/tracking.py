"""The last answers of a store about branches, tags and commits, with times: git's remote-tracking refs.

Each dataset of a store has a file beside the local copies of its metadata. A cache has such files in its own
folder, for all of its users, and a workspace has one for its dataset. `dsv status`, the shell's completion
and `--offline` read them instead of the store, and a workspace's file proves that a branch was further than
the store says it is. A file is replaced as a whole: concurrent commands may lose what another has noted.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Annotated, Literal

import msgspec
from msgspec import UNSET, UnsetType
from msgspec.structs import replace

from dsv.errors import UsageError
from dsv.files.folders import make_shared_folder
from dsv.files.shared_path import AnyPath
from dsv.files.small_files import list_names, read_json, replace_file
from dsv.format.records import BranchLimits, CommitRecord, RefEntry
from dsv.values.ids import CommitId
from dsv.values.names import BranchName, DatasetName, TagName

_COMMITS = 200
"""The most commits that are kept of each dataset."""
_MESSAGE = 100
_MAX_BYTES = 8 << 20
_SUFFIX = ".json"
_RENEWED_MS = 60_000
"""An unchanged answer is written with its new time only after this long."""
Kind = Literal["branches", "tags"]
_Commit = Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{64}$")]


class Tracked(msgspec.Struct, frozen=True, omit_defaults=True):
    """The last answer about one branch or tag."""

    time_ms: int
    commit: _Commit | None = None
    """None for a branch without a commit."""
    deleted: bool = False
    """The name was deleted, or is in no listing any more."""
    number: int | None = None
    """The number of the branch's move."""
    names: str | None = None
    """The URL of the location where the move was read."""
    limits: BranchLimits | UnsetType | None = UNSET
    """The rule of a protected branch; not set if it was not read."""
    way_on: str | None = None
    """The command for a workspace on a deleted branch; None if it is not known."""

    @property
    def commit_id(self) -> CommitId | None:
        return None if self.commit is None else CommitId.parse(self.commit)


class Tracking(msgspec.Struct, frozen=True, omit_defaults=True):
    """The content of one file."""

    branches: dict[str, Tracked] = {}
    tags: dict[str, Tracked] = {}
    commits: dict[_Commit, str] = {}
    """The first lines of the messages of commits that were read, the latest first."""
    seen: tuple[str, _Commit] | None = None
    """The branch of the workspace, and the commit at which its user last saw it."""

    def branch(self, name: BranchName) -> Tracked | None:
        """Return the answer about a branch; None if it is not known, or deleted."""
        found = self.branches.get(str(name))
        return None if found is None or found.deleted else found

    def tag(self, name: TagName) -> Tracked | None:
        """Return the answer about a tag; None if it is not known, or deleted."""
        found = self.tags.get(str(name))
        return None if found is None or found.deleted or found.commit is None else found

    def there(self, kind: Kind) -> dict[str, Tracked]:
        """Return the names that are not deleted, sorted.

        A file in a shared cache may hold anything: invalid names, and tags without a commit, are left out.
        """
        found: dict[str, Tracked] = getattr(self, kind)
        there: dict[str, Tracked] = {}
        for name in sorted(found):
            with suppress(UsageError):
                BranchName.parse(name)  # the rules of tags are the same
                if not found[name].deleted and (kind == "branches" or found[name].commit is not None):
                    there[name] = found[name]
        return there

    def newest(self, other: Tracking) -> Tracking:
        """Return the newer answer about each name."""
        return Tracking(
            _newest(self.branches, other.branches),
            _newest(self.tags, other.tags),
            {**self.commits, **other.commits},
        )


def _newest(known: Mapping[str, Tracked], other: Mapping[str, Tracked]) -> dict[str, Tracked]:
    newer = {
        name: ref for name, ref in other.items() if name not in known or ref.time_ms > known[name].time_ms
    }
    return {**known, **newer}


class Answers:
    """The answers of a store during one command. A name that is not in a listing does not exist any more."""

    def __init__(self) -> None:
        self._datasets: list[DatasetName] | None = None
        self._found: dict[DatasetName, Tracking] = {}
        self._listed: set[tuple[DatasetName, Kind]] = set()

    def _of(self, dataset: DatasetName) -> Tracking:
        return self._found.setdefault(dataset, Tracking())

    def datasets(self) -> set[DatasetName]:
        return set(self._found)

    def list_datasets(self, names: Iterable[DatasetName]) -> None:
        self._datasets = list(names)

    def list_names(self, dataset: DatasetName, kind: Kind) -> None:
        """Note that all names of this kind were added."""
        self._listed.add((dataset, kind))
        self._of(dataset)

    def add_branch(
        self,
        dataset: DatasetName,
        branch: BranchName,
        entry: RefEntry,
        number: int,
        limits: BranchLimits | UnsetType | None = UNSET,
        way_on: str | None = None,
    ) -> None:
        """Add the newest move of a branch that was read or made, or its deletion."""
        commit = None if entry.deleted or entry.commit is None else str(entry.commit)
        answer = Tracked(0, commit, entry.deleted, number, None, limits, way_on)
        self._of(dataset).branches[str(branch)] = answer

    def add_limits(self, dataset: DatasetName, branch: BranchName, limits: BranchLimits | None) -> None:
        """Add the rule of a branch that was read or made."""
        branches = self._found[dataset].branches if dataset in self._found else {}
        if str(branch) in branches:
            branches[str(branch)] = replace(branches[str(branch)], limits=limits)

    def add_tag(self, dataset: DatasetName, tag: TagName, commit: CommitId | None) -> None:
        """Add a tag that was read, set or (None) deleted."""
        self._of(dataset).tags[str(tag)] = Tracked(0, None if commit is None else str(commit), commit is None)

    def add_commit(self, commit_id: CommitId, commit: CommitRecord) -> None:
        """Add a commit that was read, unless it doesn't name its dataset."""
        if commit.dataset is not None:
            rows = self._of(commit.dataset).commits
            if len(rows) < _COMMITS:
                rows.setdefault(str(commit_id), commit.message.partition("\n")[0][:_MESSAGE])

    def write_all(self, folder: AnyPath, names: str, now_ms: int) -> None:
        """Add the answers to the files in the folder of a store, if it exists.

        names: the URL of the names' location. Failures are ignored, because nothing depends on these files.
        """
        datasets = self.datasets()
        if not datasets and self._datasets is None:
            return
        with suppress(OSError):
            if not folder.is_dir() or folder.is_symlink() or (folder / "tracking").is_symlink():
                return  # a symlink may lead to a folder that is not dsv's
            mode = make_shared_folder(folder / "tracking") & 0o666
            if self._datasets is not None:
                gone = set(tracked_datasets(folder)).difference(self._datasets)
                for each in gone:
                    file_of(folder, each).unlink(missing_ok=True)
                datasets = (datasets | set(self._datasets)) - gone
            for dataset in datasets:
                self.write(file_of(folder, dataset), dataset, names, now_ms, mode=mode)

    def write(
        self,
        path: AnyPath,
        dataset: DatasetName,
        names: str,
        now_ms: int,
        *,
        mode: int | None = None,
        renewed_ms: int = _RENEWED_MS,
    ) -> None:
        """Add the answers about a dataset to one file. Raises `OSError`."""
        if dataset not in self._found and path.exists():
            return
        before, found = read(path), self._of(dataset)
        after = Tracking(
            self._merged(before.branches, found.branches, names, now_ms, (dataset, "branches")),
            self._merged(before.tags, found.tags, names, now_ms, (dataset, "tags")),
            dict([*(found.commits | before.commits).items()][:_COMMITS]),
            before.seen,
        )
        if not path.exists() or _has_news(before, after, renewed_ms):
            replace_file(path, msgspec.json.encode(after) + b"\n", mode=mode, sync=False)

    def _merged(
        self,
        before: Mapping[str, Tracked],
        listed: Mapping[str, Tracked],
        names: str,
        now_ms: int,
        which: tuple[DatasetName, Kind],
    ) -> dict[str, Tracked]:
        known = dict(before)
        if which in self._listed:
            for name in known.keys() - listed.keys():
                known[name] = replace(known[name], deleted=True, time_ms=now_ms)
        for name, ref in listed.items():
            limits = ref.limits
            if limits is UNSET and name in known:
                limits = known[name].limits
            place = None if ref.number is None else names
            known[name] = replace(ref, time_ms=now_ms, names=place, limits=limits)
        return known


def _has_news(before: Tracking, after: Tracking, renewed_ms: int) -> bool:
    """Return whether anything except times differs, or a time by `renewed_ms` or more."""
    if before.commits != after.commits:
        return True
    for old, new in ((before.branches, after.branches), (before.tags, after.tags)):
        for name, one in new.items():
            then = old.get(name)
            if then is None or replace(then, time_ms=one.time_ms) != one:
                return True
            if not 0 <= one.time_ms - then.time_ms < renewed_ms and not one.deleted:
                return True
    return False


def file_of(folder: AnyPath, dataset: DatasetName) -> AnyPath:
    """Return the path of a dataset's file in the folder of its store."""
    return folder / "tracking" / f"{dataset.component}{_SUFFIX}"


def tracked_datasets(folder: AnyPath) -> list[DatasetName]:
    """Return the datasets that have a file in the folder of a store. Raises `OSError`."""
    found: list[DatasetName] = []
    for name in list_names(folder / "tracking"):
        with suppress(UsageError):
            found.append(DatasetName.from_component(name.removesuffix(_SUFFIX)))
    return found


_TRACKING = msgspec.json.Decoder(Tracking)


def read(path: AnyPath) -> Tracking:
    """Return the content of a file; an empty one if it is missing or invalid. Raises `OSError`.

    If a cache has no such file, the files of an older dsv are read: one for each branch and tag.
    """
    found = read_json(path, _TRACKING, _MAX_BYTES)
    if found is None and path.parent.name == "tracking":
        return _of_older_cache(path.parent.parent / "refs" / path.name.removesuffix(_SUFFIX))
    return found or Tracking()


def set_seen(path: AnyPath, branch: BranchName, commit: CommitId) -> None:
    """Note where the user of a workspace last saw its branch. Durable when it returns. Raises `OSError`."""
    before = read(path)
    if before.seen != (str(branch), str(commit)):
        replace_file(path, msgspec.json.encode(replace(before, seen=(str(branch), str(commit)))) + b"\n")


class _Known(msgspec.Struct, frozen=True):
    """A file of a branch or tag in a cache of an older dsv."""

    commit: _Commit
    seen: float


_KNOWN = msgspec.json.Decoder(_Known)


def _of_older_cache(folder: AnyPath) -> Tracking:
    branches: dict[str, Tracked] = {}
    tags: dict[str, Tracked] = {}
    for kind, names in (("branches", branches), ("tags", tags)):
        for component in list_names(folder / kind):
            known = read_json(folder / kind / component, _KNOWN)
            with suppress(UsageError):
                if known is not None:
                    name = str(BranchName.from_component(component))
                    names[name] = Tracked(int(known.seen * 1000), known.commit)
    return Tracking(branches, tags)
