"""The jobs of docs/guide/lock-files.md that comment a merge request, with stand-ins for `gh` and `curl`."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.cli.detached import here
from tests.kit.dsv import Dsv, write_files

__all__ = ["here"]
pytestmark = pytest.mark.skipif(shutil.which("git") is None, reason="needs git")
yaml = pytest.importorskip("yaml")
PAGE = (Path(__file__).parents[2] / "docs/guide/lock-files.md").read_text("utf-8")
FILES = dict(re.findall(r'^```yaml title="([^"]+)"\n(.*?)^```$', PAGE, re.MULTILINE | re.DOTALL))
STAND_IN = '#!/bin/sh\nprintf "%s\\n" "$0" "$@" > posted.txt\ncp comment.md posted.md\n'


def github() -> str:
    """As GitHub's runner starts a step: `bash -e FILE`."""
    document: Any = yaml.safe_load(FILES[".github/workflows/data.yml"])
    [step] = [step for step in document["jobs"]["data"]["steps"] if step.get("name") == "comment"]
    return f"set -e\n{step['run']}"


def gitlab() -> str:
    """As GitLab's runner starts a script: all lines in one shell, the first that fails ends it."""
    return "\n".join(["set -eo pipefail", *yaml.safe_load(FILES[".gitlab-ci.yml"])["data"]["script"]])


class Repository:
    """A shallow clone, as CI has it, of a repository whose lock file a branch changed."""

    def __init__(self, dsv: Dsv) -> None:
        self.dsv, self.origin, self.clone = dsv, dsv.home / "origin", dsv.home / "clone"
        self.origin.mkdir()
        self.git(self.origin, "init", "-q", "-b", "main")
        self.git(self.origin, "config", "uploadpack.allowAnySHA1InWant", "true")

    def git(self, folder: Path, *argv: str) -> str:
        name = ("-c", "user.name=a", "-c", "user.email=a@b")
        done = subprocess.run(
            ["git", *name, *argv], cwd=folder, env=dict(self.dsv.environ), text=True, capture_output=True
        )
        assert done.returncode == 0, done
        return done.stdout.strip()

    def commit(self, lock: str | None) -> str:
        """One more commit with this lock file, or without any."""
        (self.origin / "data.lock").unlink(missing_ok=True)
        if lock is not None:
            (self.origin / "data.lock").write_text(lock)
        self.git(self.origin, "add", "-A")
        self.git(self.origin, "commit", "-qm", "x", "--allow-empty")
        return self.git(self.origin, "rev-parse", "HEAD")

    def job(self, script: str, base: str, depth: int) -> subprocess.CompletedProcess[str]:
        shutil.rmtree(self.clone, ignore_errors=True)
        self.git(self.dsv.home, "clone", "-q", f"--depth={depth}", f"file://{self.origin}", str(self.clone))
        tools = self.dsv.home / "tools"
        write_files(tools, {name: STAND_IN.encode() for name in ("gh", "curl")})
        for tool in tools.iterdir():
            tool.chmod(0o755)
        known = {"CI_MERGE_REQUEST_DIFF_BASE_SHA": base, "NUMBER": "7", "CI_API_V4_URL": "https://x/api/v4"}
        known |= {"CI_PROJECT_ID": "5", "CI_MERGE_REQUEST_IID": "7", "COMMENT_TOKEN": "secret"}
        known["PATH"] = f"{tools}:{Path(sys.executable).parent}:{self.dsv.environ['PATH']}"
        return subprocess.run(
            ["bash", "-c", script], cwd=self.clone, env={**self.dsv.environ, **known}, text=True, capture_output=True
        )  # fmt: skip


@pytest.mark.parametrize(("script", "depth"), [(github, 2), (gitlab, 1)])
def test_a_job_posts_what_changed_in_the_data(here: Dsv, script: Any, depth: int) -> None:
    write_files(here.cwd, {"o/a`b": b"1"})
    here.ok("put", "o/a`b", "team/x__y.z-1:`<b>@all", "--create")
    first, repository = here.ok("lock", "pets@v1", "team/x__y.z-1").out, Repository(here)
    here.ok("put", "o/a`b", "team/x__y.z-1:more")
    second = here.ok("lock", "pets@v1", "team/x__y.z-1").out
    base = repository.commit(first)
    repository.commit(second)
    old, new = (text.splitlines()[1].partition("@")[2][:12] for text in (first, second))

    done = repository.job(script(), base, depth)
    assert done.returncode == 0, done
    comment = (repository.clone / "posted.md").read_text()
    assert comment.splitlines() == [
        "**1 added; +1 B**", "", "```", f"team/x__y.z-1: {old} -> {new}", "", "./  1 added; +1 B", "",
        "added     more  1 B", "```",
    ]  # fmt: skip
    argv = (repository.clone / "posted.txt").read_text().splitlines()
    assert argv[1:] == ["pr", "comment", "7", "--body-file", "comment.md"] or (
        argv[0].endswith("curl") and argv[-3:] == [
            "--data-urlencode", "body@comment.md", "https://x/api/v4/projects/5/merge_requests/7/notes"
        ]
    )  # fmt: skip

    base = repository.commit(None)  # the branch adds the file
    repository.commit(second)
    assert repository.job(script(), base, depth).returncode == 0
    added = [f"**{{}}**\n\n```\n{line}\n```\n" for line in second.splitlines()]
    assert (repository.clone / "posted.md").read_text() == "".join(added).format("added", "added")

    base = repository.git(repository.origin, "rev-parse", "HEAD")  # the branch deletes it
    repository.commit(None)
    assert repository.job(script(), base, depth).returncode == 0
    assert (repository.clone / "posted.md").read_text() == "".join(added).format("removed", "removed")

    for known, fetched, lock in (
        ("0" * 40, 1, second), (base, depth, f"pets@{'a' * 64}\n"), (base, depth, "pets@main\n")
    ):  # fmt: skip
        repository.commit(lock)
        failed = repository.job(script(), known, fetched)
        assert failed.returncode != 0 and failed.stderr, failed
        assert not (repository.clone / "posted.txt").exists()


def test_only_a_change_of_the_lock_file_starts_the_jobs() -> None:
    on = yaml.safe_load(FILES[".github/workflows/data.yml"])[True]  # YAML takes `on` for a truth
    assert on == {"pull_request": {"paths": ["data.lock"]}}
    [rule] = yaml.safe_load(FILES[".gitlab-ci.yml"])["data"]["rules"]
    assert rule["changes"] == ["data.lock"] and "merge_request_event" in rule["if"]
