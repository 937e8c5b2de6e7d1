"""Runs in real containers: what the job finds at /data, /code and /out, and repeating it."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from dsv.errors import LaunchError
from dsv.run import series
from dsv.run.record import RunState
from dsv.values.names import Target
from tests.kit.clusters import CURVES
from tests.labs.docker_engine import ContainerEngine
from tests.run.shop import SCANS, Shop
from tests.waiting import until


@pytest.fixture(params=[pytest.param(name, marks=pytest.mark.real) for name in ("docker", "podman")])
def lab(request: pytest.FixtureRequest) -> ContainerEngine:
    engine = request.getfixturevalue("docker_engine" if request.param == "docker" else "podman")
    assert isinstance(engine, ContainerEngine)
    return engine


@pytest.fixture
def shop(tmp_path: Path, lab: ContainerEngine) -> Iterator[Shop]:
    yield Shop(tmp_path, {**os.environ, **lab.env})


def name_of(lab: ContainerEngine) -> str:
    return Path(lab.program).name


def test_what_a_job_finds(shop: Shop, lab: ContainerEngine) -> None:
    code = shop.home / "code"
    code.mkdir()
    (code / "train.sh").write_text(
        "pwd; echo $DSV_DATA $DSV_OUT; cat $DSV_DATA/link; cat $DSV_OUT/params.json; touch /data/x /code/x\n"
        "echo '{\"acc\": 1}' > /out/metrics.json; exit 3\n"
    )
    result = shop.run("sh", "train.sh", image=lab.busybox, engine=name_of(lab), code=code, params={"lr": 0.1})
    assert result.exit_code == 3
    assert shop.stdout == '/code\n/data /out\ncat{"lr": 0.1}\n'
    assert shop.stderr.count("ead-only file system") == 2
    record = shop.runs.read(shop.runs.listing(SCANS)[0])
    assert record == result.record
    assert (record.metrics, record.image, record.engine) == ({"acc": 1}, lab.busybox, name_of(lab))
    assert record.image_id is not None and record.image_id.startswith("sha256:")
    assert record.argv[:2] == (name_of(lab), "run") and record.argv[-2:] == ("sh", "train.sh")
    assert (result.out / "metrics.json").stat().st_uid == os.geteuid()


def test_further_data_lies_inside_the_first(shop: Shop, lab: ContainerEngine) -> None:
    shop.data.add("masks", {"a.png": "mask"})
    shop.data.add("team/labels", {"deep/b.txt": "label"})
    data = {"masks": Target.parse("masks"), "labels.v2": Target.parse("team/labels")}
    script = (
        "cd /data; find . -type f -o -type l | sort; cat link masks/a.png $DSV_DATA_LABELS_V2/deep/b.txt; echo; "
        "touch x train/x masks/x; echo $DSV_DATA_MASKS"
    )
    result = shop.run("sh", "-c", script, image=lab.busybox, engine=name_of(lab), data=data)
    assert result.exit_code == 0
    assert shop.stdout.splitlines() == [
        "./labels.v2/deep/b.txt", "./link", "./masks/a.png", "./readme", "./train/a.txt", "./train/b.txt",
        "catmasklabel", "/data/masks",
    ]  # fmt: skip
    assert shop.stderr.count("ead-only file system") == 3
    assert [each.name for each in result.record.data] == ["", "masks", "labels.v2"]
    assert sorted(each.name for each in (shop.data.folder / "team%2Fscans").iterdir()) == [
        "link",
        "readme",
        "train",
    ]
    assert sorted(each.name for each in result.out.parent.iterdir()) == ["out"]


def test_further_data_that_cannot_be_mounted(shop: Shop, lab: ContainerEngine) -> None:
    image, engine = lab.busybox, name_of(lab)
    with pytest.raises(LaunchError, match="train of its own"):
        shop.run("true", image=image, engine=engine, data={"train": shop.request().target})
    shop.data.add("wide", {f"{number}.png": "x" for number in range(300)})
    with pytest.raises(LaunchError, match="300 entries"):
        shop.run("true", image=image, engine=engine, target="wide", data={"x": shop.request().target})
    assert shop.data.leases == []


def test_environment_values_are_in_no_argv_and_no_record(shop: Shop, lab: ContainerEngine) -> None:
    env = {"TOKEN": "hunter2-hunter2", "PATH": "/bin:/hunter2-hunter2"}
    arguments = ("--env=OTHER=hunter3-hunter3", "--label", "a=b")
    result = shop.run(
        "sh",
        "-c",
        "echo $TOKEN $PATH $OTHER",
        image=lab.busybox,
        engine=name_of(lab),
        env=env,
        engine_args=arguments,
    )
    assert shop.stdout == "hunter2-hunter2 /bin:/hunter2-hunter2 hunter3-hunter3\n"
    assert result.record.env == ("PATH", "TOKEN")
    assert b"hunter2" not in shop.everything()
    assert result.record.engine_args == ("--env=OTHER=***", "--label", "a=b")


def test_an_image_that_cannot_be_had(shop: Shop, lab: ContainerEngine) -> None:
    result = shop.run("true", image="127.0.0.1:1/no/image:1", engine=name_of(lab))
    assert (result.exit_code, result.record.state) == (125, RunState.NOT_LAUNCHED)
    assert result.error is not None and "could not start" in result.error.message
    assert shop.runs.read(shop.runs.listing(SCANS)[0]).exit_code == 125


def test_dry_run_is_what_is_run(shop: Shop, lab: ContainerEngine) -> None:
    words = ("sh", "-c", "exit 0")
    plan = shop.dry_run(*words, image=lab.busybox, engine=name_of(lab), name="dsv-test-dry", gpus=None)
    record = shop.run(*words, image=lab.busybox, engine=name_of(lab), name="dsv-test-dry").record
    run = plan.argv[plan.argv.index("--label") + 1].removeprefix("dsv.run=")
    assert tuple(word.replace(run, record.run) for word in plan.argv) == record.argv


def test_a_run_is_repeated_on_the_same_image(shop: Shop, lab: ContainerEngine) -> None:
    first = shop.run(
        "echo", "hi", image=lab.busybox, engine=name_of(lab), params={"a": 1}, shm_bytes=1 << 20
    ).record
    repeated = shop.again(first)
    assert repeated.cannot == ()
    second = shop.launch(repeated.spec).record
    assert (second.image_id, second.command, second.params, second.shm_bytes, second.commit) == (
        first.image_id, first.command, first.params, first.shm_bytes, first.commit,
    )  # fmt: skip
    assert second.again_of == first.run
    assert second.target == f"team/scans@{first.commit.hex()}"


def test_an_image_that_has_changed_its_name_is_found_by_its_id(shop: Shop, lab: ContainerEngine) -> None:
    first = shop.run("true", image=lab.busybox, engine=name_of(lab)).record
    renamed = shop.again(replace(first, image="dsv-labs/was-called:otherwise"))
    assert renamed.cannot == () and renamed.spec.image == first.image_id
    assert shop.launch(renamed.spec).exit_code == 0
    gone = shop.again(replace(first, image_id="sha256:" + "0" * 64))
    assert gone.spec.image == lab.busybox
    assert len(gone.cannot) == 1 and "another image" in gone.cannot[0]
    pulled = shop.again(
        replace(first, image="x/y:1", image_id="sha256:" + "0" * 64, image_digest="x/y@sha256:1")
    )
    assert pulled.spec.image == "x/y@sha256:1"


def test_curves_of_a_container_are_seen_while_it_runs_and_kept(
    shop: Shop, lab: ContainerEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(series, "PAUSE", 0.02)
    seen = list[int]()

    def look() -> None:
        until(lambda: shop.runs.listing(SCANS))
        run = shop.runs.listing(SCANS)[0].run
        until(lambda: series.series_of(shop.store, SCANS, run))
        seen.append(series.series_of(shop.store, SCANS, run)["loss"].of)
        until(lambda: (out := next(shop.home.rglob("begun"), None)) and (out.parent / "go").touch() is None)

    looking = threading.Thread(target=look)
    looking.start()
    result = shop.run("sh", "-c", CURVES, image=lab.busybox, engine=name_of(lab))
    looking.join()
    assert (result.exit_code, seen, result.record.metrics) == (0, [2], {"loss": 0.125})
    curve = series.series_of(shop.store, SCANS, result.record.run)["loss"]
    assert (curve.of, curve.points) == (3, [(10, 0.5), (20, 0.25), (30, 0.125)])
    assert series.pieces_of(shop.store, SCANS, result.record.run) == []
