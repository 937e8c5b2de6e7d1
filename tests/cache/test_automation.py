"""What docs/operations/automation.md and docs/operations/rollout.md give for pasting, tried."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tests.cache.places import make_root, place, publish
from tests.waiting import PATIENCE

from dsv.cache.inventory import take_inventory
from dsv.cache.root import CacheRoot

DOCS = Path(__file__).parents[2] / "docs"
DSV = [str(Path(sys.executable).with_name("dsv"))]


def blocks(name: str) -> list[str]:
    """The indented blocks of a page, without their indentation."""
    found = re.findall(r"(?:^    .*\n|^\n(?=    ))+", _page(name).read_text(), re.MULTILINE)
    return [re.sub(r"^ {4}", "", block, flags=re.MULTILINE).strip("\n") for block in found]


def _page(name: str) -> Path:
    (page,) = DOCS.rglob(name)
    return page


def block_with(name: str, text: str) -> str:
    return next(block for block in blocks(name) if text in block)


def run(root: CacheRoot, *argv: str, **more: str) -> subprocess.CompletedProcess[str]:
    """As cron runs it: with next to no environment."""
    environment = {"HOME": str(root.path.parent), "PATH": "/usr/bin:/bin", "LOGNAME": "ann", **more}
    return subprocess.run(
        [*DSV, *argv, "--cache", str(root.path)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )


@pytest.fixture
def root(tmp_path: Path) -> CacheRoot:
    return make_root(tmp_path / "cache")


def test_the_crontab_lines_are_commands_of_dsv() -> None:
    blocks = [block_with("automation.md", text) for text in ("*/15", "17 2")]
    lines = [line for block in blocks for line in block.splitlines() if not line.startswith("#")]
    assert len(lines) == 7
    for line in lines:
        command = shlex.split(line.split(maxsplit=5)[5], comments=True)
        assert command[0] == "dsv"
        subprocess.run([*DSV, *command[1:], "--help"], check=True, capture_output=True)


def test_evict_in_cron_prints_only_what_it_evicted(root: CacheRoot) -> None:
    publish(root, place(1), {"a": b"1"}, age=3600)
    done = run(root, "evict")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    publish(root, place(2), {"a": b"1"}, age=2 * 86400)
    done = run(root, "evict")
    assert done.returncode == 0 and done.stderr == ""
    assert re.fullmatch(
        rf"evicted xrays@{re.escape(place(2).name[:12])}: unused for 2d, .* freed\n", done.stdout
    )
    done = run(root, "evict")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_a_limit_that_stays_exceeded_ends_with_exit_7(root: CacheRoot) -> None:
    visible = publish(root, place(1), {"a": bytes(100_000)})
    root.settings_file.path.chmod(0o644)
    root.settings_file.path.write_text('max_size = "50K"\nprotected = ["xrays"]\n')
    done = run(root, "evict")
    assert done.returncode == 7 and "max_size is 50.0 kB" in done.stderr and visible.exists()


def test_two_cron_jobs_at_once(root: CacheRoot) -> None:
    for number in range(8):
        publish(root, place(number), {f"f{n}": b"x" for n in range(50)}, age=2 * 86400)
    environment = {"HOME": str(root.path.parent), "PATH": "/usr/bin:/bin"}
    running = [
        subprocess.Popen(
            [*DSV, "evict", "--cache", str(root.path)], env=environment, stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, text=True,
        )
        for _ in range(2)
    ]  # fmt: skip
    said = [one.communicate() for one in running]
    assert [one.returncode for one in running] == [0, 0] and [err for _, err in said] == ["", ""]
    lines = [line for out, _ in said for line in out.splitlines()]
    assert len(lines) == 8 and len({line.split()[1] for line in lines}) == 8
    assert take_inventory(root).visible == []


def test_the_systemd_units(tmp_path: Path) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is missing (Debian's systemd)")
    text = block_with("automation.md", "Type=oneshot")
    units = re.split(r"^# /etc/systemd/system/(\S+)\n", text, flags=re.MULTILINE)[1:]
    for name, unit in zip(units[::2], units[1::2], strict=True):
        unit = unit.replace("/nfs/gpu/dsv/bin/dsv", DSV[0]).replace("User=dsv-cache\n", "")
        (tmp_path / name).write_text(unit)
    files = [str(tmp_path / name) for name in units[::2]]
    assert [Path(file).suffix for file in files] == [".service", ".timer"]
    done = subprocess.run(["systemd-analyze", "verify", *files], capture_output=True, text=True)
    said = [line for line in done.stderr.splitlines() if str(tmp_path) in line or "dsv-evict" in line]
    assert said == [] and done.returncode == 0, done.stderr
    command = re.search(r"^ExecStart=(.*)$", text, re.MULTILINE)
    assert command is not None
    assert run(make_root(tmp_path / "cache"), shlex.split(command[1])[1]).returncode == 0


def test_the_kubernetes_manifest(root: CacheRoot) -> None:
    yaml = pytest.importorskip("yaml", reason="needs PyYAML, which moto brings")
    job = yaml.safe_load(block_with("automation.md", "kind: CronJob"))
    assert job["apiVersion"] == "batch/v1" and job["spec"]["concurrencyPolicy"] == "Allow"
    pod = job["spec"]["jobTemplate"]["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert pod["restartPolicy"] == "Never" and "fsGroup" not in pod["securityContext"]
    mounted = {mount["mountPath"]: mount["name"] for mount in container["volumeMounts"]}
    command, option, folder = container["args"]
    assert option == "--cache" and mounted[folder] in {volume["name"] for volume in pod["volumes"]}
    assert run(root, command).returncode == 0
    init = yaml.safe_load(block_with("automation.md", "initContainers"))["initContainers"][0]
    done = run(root, *init["args"][:4], DSV_STORE=str(root.path / "no-store"))
    assert done.returncode == 6, "understood, but for the store"


def test_the_containerfile_runs_dsv() -> None:
    lines = block_with("automation.md", "FROM").splitlines()
    assert any(line == 'ENTRYPOINT ["dsv"]' for line in lines)
    assert [line for line in lines if line.startswith("USER")] == ["USER 10001"], "not as root"


@pytest.mark.parametrize("name", ["automation.md", "rollout.md"])
def test_the_scripts_are_shell(name: str) -> None:
    scripts = [block for block in blocks(name) if block.startswith("#!/bin/bash")]
    assert scripts
    used: set[str] = set()
    for script in scripts:
        subprocess.run(["bash", "-n"], input=script, text=True, check=True)
        used |= set(re.findall(r"\bdsv (\w+)\b", script))
    for command in used:
        subprocess.run([*DSV, command, "--help"], check=True, capture_output=True)


def test_the_settings_and_the_config_of_the_rollout(tmp_path: Path) -> None:
    from dsv.api.environment import read_config
    from dsv.cache.settings import parse_settings

    text = block_with("rollout.md", "install -d")
    settings = text.partition("<<'END'\n")[2].partition("\nEND")[0]
    assert parse_settings(settings.encode(), "x").limits.max_size == 80 * 10**12
    assert parse_settings(block_with("cache.md", "protocol = 1").encode(), "x").is_protected("team-a/x")
    source = read_config(block_with("rollout.md", "[stores.lake]").encode(), "x")
    assert not source.unknown and source.values["caches.gpu.path"] == "/nfs/gpu/dsv-cache"


def test_rollouts_folder_is_what_it_says(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root, to make a folder for a group")
    line = block_with("rollout.md", "install -d").splitlines()[0]
    folder = tmp_path / "dsv-cache"
    argv = shlex.split(line.replace("/nfs/gpu/dsv-cache", str(folder)).replace("research", "nogroup"))
    subprocess.run(argv, check=True)
    root = make_root(folder)
    assert root.rights[:2] == (0o2775, 0o444)
