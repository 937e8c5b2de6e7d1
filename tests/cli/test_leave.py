"""docs/guide/leave.md: its script makes a git history of a dataset's."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.kit.dsv import Dsv

PAGE = Path(__file__).parents[2] / "docs/guide/leave.md"
needs_jq = pytest.mark.skipif(shutil.which("jq") is None, reason="jq is missing (Debian's jq)")


@needs_jq
def test_the_loop_of_the_page_makes_a_folder_of_each_commit_of_each_branch(pets: Dsv, tmp_path: Path) -> None:
    (pets.cwd / "a.txt").write_text("on a branch")
    pets.ok("sync", "--new-branch", "team/other", "-m", "other")
    block = re.search(r"^```bash\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    assert block is not None
    environment = {
        **pets.environ,
        "HOME": str(pets.home),
        "PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin",
    }
    subprocess.run(["bash", "-c", block[1]], cwd=tmp_path, env=environment, check=True, capture_output=True)

    main, other = pets.ok("log", "pets", "--json").json, pets.ok("log", "pets@team/other", "--json").json
    commits = {item["commit"] for item in [*main["items"], *other["items"]]}
    assert {folder.name for folder in (tmp_path / "commits").iterdir()} == commits
    head = tmp_path / "commits" / other["items"][0]["commit"]
    assert len(commits) == len(main["items"]) + 1 and (head / "a.txt").read_text() == "on a branch"


@needs_jq
def test_the_script_of_the_page_makes_a_commit_of_each_commit(pets: Dsv, tmp_path: Path) -> None:
    (pets.cwd / "a.txt").unlink()
    (pets.cwd / "link").symlink_to("b.txt")
    pets.ok("sync", "-m", "one line\n\nand another", "--author", "Ann Lee <ann@example.org>")
    block = re.search(r"^```sh\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    assert block is not None
    bin_folder = Path(sys.executable).parent
    user = {"GIT_COMMITTER_NAME": "A", "GIT_COMMITTER_EMAIL": "a@b", "GIT_CONFIG_GLOBAL": "/dev/null"}
    environment = {**pets.environ, **user, "HOME": str(pets.home), "PATH": f"{bin_folder}:/usr/bin:/bin"}
    subprocess.run(["bash", "-c", block[1]], cwd=tmp_path, env=environment, check=True, capture_output=True)

    def git(*arguments: str) -> str:
        done = subprocess.run(
            ["git", "-C", str(tmp_path / "pets-git"), *arguments], check=True, capture_output=True, text=True
        )
        return done.stdout

    ours = pets.ok("log", "pets", "--json").json["items"]
    assert len(git("log", "--format=%H").split()) == len(ours)
    assert git("log", "-1", "--format=%an %ae %B").strip() == (
        "Ann Lee ann@example.org one line\n\nand another"
    )
    assert git("log", "-1", "--date=format:%Y", "--format=%ad").strip() == ours[0]["time"][:4]
    assert sorted(git("ls-files").splitlines()) == pets.ok("ls", "pets").lines
