"""Which source decides, what names mean, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsv.api.environment import lasting, read_config, with_value
from dsv.api.settings import (
    ENVIRONMENT_KEYS,
    PLAIN_KEYS,
    Settings,
    SettingsSource,
    check_key,
    read_environment,
    read_workspace,
)
from dsv.errors import NotFound, UsageError
from dsv.values.toml import read_toml

HOME, CWD = Path("/home/ann"), Path("/work/xrays")
USER = "/home/ann/.config/dsv/config.toml"


def settings(*sources: SettingsSource) -> Settings:
    return Settings(sources, CWD, HOME, HOME / "state")


def test_the_first_source_decides_and_is_named_as_the_origin() -> None:
    order = ["--store", "/w/.dsv/config.toml", "DSV_STORE", USER, "/etc/dsv/config.toml", "built in"]
    sources = [SettingsSource(origin, {"store": f"/from/{i}"}) for i, origin in enumerate(order)]
    while sources:
        chosen = settings(*sources).store()
        assert (chosen.url, chosen.origin) == (f"/from/{6 - len(sources)}", order[6 - len(sources)])
        sources.pop(0)
    with pytest.raises(UsageError, match="no store is named"):
        settings().store()


def test_a_named_store_brings_what_its_table_says() -> None:
    text = """
    store = "lake"
    [stores.lake]
    url = "s3://lake/dsv"
    endpoint = "https://s3.example.org"
    profile = "lake-ro"
    ca_bundle = "/etc/ssl/lake.pem"
    [stores.other]
    url = "~/other"
    """
    made = settings(read_config(text.encode(), USER))
    lake = made.store()
    assert (lake.name, lake.url, lake.endpoint) == ("lake", "s3://lake/dsv", "https://s3.example.org")
    assert (lake.profile, lake.ca_bundle, lake.region) == ("lake-ro", "/etc/ssl/lake.pem", None)
    assert made.store("other").url == "/home/ann/other"
    assert made.names("stores") == ["lake", "other"]
    assert made.mirrors() == []


@pytest.mark.parametrize("written", ['["s3://copy/dsv", "~/copy", "other"]', '"s3://copy/dsv, ~/copy,other"'])
def test_mirrors_are_a_list_or_have_commas_between_them(written: str) -> None:
    text = f"""
    store = "lake"
    stores.lake = {{url = "s3://lake/dsv", mirrors = {written}}}
    stores.other = {{url = "s3://other", profile = "mirror"}}
    """
    made = settings(read_config(text.encode(), USER))
    found = [(one.url, one.profile) for one in made.mirrors()]
    assert found == [("s3://copy/dsv", None), ("/home/ann/copy", None), ("s3://other", "mirror")]
    assert settings(SettingsSource("DSV_STORE", {"store": "/elsewhere"}), *made.sources).mirrors() == []
    with pytest.raises(UsageError, match="relative folder"):
        settings(read_config(b'store = "x"\n[stores.x]\nurl = "/x"\nmirrors = "./copy"', USER)).mirrors()


def test_one_field_of_a_named_store_may_come_from_another_file() -> None:
    user = read_config(b'[stores.lake]\nprofile = "mine"', USER)
    machine = read_config(b'[stores.lake]\nurl = "s3://lake/dsv"\nprofile = "all"', "/etc/dsv/config.toml")
    lake = settings(user, machine).store("lake")
    assert (lake.url, lake.profile) == ("s3://lake/dsv", "mine")


def test_an_unknown_name_is_not_found_with_the_closest_as_a_hint() -> None:
    made = settings(read_config(b'[stores.lake]\nurl = "s3://b"\n[caches.gpu]\npath = "/nfs"', USER))
    with pytest.raises(NotFound) as caught:
        made.store("lak")
    assert caught.value.hint == "--store lake"
    with pytest.raises(NotFound) as caught:
        made.cache("zzz")
    assert "dsv config caches.zzz.path DIR" in str(caught.value.hint)


@pytest.mark.parametrize(
    ("text", "url"),
    [
        ("s3://bucket/prefix", "s3://bucket/prefix"),
        ("memory://x", "memory://x"),
        ("/abs/./store", "/abs/store"),
        ("./here", "/work/xrays/here"),
        ("../beside", "/work/beside"),
        (".", "/work/xrays"),
        ("~", "/home/ann"),
        ("~/lake", "/home/ann/lake"),
    ],
)
def test_urls_stay_and_folders_become_absolute(text: str, url: str) -> None:
    assert settings().store(text).url == url


def test_a_relative_folder_in_a_file_is_refused() -> None:
    made = settings(read_config(b'store = "./lake"', USER))
    with pytest.raises(UsageError, match="relative folder"):
        made.store()


def test_a_cache_is_a_folder() -> None:
    made = settings(read_config(b'cache = "gpu"\n[caches.gpu]\npath = "/nfs/gpu"', USER))
    assert (made.cache().path, made.cache().name, made.cache().origin) == (Path("/nfs/gpu"), "gpu", USER)
    assert made.cache("./c").path == CWD / "c"
    with pytest.raises(UsageError, match="a cache is a folder"):
        made.cache("s3://bucket")


def test_an_empty_value_is_a_usage_error() -> None:
    """Such as `--store "$UNSET"`: never the working directory."""
    with pytest.raises(UsageError, match="store from --store is empty"):
        settings().store("")
    with pytest.raises(UsageError, match="cache from --cache is empty"):
        settings().cache("")


def test_only_our_variables_count_and_empty_ones_do_not() -> None:
    sources = read_environment({"DSV_STORE": "s3://b", "DSV_CACHE": "", "STORE": "no"})
    assert [(s.origin, dict(s.values)) for s in sources] == [("DSV_STORE", {"store": "s3://b"})]
    other = set(PLAIN_KEYS) - set(ENVIRONMENT_KEYS.values())
    lineage = {"lineage.openlineage"}
    assert other == {"pool", "prefer", "runs.keep_local", "metadata.max_size", "metadata.max_files"} | lineage


def test_a_workspace_decides_store_dataset_and_branch_and_nothing_else() -> None:
    source = read_workspace({"store": "s3://b", "dataset": "x", "branch": "main", "author": "evil"}, "w")
    assert set(source.values) == {"store", "dataset", "branch"}


def test_keys_of_a_file_that_mean_nothing_are_kept_apart() -> None:
    source = read_config(b'stroe = "x"\n[stores.lake]\nurl = "s3://b"\nurll = "x"\n[tables]\na = 1', USER)
    assert source.unknown == ("stroe", "stores.lake.urll", "tables.a")
    assert list(settings(source).unknown()) == [(USER, key) for key in source.unknown]


@pytest.mark.parametrize(
    "text",
    [
        "store = 3",
        "store = ",
        "store = 1e400",
        "store = 1979-05-27",
        "[store]\nurl = 'x'",
        "stores = 3",
        "[[stores]]\nurl = 'x'",
        "[stores]\nlake = 's3://b'",
        "[stores.lake]\nurl = ['a']",
        "[stores.lake.url]\nx = 'y'",
        "caches.gpu = '/nfs'",
        "\x00",
        'store = "/tmp\\u0000"',
        "a = " + "[" * 20_000 + "]" * 20_000,
        "a = " + "{a=" * 5_000 + "1" + "}" * 5_000,
        ".".join(["a"] * 20_000) + " = 1",
        "[" + ".".join(["a"] * 900) + "]\nx = 1",
        "a = " + "9" * 5_000,
        "a = 0x" + "f" * 5_000,
        "a = 9223372036854775808",
        "#" + " " * (1 << 20),
    ],
)
def test_a_broken_file_is_a_usage_error_that_names_it(text: str) -> None:
    with pytest.raises(UsageError, match=r"config\.toml"):
        read_config(text.encode(), USER)


def test_a_file_that_is_not_utf_8_is_a_usage_error_that_names_it() -> None:
    with pytest.raises(UsageError, match=r"config\.toml.*UTF-8"):
        read_config(b'store = "/tmp/\xff"', USER)


@pytest.mark.parametrize(
    ("key", "value", "kept"),
    [
        ("store", "./lake", "/work/xrays/lake"),
        ("store", "../lake", "/work/lake"),
        ("store", "lake", "lake"),
        ("store", "~/lake", "~/lake"),
        ("store", "/lake", "/lake"),
        ("store", "s3://b/p", "s3://b/p"),
        ("stores.lake.url", "lake", "/work/xrays/lake"),
        ("stores.lake.ca_bundle", "ca.pem", "/work/xrays/ca.pem"),
        ("stores.lake.region", "eu", "eu"),
        ("caches.gpu.path", "gpu/dsv", "/work/xrays/gpu/dsv"),
        ("author", "./Ann", "./Ann"),
    ],
)
def test_a_relative_folder_is_kept_as_an_absolute_one(key: str, value: str, kept: str) -> None:
    assert lasting(key, value, CWD) == kept


@pytest.mark.parametrize(
    ("key", "value"), [("store", ""), ("author", " "), ("cache", "s3://b"), ("caches.gpu.path", "s3://b")]
)
def test_a_value_that_no_command_could_use_is_refused(key: str, value: str) -> None:
    with pytest.raises(UsageError):
        lasting(key, value, CWD)


def test_the_hint_of_a_relative_cache_names_its_own_key() -> None:
    made = settings(read_config(b'cache = "gpu"\n[caches.gpu]\npath = "gpu/dsv"', USER))
    with pytest.raises(UsageError) as caught:
        made.cache()
    assert caught.value.hint == "give the whole path: dsv config caches.gpu.path /…/gpu/dsv"


@pytest.mark.parametrize(
    ("key", "hint"), [("stroe", "store"), ("stores.lake.ur", "stores.NAME.url"), ("x.y.z", None)]
)
def test_a_key_that_is_none_is_refused_with_the_closest(key: str, hint: str | None) -> None:
    with pytest.raises(UsageError) as caught:
        check_key(key)
    assert hint is None or caught.value.hint == f"dsv config {hint}"


def test_a_key_within_a_value_of_an_engine_is_refused_with_the_key_of_that_value() -> None:
    with pytest.raises(UsageError, match=r"lies within pools\.a\.kubernetes\.overlay") as caught:
        check_key("pools.a.kubernetes.overlay.spec.suspend")
    assert (caught.value.hint or "").startswith("dsv config pools.a.kubernetes.overlay '")


def test_setting_a_value_keeps_the_others_and_unsetting_takes_empty_tables_along() -> None:
    before = b'author = "a"\nmine.x = 1\n[stores.lake]\nurl = "s3://b"\n'
    after = read_toml(with_value(before, "stores.lake.profile", "p", USER).encode())
    assert after == {"author": "a", "mine": {"x": 1}, "stores": {"lake": {"url": "s3://b", "profile": "p"}}}
    gone = read_toml(with_value(before, "stores.lake.url", None, USER).encode())
    assert gone == {"author": "a", "mine": {"x": 1}}
    with pytest.raises(NotFound, match="store is not set in"):
        with_value(before, "store", None, USER)


FILES = {
    "tables": '# mine\nauthor = "Ann" # me\n\n# the lake\n[stores.lake]\nurl = "s3://lake"\n\n[x]\ny = 1 # odd\n',
    "keys with dots": 'stores.lake.url = "s3://lake"\n# the end\n',
    "tables within a line": 'stores = { lake = { url = "s3://lake" } } # mine\n',
    "tables apart": '[stores.lake] # mine\nurl="s3://a"\n[caches.b] # b\npath="/x"\n[stores.c] # c\nurl = "s3://c"\n',
    "a list over lines": "# mine\n[pools.a.docker]\nx = [ 1, # one\n  2 ]\n",
    "the lines of Windows": '# mine\r\nauthor = "Ann" # me\r\n',
    "nothing else": "# mine\n",
}


@pytest.mark.parametrize("text", FILES.values(), ids=FILES)
@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("store", "lake"),
        ("author", "Bo"),
        ("stores.lake.url", "s3://new"),
        ("stores.lake.names", "/names"),
        ("stores.other.url", "s3://other"),
        ("caches.b.path", "/y"),
        ("pools.a.engine", "docker"),
        ("pools.a.kubernetes.labels", '{"a": [1, 2], "b": {"c": "d"}}'),
    ],
)
def test_what_is_written_into_a_file_leaves_its_comments(text: str, key: str, value: str) -> None:
    after = with_value(text.encode(), key, value, USER)
    found = read_config(after.encode(), USER).values
    assert found == {**read_config(text.encode(), USER).values, key: value}
    assert [line.partition("#")[2] for line in after.splitlines() if "#" in line] == [
        line.partition("#")[2] for line in text.splitlines() if "#" in line
    ]


def test_what_is_taken_out_of_a_file_takes_its_own_comments_along() -> None:
    text = FILES["tables"]
    for key, lost in (
        ("author", 'author = "Ann" # me\n'),
        ("stores.lake.url", '[stores.lake]\nurl = "s3://lake"\n\n'),
    ):
        assert with_value(text.encode(), key, None, USER) == text.replace(lost, "")


names = st.text("abcdefghijklmnopqrstuvwxyz0123456789-_", min_size=1, max_size=8)


@given(names, st.text(st.characters(exclude_characters="\0", codec="utf-8"), min_size=1, max_size=20))
def test_what_is_set_is_read_back(name: str, value: str) -> None:
    kept = with_value(b"# mine\n", f"stores.{name}.url", value, USER)
    assert kept.startswith("# mine\n")
    assert read_config(kept.encode(), USER).values == {f"stores.{name}.url": value}
