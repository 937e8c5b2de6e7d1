"""A folder that is bound to a dataset: `.dsv/` holds the binding, the base, and local state."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec.structs import replace

from dsv.errors import UPGRADE, Conflict, DsvError, IntegrityError, Unsupported, UsageError
from dsv.files.errors import about
from dsv.files.folders import bound_folder, sync_folder
from dsv.files.lock import Lock, LockHeld
from dsv.files.small_files import read_file, replace_file
from dsv.values.ids import CommitId, StoreId
from dsv.values.names import BranchName, DatasetName
from dsv.values.paths import PathSet
from dsv.values.patterns import EVERYTHING, SparsePatterns
from dsv.values.toml import BINDING, MAX_BYTES, binding, read_toml

if TYPE_CHECKING:
    from dsv.repo.tracking import Tracking

DOT_FOLDER = ".dsv"
_CONFIG = "config.toml"
_BASE = "base"
_JOURNAL = "journal"
_BEGUN = "begun"
_TRACKING = "tracking.json"
_OF_A_BINDING = (_BASE, _JOURNAL, _BEGUN, _TRACKING)
BRIEF = "dsv status"
"""The action of a command that takes the lock only to save the state."""
SPARSE = "sparse"
"""In `needs` of a binding: what a dsv must know to work there. Earlier versions refuse such a binding."""
_COMMENT = b"# Only a dsv that knows sparse workspaces can work here: others would take what is not here for removed.\n"
_BRIEF_TRIES, _BRIEF_WAIT = 50, 0.1  # seconds


SWITCH = "dsv switch "
"""The beginning of a switch's command; the branch follows."""


class StartedCommand(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """A command that changes the workspace from `base` (None: from nothing) to `commit`, perhaps interrupted.

    It is recorded below `.dsv` from before the first file is written until a commit is the base. A path that
    is as the command was to make it counts as unchanged, and not as the user's work.
    """

    command: str
    commit: CommitId
    base: CommitId | None = None
    paths: tuple[str, ...] = ()
    """The paths concerned; empty for the whole workspace."""
    less: tuple[str, ...] = ()
    """Paths that the user has restored since."""

    @property
    def finish(self) -> str:
        if self.command.startswith(SWITCH):
            return self.command
        if self.command != "dsv restore":
            return "dsv pull"
        paths = "".join(f" {path or '.'}" for path in self.paths)
        return f"dsv restore{paths} --from @{str(self.commit)[:12]}"


def _parse(kind: Any, text: str) -> Any:
    """Return an id or a name from its text."""
    return kind.parse(text)


_BEGUN_LIST = msgspec.json.Decoder(tuple[StartedCommand, ...], dec_hook=_parse)


class _Binding(msgspec.Struct, omit_defaults=True):
    """The members of the file that binds a folder."""

    store: str
    store_id: StoreId
    dataset: DatasetName
    branch: BranchName
    names: str | None = None
    only: list[str] | None = None


# Compiled now: two threads that use it first at the same time crash the process.
msgspec.json.Decoder(_Binding, dec_hook=_parse)


class Workspace(msgspec.Struct, frozen=True):
    """A folder bound to a dataset. `root` is absolute and has no symlinks. `store` is the store as the user
    wrote it when binding the folder; `store_id` identifies it wherever it moves. `names`: where its names
    are, if given then. `chosen`: the paths of the dataset that it has."""

    root: Path
    store: str
    store_id: StoreId
    dataset: DatasetName
    branch: BranchName
    names: str | None = None
    chosen: SparsePatterns = EVERYTHING

    @classmethod
    def find(cls, start: Path) -> Workspace | None:
        """Return the workspace that `start` is or lies in. Raises `IntegrityError` for a binding that can't be read."""
        try:
            here = start.resolve()
        except (OSError, RuntimeError):  # a loop of links, or a folder that is gone
            return None
        root = bound_folder(here)
        return None if root is None else _read(root, root / BINDING)

    @classmethod
    def create(
        cls,
        folder: Path,
        *,
        store: str,
        store_id: StoreId,
        dataset: DatasetName,
        branch: BranchName,
        names: str | None = None,
        chosen: SparsePatterns = EVERYTHING,
    ) -> Workspace:
        """Bind a folder, and create it if necessary. Raises `Conflict` if it is a workspace already."""
        with about(folder):
            folder.mkdir(parents=True, exist_ok=True)
            root = folder.resolve()
            dot = root / DOT_FOLDER
            dot.mkdir(exist_ok=True)
            if (dot / _CONFIG).exists():
                raise Conflict(f"{root} is a workspace already", subject=str(root), hint="dsv status")
            for name in _OF_A_BINDING:  # left by an earlier binding, and wrong for this one
                (dot / name).unlink(missing_ok=True)
        return cls(root, store, store_id, dataset, branch, names, chosen)._write()

    @property
    def dot(self) -> Path:
        """The folder of dsv's own files."""
        return self.root / DOT_FOLDER

    @property
    def state_folder(self) -> Path:
        return self.dot / "state"

    @property
    def tracking_path(self) -> Path:
        return self.dot / _TRACKING

    @property
    def journal_path(self) -> Path:
        return self.dot / _JOURNAL

    def lock(self, action: str) -> Lock:
        """Take the lock, against other commands. Raises `Conflict`, which names the command that has it."""
        for attempt in range(_BRIEF_TRIES):
            taken = self.try_lock(action)
            if isinstance(taken, Lock):
                return taken
            brief = taken.owner is not None and taken.owner.action == BRIEF
            if not brief or attempt == _BRIEF_TRIES - 1:
                raise taken.refusal(self.root)
            time.sleep(_BRIEF_WAIT)
        raise AssertionError("unreachable")

    @contextmanager
    def locked(self, action: str) -> Iterator[tuple[Workspace, Lock]]:
        """Provide the lock, and the workspace read again: the last command may have changed the binding."""
        with self.lock(action) as lock:
            yield _read(self.root, self.dot / _CONFIG), lock

    def try_lock(self, action: str) -> Lock | LockHeld:
        """Return the lock, or its holder. Other commands wait up to 5 s for one with the action `BRIEF`."""
        return Lock.take(self.dot / "lock", action)

    def base(self) -> CommitId | None:
        """Return the commit last synced, cloned, pulled or restored; None before the first. Raises `IntegrityError`."""
        try:
            text = read_file(self.dot / _BASE).decode("ascii").strip()
        except FileNotFoundError:
            return None
        except UnicodeDecodeError:
            text = "?"
        except OSError as error:
            with about(self.dot / _BASE):
                raise error
        try:
            return CommitId.parse(text)
        except DsvError:
            raise IntegrityError(
                f"{self.dot / _BASE} holds no commit id",
                subject=str(self.dot / _BASE),
                hint="write the id that dsv log shows into it, or clone the dataset again",
            ) from None

    def set_base(self, commit: CommitId | None) -> None:
        """Durable when it returns."""
        self._replace(_BASE, None if commit is None else f"{commit}\n".encode())

    def begun(self) -> tuple[StartedCommand, ...]:
        """Return all commands that have begun to write files here, oldest first. Raises `IntegrityError` for
        a damaged file."""
        path = self.dot / _BEGUN
        try:
            with about(path):
                with suppress(FileNotFoundError):
                    return _BEGUN_LIST.decode(read_file(path))
                return ()
        except (msgspec.DecodeError, UnicodeError):
            pass
        except DsvError as error:
            if error.exit_code != 2:
                raise
        raise IntegrityError(
            f"{path} does not say which commands were interrupted here",
            subject=str(path),
            hint=f"remove it: what an interrupted pull wrote then shows as your change; rm {path}",
        )

    def set_begun(self, begun: Sequence[StartedCommand]) -> None:
        """Durable when it returns."""
        if begun:
            records = list(dict.fromkeys(begun))
            self._replace(_BEGUN, msgspec.json.format(msgspec.json.encode(records, enc_hook=str)) + b"\n")
        elif (self.dot / _BEGUN).exists():
            self._replace(_BEGUN, None)

    def tracking(self) -> Tracking:
        """Return the last answers of the store about the dataset; none if they can't be read."""
        from dsv.repo.tracking import Tracking, read

        try:
            return read(self.tracking_path)
        except OSError:  # used only in messages and as a guard
            return Tracking()

    def seen(self) -> CommitId | None:
        """Return the commit at which the workspace's user last saw its branch; None if that is not known."""
        seen = self.tracking().seen
        return CommitId.parse(seen[1]) if seen is not None and seen[0] == str(self.branch) else None

    def set_seen(self, branch: BranchName, commit: CommitId) -> None:
        from dsv.repo.tracking import set_seen

        with about(self.tracking_path):
            set_seen(self.tracking_path, branch, commit)

    def follow(self, branch: BranchName, dataset: DatasetName | None = None) -> Workspace:
        """Make the workspace follow this branch, and return it. dataset: the new name of its dataset."""
        return replace(self, branch=branch, dataset=dataset or self.dataset)._write()

    def choose(self, chosen: SparsePatterns) -> Workspace:
        """Make the workspace have these paths of the dataset, and return it. Durable when it returns."""
        return replace(self, chosen=chosen)._write()

    def unbind(self) -> None:
        """Make the workspace a plain folder again; its files stay."""
        with about(self.dot):
            (self.dot / _CONFIG).unlink(missing_ok=True)  # first: without it the folder is no workspace
            from shutil import rmtree

            rmtree(self.dot, ignore_errors=True)

    def inside(self, path: Path) -> bytes | None:
        """Return the path as trees have it, empty for the root; None if it lies outside or below `.dsv`.
        Symlinks in the path's folders are resolved, but not the last part: it may be a symlink of the
        dataset."""
        whole = Path(os.path.normpath(Path.cwd() / path))
        if whole.name:
            whole = _resolved(whole.parent) / whole.name
        if not whole.is_relative_to(self.root):
            if _resolved(whole) != self.root:
                return None
            whole = self.root
        relative = os.fsencode(whole.relative_to(self.root))
        parts = [] if relative == b"." else relative.split(b"/")
        return None if DOT_FOLDER.encode() in parts else b"/".join(parts)

    def _write(self) -> Workspace:
        """Write the binding, and return the workspace."""
        only = None if self.chosen.lines is None else list(self.chosen.lines)
        from tomli_w import dumps

        binding = _Binding(self.store, self.store_id, self.dataset, self.branch, self.names, only)
        values = msgspec.to_builtins(binding, enc_hook=str)
        if only is None:
            self._replace(_CONFIG, dumps(values).encode())
            return self
        # Older versions find nothing that they know at the top level, and refuse it.
        data = _COMMENT + dumps({"needs": [SPARSE], "workspace": values}).encode()
        if len(data) > MAX_BYTES:
            raise UsageError(
                f"these are {len(only):,} patterns, more than a workspace can have",
                hint="name folders, or patterns that match many paths",
            )
        self._replace(_CONFIG, data)
        return self

    def _replace(self, name: str, data: bytes | None) -> None:
        """Replace a file, or remove it if `data` is None. Durable when it returns."""
        with about(self.dot / name):
            if data is not None:
                replace_file(self.dot / name, data)
                return
            (self.dot / name).unlink(missing_ok=True)
            sync_folder(self.dot)


def _resolved(path: Path) -> Path:
    try:
        return path.resolve()
    except RuntimeError:  # a loop of symlinks; as of Python 3.13 that is no error
        return path


def unfinished(begun: Sequence[StartedCommand], base: CommitId | None) -> tuple[StartedCommand, ...]:
    """Return the commands that have not ended in a workspace with this base. A command for the whole
    workspace whose commit is the base has ended, and has overwritten the files of earlier ones."""
    left: list[StartedCommand] = []
    for each in begun:
        if each.base == each.commit:
            continue
        if each.commit == base and not each.paths:
            left.clear()
        else:
            left.append(each)
    return tuple(left)


def restored(begun: Iterable[StartedCommand], paths: tuple[bytes, ...]) -> tuple[StartedCommand, ...]:
    """Return the commands that are unfinished once the user has restored these paths."""
    commands: list[StartedCommand] = []
    for command in begun:
        less = PathSet.of({*map(str.encode, command.less), *paths})
        if not less.whole and not (command.paths and all(path.encode() in less for path in command.paths)):
            commands.append(replace(command, less=tuple(map(bytes.decode, less.paths))))
    return tuple(commands)


def is_vacant(folder: Path) -> bool:
    """Return whether the folder is empty, or has only remains of a command that was killed before it bound
    the folder."""
    with about(folder):
        if not folder.is_dir() or any(path.name != DOT_FOLDER for path in folder.iterdir()):
            return False
        return not (folder / DOT_FOLDER / _CONFIG).exists()


def _read(root: Path, config: Path) -> Workspace:
    try:
        with about(config):
            document = read_toml(read_file(config))
        if "needs" in document:
            _check_needs(root, document["needs"])
            document = binding(document)
        found = msgspec.convert(document, _Binding, dec_hook=_parse)
        chosen = EVERYTHING if found.only is None else SparsePatterns(tuple(found.only))
        return Workspace(root, found.store, found.store_id, found.dataset, found.branch, found.names, chosen)
    except (ValueError, msgspec.ValidationError) as error:
        raise _unreadable(config) from error
    except DsvError as error:
        if error.exit_code == 2:
            raise _unreadable(config) from error
        raise


def _check_needs(root: Path, needs: object) -> None:
    unknown = (
        sorted(str(each) for each in needs if each != SPARSE) if isinstance(needs, list) else [str(needs)]
    )
    if unknown:
        raise Unsupported(
            f"{root} is a workspace that needs a newer dsv: {', '.join(unknown)}",
            subject=str(root),
            hint=UPGRADE,
        )


def _unreadable(config: Path) -> IntegrityError:
    return IntegrityError(
        f"{config} is not a workspace's binding: it needs store, store_id, dataset and branch",
        subject=str(config),
        hint="fix it by hand, or remove it and bind the folder again with dsv init or dsv clone",
    )
