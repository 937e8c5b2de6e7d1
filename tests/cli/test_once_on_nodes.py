"""Signs of life from a node: `dsv with` shows them while its command lives, if the order of its job wants that."""

from __future__ import annotations

from pathlib import Path

from dsv.format import keys
from dsv.run.node_order import BEATING, MEASURING, NodeOrder
from dsv.run.once_claims import Beats, beats_of
from dsv.run.record import RunId
from dsv.stores.open import open_store
from dsv.values.names import DatasetName
from tests.kit.dsv import Dsv, write_files
from tests.processes import running
from tests.waiting import until

RUN = RunId.parse("20261120-132145-1f2e3d4c")
PETS = DatasetName.parse("pets")


def test_with_goes_on_with_the_beats_of_a_run_until_its_command_ends(tmp_path: Path) -> None:
    store, go = tmp_path / "store", tmp_path / "go"
    ann = Dsv.of(tmp_path / "home", DSV_STORE=str(store), DSV_CACHE=str(tmp_path / "cache"))
    write_files(ann.cwd, {"a": b"a"})
    ann.ok("init", "pets")
    ann.ok("sync", "-m", "first")
    opened = open_store(str(store))
    beats = Beats(opened, PETS, RUN)
    beats.start()
    beats.last()
    wait = ["sh", "-c", f'test -z "${BEATING}" || exit 9; while ! test -e {go}; do sleep 0.05; done']
    node = ann.at(ann.cwd, **{BEATING: f"pets/{RUN}"})
    with node.start("with", "pets@main", "--", *wait, stdout=None, stderr=None) as job:
        until(lambda: max(beats_of(opened, PETS, RUN)) == 2)
        assert opened.get(keys.beat_key(PETS, RUN, 2)) == b'{"more":true}'
        children = Path(f"/proc/{job.pid}/task/{job.pid}/children").read_text().split()
        go.touch()
        assert job.wait() == 0
    until(lambda: not any(running(int(child)) for child in children), "the end of all that it started")
    assert beats_of(opened, PETS, RUN) == [1, 2]


def test_an_order_wants_beats_only_if_it_says_so() -> None:
    order = NodeOrder(run=RUN, dataset=PETS, out="/out")
    assert NodeOrder.shown("", RUN) == {}
    assert NodeOrder.shown(order.encode().decode(), RUN) == {MEASURING: f"pets/{RUN}:/out"}
    wants = NodeOrder(run=RUN, dataset=PETS, out="/out", beats=True).encode().decode()
    assert NodeOrder.shown(wants, RUN) == {BEATING: f"pets/{RUN}", MEASURING: f"pets/{RUN}:/out"}
