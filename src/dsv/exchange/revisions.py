"""Revisions of git repositories with data in DVC.

A git repository has files that name outputs by their MD5, and a DVC remote has each content under its MD5.
The files of a revision are read with the git command. Neither a work tree nor DVC is needed.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from configparser import ConfigParser
from configparser import Error as ConfigError
from contextlib import ExitStack, closing, suppress
from io import BytesIO
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import msgspec
from msgspec.structs import replace

from dsv.errors import Denied, DsvError, IntegrityError, NotFound, Unreachable, Unsupported, UsageError
from dsv.exchange.reference import open_referred
from dsv.exchange.remote import HTTP, missing_package, open_place, server_of
from dsv.exchange.sources import JOBS, FolderSource, RemoteFile, in_order, remote_file
from dsv.files.git import GitError, GitMissingError, GitView, run_git
from dsv.files.small_files import read_small
from dsv.stores.options import StoreOptions
from dsv.transfer.stable_read import Problem
from dsv.values.progress import NoProgress
from dsv.values.secrets import hide_in_urls
from dsv.values.units import format_bytes

DVC = "dvc+"
HUB = "hf://datasets/"
"""Prefixes of URLs with revisions: git repositories with data in DVC, and datasets of the Hub."""
_PATHS = (":(glob)**/*.dvc", ":(glob)**/dvc.lock", ":(glob)**/dvc.yaml")
_LARGEST = 64 << 20
"""Bytes of all files of DVC in a revision. A list of git may have four times as many."""
_MOST_IN_FOLDER = 1 << 30
"""Bytes of a list of the files in a folder."""
_LONGEST = 4096
"""Characters of an unquoted value of YAML: a number of many parts takes time with the square of their number."""
_DEEPEST = 64
"""Nested lists and mappings of YAML."""
_MD5 = re.compile(r"[0-9a-f]{32}(\.dir)?")
_OPTIONS = {
    "endpointurl": "endpoint", "profile": "profile", "region": "region", "access_key_id": "access_key",
    "secret_access_key": "secret_key", "session_token": "session_token",
}  # fmt: skip
"""Settings of a DVC remote, and the store options for them."""


class Revision(NamedTuple):
    """A commit of the source."""

    id: str
    author: str
    time_ms: int
    message: str


def commit_time(seconds: str | float) -> int:
    """Return the time of a commit, at most the last second of 9999. One before 1970, for which git has no
    text, becomes 0: a commit of a store has none."""
    return int(1000 * min(max(0.0, float(seconds or 0)), 253_402_300_799))


def no_revisions(url: str) -> UsageError:
    """Return the error for a URL without revisions, or for a dataset of the Hub with a DVC remote."""
    shown, lacking = hide_in_urls(url), "DVC remote" if url.startswith(HUB) else "revisions"
    hint = f"dvc+GIT-URL, git with data in DVC, has revisions and a remote; {HUB}OWNER/NAME has revisions"
    return UsageError(f"{shown} has no {lacking}", subject=shown, hint=hint)


class DvcOutput(NamedTuple):
    """A file or folder that DVC tracks."""

    path: str
    md5: str
    """With `.dir` at its end for a folder."""
    before_3: bool
    """Written by DVC before 3.0, under another path of the remote, and with another hash for text."""
    executable: bool
    remote: str
    """The name of its own remote; empty for the default one of the repository."""
    repository: str
    """The folder of the DVC repository that it belongs to, within that of git."""

    @property
    def raw(self) -> bytes:
        return self.path.encode("utf-8", "surrogateescape")

    @property
    def name(self) -> str:
        """Its path in the remote."""
        return ("" if self.before_3 else "files/md5/") + f"{self.md5[:2]}/{self.md5[2:]}"


class _InFolder(msgspec.Struct):
    md5: str
    relpath: str


_FOLDER = msgspec.json.Decoder(list[_InFolder])


class Git(ExitStack):
    """A git repository. `close` deletes the bare clone of a repository on another machine."""

    def __init__(self, url: str) -> None:
        super().__init__()
        self.url, self.shown = url, hide_in_urls(url)
        self.folder = Path(url.removeprefix("file://")).resolve()
        self.is_local = self.folder.is_dir()
        try:
            if not self.is_local:
                self.folder = Path(self.enter_context(TemporaryDirectory(prefix="dsv-git-")))
                run_git("clone", "--quiet", "--bare", "--template=", "--", url, str(self.folder))
            self._view = self.enter_context(closing(GitView(self.folder)))
        except GitError as error:
            self.close()
            raise self._error(error) from None

    def log(self, *arguments: str) -> list[Revision]:
        said = self._ask("log", "-z", "--encoding=UTF-8", "--format=%H%n%an <%ae>%n%at%n%B", *arguments)
        revisions = []
        for record in said.decode("utf-8", "replace").split("\0"):
            if record:
                name, author, time, message = record.split("\n", 3)
                revisions.append(Revision(name, author, commit_time(time), message.strip()))
        return revisions

    def tree(self, revision: str) -> dict[str, str]:
        said = self._ask("ls-tree", "-r", "-z", "--full-tree", revision)
        rows = (one.partition("\t") for one in said.decode("utf-8", "surrogateescape").split("\0") if one)
        heads = ((path, head.split()) for head, _, path in rows)
        return {path: head[2] for path, head in heads if head[1] == "blob"}  # and no submodule

    def read(self, objects: Iterable[str]) -> list[bytes]:
        """Raises `Unsupported` for what is too large for a file that DVC writes."""
        given = "".join(f"{name}\n" for name in objects).encode()
        said, contents = BytesIO(self._ask("cat-file", "--batch", given=given, most=_LARGEST)), list[bytes]()
        while head := said.readline().decode().split():
            if len(head) < 3:
                raise _damaged(f"git can't read {self.shown}: it lacks the object {head[0]}", self.shown)
            contents.append(said.read(int(head[2])))
            said.read(1)
        return contents

    def _ask(self, *arguments: str, given: bytes = b"", most: int = 4 * _LARGEST) -> bytes:
        try:
            found = self._view.ask(*arguments, given=given, most=most)
        except GitError as error:
            raise self._error(error) from None
        if len(found) > most:
            text = f"git prints more than {format_bytes(most)} of {self.shown}; at most that is read"
            raise Unsupported(text, subject=self.shown, hint="name a smaller revision: dvc+URL@REV")
        return found

    def _error(self, error: GitError) -> DsvError:
        if isinstance(error, GitMissingError):
            return Unsupported(f"{self.shown} needs git, which is not installed", subject=self.shown)
        text = str(error)
        lines = [one for one in text.splitlines() if one.startswith(("fatal:", "ERROR:", "error:"))]
        said = hide_in_urls((lines or [text.strip() or "git failed"])[0])
        message, hint = f"git can't read {self.shown}: {said}", "git ls-remote shows what it can read"
        if re.search("not found|does not exist|not a git|unknown revision|bad revision|Not a valid", text):
            return NotFound(message, subject=self.shown, hint=hint)
        if re.search("denied|could not read Username|Authentication failed|dubious ownership", text):
            return Denied(message, subject=self.shown, hint=hint)
        return Unreachable(message, subject=self.shown, hint=hint)


class DvcHistory(ExitStack):
    """The revisions of a git repository, and their files in DVC remotes, each of which is opened when it is
    needed. `url` is the repository's, without a revision and secrets. `close` it at the end."""

    def __init__(self, url: str, options: StoreOptions, remote: str | None) -> None:
        """url: `dvc+URL` or `dvc+URL@REV`. remote: a name in the configuration, or a URL."""
        try:
            import yaml
        except ImportError as error:
            raise missing_package(url, error) from None
        super().__init__()
        self._yaml = yaml
        place, self._named = url.removeprefix(DVC), "HEAD"
        start, at, end = place.rpartition("@")
        if at and "/" not in end and ("/" in start or Path(start).is_dir()) and not Path(place).is_dir():
            place, self._named = start, end
        self.git = self.enter_context(Git(place))
        self.say: Callable[[str], None] = NoProgress().note
        self.url = DVC + (str(self.git.folder) if self.git.is_local else self.git.shown)
        self._options, self._remote = options, remote
        self._objects: dict[FolderSource, dict[str, dict[str, Any]]] = {}
        self._places: dict[tuple[str, str], tuple[str, StoreOptions]] = {}
        self._sources: dict[tuple[str, StoreOptions], FolderSource] = {}
        self._folders: dict[str, list[_InFolder]] = {}

    def revisions(self, names: Sequence[str], *, every: bool) -> list[Revision]:
        """Return the named revisions, also by ranges `A..B`, or with `every` all up to the one in the URL,
        oldest first. Without either, return the one in the URL. Raises `NotFound`."""
        walk, end = ("--first-parent", "--reverse", "--end-of-options"), ("--", *_PATHS)
        if every:
            return self.git.log(*walk, self._named, *end)
        found: list[Revision] = []
        for name in names or [self._named]:
            if ".." in name:
                found += self.git.log(*walk, name, *end)
            else:
                found += self.git.log("--no-walk", "--end-of-options", name, "--")
        return found

    def source(self, revision: Revision, *, reference: bool) -> DvcHistory:
        """Return the remotes, as the configuration of this revision names them, for those before it too."""
        self._last, self._refers = self.git.tree(revision.id), reference
        return self

    def of(self, file: RemoteFile) -> FolderSource:
        return file.info["source"]  # type: ignore[no-any-return]

    def read_ahead(self, files: Sequence[RemoteFile]) -> None:
        for source in self._sources.values():
            source.read_ahead([file for file in files if self.of(file) is source])

    def check(self) -> None:
        """Do nothing: each file is checked when it is read."""

    def _open(self, repository: str, named: str, tree: dict[str, str]) -> FolderSource:
        if (repository, named) not in self._places:
            self._places[repository, named] = self._find_place(repository, named, tree)
        place = self._places[repository, named]
        if place not in self._sources:
            source = open_referred(*place) if self._refers else FolderSource(open_place(*place))
            self._sources[place] = self.enter_context(source)
            source.say = self.say
        return self._sources[place]

    def _find_place(self, repository: str, named: str, tree: dict[str, str]) -> tuple[str, StoreOptions]:
        """Return the URL of a remote, and the options to reach it. named: empty for the default one."""
        config, given = self._config(repository, tree), None if named else self._remote
        name = named or given or config.get("core", "remote", fallback="").strip("\"'")
        form = re.compile("""'?remote "(.+)"'?""")
        remotes = {match[1]: section for section in config.sections() if (match := form.fullmatch(section))}
        if name not in remotes:
            if given is not None and "/" in given:
                return given, self._options
            known = ", ".join(sorted(remotes)) or "none"
            text = f"{self.git.shown} has no DVC remote {name}".rstrip() + f"; it has {known}"
            raise NotFound(text, subject=self.git.shown, hint="--dvc-remote NAME-OR-URL")
        options = {key: value.strip("\"'") for key, value in config[remotes[name]].items()}
        title = f"the DVC remote {name} of {self.git.shown}"
        if "true" in (options.get("version_aware", "").lower(), options.get("worktree", "").lower()):
            text = f"{title} is one of cloud versioning, which has files by their names"
            hint = f"dsv import {hide_in_urls(options.get('url', 'URL'))} DATASET imports what is there now"
            raise Unsupported(text, subject=name, hint=hint)
        url = options.get("url", "")
        if not self.git.is_local and not may_name(self.git.url, url):
            why = "a repository from elsewhere may not name it, as it could lead to what only you can read"
            hint = "--dvc-remote URL if you trust it; for several remotes, git clone and import the clone"
            raise UsageError(f"{title} is {hide_in_urls(url)}, and {why}", subject=name, hint=hint)
        if "://" not in url and not url.startswith("/"):
            url = str((self.git.folder / repository / ".dvc" / url).resolve())
        mine: dict[str, Any] = {ours: options[key] for key, ours in _OPTIONS.items() if key in options}
        return url, replace(self._options, named_by="" if self.git.is_local else self.git.shown, **mine)

    def _config(self, repository: str, tree: dict[str, str]) -> ConfigParser:
        parser = ConfigParser(interpolation=None, strict=False, comment_prefixes=("#",), delimiters=("=",))
        path = posixpath.join(repository, ".dvc/config")
        at = self._last.get(path) or tree.get(path)
        texts = [one.decode("utf-8", "replace") for one in (self.git.read([at]) if at else [])]
        if self.git.is_local:
            with suppress(OSError):
                local = read_small(self.git.folder / repository / ".dvc/config.local") or b""
                texts.append(local.decode("utf-8", "replace"))
        try:
            for text in texts:
                parser.read_string(text)
        except ConfigError as error:
            text = f"the DVC configuration of {self.git.shown} can't be read: {error}"
            raise UsageError(text, subject=self.git.shown) from None
        return parser

    def files(self, revision: Revision) -> tuple[list[RemoteFile], list[Problem]]:
        """Return the files of a revision, in tree order, and what can't be read."""
        tree = self.git.tree(revision.id)
        outputs, skipped = self._outputs(revision.id, tree)
        wanted = [output for output in outputs if not output.md5.endswith(".dir")]
        folders = [output for output in outputs if output.md5.endswith(".dir")]
        for output, file in self._present(folders, skipped, tree):
            wanted += [
                output._replace(path=f"{output.path}/{entry.relpath}", md5=entry.md5, executable=False)
                for entry in self._folder(file)
            ]
        return in_order([file for _, file in self._present(wanted, skipped, tree)]), skipped

    def _present(
        self, outputs: list[DvcOutput], skipped: list[Problem], tree: dict[str, str]
    ) -> list[tuple[DvcOutput, RemoteFile]]:
        """Return the outputs that their remotes have, and add the others to `skipped`."""
        present: list[tuple[DvcOutput, RemoteFile]] = []
        of_remotes: dict[tuple[str, str], list[DvcOutput]] = {}
        for output in outputs:
            of_remotes.setdefault((output.repository, output.remote), []).append(output)
        for key, several in of_remotes.items():
            remote = self._open(*key, tree)
            self._look_up(remote, several)
            for output in several:
                if (file := self._file(remote, output)) is not None:
                    present.append((output, file))
                    continue
                reason = f"the DVC remote {output.remote} does not have {output.name}".replace("  ", " ")
                skipped.append(Problem(output.raw, reason))
        return present

    def _outputs(self, revision: str, tree: dict[str, str]) -> tuple[list[DvcOutput], list[Problem]]:
        pipelines = ("dvc.lock", "dvc.yaml")
        names = [name for name in tree if name.endswith(".dvc") or posixpath.basename(name) in pipelines]
        texts = dict(zip(names, self.git.read(tree[name] for name in names), strict=True))
        outputs: list[DvcOutput] = []
        skipped: list[Problem] = []
        for name in names:
            if posixpath.basename(name) == "dvc.yaml":
                continue
            for folder, out in self._named_by(name, texts, revision):
                path, md5 = posixpath.normpath(posixpath.join(folder, out["path"])), out["md5"]
                above = map(str, PurePosixPath(name).parents)
                within = next((parent for parent in above if f"{parent}/.dvc/config" in tree), "")
                before_3, executable = out.get("hash") != "md5", out.get("isexec") is True
                output = DvcOutput(path, md5, before_3, executable, str(out.get("remote") or ""), within)
                if path in tree or out.get("cache") is False:
                    continue  # it is in git
                if path.startswith(("../", "/")) or "://" in out["path"]:
                    skipped.append(Problem(output.raw, "it lies outside of the git repository"))
                elif _MD5.fullmatch(md5) is None:
                    skipped.append(Problem(output.raw, "DVC has noted no MD5 of it"))
                else:
                    outputs.append(output)
        return outputs, skipped

    def _named_by(
        self, name: str, texts: dict[str, bytes], revision: str
    ) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield the outputs in a file of DVC, each with the folder that its path is relative to."""
        folder, stages_of = posixpath.dirname(name), posixpath.join(posixpath.dirname(name), "dvc.yaml")
        found = self._load(name, texts[name], revision)
        stages: Any = {"": found}
        made: Any = {}
        if posixpath.basename(name) == "dvc.lock":
            stages = found.get("stages") or {} if "schema" in found else found
            if stages_of in texts:
                made = self._load(stages_of, texts[stages_of], revision).get("stages") or {}
        try:
            yield from self._outs(folder, stages, made, stages_of, name)
        except (AttributeError, LookupError, TypeError, ValueError):
            raise _damaged(f"{name} of git commit {revision} is not a DVC file", name) from None

    def _outs(
        self, folder: str, stages: Any, made: Any, stages_of: str, name: str
    ) -> Iterator[tuple[str, dict[str, Any]]]:
        for stage, said in stages.items():
            if not isinstance(said, dict):
                continue
            by = made.get(stage) or made.get(stage.partition("@")[0]) or {}
            at = str((by.get("do") or by).get("wdir") or said.get("wdir") or ".")
            if "${" in at:
                text = f"stage {stage} of {stages_of} has a wdir with a variable: {at}"
                raise Unsupported(text, subject=name)
            listed = [entry for kind in ("outs", "metrics", "plots") for entry in by.get(kind) or []]
            more = {
                path: flags for entry in listed if isinstance(entry, dict) for path, flags in entry.items()
            }
            for out in said.get("outs") or []:
                path, md5 = str(out["path"]), str(out.get("md5"))
                remote = out.get("remote") or (more.get(path) or {}).get("remote")
                yield posixpath.join(folder, at), {**out, "path": path, "md5": md5, "remote": remote}

    def _load(self, name: str, text: bytes, revision: str) -> dict[str, Any]:
        loader = getattr(self._yaml, "CSafeLoader", self._yaml.SafeLoader)
        try:
            depth = 0
            for event in self._yaml.parse(text, Loader=loader):
                depth += isinstance(event, self._yaml.CollectionStartEvent)
                depth -= isinstance(event, self._yaml.CollectionEndEvent)
                is_plain = isinstance(event, self._yaml.ScalarEvent) and event.implicit[0]
                is_long = is_plain and len(event.value) > _LONGEST and ":" in event.value
                if is_long or isinstance(event, self._yaml.AliasEvent) or depth > _DEEPEST:
                    what = "an alias of YAML" if depth <= _DEEPEST else f"more than {_DEEPEST} nested values"
                    what = "an unquoted value of more than 4,096 characters" if is_long else what
                    what += ", which may stand for far more than it has"
                    hint = "write the values out, or import a revision that has none"
                    raise Unsupported(f"{name} of git commit {revision} has {what}", subject=name, hint=hint)
            found = self._yaml.load(text, Loader=loader)
        except (self._yaml.YAMLError, ValueError, RecursionError) as error:
            said = str(error).splitlines()[0]
            raise _damaged(f"{name} of git commit {revision} is not YAML: {said}", name) from None
        return found if isinstance(found, dict) else {}

    def _look_up(self, source: FolderSource, wanted: Iterable[DvcOutput]) -> None:
        """Find out what the remote has: by one listing, or on a web server by one request for each name."""
        place = source.place
        if not any(name in HTTP for name in place.protocols):
            if source not in self._objects:
                files = ((key, info) for key, info in place.find().items() if info["type"] != "directory")
                self._objects[source] = {place.name(key): {**info, "key": key} for key, info in files}
            return
        objects = self._objects.setdefault(source, {})

        def ask(name: str) -> None:
            key = f"{place.root}/{name}"
            try:
                objects[name] = {**place.info(key), "key": key}
            except NotFound:
                objects[name] = {}

        with ThreadPoolExecutor(JOBS, "dsv-import") as pool:
            list(pool.map(ask, {one.name for one in wanted} - objects.keys()))

    def _file(self, source: FolderSource, one: DvcOutput) -> RemoteFile | None:
        info = self._objects[source].get(one.name)
        if not info:
            return None
        kind = "md5-dos2unix" if one.before_3 and not one.md5.endswith(".dir") else "md5"
        digest, info = f"{kind}:{one.md5.removesuffix('.dir')}", {**info, "source": source}
        return remote_file(one.raw, info["key"], info, digest=digest, executable=one.executable)

    def _folder(self, file: RemoteFile) -> list[_InFolder]:
        entries = self._folders.get(file.digest)
        if entries is None:
            shown = hide_in_urls(file.key)
            text, read, buffer = bytearray(), self.of(file).reader(file), memoryview(bytearray(1 << 20))
            while count := read(buffer):
                text += buffer[:count]
                if len(text) > _MOST_IN_FOLDER:
                    raise _damaged(f"{shown} is too large for a folder of DVC", file.key)
            try:
                entries = _FOLDER.decode(text)
            except (msgspec.DecodeError, RecursionError) as error:
                raise _damaged(f"{shown} is not a folder of DVC: {error}", file.key) from None
            if any(_MD5.fullmatch(entry.md5) is None for entry in entries):
                raise _damaged(f"{shown} has what is not an MD5", file.key)
            self._folders[file.digest] = entries
        return entries


def may_name(git: str, url: str) -> bool:
    """Return whether a git repository from another machine may name a remote: only its own server, by the kind of
    URL that it came by itself, or web servers if it came from one. What is there for this machine alone is refused
    when it is connected to."""
    try:
        own, there = server_of(git), server_of(url)
    except ValueError:
        return False
    fits = own[0] == there[0] and (own[0] == "http" or (own == there and own[0] == "sftp"))
    return fits and not Path(git).exists() and "::" not in url and bool(there[1])


def _damaged(message: str, subject: str) -> IntegrityError:
    hint = "put the right one back, and run the same command again"
    return IntegrityError(message, subject=subject, hint=hint)
