"""dsv config over real files."""

from __future__ import annotations

import os

import pytest

from tests.kit.dsv import Dsv, write_files


def test_every_setting_has_its_origin(dsv: Dsv) -> None:
    dsv.ok("config", "stores.lake.url", "s3://lake/dsv")
    dsv.ok("config", "store", "lake")
    here = dsv.at(dsv.cwd, DSV_CACHE="/nfs/gpu")
    items = {item["key"]: item for item in here.ok("config", "--json").json["items"]}
    user = str(dsv.home / ".config/dsv/config.toml")
    assert items["store"] == {"key": "store", "value": "lake", "origin": user}
    assert items["cache"] == {"key": "cache", "value": "/nfs/gpu", "origin": "DSV_CACHE"}
    assert items["stores.lake.url"]["value"] == "s3://lake/dsv"
    assert items["author"]["origin"] == "built in"
    assert here("--store", "s3://other", "config", "store").out == "s3://other\n"


def test_where_the_names_of_the_store_in_effect_are(dsv: Dsv) -> None:
    """Whatever said so: the configuration of the store, or its URL; shown only if they are not in the store itself."""
    user = str(dsv.home / ".config/dsv/config.toml")
    here = dsv("config", "names")
    assert here.code == 3 and "keeps its names itself" in here.err
    dsv.ok("config", "stores.lake.url", "s3://lake/dsv")
    dsv.ok("config", "stores.lake.names", "/nfs/names")
    assert "names" not in {item["key"] for item in dsv.ok("config", "--json").json["items"]}  # another store
    for by in ("lake", "s3://lake/dsv"):
        dsv.ok("config", "store", by)
        items = {item["key"]: item for item in dsv.ok("config", "--json").json["items"]}
        assert items["names"] == {"key": "names", "value": "/nfs/names", "origin": user}
        assert dsv.ok("config", "names").out == "/nfs/names\n"
        told = dsv.ok("config")
        assert any(line.split() == ["names", "/nfs/names", user] for line in told.lines), told
    result = dsv("config", "names", "/nfs/other")
    assert result.code == 2 and "stores.NAME.names" in result.err
    dsv.ok("config", "store", "nowhere")  # no such store: the rest is shown all the same
    assert "names" not in {item["key"] for item in dsv.ok("config", "--json").json["items"]}


def test_setting_keeps_what_is_there_and_its_mode(dsv: Dsv) -> None:
    path = dsv.home / ".config/dsv/config.toml"
    path.parent.mkdir(parents=True)
    path.write_text('# the group\nauthor = "Ann"  # me\n[future]\nx = 1\n')
    path.chmod(0o600)
    result = dsv.ok("config", "store", "s3://b")
    assert result.out == f"store set in {path}\n"
    assert dsv.ok("config", "author").out == "Ann\n"
    assert path.read_text() == '# the group\nauthor = "Ann"  # me\nstore = "s3://b"\n\n[future]\nx = 1\n'
    assert path.stat().st_mode & 0o777 == 0o600
    assert list(path.parent.iterdir()) == [path]
    shown = dsv.ok("config")
    assert f"warning: {path} has future.x, which is not a setting of this version" in shown.err


def test_a_config_file_that_is_a_symlink_stays_one(dsv: Dsv) -> None:
    real = dsv.home / "dotfiles.toml"
    real.write_text("")
    link = dsv.home / "link.toml"
    link.symlink_to(real)
    dsv.at(dsv.cwd, DSV_CONFIG=str(link)).ok("config", "author", "Ann")
    assert link.is_symlink()
    assert real.read_text() == 'author = "Ann"\n'


def test_unset(dsv: Dsv) -> None:
    dsv.ok("config", "stores.lake.url", "s3://lake/dsv")
    dsv.ok("config", "--unset", "stores.lake.url")
    assert (dsv.home / ".config/dsv/config.toml").read_text() == ""
    assert dsv("config", "--unset", "stores.lake.url").code == 3
    assert dsv("config", "--unset").code == 2
    assert dsv("config", "stores.lake.url").code == 3


def test_a_value_that_something_else_overrides_is_said(dsv: Dsv) -> None:
    result = dsv.at(dsv.cwd, DSV_STORE="s3://env").ok("config", "store", "s3://mine")
    assert "warning: DSV_STORE says store = s3://env, which overrides this" in result.err


def test_the_machines_file_comes_last(dsv: Dsv) -> None:
    system = dsv.home.parent / "etc"
    system.mkdir()
    (system / "config.toml").write_text('author = "site"\ncache = "/site/cache"\n')
    dsv.ok("config", "author", "Ann")
    assert dsv.ok("config", "author").out == "Ann\n"
    assert dsv.ok("config", "cache").out == "/site/cache\n"


def test_text_that_is_no_utf_8_is_a_usage_error(dsv: Dsv) -> None:
    result = dsv("config", "author", "\udcff")
    assert (result.code, result.out) == (2, "")
    assert "is not valid UTF-8" in result.err


def test_a_broken_file_is_named(dsv: Dsv) -> None:
    path = dsv.home / "broken.toml"
    path.write_text("store = \n")
    result = dsv.at(dsv.cwd, DSV_CONFIG=str(path))("config")
    assert result.code == 2
    assert str(path) in result.err


def test_the_author_comes_from_git_where_nothing_else_says(dsv: Dsv) -> None:
    (dsv.home / "gitconfig").write_text("[user]\nname = Ann Lee\nemail = ann@example.org\n")
    here = dsv.at(dsv.cwd)
    environ = {**dsv.environ, "GIT_CONFIG_GLOBAL": str(dsv.home / "gitconfig")}
    result = Dsv(dsv.home, dsv.cwd, environ).process("config", "author")
    assert (result.out, result.err) == ("Ann Lee <ann@example.org>\n", "from git config\n")
    assert here.at(dsv.cwd, DSV_AUTHOR="Bo").ok("config", "author").out == "Bo\n"


def test_a_uid_without_a_name_or_a_home_still_is_somebody(dsv: Dsv, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "getuid", lambda: 3_999_999_999)
    monkeypatch.delenv("HOME")
    environ = {key: value for key, value in dsv.environ.items() if key != "HOME"}
    nobody = Dsv(dsv.home, dsv.cwd, environ)
    assert nobody.ok("config", "author").out.startswith("uid-3999999999@")
    assert nobody.ok("config", "cache").out == "/.cache/dsv\n"


def test_an_unreadable_file_is_denied_not_skipped(dsv: Dsv) -> None:
    path = dsv.home / "folder.toml"
    path.mkdir()
    result = dsv.at(dsv.cwd, DSV_CONFIG=str(path))("config")
    assert (result.code, result.out) == (8, "")


def test_a_workspace_is_found_from_below(dsv: Dsv) -> None:
    below = dsv.cwd / "train/cats"
    below.mkdir(parents=True)
    (dsv.cwd / ".dsv").mkdir()
    (dsv.cwd / ".dsv/config.toml").write_text('store = "s3://bound"\ndataset = "cats"\nauthor = "no"\n')
    here = dsv.at(below, DSV_STORE="s3://env")
    assert here.ok("config", "store").out == "s3://bound\n"
    keys = [item["key"] for item in here.ok("config", "--json").json["items"]]
    assert "dataset" in keys


def test_a_named_pipe_in_place_of_settings_is_refused_and_not_waited_for(dsv: Dsv) -> None:
    os.mkfifo(dsv.cwd / "pipe")
    done = dsv.at(dsv.cwd, DSV_CONFIG=str(dsv.cwd / "pipe"))("config")
    assert done.code == 2 and "is a named pipe" in done.err, done


def test_passwords_in_urls_are_not_shown(dsv: Dsv) -> None:
    write_files(
        dsv.home / ".config/dsv",
        {"config.toml": b'[stores.lake]\nendpoint = "https://ann:s3cret@proxy.example"\n'},
    )
    said = dsv.ok("config", "author", "https://ann:s3cret@people.example").err
    for done in (dsv.ok("config"), dsv.ok("config", "--json"), dsv.ok("config", "stores.lake.endpoint")):
        assert "proxy.example" in done.out and "s3cret" not in done.out + done.err + said, done
    assert "s3cret" in (dsv.home / ".config/dsv/config.toml").read_text()


def test_the_pool_that_is_this_machine_has_no_settings(dsv: Dsv) -> None:
    for key in ("pools.here.engine", "pools.here.slurm.partition"):
        refused = dsv("config", key, "docker")
        assert refused.code == 2 and "is this machine" in refused.err
    file = dsv.home / ".config/dsv/config.toml"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text('[pools.here]\nengine = "docker"\n')  # an older dsv took it
    assert "pools.here" not in dsv.ok("pools").out
    dsv.ok("config", "--unset", "pools.here.engine")
    assert "here" not in file.read_text()


@pytest.mark.parametrize(
    ("key", "value", "why"),
    [
        ("store", "https://user:hunter2XY@127.0.0.1:1", "has a secret in it"),
        ("stores.lake.url", "s3://AKIAX:hunter2XY@lake/dsv", "has a secret in it"),
        ("stores.lake.names", "s3://lake/names?token=hunter2XY", "has a secret in it"),
        ("stores.lake.mirrors", "s3://one/dsv, s3://AKIAX:hunter2XY@two/dsv", "has a secret in it"),
        ("stores.lake.url", "s3://lake/dsv#token=hunter2XY", "has a secret in it"),
        ("stores.lake.url", "//AKIAX:hunter2XY@lake/dsv", "has a secret in it"),
        ("stores.lake.url", "s3://AKIAX:hunter2XY/z@lake/dsv", "has a secret in it"),
        ("stores.lake.endpoint", "https://ann:hunter2XY@proxy.example", "has a secret in it"),
        ("stores.lake.endpoint", "https://ann:hunter2XY and, more@proxy.example", "has a secret in it"),
        ("stores.lake.ca_bundle", "https://ann:hunter2XY@proxy.example/ca.pem", "has a secret in it"),
        ("store", "https://127.0.0.1:1", "is not a store"),
        ("stores.lake.mirrors", "s3://one/dsv,ftp://two", "is not a store"),
    ],
)
def test_what_is_no_store_or_has_a_secret_is_not_set(dsv: Dsv, key: str, value: str, why: str) -> None:
    done = dsv("config", key, value)
    assert done.code == 2 and why in done.err and "hint:" in done.err, done
    assert "hunter2XY" not in done.err + done.out
    assert "hunter2XY" not in dsv("config", "--json").out
    if "secret" in why and not key.endswith(("endpoint", "ca_bundle")):
        opened = dsv("--store", value, "datasets", "--json")
        assert opened.code == 2 and "hunter2XY" not in opened.err + opened.out


def test_settings_with_a_secret_are_for_their_user_alone(dsv: Dsv) -> None:
    path = dsv.home / ".config/dsv/config.toml"
    dsv.ok("config", "store", "s3://lake/dsv")
    assert path.stat().st_mode & 0o777 == 0o600
    path.chmod(0o644)
    dsv.ok("config", "store", "s3://lake/other")
    assert path.stat().st_mode & 0o777 == 0o644
    dsv.ok("config", "author", "https://ann:s3cret@people.example")
    assert path.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    ("typed", "kept"),
    [
        ('["backup"]', "backup"),
        ('["backup", "s3://b/p"]', "backup,s3://b/p"),
        ("backup,/mnt/copy", "backup,/mnt/copy"),
        ('["/mnt/copies/of it"]', "/mnt/copies/of it"),
    ],
)
def test_mirrors_are_a_list_as_in_json_or_with_commas(dsv: Dsv, typed: str, kept: str) -> None:
    assert "written as" not in dsv.ok("config", "stores.lake.mirrors", typed).err
    assert dsv.ok("config", "stores.lake.mirrors").out == kept + "\n"


def test_a_relative_folder_is_written_as_an_absolute_one(dsv: Dsv) -> None:
    said = dsv.ok("config", "stores.lake.url", "./lake").err
    assert f"./lake is written as {dsv.cwd}/lake: a config file means the same in every folder\n" in said
    assert dsv.ok("config", "stores.lake.url").out == f"{dsv.cwd}/lake\n"


@pytest.mark.parametrize("typed", ["[1]", '["a"', "{}", "[[]]", "[]"])
def test_what_is_no_list_of_mirrors_is_refused(dsv: Dsv, typed: str) -> None:
    refused = dsv("config", "stores.lake.mirrors", typed)
    assert refused.code == 2 and "stores.lake.mirrors" in refused.err


def test_no_origin_is_cut_in_a_narrow_window(dsv: Dsv) -> None:
    dsv.ok("config", "stores.a-store-with-a-long-name.url", "s3://a-bucket/with/a/prefix")
    shown = dsv("config", terminal=True, width=80).out
    assert str(dsv.home / ".config/dsv/config.toml") in shown and "…" not in shown
