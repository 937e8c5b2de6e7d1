"""What every test gets: a home of its own, and the labs on demand.

The labs are session fixtures. Each gives an object with `env`, the variables that reach it; a test that wants
a command to use one sets them (`monkeypatch.setenv`). If a lab cannot be had, the test is skipped and says
which package is missing; with DSV_REQUIRE_LABS=1, as in CI, that is a failure. They are shared between the
workers of pytest-xdist and gone when the run ends. Tests that use one bear the mark `real`.
"""

from __future__ import annotations

import compileall
import faulthandler
import gc
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Generator, Iterator
from functools import partial
from pathlib import Path
from typing import TypeVar

import hypothesis
import pytest
from _pytest.faulthandler import fault_handler_stderr_fd_key

import dsv
from dsv.api import store
from dsv.stores import probe
from dsv.stores.retry import Retrying, RetryPolicy
from tests import exhaustive
from tests.labs import dsv_image as dsv_images
from tests.labs import shelf
from tests.labs.docker_engine import ContainerEngine
from tests.labs.kubernetes import Kubernetes
from tests.labs.machine import MissingError
from tests.labs.nfs_hosts import NfsHosts
from tests.labs.s3_server import S3Server
from tests.labs.slurm import SlurmNodes
from tests.scheduling import EXCLUSIVE, Scheduling, shared_by
from tests.stores.servers_on_moto import SmallPages

# A busy machine is no failure of the code; pytest's own timeout ends what hangs.
BUSY = hypothesis.settings(deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow])

Reached = TypeVar("Reached")
TESTS = Path(__file__).parent
OWN_SHELF = pytest.StashKey[Path]()
_PASSED = pytest.StashKey[bool]()
_HOME = pytest.StashKey[Path]()
KEPT = ("DSV_LABS", "DSV_LABS_CACHE", "DSV_REQUIRE_LABS", "DSV_KUEUE", exhaustive.VARIABLE)
XDG_PLACES = {"CONFIG": ".config", "CACHE": ".cache", "DATA": ".local/share", "STATE": ".local/state"}
# Fixtures that bring a real part up. A test that asks for one by getfixturevalue has to be marked by hand.
REAL = {
    "ceph_s3",
    "docker_engine",
    "podman",
    "nfs_hosts",
    "slurm_nodes",
    "kubernetes",
    "dsv_image",
    "azurite",
    "snakemake",
}
WITHOUT_REAL_PARTS = "not real"
FOREIGN = ("DSV_", "AWS_", "DOCKER_", "CONTAINER_", "CONTAINERS_", "XDG_", "GIT_", "SLURM_")


LONGER = {"real": 900, "exhaustive": 1800}
"""Seconds that tests with these marks may take; the limit of all others is in pyproject.toml."""
FULL_SECONDS = 600
"""What any test may take with `--exhaustive`, as some then try each step."""
END_SECONDS = 300
"""What a worker may take to end when no test is left, for instance if it waits for a thread that never ends."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--exhaustive", action="store_true", help="run the exhaustive tests too, and the others in full"
    )


def pytest_configure(config: pytest.Config) -> None:
    """Choose the folder that the labs live in, and how much is run; workers of pytest-xdist inherit both."""
    if config.getoption("exhaustive"):
        os.environ[exhaustive.VARIABLE] = "1"
    # The same examples each time, as what chance finds one day is no fault of the change that it would refuse;
    # --hypothesis-profile=search looks for more.
    most = exhaustive.examples(100, 2)
    hypothesis.settings.register_profile("dsv", BUSY, derandomize=True, max_examples=most)
    hypothesis.settings.register_profile("search", BUSY, derandomize=False, print_blob=True)
    hypothesis.settings.load_profile("dsv")  # that of the command line is loaded after this
    # Hundreds of processes import the package. Hosts and containers can only read it: they need it compiled before.
    sys.dont_write_bytecode = False
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    if not hasattr(config, "workerinput"):
        compileall.compile_dir(Path(dsv.__file__).parent, quiet=2)
        if config.args == [str(TESTS)] or config.args == config.getini("testpaths"):
            rewrite_asserts()
    # Started in the background or under nohup they are ignored, and what tests start inherits that.
    for number, handler in (
        (signal.SIGINT, signal.default_int_handler),
        (signal.SIGTERM, signal.SIG_DFL),
        (signal.SIGHUP, signal.SIG_DFL),
        (signal.SIGQUIT, signal.SIG_DFL),
        (signal.SIGCHLD, signal.SIG_DFL),
    ):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, handler)
    if "DSV_LABS" not in os.environ:
        folder = Path(tempfile.mkdtemp(prefix="dsv-labs-"))
        (folder / shelf.OWNER).write_text(str(os.getpid()))
        os.environ["DSV_LABS"] = str(folder)
        config.stash[OWN_SHELF] = folder


def rewrite_asserts() -> None:
    """Collect the tests of a new checkout once: each worker would else rewrite the assertions of all modules itself."""
    if any(TESTS.glob("*/__pycache__/test_*.pyc")):
        return
    places = sorted(str(one) for one in (*TESTS.glob("*/"), *TESTS.glob("test_*.py")))
    command = [sys.executable, "-m", "pytest", "-n0", "--collect-only", "-qq", "-p", "no:cacheprovider"]
    started = [
        subprocess.Popen([*command, *places[half::2]], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        for half in (0, 1)
    ]
    for one in started:
        one.wait()


def pytest_unconfigure(config: pytest.Config) -> None:
    folder = config.stash.get(OWN_SHELF, None)
    if folder is not None:
        shelf.take_down(folder)
        os.environ.pop("DSV_LABS", None)


def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> Scheduling:
    return Scheduling(config, log)


def pytest_xdist_auto_num_workers() -> int:
    """More than processors, as tests wait too: most of all those that have hosts or a cluster for themselves."""
    return len(os.sched_getaffinity(0)) * 3 // 2 + 2


def pytest_sessionfinish(session: pytest.Session) -> None:
    gc.collect()
    gc.freeze()  # pytest collects five times after this
    if hasattr(session.config, "workerinput"):
        threading.Thread(target=_limit_end, daemon=True).start()


def _limit_end() -> None:
    threading.main_thread().join()  # until the tests of all workers are done, and the interpreter ends
    faulthandler.dump_traceback_later(END_SECONDS, exit=True, file=sys.__stderr__ or sys.stderr)


@pytest.hookimpl(tryfirst=True)  # before pytest chooses by marks
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark tests with real parts, and leave out the exhaustive ones unless they are asked for.

    Tests that boot hosts must lie where the scheduler looks for them.
    """
    for item in items:
        if exhaustive.is_repeated(item):
            item.add_marker(pytest.mark.exhaustive)
    if not exhaustive.is_full():
        left_out = [item for item in items if item.get_closest_marker("exhaustive")]
        items[:] = [item for item in items if not item.get_closest_marker("exhaustive")]
        config.hook.pytest_deselected(items=left_out)
    for item in items:
        fixtures = set(getattr(item, "fixturenames", ()))
        if fixtures & REAL:
            item.add_marker(pytest.mark.real)
        for name in fixtures & EXCLUSIVE.keys():
            if not (shared_by(item.nodeid) or "").startswith(name):
                raise pytest.UsageError(f"{item.nodeid} uses {name} alone: name its file {EXCLUSIVE[name]}")
        longer = [seconds for mark, seconds in LONGER.items() if item.get_closest_marker(mark)]
        longer += [FULL_SECONDS] if exhaustive.is_full() else []
        if longer and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(max(longer)))


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Print the stacks of a test with a limit of its own just before that limit, and not after `faulthandler_timeout`.

    The thread that prints stacks does not hold the interpreter's lock: a test that is still busy may crash by it.
    """
    if (limit := item.get_closest_marker("timeout")) is not None:
        faulthandler.dump_traceback_later(
            limit.args[0] - 5, file=item.config.stash[fault_handler_stderr_fd_key]
        )


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    item.stash[_PASSED] = item.stash.get(_PASSED, True) and report.passed
    return report


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None]:
    """Remove the folders of a test that passed, after all that it has patched is restored: a whole run writes 16 GB.

    pytest's own `tmp_path_retention_policy` removes them while a test's functions of `os` are still in place."""
    yield
    for folder in (getattr(item, "funcargs", {}).get("tmp_path"), item.stash.get(_HOME, None)):
        if folder is not None and item.stash.get(_PASSED, False):
            shutil.rmtree(folder, ignore_errors=True)


def pytest_collection_finish() -> None:
    """Collected items stay, so neither a garbage collection nor a forked process needs to touch them again."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session", autouse=True)
def _keeps_its_power() -> Iterator[None]:
    """Let no test wait for the disk in `fsync`: what it is for, a loss of power, no test can bring about here.

    Hosts of the NFS lab lose theirs, and sync in full, as every process does that a test starts.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", os.fstat)  # which still refuses a descriptor that is not open
        patch.setattr(os, "fdatasync", os.fstat)
        yield


@pytest.fixture(autouse=True)
def _proven_quickly(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let `dsv init` race few writers for few keys: tests of the race itself, and real stores, have all of them."""
    if request.node.get_closest_marker("real") is None:
        monkeypatch.setattr(store, "prove", partial(probe.prove, writers=4, rounds=2))


@pytest.fixture(scope="session")
def homes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of all homes: `mktemp` looks through what it has made before, which takes longer with each test."""
    return tmp_path_factory.mktemp("homes")


@pytest.fixture(autouse=True)
def home(homes: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Path:
    """An empty home folder; no setting, credential or cache of whoever runs the tests is seen or touched."""
    folder = request.node.stash[_HOME] = Path(tempfile.mkdtemp(dir=homes))
    for name in list(os.environ):
        if name.startswith(FOREIGN) and name not in KEPT:
            monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(folder))
    for kind, place in XDG_PLACES.items():
        monkeypatch.setenv(f"XDG_{kind}_HOME", str(folder / place))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("GIT_CONFIG_NOSYSTEM", "1")
    return folder


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let what a store fails at be tried again as often as ever, but soon; tests/stores has the real waits."""
    policy = RetryPolicy(first_wait=0.001, longest_wait=0.01, silent_until=0.1, refused_until=0.1)
    monkeypatch.setattr(Retrying.__init__, "__defaults__", (policy,))


@pytest.fixture(scope="session")
def ceph_s3(pytestconfig: pytest.Config) -> S3Server:
    """Ceph's RADOS Gateway: a real S3 server, fit for throughput too. `.bucket()` makes a new one."""
    return _lab(pytestconfig, "ceph-rgw", S3Server)


@pytest.fixture(scope="session")
def docker_engine(pytestconfig: pytest.Config) -> ContainerEngine:
    """A Docker Engine of this test run's own."""
    return _lab(pytestconfig, "docker-engine", ContainerEngine)


@pytest.fixture(scope="session")
def podman(pytestconfig: pytest.Config) -> ContainerEngine:
    """Podman with storage of this test run's own; it must be first in the PATH, as its `env` has it."""
    return _lab(pytestconfig, "podman", ContainerEngine)


@pytest.fixture(scope="session")
def nfs_hosts(pytestconfig: pytest.Config) -> NfsHosts:
    """Real hosts on a real NFS export; a test works in a folder of its own below `.export`."""
    return _lab(pytestconfig, "nfs-hosts", NfsHosts)


@pytest.fixture(scope="session")
def kubernetes_cluster(pytestconfig: pytest.Config) -> Kubernetes:
    """A real Kubernetes of two nodes, for `kubernetes` alone: what other tests did to it is still there."""
    return _lab(pytestconfig, "kubernetes", Kubernetes)


@pytest.fixture
def kubernetes(kubernetes_cluster: Kubernetes, monkeypatch: pytest.MonkeyPatch) -> Kubernetes:
    """A real Kubernetes of two ready nodes, which `kubectl` and dsv reach from here as its administrator."""
    kubernetes_cluster.make_ready()
    for name, value in kubernetes_cluster.env.items():
        monkeypatch.setenv(name, value)
    return kubernetes_cluster


@pytest.fixture(scope="session")
def dsv_image(kubernetes_cluster: Kubernetes, docker_engine: ContainerEngine) -> str:
    """The image of dsv for clusters, of this checkout, which every node of the Kubernetes lab has."""
    return dsv_images.give(kubernetes_cluster, docker_engine)


@pytest.fixture(scope="session")
def slurm_cluster(pytestconfig: pytest.Config) -> SlurmNodes:
    """A real Slurm of three nodes, for `slurm_nodes` alone: what other tests did to it is still there."""
    return _lab(pytestconfig, "slurm", SlurmNodes)


@pytest.fixture
def slurm_nodes(slurm_cluster: SlurmNodes, monkeypatch: pytest.MonkeyPatch) -> SlurmNodes:
    """A real Slurm of three idle nodes, which Slurm's programs reach from here."""
    slurm_cluster.make_ready()
    for name, value in slurm_cluster.env.items():
        monkeypatch.setenv(name, value)
    return slurm_cluster


@pytest.fixture(scope="session")
def moto_s3() -> Iterator[S3Server]:
    """moto's S3 server, in a thread: right answers with nothing installed, but no measure of speed."""
    pytest.importorskip("moto.server", reason="moto's server needs moto[s3,server]")
    # Not moto's own: of two who put one key at once, if it is absent, that may let both win.
    server = SmallPages()
    yield S3Server(server.endpoint, "motokey", "motosecret")
    server.close()


def _lab(config: pytest.Config, name: str, kind: type[Reached]) -> Reached:
    if config.option.markexpr == WITHOUT_REAL_PARTS:
        pytest.fail(f"this test needs {name}, so it has to bear the mark `real`")
    try:
        reached = shelf.attach(Path(os.environ["DSV_LABS"]), name)
        assert isinstance(reached, kind)
        return reached
    except MissingError as reason:
        if os.environ.get("DSV_REQUIRE_LABS") == "1":
            pytest.fail(f"{reason}, and DSV_REQUIRE_LABS=1 allows no skip")
        pytest.skip(str(reason))
