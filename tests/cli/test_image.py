"""The image of dsv as a cluster runs it: any user in group 0, no rights, and nothing in it that can be written."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from dsv.run.node_order import NodeOrder
from dsv.run.record import RunId, RunRecord, RunState
from dsv.run.record_store import RunStore
from dsv.stores.directory import DirectoryStore
from dsv.values.ids import CommitId
from dsv.values.names import DatasetName
from tests.kit.dsv import Dsv
from tests.labs import dsv_image
from tests.labs.docker_engine import ContainerEngine

USER = "1000650000:0"  # as OpenShift gives one to a namespace
OTHER = "1000660000:0"
RUN = RunId.parse("20261120-132145-1f2e3d4c")
NO_RIGHTS = ("--read-only", "--cap-drop=ALL", "--security-opt=no-new-privileges", "--network=none", "--rm")
Inside = Callable[..., str]


@pytest.fixture(scope="module")
def image(docker_engine: ContainerEngine) -> str:
    return dsv_image.build(docker_engine)


@pytest.fixture
def inside(pets: Dsv, docker_engine: ContainerEngine, image: str, tmp_path: Path) -> Inside:
    """Runs dsv in the image; the store, the cache and the folder of outputs can be written by group 0."""
    store = Path(pets.ok("config", "store").out.strip())
    folders = {"store": store, "cache": tmp_path / "shared", "out": tmp_path / "out"}
    for folder in folders.values():
        folder.mkdir(exist_ok=True)
    subprocess.run(["chmod", "-R", "g=u", store], check=True)
    for folder in folders.values():
        folder.chmod(0o2775)
    mounts = [f"--volume={folder}:/{name}" for name, folder in folders.items()]

    def run(*arguments: str, user: str = USER, options: tuple[str, ...] = ()) -> str:
        given = ["--env=DSV_STORE=/store", "--env=DSV_CACHE=/cache", f"--user={user}"]
        return docker_engine.call("run", *NO_RIGHTS, *given, *mounts, *options, image, *arguments)

    return run


def test_users_of_group_0_share_a_cache_and_need_nothing_else(inside: Inside) -> None:
    """No home, no /tmp; and what one user has cached, another one reads, leases and evicts."""
    data = inside("cache", "pets@v2").strip()
    assert inside("with", "pets@v2", "--", "sh", "-c", 'cat "$DSV_DATA/a.txt"; id -u', user=OTHER) == (
        "beta\n1000660000\n"
    )
    assert inside("cache", "pets@v2", user=OTHER).strip() == data
    inside("evict", "pets@v2", user=OTHER)
    assert inside("cache", "pets@v2", user=OTHER).strip() == data


def test_a_node_completes_the_record_of_a_run(inside: Inside, pets: Dsv, tmp_path: Path) -> None:
    name = DatasetName.parse("pets")
    start = RunRecord(
        run=RUN, dataset=name, commit=CommitId.parse(pets.ok("resolve", "pets").out.strip()), target="pets", data=(),
        state=RunState.RUNNING, engine="kubernetes", params={}, out="/out", host="a", user="ada", started_ms=1,
    )  # fmt: skip
    store = Path(pets.ok("config", "store").out.strip())
    runs = RunStore(DirectoryStore(store))
    runs.write(name, RUN, "start", start.encode())
    subprocess.run(["chmod", "-R", "g=u", store], check=True)
    (tmp_path / "out" / "order.json").write_bytes(NodeOrder(run=RUN, dataset=name, out="/out").encode())
    (tmp_path / "out" / "ended").write_text("code=0 why= begun=10 over=12 memory=7 cpu=5 whole=yes\n")
    (tmp_path / "out" / "log.0").write_text("beta\n")
    inside("node", "/out/order.json", "--left", "/out", options=("--tmpfs=/tmp",))
    stored = runs.listing(name, RUN)[0]
    record = runs.read(stored)
    assert (record.state, record.exit_code, runs.log(stored)) == (RunState.ENDED, 0, b"beta\n")
    assert [part.node for part in record.parts] == [0]


def test_nothing_in_the_image_has_to_be_written_for_python(inside: Inside) -> None:
    """The modules of dsv were compiled when the image was built: otherwise each start would compile them again."""
    listed = "import dsv.api.cache as each; print(each.__cached__)"
    compiled = inside("-c", listed, options=("--entrypoint=python",)).strip()
    assert inside(compiled, options=("--entrypoint=ls",)).strip() == compiled
