"""Starting git, which must not start programs that the configuration of somebody's repository names.

A configuration can name programs for many occasions: filters, hooks, monitors of the work tree, transports for
missing objects. git can't be told to ignore it. So it is shown a view in place of the repository's own
folder, with links to all that is there but the configuration and the hooks.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import closing, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from subprocess import CompletedProcess

_NOT_FOUND = 127  # exit code of env for a missing program
_OF_THE_CALLER = (
    "GIT_DIR", "GIT_COMMON_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_OBJECT_DIRECTORY", "GIT_PREFIX",
    "GIT_ALTERNATE_OBJECT_DIRECTORIES", "GIT_NAMESPACE", "GIT_SHALLOW_FILE", "GIT_EXTERNAL_DIFF",
)  # fmt: skip
"""Variables of a git that has started dsv, which are about its own repository."""
_OPTIONS = (
    "core.fsmonitor=false", "core.hooksPath=/dev/null", "protocol.ext.allow=never", "log.showSignature=false",
    "status.submoduleSummary=false",
)  # fmt: skip
_LEFT_OUT = {"config", "config.worktree", "hooks", "HEAD", "commondir", "gitdir", "modules", "worktrees"}
_OF_FILES = (
    r"^core\.(autocrlf|eol|filemode|symlinks|ignorecase|precomposeunicode|trustctime|checkstat|excludesfile)$"
)
"""Settings that say how to compare files, and start nothing."""


class GitError(Exception):
    """git failed, and said this."""


class GitMissingError(GitError):
    """git is not installed."""


def run_git(*arguments: str, variables: Mapping[str, str] | None = None, most: int = 0, **how: Any) -> bytes:
    """Return what git prints, without locks, prompts and fetching of missing objects. Raises `GitError`.
    variables: more than those of the environment. most: ends git, without an error, when it has printed more bytes
    than that, if not 0. how: of `subprocess.run`, without a timeout then."""
    import subprocess  # takes a while

    more = {"GIT_TERMINAL_PROMPT": "0", "GIT_NO_LAZY_FETCH": "1", "LC_ALL": "C", **(variables or {})}
    argv = ["env", *(word for name in _OF_THE_CALLER for word in ("-u", name))]
    argv += [f"{name}={value}" for name, value in more.items()]
    argv += ["git", "--no-optional-locks", *(word for one in _OPTIONS for word in ("-c", one)), *arguments]
    try:
        run: Any = partial(_run_within, most) if most else partial(subprocess.run, capture_output=True)
        done = run(argv, **{"input": b"", **how})
    except (OSError, subprocess.TimeoutExpired) as error:
        raise GitError(str(error)) from error
    if done.returncode:
        kind = GitMissingError if done.returncode == _NOT_FOUND else GitError
        raise kind(done.stderr.decode("utf-8", "replace"))
    return bytes(done.stdout)


def _run_within(most: int, argv: list[str], **how: Any) -> CompletedProcess[Any]:
    import subprocess
    from tempfile import TemporaryFile  # takes a while to import

    with TemporaryFile() as given, TemporaryFile() as said:
        given.write(how.pop("input"))
        given.seek(0)
        with subprocess.Popen(argv, stdin=given, stdout=subprocess.PIPE, stderr=said, **how) as process:
            text, part = bytearray(), b"-"
            try:
                while part and len(text) <= most:
                    part = process.stdout.read(1 << 20)  # type: ignore[union-attr]
                    text += part
            finally:
                if part:  # there may be more
                    process.kill()
        said.seek(0)
        return subprocess.CompletedProcess(argv, 0 if part else process.returncode, text, said.read())


class GitView:
    """The local repository that a folder belongs to, without its configuration. `close` it at the end."""

    def __init__(self, folder: Path, **how: Any) -> None:
        """how: of `subprocess.run`, for each git. Raises `GitError`, also if git distrusts the folder's owner."""
        from tempfile import TemporaryDirectory  # takes a while to import

        self._folder, self._how = folder, how
        self._git = partial(run_git, cwd=folder, **how)
        # This one reads the configuration, and starts nothing.
        limit = {"timeout": 60.0, **how}  # an include may be a pipe
        said = os.fsdecode(self._git("rev-parse", "--absolute-git-dir", "--show-object-format", **limit))
        own, _, objects = said.removesuffix("\n").rpartition("\n")
        try:
            self._view = TemporaryDirectory(prefix="dsv-git-")
            _link(Path(own), Path(self._view.name), objects)
        except OSError as error:
            raise GitError(str(error)) from error

    def close(self) -> None:
        self._view.cleanup()

    def ask(self, *arguments: str, given: bytes = b"", most: int = 0, **variables: str) -> bytes:
        """Run git with what the repository has. most: as in `run_git`. Raises `GitError`."""
        variables["GIT_DIR"] = self._view.name
        return self._git(*arguments, input=given, most=most, variables=variables)

    def setting(self, name: str) -> str | None:
        """Return a setting of the repository or the user; None if it is not set."""
        with suppress(GitError):
            return os.fsdecode(self._git("config", "--get", name)).strip()
        return None

    def is_changed(self, depth: int = 8) -> bool:
        """Return whether the folder differs from HEAD, or has new files. Raises `GitError`.

        depth: of submodules. Each has its own view, because git would use their configuration.
        """
        top = os.fsdecode(self._git("rev-parse", "--show-toplevel")[:-1])
        options: list[str] = []
        with suppress(GitError):  # none is set
            for one in os.fsdecode(self._git("config", "--null", "--get-regexp", _OF_FILES)).split("\0")[:-1]:
                options += ["-c", one.replace("\n", "=", 1)]
        status = ("status", "--porcelain", "--untracked-files=normal", "--ignore-submodules=dirty", "--", ".")
        if self.ask(*options, *status, GIT_WORK_TREE=top).strip():
            return True
        listed = self.ask("ls-files", "--stage", "-z", "--", ".", GIT_WORK_TREE=top) if depth else b""
        for one in os.fsdecode(listed).split("\0"):
            below = self._folder / one.partition("\t")[2]
            if one.startswith("160000") and (below / ".git").exists():
                with closing(GitView(below, **self._how)) as module:
                    if module.is_changed(depth - 1):
                        return True
        return False


def _link(own: Path, view: Path, objects: str) -> None:
    """own: the folder of the repository, or that of one of its work trees."""
    named = own / "commondir"
    common = own / os.fsdecode(named.read_bytes()).strip() if named.exists() else own
    own_files = {path.name: path for path in own.iterdir() if path.is_file() or common == own}
    shared = {
        path.name: path
        for path in common.iterdir()
        if path.is_dir() or path.name in ("packed-refs", "shallow")
    }
    for name, path in {**own_files, **shared}.items():
        if name not in _LEFT_OUT:
            (view / name).symlink_to(path.absolute())
    (view / "HEAD").write_bytes((own / "HEAD").read_bytes())
    extensions = "\tobjectFormat = sha256\n" if objects == "sha256" else ""  # old gits repeat the question
    extensions += "\trefStorage = reftable\n" if "reftable" in shared else ""
    (view / "config").write_text(f"[core]\n\trepositoryFormatVersion = 1\n[extensions]\n{extensions}")
