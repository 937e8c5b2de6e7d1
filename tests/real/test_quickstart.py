"""docs/guide/quickstart.md, typed as it stands: by one person, with an S3 server, and by two people with a folder."""

from __future__ import annotations

import grp
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.kit.dsv import plain_environment, write_files
from tests.labs.s3_server import S3Server

PAGE = (Path(__file__).parents[2] / "docs/guide/quickstart.md").read_text()
PETS = {"cat/1.png": b"one", "cat/2.png": b"two", "dog/1.png": b"three"}


def section(title: str) -> str:
    return next(part for part in PAGE.split("\n## ") if part.startswith(title))


def blocks(text: str) -> list[tuple[str, str]]:
    """Return the blocks to type, each with the paragraph that stands above it."""
    found = re.findall(r"((?:^(?! ).+\n)+)\n((?:^    .*\n)+)", text, re.MULTILINE)
    return [(above, re.sub("^    ", "", block, flags=re.MULTILINE)) for above, block in found]


class Person:
    """Somebody with a home folder, who types into one shell after the other."""

    def __init__(self, home: Path, **environ: str) -> None:
        self.home = home
        home.mkdir()
        programs = home.parent / "programs"
        programs.mkdir(exist_ok=True)
        if not (programs / "dsv").exists():
            (programs / "dsv").symlink_to(Path(sys.executable).with_name("dsv"))
        self.environ = {**plain_environment(home), **environ}
        self.environ["PATH"] = f"{programs}:{os.environ['PATH']}"
        self.cwd = home

    def types(self, block: str) -> str:
        script = f"set -e\n{block}\npwd > {self.home}/.cwd"
        done = subprocess.run(
            ["bash", "-c", script],
            cwd=self.cwd,
            env=self.environ,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, (block, done.stdout, done.stderr)
        self.cwd = Path((self.home / ".cwd").read_text().strip())
        return done.stdout + done.stderr


def test_alone_with_a_folder(tmp_path: Path) -> None:
    ann = Person(tmp_path / "ann")
    write_files(ann.home / "pets", PETS)
    typed = [ann.types(block) for _, block in blocks(section("Alone"))]
    first, change, back, use, run, free, check, copy = typed
    assert (ann.home / ".local/share/dsv/store/README.txt").exists()
    assert "3 paths added" in first and "pets@v1.0 is " in first
    assert "added     notes.txt" in change and "(v1.0)" in change
    assert not (ann.home / "pets/notes.txt").exists(), back
    assert "cat\ndog\n" in use and "evicted " in use
    assert '{"epochs": 3}' in run
    assert re.search(r"^RUN .* epochs\n.* 3$", run, re.MULTILINE), run
    assert "expired " in free and "restored " in free, free
    assert "no damage" in check, check
    assert "sent 3 commits" in copy, copy


def test_with_s3(moto_s3: S3Server, tmp_path: Path) -> None:
    bucket = moto_s3.bucket()
    here, elsewhere = [Person(tmp_path / name, **moto_s3.env) for name in ("here", "elsewhere")]
    write_files(here.home / "pets", PETS)
    (_, publish), (above, copy) = blocks(section("With S3"))
    assert "another machine" in above
    here.types(publish.replace("s3://lake/", f"s3://{bucket}/"))
    assert "cat\ndog\n" in elsewhere.types(copy.replace("s3://lake/", f"s3://{bucket}/"))
    assert (elsewhere.home / "copy-of-pets/dog/1.png").read_bytes() == b"three"


def test_alone_and_then_with_s3(moto_s3: S3Server, tmp_path: Path) -> None:
    """The same folder, cache and name of the dataset, as the page says: nothing of the first store is in the way."""
    bucket = moto_s3.bucket()
    ann = Person(tmp_path / "ann", **moto_s3.env)
    write_files(ann.home / "pets", PETS)
    for _, block in blocks(section("Alone")):
        ann.types(block)
    (unbind,) = re.findall("`(rm -r [^`]+)`", section("With S3"))
    ann.cwd = ann.home
    ann.types(unbind)
    for _, block in blocks(section("With S3")):
        ann.types(block.replace("s3://lake/", f"s3://{bucket}/"))
    assert (ann.home / "copy-of-pets/dog/1.png").read_bytes() == b"three"


def test_a_team_on_nfs(tmp_path: Path) -> None:
    ann, ben = Person(tmp_path / "ann"), Person(tmp_path / "ben")
    write_files(ann.home / "pets", PETS)
    group = grp.getgrgid(os.getegid()).gr_name
    typed = blocks(
        section("A team").replace("/nfs/", f"{tmp_path}/nfs/").replace("-g research", f"-g {group}")
    )
    make, settings, first, change, pull, job = [block for _, block in typed]
    assert [above.partition(" ")[0] for above, _ in typed[2:5]] == ["Ann", "Ben", "Ann"]
    ann.types(make)
    for person in (ann, ben):
        person.types(settings)
    ann.types(first)
    ben.types(change)
    ann.types(pull)
    assert (ann.home / "pets/notes.txt").exists()
    assert "cat\ndog\nnotes.txt\n" in ben.types(job)


@pytest.mark.parametrize("title", ["Alone", "With S3", "A team"])
def test_no_command_of_the_page_is_left_out(title: str) -> None:
    indented = [line[4:] for line in section(title).splitlines() if line.startswith("    ")]
    assert [line for _, block in blocks(section(title)) for line in block.splitlines()] == indented
