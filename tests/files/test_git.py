"""git is started so that nothing in a repository can start another program."""

from __future__ import annotations

import os
import subprocess
from contextlib import closing
from pathlib import Path

import pytest

from dsv.api.environment import author, gather
from dsv.files.git import GitError, GitView, run_git
from dsv.run.origin import code_state

NAMED_IN_CONFIG = [
    ("core.fsmonitor", "{program}"),
    ("core.sshCommand", "{program}"),
    ("core.gitProxy", "{program}"),
    ("core.pager", "{program}"),
    ("core.askPass", "{program}"),
    ("core.hooksPath", "{hooks}"),
    ("filter.planted.clean", "{program}"),
    ("filter.planted.process", "{program}"),
    ("diff.external", "{program}"),
    ("diff.planted.textconv", "{program}"),
    ("diff.planted.command", "{program}"),
    ("gpg.program", "{program}"),
    ("credential.helper", "!{program}"),
    ("alias.log", "!{program}"),
    ("alias.status", "!{program}"),
    ("pager.log", "{program}"),
    ("include.path", "{included}"),
    ("includeIf.gitdir:/.path", "{included}"),
    ("status.submoduleSummary", "true"),
    ("log.showSignature", "true"),
    ("extensions.worktreeConfig", "true"),
]
HOOKS = ("post-index-change", "fsmonitor-watchman", "reference-transaction", "post-checkout", "pre-auto-gc")


class Hostile:
    """A repository of two commits whose configuration names a program wherever it can."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.ran = folder / "repo", folder / "ran"
        self.program = folder / "program"
        self.program.write_text(f'#!/bin/sh\necho "$0 $*" >> {self.ran}\nexit 1\n')
        self.program.chmod(0o755)
        self.folder.mkdir()
        self.git("init", "-q", "-b", "main")
        (self.folder / ".gitattributes").write_text("*.txt filter=planted diff=planted\n")
        for text in ("one\n", "two\n"):
            (self.folder / "a.txt").write_text(text)
            self.git("add", "-A")
            self.git("commit", "-qm", text)

    def git(self, *words: str) -> str:
        argv = ["git", "-C", str(self.folder), "-c", "user.name=a", "-c", "user.email=a@b", *words]
        return subprocess.run(argv, check=True, capture_output=True, text=True).stdout.strip()

    def plant(self) -> None:
        git_folder = Path(self.git("rev-parse", "--absolute-git-dir"))
        for name in HOOKS:
            (git_folder / "hooks" / name).symlink_to(self.program)
        included = git_folder / "included"
        places = {"program": self.program, "hooks": git_folder / "hooks", "included": included}
        included.write_text(f"[core]\n\tfsmonitor = {self.program}\n")
        (git_folder / "config.worktree").write_text(included.read_text())
        config = (git_folder / "config").open("a")
        with config:
            for key, value in NAMED_IN_CONFIG:
                section, _, name = key.rpartition(".")
                section, _, below = section.partition(".")
                head = f'[{section} "{below}"]' if below else f"[{section}]"
                config.write(f'{head}\n\t{name} = "{value.format(**places)}"\n')
        os.utime(self.folder / "a.txt", (1, 1))  # git has to read it again, by its filter

    def lose(self, name: str) -> None:
        """Make it a partial clone that lacks an object."""
        found = self.git("rev-parse", name)
        (self.folder / ".git/objects" / found[:2] / found[2:]).unlink()
        for key, value in (
            ("core.repositoryformatversion", "1"),
            ("extensions.partialClone", "origin"),
            ("remote.origin.url", str(self.folder)),
            ("remote.origin.promisor", "true"),
            ("remote.origin.uploadpack", str(self.program)),
        ):
            self.git("config", key, value)


@pytest.fixture
def hostile(tmp_path: Path) -> Hostile:
    return Hostile(tmp_path)


def test_what_is_planted_does_run_without_a_view(hostile: Hostile) -> None:
    hostile.plant()
    subprocess.run(["git", "-C", hostile.folder, "status"], capture_output=True, check=False)
    assert hostile.ran.exists()


def test_no_program_of_a_configuration_is_started(hostile: Hostile, tmp_path: Path) -> None:
    head = hostile.git("rev-parse", "HEAD")
    hostile.plant()
    with closing(GitView(hostile.folder)) as view:
        assert view.ask("log", "--format=%s").split() == [b"two", b"one"]
        assert b"a.txt" in view.ask("ls-tree", "-r", "HEAD")
        assert view.ask("cat-file", "blob", "HEAD:a.txt") == b"two\n"
        assert view.ask("rev-parse", "main@{1}").decode().strip() == hostile.git("rev-parse", "HEAD~1")
        assert not view.is_changed()
    assert code_state(hostile.folder, os.environ).dirty is False
    (hostile.folder / "a.txt").write_text("three\n")
    state = code_state(hostile.folder, os.environ)
    assert (state.commit, state.dirty) == (head, True)
    assert author(gather({"HOME": str(tmp_path)}, hostile.folder, {}), None).value
    assert not hostile.ran.exists(), hostile.ran.read_text()


def test_a_missing_object_is_not_fetched(hostile: Hostile) -> None:
    hostile.lose("HEAD:a.txt")
    with closing(GitView(hostile.folder)) as view, pytest.raises(GitError):
        view.ask("cat-file", "blob", "HEAD:a.txt")
    assert not hostile.ran.exists(), hostile.ran.read_text()
    subprocess.run(
        ["git", "-C", hostile.folder, "cat-file", "blob", "HEAD:a.txt"], capture_output=True, check=False
    )
    assert hostile.ran.exists()  # git alone would have


def test_a_submodule_is_compared_and_starts_nothing(tmp_path: Path) -> None:
    (tmp_path / "inner").mkdir()
    inner, folder = Hostile(tmp_path / "inner"), tmp_path / "outer"
    subprocess.run(["git", "init", "-q", folder], check=True)
    words = [
        "git",
        "-C",
        str(folder),
        "-c",
        "protocol.file.allow=always",
        "-c",
        "user.name=a",
        "-c",
        "user.email=a@b",
    ]
    subprocess.run([*words, "submodule", "--quiet", "add", inner.folder, "deep/sub"], check=True)
    subprocess.run([*words, "commit", "-qm", "one"], check=True)
    inner.folder = folder / "deep/sub"
    inner.plant()
    assert code_state(folder, os.environ).dirty is False
    assert code_state(folder / "deep", os.environ).dirty is False
    (inner.folder / "new").touch()
    assert code_state(folder, os.environ).dirty is True
    assert code_state(folder / "deep", os.environ).dirty is True
    assert not inner.ran.exists(), inner.ran.read_text()


def test_a_linked_work_tree_has_its_own_head_and_index(hostile: Hostile, tmp_path: Path) -> None:
    hostile.git("worktree", "add", "-q", "-b", "side", str(tmp_path / "side"), "HEAD~1")
    hostile.plant()
    with closing(GitView(tmp_path / "side")) as view:
        assert view.ask("log", "--format=%s").split() == [b"one"]
        assert view.ask("rev-parse", "main").decode().strip() == hostile.git("rev-parse", "main")
    state = code_state(tmp_path / "side", os.environ)
    assert (state.commit, state.dirty) == (hostile.git("rev-parse", "side"), False)
    assert not hostile.ran.exists(), hostile.ran.read_text()


@pytest.mark.parametrize("form", ["sha1", "sha256"])
def test_packed_shallow_and_other_hashes_are_read(tmp_path: Path, form: str) -> None:
    folder = tmp_path / "repo"
    subprocess.run(["git", "init", "-q", f"--object-format={form}", folder], check=True)
    words = ["git", "-C", str(folder), "-c", "user.name=a", "-c", "user.email=a@b"]
    for text in ("one", "two"):
        subprocess.run([*words, "commit", "-q", "--allow-empty", "-m", text], check=True)
    subprocess.run([*words, "gc", "-q"], check=True)
    shallow = tmp_path / "shallow"
    subprocess.run(["git", "clone", "-q", "--depth=1", f"file://{folder}", shallow], check=True)
    for place, said in ((folder, [b"two", b"one"]), (shallow, [b"two"])):
        with closing(GitView(place)) as view:
            assert view.ask("log", "--format=%s").split() == said


def test_how_a_work_tree_compares_files_stays_as_it_is_configured(hostile: Hostile) -> None:
    (hostile.folder / "a.txt").chmod(0o755)
    assert code_state(hostile.folder, os.environ).dirty is True
    hostile.git("config", "core.fileMode", "false")
    assert code_state(hostile.folder, os.environ).dirty is False
    (hostile.folder / "ignored").touch()
    (hostile.folder / ".git/info/exclude").write_text("ignored\n")
    assert code_state(hostile.folder, os.environ).dirty is False


def test_variables_of_a_calling_git_are_not_for_this_one(
    hostile: Hostile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "none"))
    monkeypatch.setenv("GIT_INDEX_FILE", str(tmp_path / "none"))
    assert code_state(hostile.folder, os.environ).dirty is False


def test_a_folder_outside_of_a_repository_has_no_view(tmp_path: Path) -> None:
    with pytest.raises(GitError, match="not a git repository"):
        GitView(tmp_path)
    with pytest.raises(GitError, match="not a git"):
        run_git("rev-parse", "--verify", "none", cwd=tmp_path)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives a folder to somebody else")
def test_a_repository_of_somebody_else_has_no_view(hostile: Hostile) -> None:
    os.chown(hostile.folder, 12345, 12345)
    with pytest.raises(GitError, match="dubious ownership"):
        GitView(hostile.folder)
    assert code_state(hostile.folder, os.environ).commit is None
