"""Edit a dataset without a workspace: a list of edits becomes one commit on a branch."""

from __future__ import annotations

import io
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from dsv.api.context import Context
from dsv.api.edited_tree import EditedTree, as_text
from dsv.errors import Conflict, DsvError, NotFound, Unsupported, UsageError
from dsv.format.records import CommitRecord
from dsv.format.tree import Kind
from dsv.repo.refs.branches import Head, deleted
from dsv.repo.repository import Repository
from dsv.repo.tree.diff import PathChange
from dsv.repo.tree.reader import TreeReader
from dsv.repo.tree.writer import TreeChange
from dsv.stores.open import OpenStore
from dsv.transfer.commit import Committed, Draft, Unchanged, commit_changes
from dsv.transfer.save import NewContent, OnStored, ReadInto, save_sources
from dsv.transfer.stable_read import Problem, refusal
from dsv.transfer.upload import Uploader
from dsv.values.ids import CommitId
from dsv.values.names import MAIN, BranchName, DatasetName, TagName, Target, clean_path
from dsv.values.paths import check_path, folders_above, show
from dsv.values.patterns import PathPattern, is_pattern
from dsv.values.progress import Progress
from dsv.workspace.baseline import MANY, doubts_about
from dsv.workspace.scan.scanner import named_file, walk

Path_ = str | bytes
"""A path in a dataset, with parts joined by `/`. A trailing slash marks a folder."""
Chosen = list[tuple[bytes, list[tuple[bytes, NewContent]]]]
"""Files and folders, each with all entries at and below it."""


@dataclass(frozen=True, slots=True)
class Put:
    """Add or replace a file, or a folder with its contents. A folder is merged into an existing folder."""

    path: Path_
    """The new name; if it is a folder or ends with a slash, the content is put into it under its own name."""
    content: Path | bytes | ReadInto
    """A file or folder on this machine, bytes, or a function like `readinto`, which returns 0 at the end."""
    replace: bool = True
    """If false, existing paths are left unchanged."""
    contents: bool = False
    """Put the contents of a folder, without the folder itself."""
    exactly: bool = False
    """The path is the file's, and never a folder that gets it; without `replace`, raise `Conflict` if it exists."""


@dataclass(frozen=True, slots=True)
class Remove:
    """Remove files, folders with all below them, and paths that match patterns such as `train/**/*.tmp`."""

    path: Path_ | Sequence[Path_]
    """A path may be repeated, lie below another path, or match a pattern."""
    literal: bool = False
    """Take `*`, `?` and `[` literally. They are also literal if a path has exactly this name."""


@dataclass(frozen=True, slots=True)
class Move:
    """Move a file or a folder, or all paths that match a pattern."""

    path: Path_
    to: Path_
    """The new name; if it is a folder or ends with a slash, paths are moved into it under their own names."""
    replace: bool = False
    """Replace an existing file, and merge into an existing folder; if false, these raise `Conflict`."""
    literal: bool = False


@dataclass(frozen=True, slots=True)
class MoveAll:
    """Move many paths, none a pattern. All are removed before the first is added, so two can be swapped."""

    pairs: Sequence[tuple[Path_, Path_]]
    replace: bool = False


@dataclass(frozen=True, slots=True)
class PutSources:
    """Add or replace files below a path, given in tree order."""

    path: Path_
    sources: Sequence[tuple[bytes, NewContent]]
    mirror: bool = False
    """Remove all other entries below the path."""
    problems: Sequence[Problem] = ()
    """Paths of the source that can't be stored, relative to `path`."""
    folder: Path | None = None
    """The folder of this machine that the files are from."""


Edit = Put | Remove | Move | MoveAll | PutSources


@dataclass(frozen=True, slots=True)
class EditRequest:
    message: str = ""
    action: str = "edit"
    """The action in the branch's log of moves."""
    create: bool = False
    """Make the dataset if it does not exist."""
    any_branch: bool = False
    """With `create`: make the branch too, without a parent."""
    allow_removals: bool = False
    """Allow removing more than half of its files."""
    skip_unsupported: bool = False
    dry_run: bool = False
    """Write nothing, not even to the store."""
    apart: bool = False
    """Raises `UsageError` if two edits put or move different files to one path, of which the last would stay."""
    author: str | None = None
    """The author and the time of the commit; None: the writer, and now."""
    time_ms: int | None = None
    taken_from: tuple[CommitId, ...] = ()
    """Other commits that have the contents of `PutSources`."""
    confirm: Callable[[str, str], object] = lambda what, dataset: None
    """As in `SyncRequest`."""


@dataclass(frozen=True, slots=True)
class PathEdit:
    """A path that was `added`, `changed`, `removed`, or `moved` from its `old` path.

    A file that is put counts as changed, even if its content was the same.
    """

    path: bytes
    what: str
    old: bytes | None = None


@dataclass(frozen=True, slots=True)
class Edited:
    """The branch's head after the edits, or before them in a dry run."""

    dataset: DatasetName
    branch: BranchName
    commit: CommitId | None
    parent: CommitId | None
    paths: tuple[PathEdit, ...]
    files: int | None
    """Files of the whole commit (like `bytes`); None in a dry run."""
    bytes: int | None
    any_change: bool
    skipped: tuple[Problem, ...] = ()
    uploaded_bytes: int = 0
    uploaded_objects: int = 0
    refused: str | None = None
    """After a dry run: why the edits themselves would be refused."""

    def count(self, what: str) -> int:
        return Counter(path.what for path in self.paths)[what]


def edit(context: Context, target: Target, edits: Sequence[Edit], request: EditRequest) -> Edited:
    """Apply the edits in order, and publish the result as one commit on the target's branch (or `main`).

    If another process moves the branch while this runs, the changes are applied to the new head, unless both
    changed a path. If this is killed, the branch has the whole commit or nothing of it. Raises `NotFound` for
    a missing dataset, branch or path, `Conflict` for a race over a path, a file that would replace a folder,
    or too many removals, and `Unsupported` with a list of all files that can't be stored.
    """
    with context.store() as store:
        repository = context.open_repository(store, Target(target.dataset, target.rev))
        return edit_in(context, repository, store, target, edits, request)


def edit_in(
    context: Context,
    repository: Repository,
    store: OpenStore,
    target: Target,
    edits: Sequence[Edit],
    request: EditRequest,
    on_stored: OnStored = lambda *_: None,
) -> Edited:
    """Like `edit`, in an open store."""
    dataset, branch, head = branch_to_edit(
        context, repository, target, create=request.create, any_branch=request.any_branch
    )
    name = f"{dataset}@{branch}"
    base = None if head is None or head.commit is None else TreeReader(repository.objects, head.commit)
    plan = EditPlan(base, edits, name, context.progress, apart=request.apart)
    unread: list[Problem] = []  # by the last attempt
    parent = None if base is None else base.commit_id

    def changes(uploader: Uploader) -> list[TreeChange]:
        new = [what for _, what in plan.changes if what is not None and (what.open or what.root)]
        unread[:] = save_sources(uploader, new, context.progress, on_stored)
        if unread and (any(problem.changing for problem in unread) or not request.skip_unsupported):
            raise _refusal(unread, edits)
        made = [TreeChange(path, None) if what is None else what.change(path) for path, what in plan.changes]
        return [change for change in made if change is not None]

    def edited(commit_id: CommitId | None, commit: CommitRecord | None, any_change: bool) -> Edited:
        return Edited(
            dataset, branch, commit_id, parent, tuple(plan.path_edits()),
            None if commit is None else commit.files, None if commit is None else commit.bytes, any_change,
            (*plan.problems, *unread), store.counts.bytes_up, store.counts.won,
        )  # fmt: skip

    try:
        if plan.problems and not request.skip_unsupported:
            raise _refusal(plan.problems, edits)
        if not request.allow_removals:
            _check_removals(plan, base, name)
        if request.dry_run:
            removed = sum(what is None for _, what in plan.changes)
            entries = 0 if base is None else base.commit.entries
            repository.refs.check_mover(head, context.writer.author, removed=removed, entries=entries)
            return edited(parent, None, bool(plan.changes))
    except (Conflict, Unsupported) as error:
        if not request.dry_run:
            raise
        return replace(edited(parent, None, bool(plan.changes)), refused=error.message)
    if what := plan.doubts(context.settings.home):
        request.confirm(f"this publishes {what}", str(dataset))
    parents, said = () if parent is None else (parent,), (request.message, request.action, request.taken_from)
    draft = Draft(dataset, branch, head, parents, *said, request.author, request.time_ms)
    done = commit_changes(repository, context.writer, draft, base, changes, plan.check_apart)
    if isinstance(done, Committed):
        parent = next(iter(done.commit.parents), None)
        return edited(done.id, done.commit, any_change=True)
    assert isinstance(done, Unchanged)
    parent = done.commit
    return edited(parent, None if parent is None else repository.objects.commit(parent), any_change=False)


def _refusal(problems: Sequence[Problem], edits: Sequence[Edit]) -> DsvError:
    error = refusal(problems, "what was to be put")
    is_import = any(isinstance(each, PutSources) for each in edits)  # which reads no .dsvignore
    if is_import and not error.retryable:
        error.hint = "remove them there, or leave them out with --skip-unsupported"
    return error


def _check_removals(plan: EditPlan, base: TreeReader | None, name: str) -> None:
    before = 0 if base is None else base.commit.entries
    removed = sum(each.what == "removed" for each in plan.path_edits())
    if before >= MANY and removed * 2 > before:
        raise Conflict(
            f"this would remove {removed:,} of {before:,} paths of {name.partition('@')[0]}",
            subject=name,
            hint="--dry-run lists them; --allow-removals removes them",
        )


def branch_to_edit(
    context: Context, repository: Repository, target: Target, *, create: bool, any_branch: bool = False
) -> tuple[DatasetName, BranchName, Head | None]:
    """Return the branch that a target names (default: `main`), and its newest move.

    create: allow a missing dataset; its move is None. any_branch: and a missing branch. Raises `NotFound`, and
    `UsageError` if the target has no dataset or its revision is no branch.
    """
    dataset, rev = target.dataset, target.rev
    if dataset is None:
        workspace = context.workspace_or_none()
        raise UsageError(
            "the target names no dataset",
            subject=str(target) or None,
            hint="dsv datasets lists the names"
            if workspace is None
            else f"in a workspace, change the files and run dsv sync; or name {workspace.dataset}",
        )
    branch = MAIN if rev is None else BranchName.parse(rev.text)
    if rev is not None and (rev.ancestor or rev.commit_prefix is not None):
        raise UsageError(f"{rev} is not a branch, and only a branch gets a commit", subject=str(target))
    head = repository.refs.newest(dataset, branch)
    if head is not None and not head.entry.deleted:
        return dataset, branch, head
    if head is None and create and (branch == MAIN or not repository.refs.exists(dataset)):
        repository.refs.check_new_dataset(dataset)
        return dataset, branch, None
    if head is None and not repository.refs.exists(dataset):
        raise repository.refs.erased(dataset) or NotFound(
            f"there is no dataset {dataset} in {repository.store.url}",
            subject=dataset,
            hint="dsv datasets lists them; --create makes it; in a workspace, change the files and run dsv sync",
        )
    if head is None and repository.refs.tag(dataset, TagName.parse(branch)) is not None:
        raise UsageError(
            f"{branch} is a tag of {dataset}, and a tag never moves",
            subject=str(target),
            hint=f"dsv branch NAME {dataset}@{branch} makes a branch there; then name that",
        )
    if head is None and create and any_branch:
        repository.refs.require(dataset)
        repository.refs.check_new_branch(dataset, branch)
        return dataset, branch, None
    return dataset, branch, repository.refs.head(dataset, branch)  # raises if something is missing


class EditPlan:
    """The changes that edits make in a tree. Each edit sees the results of those before it.

    Raises `NotFound`, `UsageError` for contradicting edits, and `Conflict` if a file would replace a folder
    or vice versa.
    """

    def __init__(
        self, base: TreeReader | None, edits: Sequence[Edit], name: str, progress: Progress, *, apart: bool
    ) -> None:
        """name: of the branch, for messages. apart: as in `EditRequest`."""
        self._name = name
        self._progress = progress
        self._apart = apart
        self._from: dict[bytes, bytes] = {}
        self._tree = EditedTree(base)
        self._folders: list[Path] = []  # of this machine, and put as a whole
        self._mirrored: list[bytes] = []
        self.problems: list[Problem] = []
        self.old: dict[bytes, bytes] = {}
        """The old path of each moved path, by new path."""
        named = [clean_path(_raw(text)) for each in edits for text in _named(each)]
        self._tree.look_up(path for path in named if path)
        for each in edits:
            self._apply(each)
        self.changes = self._tree.changes()
        """In tree order; None is a removed path."""
        new = {path for path, what in self.changes if what is not None}
        self.old = {path: old for path, old in self.old.items() if path in new and self._tree.had(old)}

    def path_edits(self) -> Iterator[PathEdit]:
        moved = set(self.old.values())
        for path, what in self.changes:
            if path in self.old and what is not None:
                yield PathEdit(path, "moved", self.old[path])
            elif what is not None:
                yield PathEdit(path, "changed" if self._tree.had(path) else "added")
            elif path not in moved:
                yield PathEdit(path, "removed")

    def doubts(self, home: Path) -> str | None:
        """Return what a person should confirm before this is published."""
        real = cache(os.path.realpath)
        put = (
            (path, os.fsencode(real(what.root or "/")) + b"/" + what.path)
            for path, what in self.changes
            if what is not None and (what.root or what.open) and not self._tree.had(path)
        )
        return doubts_about(self._folders, put, home)

    def check_apart(self, theirs: Iterable[PathChange], winner: Head) -> None:
        """Raises `Conflict` if this and the commit just published by another process change one path, or if that
        changes any path of a mirrored folder.

        The same result is no conflict, except for a moved path: its new path has the former content. Also raise
        `Conflict` if the branch was deleted.
        """
        if winner.entry.deleted:
            gone = deleted(winner)
            raise Conflict(f"{gone.message}; nothing was published", subject=gone.subject, hint=gone.hint)
        ours = dict(self.changes)
        present = {path for path, what in self.changes if what is not None}
        folders = {folder for path in present for folder in folders_above(path)}
        moved = set(self.old.values())
        branch = f"{winner.dataset}@{winner.branch}"
        for change in theirs:
            path = change.path
            if path in ours:
                what = ours[path]
                clash = path in moved or (None if what is None else what.entry(path)) != change.after
            else:
                below = path in folders or any(folder in present for folder in folders_above(path))
                mirrored = any(not to or path.startswith(to + b"/") for to in self._mirrored)
                clash = mirrored or (change.after is not None and below)
            if clash:
                raise Conflict(
                    f"{winner.entry.author} has just changed {show(path)} on {branch}; nothing was published",
                    subject=as_text(path),
                    hint=f"dsv log {branch} shows the commit; if yours is still right, run the same command again",
                )

    def _apply(self, edit: Edit) -> None:
        if isinstance(edit, Put):
            self._put(edit)
        elif isinstance(edit, PutSources):
            self._put_sources(edit)
        elif isinstance(edit, Remove):
            self._remove(edit)
        elif isinstance(edit, Move):
            self._move(edit)
        else:
            self._move_all(edit)

    def _remove(self, edit: Remove) -> None:
        chosen = [found for text in _named(edit) for found in self._chosen(text, literal=edit.literal)]
        for path in {path: None for _, below in chosen for path, _ in below}:
            self._tree.remove(path)

    def _put(self, edit: Put) -> None:
        path, into = _clean(edit.path)
        into = not edit.exactly and (into or self._tree.is_folder(path))
        if edit.exactly and not edit.replace and self._tree.find(path) is not None:
            raise Conflict(f"{show(path)} already exists", subject=as_text(path))
        if not isinstance(edit.content, Path):
            if into:
                raise UsageError(
                    f"{show(path) + ' is a folder, and ' if path else ''}what is put there has no name of its own",
                    subject=as_text(path) or self._name,
                    hint="end the path with the name of a file, such as " + as_text(_join(path, b"NAME")),
                )
            size = len(edit.content) if isinstance(edit.content, bytes) else 0
            self._place(path, NewContent(Kind.FILE, size, open=_opener(edit.content)), edit.replace)
            return
        file = named_file(edit.content)
        name = os.fsencode(edit.content.name)
        if edit.contents or name in (b"", b".."):
            name = b""
        to = _join(path, name) if into else path
        if file is not None:
            self._note_origin(to, os.fsencode(edit.content))
            self._place(to, file, edit.replace)
            return
        sources, scan = walk(edit.content)
        self._folders.append(edit.content)
        scan.note_left_out(self._progress, top=True)
        found = [(_join(to, name), source) for name, source in sources]
        for name, source in sources:
            if source.kind is not Kind.EMPTY_DIRECTORY:
                self._note_origin(_join(to, name), _join(os.fsencode(edit.content), name))
        self.problems += scan.problems
        if to and not found:
            self._place(to, NewContent(Kind.EMPTY_DIRECTORY), edit.replace)
        self._tree.look_up_below(to, [path for path, _ in found])
        for path, source in found:
            self._place(path, source, edit.replace)

    def _put_sources(self, edit: PutSources) -> None:
        to = _clean(edit.path)[0]
        self._folders += [] if edit.folder is None else [edit.folder]
        self.problems += [Problem(_join(to, problem.path), problem.reason) for problem in edit.problems]
        sources = {_join(to, name): source for name, source in edit.sources}
        self._tree.look_up_below(to, sources)
        if edit.mirror:
            self._mirrored.append(to)
            stay = {path for path, source in sources.items() if source.kind is not Kind.EMPTY_DIRECTORY}
            below = self._tree.below(to)
            others = [each for each in below if each[0] not in stay or each[1].kind is Kind.EMPTY_DIRECTORY]
            self._tree.keep(others)
            for path, _ in others:
                self._tree.remove(path)
        for path, source in sources.items():
            try:
                check_path(path)
            except ValueError as error:
                self.problems.append(Problem(path, str(error)))
                continue
            here = self._tree.find(path)
            if here is not None and here.is_file and here.stored is not None:
                if source.kind is Kind.FILE and source.open is not None:
                    source.kind = here.kind  # most URLs have no file modes
                same = source.stored is not None and source.stored.file_id == here.stored.file_id
                if same and source.kind is here.kind:
                    continue
            self._place(path, source, replace=True)

    def _note_origin(self, path: bytes, source: bytes) -> None:
        """Note where a path's new content is from. Raises `UsageError`: see `EditRequest.apart`."""
        if self._apart and (other := self._from.setdefault(path, source)) != source:
            raise UsageError(
                f"{show(other)} and {show(source)} would both be {show(path)}; nothing was published",
                subject=as_text(path),
                hint="give one of them another name, or another folder",
            )

    def _place(self, path: bytes, source: NewContent, replace: bool) -> None:
        if replace or self._tree.find(path) is None:
            self._tree.place(path, source)
            self.old.pop(path, None)

    def _move(self, edit: Move) -> None:
        chosen = self._chosen(edit.path, literal=edit.literal)
        to, into = _clean(edit.to)
        into = into or self._tree.is_folder(to)
        if len(chosen) > 1 and not into:
            raise UsageError(
                f"{len(chosen):,} paths can't all be moved to {show(to)}",
                subject=as_text(to),
                hint=f"end it with a slash to move them into a folder: {as_text(to)}/",
            )
        pairs: list[tuple[bytes, bytes]] = []
        for top, below in chosen:
            new = _join(to, top.rpartition(b"/")[2]) if into else to
            if new == top or new.startswith(top + b"/"):
                where = "to itself" if new == top else f"into itself, to {show(new)}"
                raise UsageError(f"{show(top)} can't be moved {where}", subject=as_text(top))
            moved = [(path, new + path[len(top) :]) for path, _ in below]
            if below[0][0] != top:  # a folder
                if self._tree.is_folder(new) and not edit.replace:
                    hint = "--replace puts both folders together"
                    raise Conflict(f"{show(new)} already exists", subject=as_text(new), hint=hint)
                self._tree.look_up_below(new, [path for _, path in moved])
            pairs += moved
        self._relocate(pairs, edit.replace)

    def _move_all(self, edit: MoveAll) -> None:
        pairs: list[tuple[bytes, bytes]] = []
        for old_text, new_text in edit.pairs:
            old, (new, into) = _clean(old_text)[0], _clean(new_text)
            new = _join(new, old.rpartition(b"/")[2]) if into else new
            if old == new:
                continue
            if self._tree.find(old) is not None:
                pairs.append((old, new))
                continue
            [(top, below)] = self._chosen(old, literal=True)
            pairs += [(path, new + path[len(top) :]) for path, _ in below]
        self._relocate(pairs, edit.replace)

    def _relocate(self, pairs: list[tuple[bytes, bytes]], replace: bool) -> None:
        self._tree.look_up(new for _, new in pairs)
        taken: list[tuple[bytes, bytes, NewContent]] = []
        for old, new in pairs:
            what = self._tree.find(old)
            if what is None:
                raise Conflict(f"{show(old)} is moved twice", subject=as_text(old))
            taken.append((self.old.pop(old, old), new, what))
            self._tree.remove(old)
        placed: set[bytes] = set()
        for old, new, what in taken:
            if new in placed:
                raise Conflict(f"two paths are moved to {show(new)}", subject=as_text(new))
            placed.add(new)
            self._note_origin(new, old)
            self._tree.place(new, what, replace=replace)
            self.old[new] = old

    def _chosen(self, text: Path_, *, literal: bool) -> Chosen:
        """Return the files and folders that `text` means, at least one. Raises `NotFound`."""
        path, is_folder = _clean(text)
        if not path:
            raise UsageError(
                "the path is that of the whole dataset", hint="name a file or a folder in it, or '*'"
            )
        here = self._tree.find(path)
        if here is not None and (not is_folder or here.kind is Kind.EMPTY_DIRECTORY):
            return [(path, [(path, here)])]
        chosen: Chosen = []
        by_pattern = is_pattern(path) and not literal
        if here is None and self._tree.is_folder(path):
            chosen = [(path, sorted(self._tree.below(path), key=lambda item: item[0]))]
        elif by_pattern:
            chosen = self._matching(PathPattern(path, is_folder))
        for _, below in chosen:
            self._tree.keep(below)
        if chosen:
            return chosen
        raise NotFound(
            f"{show(path)} {'matches nothing' if by_pattern else 'is not'} in {self._name}",
            subject=as_text(path),
            hint=f"dsv ls {self._name} lists the paths",
        )

    def _matching(self, pattern: PathPattern) -> Chosen:
        verdicts: dict[bytes, bool] = {}
        groups: dict[bytes, list[tuple[bytes, NewContent]]] = {}
        for path, what in self._tree.starting_with(pattern.start):
            matches = pattern.matches(path, folder=what.kind is Kind.EMPTY_DIRECTORY)
            top = path if matches else None  # the highest match among the path and the folders above it
            for folder in folders_above(path):
                verdict = verdicts.get(folder)
                if verdict is None:
                    verdict = verdicts[folder] = pattern.matches(folder, folder=True)
                top = folder if verdict else top
            if top is not None:
                groups.setdefault(top, []).append((path, what))
        return sorted(groups.items())


def _named(edit: Edit) -> list[Path_]:
    if isinstance(edit, MoveAll):
        return [one for pair in edit.pairs for one in pair]
    if isinstance(edit, Move):
        return [edit.path, edit.to]
    return [edit.path] if isinstance(edit.path, str | bytes) else list(edit.path)


def _opener(content: bytes | ReadInto) -> Callable[[], ReadInto]:
    """Return a function that opens the content: bytes any number of times, a stream once."""
    if isinstance(content, bytes):
        return lambda: io.BytesIO(content).readinto
    streams = [content]

    def open_stream() -> ReadInto:
        if not streams:
            raise Conflict(
                "gc is deleting data that was just uploaded, and the stream can't be read again",
                hint="run the same command again",
            )
        return streams.pop()

    return open_stream


def _raw(text: Path_) -> bytes:
    return text.encode("utf-8", "surrogateescape") if isinstance(text, str) else text


def _clean(text: Path_) -> tuple[bytes, bool]:
    """Return a path as it is in a tree, and whether it was written as a folder."""
    path = clean_path(_raw(text))
    return path, not path or _raw(text).endswith((b"/", b"/."))


def _join(folder: bytes, name: bytes) -> bytes:
    return folder + b"/" + name if folder and name else folder or name
