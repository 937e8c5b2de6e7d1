"""dsv cache --link: a symlink that leads to the cached commit, replaced in one step."""

from __future__ import annotations

import threading
from pathlib import Path

from tests.kit.dsv import Dsv
from tests.privileges import modes_count


def test_a_link_is_made_and_replaced(pets: Dsv, tmp_path: Path) -> None:
    away = pets.at(tmp_path)
    link = tmp_path / "data"
    for tag, content in (("v1", "alpha\n"), ("v2", "beta\n")):
        path = away.ok("cache", f"pets@{tag}", "--link", "data").out.strip()
        assert link.readlink() == Path(path)
        assert (link / "a.txt").read_text() == content
    assert [found.name for found in tmp_path.iterdir() if found.name.startswith(".")] == []


def test_what_is_no_symlink_stays(pets: Dsv, tmp_path: Path) -> None:
    away = pets.at(tmp_path)
    (tmp_path / "data").mkdir()
    result = away("cache", "pets@v1", "--link", "data")
    assert result.code == 4
    assert "not a symlink" in result.err
    assert (tmp_path / "data").is_dir()
    assert not (pets.cwd.parent / "cache").exists()  # found wrong before anything was fetched
    assert away("cache", "pets@v1", "--link", "no/data").code == 3
    assert away("cache", "pets@v1", "pets@v2", "--link", "data").code == 2


def test_a_command_in_a_hint_quotes_a_path_with_a_space(pets: Dsv, tmp_path: Path) -> None:
    away = pets.at(tmp_path)
    assert "mkdir -p 'no folder'\n" in away("cache", "pets@v1", "--link", "no folder/data").err
    (tmp_path / "my data").mkdir()
    found = away("cache", "pets@v1", "--link", "my data").err
    assert "mv 'my data' 'my data.old', or name another\n" in found
    folder = tmp_path / "my pets"
    folder.mkdir()
    pets.at(folder).ok("init", "more")
    assert f"rm -r '{folder}/.dsv', then" in pets.at(folder)("init", "others").err


def test_a_dangling_link_is_replaced(pets: Dsv, tmp_path: Path) -> None:
    (tmp_path / "data").symlink_to("nowhere")
    pets.at(tmp_path).ok("cache", "pets@v1", "--link", "data")
    assert (tmp_path / "data/a.txt").read_text() == "alpha\n"


def test_a_folder_without_rights(pets: Dsv, tmp_path: Path) -> None:
    (tmp_path / "locked").mkdir(mode=0o555)
    with modes_count():
        result = pets.at(tmp_path)("cache", "pets@v1", "--link", "locked/data")
    assert result.code == 8, result


def test_a_reader_never_finds_it_missing(pets: Dsv, tmp_path: Path) -> None:
    away = pets.at(tmp_path)
    away.ok("cache", "pets@v1", "--link", "data")
    missing: list[OSError] = []
    over = threading.Event()

    def read() -> None:
        while not over.is_set():
            try:
                (tmp_path / "data/a.txt").read_text()
            except OSError as error:
                missing.append(error)

    reader = threading.Thread(target=read)
    reader.start()
    try:
        for number in range(20):
            away.ok("cache", f"pets@v{number % 2 + 1}", "--link", "data")
    finally:
        over.set()
        reader.join()
    assert missing == []
