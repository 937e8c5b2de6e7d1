"""`dsv.connect`: a program gets the settings of the command line."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

import dsv
from dsv.api import environment
from dsv.api.cache import cache
from dsv.api.init import init
from dsv.api.ls_cat import resolve
from dsv.api.settings import BUILT_IN
from dsv.api.sync import SyncRequest, sync
from dsv.api.tags import tag
from dsv.errors import Unreachable
from dsv.values.names import DatasetName, TagName, Target

PAGE = Path(__file__).parents[2] / "docs/guide/python.md"


@pytest.fixture
def environ(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """An empty home, on a machine without settings, with git's own out of reach."""
    monkeypatch.setattr(environment, "SYSTEM_CONFIG", tmp_path / "none.toml")
    home = tmp_path / "home"
    home.mkdir()
    return {"HOME": str(home), "PATH": "/usr/bin:/bin", "DSV_AUTHOR": "ann"}


def make_pets(environ: dict[str, str], folder: Path) -> None:
    folder.mkdir()
    context = dsv.connect(environ, folder)
    init(context, folder, DatasetName.parse("pets"))
    (folder / "labels.csv").write_text("a,b\n")
    sync(context, SyncRequest(message="first"))
    tag(context, TagName.parse("v1"), Target())


def test_settings_come_from_keywords_workspace_environment_and_files_in_this_order(
    environ: dict[str, str], tmp_path: Path
) -> None:
    config = Path(environ["HOME"]) / ".config/dsv/config.toml"
    config.parent.mkdir(parents=True)
    config.write_text('store = "/in/file"\ncache = "/in/file"\n')
    assert dsv.connect({"HOME": "/nowhere"}, tmp_path).settings.store().origin == BUILT_IN
    assert dsv.connect(environ, tmp_path).settings.store().url == "/in/file"
    named = {**environ, "DSV_STORE": "/in/environment"}
    assert dsv.connect(named, tmp_path).settings.store().url == "/in/environment"
    assert dsv.connect(named, tmp_path, store="/named", cache="c").settings.store().url == "/named"
    make_pets(named | {"DSV_STORE": str(tmp_path / "store")}, tmp_path / "work")
    assert dsv.connect(named, tmp_path / "work").settings.store().url == str(tmp_path / "store")
    assert str(dsv.connect(named, tmp_path).settings.cache().path) == "/in/file"


def test_the_author_is_the_one_of_the_keyword_then_of_the_environment(
    environ: dict[str, str], tmp_path: Path
) -> None:
    assert dsv.connect(environ, tmp_path).writer.author == "ann"
    assert dsv.connect(environ, tmp_path, author="bo").writer.author == "bo"


def test_offline_asks_no_store(environ: dict[str, str], tmp_path: Path) -> None:
    make_pets(environ, tmp_path / "work")
    away = dsv.connect(environ, tmp_path / "work", offline=True)
    Path(away.settings.store().url).rename(tmp_path / "away")
    for name in ("@main", "@v1"):
        assert resolve(away, Target.parse(name)).commit == away.workspace().base()
    with pytest.raises(Unreachable, match="is not asked"):
        resolve(away, Target.parse("@v2"))


def test_offline_neither_publishes_nor_takes_a_branch_for_just_seen(
    environ: dict[str, str], tmp_path: Path
) -> None:
    make_pets(environ, tmp_path / "work")
    target = Target.parse("pets@main")
    here, away = (dsv.connect(environ, tmp_path, offline=offline) for offline in (False, True))
    folder = here.settings.cache().path
    [item] = cache(here, folder, [target])
    [known] = folder.glob(".dsv/stores/*/tracking/pets.json")
    known.write_bytes(re.sub(rb'"time_ms":[0-9]+', b'"time_ms":1', known.read_bytes()))
    assert cache(away, folder, [target])[0].path == item.path
    assert set(re.findall(rb'"time_ms":([0-9]+)', known.read_bytes())) == {b"1"}
    (tmp_path / "work/new.csv").write_text("new")
    with pytest.raises(Unreachable, match="not asked offline"):
        sync(dsv.connect(environ, tmp_path / "work", offline=True), SyncRequest())


def test_the_examples_of_the_page_work(environ: dict[str, str], tmp_path: Path) -> None:
    make_pets(environ, tmp_path / "pets")
    code = "\n".join(re.findall(r"^```python\n(.*?)^```", PAGE.read_text("utf-8"), re.DOTALL | re.MULTILINE))
    assert "resolve(" in code and "cache(" in code and "cat(" in code and "sync(" in code
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=environ, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines.count("a,b") == 2 and "labels.csv 4" in lines
    head = dsv.connect(environ, tmp_path / "pets").workspace().base()
    assert lines[-2] == f"{head} 2"
    assert lines[-1].endswith(" [('added', 'about.json'), ('added', 'labels2.csv')]")
    edited = resolve(dsv.connect(environ, tmp_path), Target.parse("pets")).commit
    assert lines[-1].startswith(str(edited))


def test_importing_dsv_imports_no_heavy_part() -> None:
    code = "import sys, dsv; print(*sorted(name for name in sys.modules if name.startswith('dsv.')))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""
