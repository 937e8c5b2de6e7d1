"""What of a run can't be repeated is said."""

from __future__ import annotations

import subprocess
from dataclasses import replace

import pytest

from dsv.errors import UsageError
from dsv.run.resources import Pool
from dsv.run.spec import on_pool, parse_data, parse_env, parse_gpus, parse_params
from dsv.values.names import Target
from tests.run.shop import Shop


def test_the_same_again(shop: Shop) -> None:
    shop.data.add("masks", {"m": "1"})
    first = shop.run(
        "cat", "x", target="team/scans@v1:train/", data={"m": Target.parse("masks@v2")}, params={"a": [1]}
    ).record
    repeated = shop.again(first)
    request = repeated.spec
    assert repeated.cannot == ()
    assert str(request.target) == f"team/scans@{first.commit.hex()}:train/"
    assert str(request.data["m"]) == f"masks@{first.data[1].commit.hex()}"
    assert (request.command, request.params, request.again_of) == (("cat", "x"), {"a": [1]}, first.run)


def test_hidden_arguments_must_be_given_anew(shop: Shop) -> None:
    first = shop.run("echo", "--token", "abc").record
    with pytest.raises(UsageError, match="secrets"):
        shop.again(first)
    assert shop.again(first, command=("echo", "x")).spec.command == ("echo", "x")
    with_args = replace(first, command=("echo",), engine_args=("--env=A=***",))
    with pytest.raises(UsageError):
        shop.again(with_args, command=("echo",))
    moved = shop.again(with_args, command=("echo",), moves=True).spec
    pool = Pool(name="a", engine="docker", run={"engine_args": ("--cpus=1",)})
    assert on_pool(moved, pool).engine_args == ("--cpus=1",)


def test_values_of_variables_are_those_of_today(shop: Shop) -> None:
    first = shop.run("true", env={"A": "1", "B": "2", "C": "3"}).record
    shop.environ["B"] = "new"
    repeated = shop.again(first, env={"A": "1"})
    assert repeated.spec.env == {"A": "1", "B": "new"}
    assert [text.split(" ")[0] for text in repeated.cannot] == ["the", "C"]


def test_another_host_is_said(shop: Shop) -> None:
    first = shop.run("true").record
    assert any("gpu-9" in text for text in shop.again(replace(first, host="gpu-9")).cannot)


def test_code_that_is_not_what_it_was_is_said(shop: Shop) -> None:
    code = shop.home / "code"
    code.mkdir()
    (code / "a").touch()
    assert "no git repository" in shop.again(shop.run("true", code=code).record).cannot[0]

    def git(*words: str) -> None:
        argv = ["git", "-C", str(code), "-c", "user.name=a", "-c", "user.email=a@b", *words]
        subprocess.run(argv, check=True, capture_output=True)

    git("init", "-q")
    git("add", ".")
    git("commit", "-qm", "one")
    clean = shop.run("true", code=code).record
    assert shop.again(clean).cannot == ()
    (code / "a").write_text("changed")
    assert "with changes" in shop.again(clean).cannot[0]
    dirty = shop.run("true", code=code).record
    assert "with changes" in shop.again(dirty).cannot[0]
    git("commit", "-qam", "two")
    assert "and is at" in shop.again(clean).cannot[0]
    assert "not here" in shop.again(replace(clean, code=replace(clean.code, path="/gone"))).cannot[0]  # type: ignore[type-var]


def test_words_of_the_command_line() -> None:
    texts = ["lr=0.1", "lr2=1e-3", "n=3", "name=resnet", "on=true", "none=null", "list=[1,2]", 'v="1.10"', "e=",
             "x=a=b", "nan=NaN", "id=007", "open=["]  # fmt: skip
    assert parse_params(texts) == {
        "lr": 0.1, "lr2": 0.001, "n": 3, "name": "resnet", "on": True, "none": None, "list": [1, 2], "v": "1.10",
        "e": "", "x": "a=b", "nan": "NaN", "id": "007", "open": "[",
    }  # fmt: skip
    env, unset = parse_env(["A=1", "B", "C", "D=a=b", "E="], {"B": "2"})
    assert env == {"env": {"A": "1", "B": "2", "D": "a=b", "E": ""}, "passed": {"B"}} and unset == ("C",)
    assert parse_data(["a=xs@v1", "b=ys:z=w"]) == {"a": Target.parse("xs@v1"), "b": Target.parse("ys:z=w")}


@pytest.mark.parametrize("text", ["x", "=1", " =1"])
def test_what_is_no_parameter(text: str) -> None:
    with pytest.raises(UsageError):
        parse_params([text])


def test_what_else_is_refused() -> None:
    for texts in (["a=1", "a=2"],):
        with pytest.raises(UsageError):
            parse_params(texts)
    for text in (r'x="\ud800"', r'x={"\udc00": 1}', "x=\udcff", "x=" + "[" * 70 + "]" * 70):
        with pytest.raises(UsageError, match="the parameter x can't be JSON"):
            parse_params([text])
    for text in ("", "=x", "A B=1", "A\0=1", "A=\0"):
        with pytest.raises(UsageError):
            parse_env([text], {})
    for text in ("xs", "=xs", "../a=xs", "a/b=xs", "-a=xs", "a=//"):
        with pytest.raises(UsageError):
            parse_data([text])
    with pytest.raises(UsageError):
        parse_data(["a=xs@v1", "a=ys@v1"])
    for text in ("0", "-1", "two", "1.5", "", "99999"):
        with pytest.raises(UsageError):
            parse_gpus(text)


def test_a_secret_parameter_is_given_anew(shop: Shop) -> None:
    first = shop.run("sh", "-c", "exit 0", params={"api_key": "swordfish-1", "lr": 0.1}).record
    with pytest.raises(UsageError, match="the parameter api_key") as refused:
        shop.again(first)
    assert refused.value.hint == f"dsv run --again {first.run} -p api_key=…"
    with pytest.raises(UsageError, match="keeps its parameter lr"):
        shop.again(first, params={"lr": 0.2})
    repeated = shop.again(first, params={"api_key": "swordfish-2"})
    assert repeated.spec.params == {"api_key": "swordfish-2", "lr": 0.1}


def test_a_run_with_shared_memory_is_repeated_where_jobs_have_all_of_the_machines(shop: Shop) -> None:
    """A container's run records how much it had, and nobody may have asked for that."""
    first = shop.run("sh", "-c", "exit 3").record
    spec = shop.again(replace(first, shm_bytes=1 << 30)).spec
    second = shop.launch(on_pool(spec, Pool(name="a", engine="process"))).record
    assert (second.exit_code, second.shm_bytes, second.again_of) == (3, None, first.run)
