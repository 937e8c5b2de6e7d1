"""Images on a real Slurm by a real enroot and a real apptainer, by those of them that are installed."""

from __future__ import annotations

import os
import shutil
import subprocess
import tarfile
from pathlib import Path

import pytest

from tests.labs.images import busybox_tar
from tests.run.slurm_site import Site
from tests.waiting import PATIENCE, until

PROGRAMS = tuple(name for name in ("enroot", "apptainer") if shutil.which(name))


@pytest.fixture(scope="module")
def system(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("system") / "busybox"
    with tarfile.open(busybox_tar()) as tar:
        tar.extractall(folder, filter="fully_trusted")
    subprocess.run(["mksquashfs", folder, f"{folder}.sqsh", "-quiet", "-no-progress"], check=True)
    return folder


@pytest.fixture(params=PROGRAMS)
def image(request: pytest.FixtureRequest, site: Site, system: Path) -> str:
    site.dsv("config", "pools.a.slurm.container", request.param)
    return f"{system}.sqsh" if request.param == "enroot" else str(system)


def words(image: str, *options: str, script: str) -> tuple[str, ...]:
    return ("run", "digits", "--on", "a", "--image", image, *options, "--", "sh", "-c", script)


def test_each_node_has_the_data_the_output_folder_and_the_variables(site: Site, image: str) -> None:
    value = 'it\'s "one" $word, a=b'
    script = (
        'cmp "$DSV_DATA/part0.npy" "$DSV_DATA/part0.npy" && ! touch "$DSV_DATA/x" 2>/dev/null &&'
        ' echo "$TOKEN" >"$DSV_OUT/node.$NODE_RANK" && echo "$WORLD_SIZE ${PATH##*:} ${LD_LIBRARY_PATH%%:*}"'
    )
    given = (f"TOKEN={value}", f"PATH={os.environ['PATH']}:/odd", "LD_LIBRARY_PATH=/lib/odd")
    out = site.dsv(
        *words(
            image, "--nodes", "2", *(word for variable in given for word in ("-e", variable)), script=script
        )
    )
    assert sorted(out.splitlines()) == ["[0] 2 /odd /lib/odd", "[1] 2 /odd /lib/odd"]
    assert [(site.out() / f"node.{number}").read_text() for number in range(2)] == [f"{value}\n"] * 2


def test_the_code_of_the_run_is_where_the_command_begins(site: Site, image: str) -> None:
    (site.folder / "code").mkdir()
    (site.folder / "code" / "train.sh").write_text("echo ran in $PWD\n")
    out = site.dsv("run", "digits", "--on", "a", "--image", image, "--code", "code", "--", "sh", "train.sh")
    assert out.startswith("ran in /")


@pytest.mark.parametrize(
    ("script", "options", "code", "end"),
    [
        ("exit 7", (), 7, "exited"),
        ("kill -KILL $$", (), 137, "exited"),
        ("head -c 300000000 /dev/zero | tail", ("--memory", "100M"), 137, "out-of-memory"),
        ("sleep 600", ("--time", "1s"), 143, "time-limit"),
    ],
)
def test_the_end_is_that_of_the_command(
    site: Site, image: str, script: str, options: tuple[str, ...], code: int, end: str
) -> None:
    site.dsv(*words(image, *options, script=script), code=code)
    record = site.last()
    assert (record["state"], record["end"], record["exit_code"]) == ("ended", end, code)


def test_a_stopped_command_can_end_by_itself(site: Site, image: str) -> None:
    script = "trap 'echo saved; exit 3' TERM; touch \"$DSV_OUT/ready.1.0\"; while :; do sleep 0.1; done"
    terminal = site.start(*words(image, script=script))
    until(lambda: site.has("ready.1.0"), "the start of the command")
    site.dsv("stop", site.last()["run"])
    out, err = terminal.communicate(timeout=PATIENCE)
    assert "saved" in out, out + err
    assert site.last()["end"] == "cancelled", err


def test_an_image_that_a_node_lacks_is_no_failure_of_the_command(site: Site, image: str) -> None:
    absent = "none" if image.endswith(".sqsh") else f"{site.folder}/none.sif"
    said = site.dsv(*words(absent, "--nodes", "2", "--retries", "1", script="true"), code=125)
    record = site.last()
    assert (record["state"], record["end"], record["exit_code"]) == ("not-launched", "not-started", 125)
    assert f"the image {absent} is not on n" in record["error"], said


def test_several_lines_reach_the_command_or_are_refused(site: Site, image: str) -> None:
    is_refused = image.endswith(".sqsh")
    said = site.dsv(*words(image, "-e", "A=x\ny", script='echo "[$A]"'), code=2 if is_refused else 0)
    assert ("enroot can't pass on the value of A" in said) if is_refused else said == "[x\ny]\n"
