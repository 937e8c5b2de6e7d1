"""The limits of local copies of metadata: their settings, what doctor says of them, and evict."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from dsv.repo.objects.trim import find_copies
from dsv.values.units import format_bytes
from tests.cli.test_doctor import findings
from tests.kit.dsv import Dsv
from tests.privileges import modes_count


def folders(pets: Dsv) -> tuple[Path, Path]:
    return pets.home / ".cache/dsv/.dsv/stores", pets.cwd.parent / "cache/.dsv/stores"


def configure(pets: Dsv, text: str) -> None:
    path = pets.home / ".config/dsv/config.toml"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_doctor_names_the_size_of_the_copies_and_their_limits(pets: Dsv) -> None:
    pets.ok("cache", "pets@v1")
    text = findings(pets)["metadata"]["text"]
    for folder in folders(pets):
        sizes = [size for _, size, _ in find_copies(folder)]
        assert len(sizes) > 3
        assert f"{format_bytes(sum(sizes))} in {len(sizes)} files in {folder}" in text
    assert "at most 512 MB and 50,000 files each (metadata.max_size, metadata.max_files)" in text
    configure(pets, '[metadata]\nmax_size = "2G"\nmax_files = 1000')
    assert "at most 2.00 GB and 1,000 files each" in findings(pets)["metadata"]["text"]
    own = findings(pets, "--cache", str(pets.home / ".cache/dsv"))["metadata"]["text"]
    assert own.count(" in ") == 2 and str(folders(pets)[0]) in own  # the cache's are this user's own
    folders(pets)[0].chmod(0)
    with modes_count():
        unreadable = findings(pets, code=1)["metadata"]
    folders(pets)[0].chmod(0o755)
    assert unreadable["state"] == "fail" and str(folders(pets)[0]) in unreadable["text"]


def test_evict_trims_the_copies_of_the_cache_and_of_the_user(pets: Dsv) -> None:
    pets.ok("cache", "pets@v1")
    before = [len(find_copies(folder)) for folder in folders(pets)]
    assert min(before) > 3
    configure(pets, '[metadata]\nmax_files = "3"')
    pets.ok("evict", "--dry-run")
    for folder in folders(pets):
        (folder / ".trimmed").write_bytes(b"")
    pets.ok("evict")  # others have just trimmed: cron evicts on each node
    assert [len(find_copies(folder)) for folder in folders(pets)] == before
    for folder in folders(pets):
        os.utime(folder / ".trimmed", (0, time.time() - 3601))
    done = pets.ok("evict")
    assert (done.out, done.err) == ("", "")
    assert [len(find_copies(folder)) for folder in folders(pets)] == [2, 2]
    pets.ok("config", "metadata.max_files", "1000")
    assert pets.ok("cache", "pets@v1").lines and len(pets.ok("log").lines) > 0
    pets.ok("verify", "--full")


@pytest.mark.parametrize(
    "line", ['max_size = "much"', 'max_size = "-5M"', "max_size = 5", 'max_files = "5.5"', "max_files = -1"]
)
def test_limits_that_are_none_are_refused(pets: Dsv, line: str) -> None:
    pets.ok("cache", "pets@v1")
    configure(pets, f"[metadata]\n{line}")
    key, _, value = line.partition(" = ")
    for command in (["log"], ["evict", "--all"], ["put", __file__, "pets"]):
        refused = pets(*command)
        assert refused.code == 2, refused
        assert f"metadata.{key} from {pets.home}/.config/dsv/config.toml can't be" in refused.err
        assert f"dsv config metadata.{key} " in refused.err
    assert len(pets.ok("cached", "--json").json["items"]) == 1  # nothing was evicted
    assert findings(pets, code=1)["metadata"]["state"] == "fail"
    written = pets("config", f"metadata.{key}", "--", value.strip('"'))
    assert written.code == 2 and f"metadata.{key}" in written.err
    pets.ok("config", f"metadata.{key}", "2000000")
    pets.ok("log")


def test_a_limit_of_another_type_or_name_is_refused_or_told(pets: Dsv) -> None:
    for line in ("max_files = true", "max_files = [1]", "max_size = 1.5"):
        configure(pets, f"[metadata]\n{line}")
        assert pets("log").code == 2
    configure(pets, "[metadata]\nmax_age = 3")
    assert "metadata.max_age" in pets.ok("config").err
