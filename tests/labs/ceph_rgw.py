"""A real S3 server: Ceph's RADOS Gateway over one monitor and one in-memory storage daemon, on loopback."""

from __future__ import annotations

import shutil
import uuid
from pathlib import Path

from tests.labs.machine import LabError, call, free_ports, listening, require, start, stop, wait_ready
from tests.labs.s3_server import S3Server

PROGRAMS = {
    "ceph-mon": "ceph-mon",
    "ceph-osd": "ceph-osd",
    "radosgw": "radosgw",
    "radosgw-admin": "radosgw",
    "ceph": "ceph-common",
    "ceph-authtool": "ceph-common",
}
ACCESS_KEY, SECRET_KEY = "labaccesskey", "labsecretkey"
MEMORY = 8 << 30  # bytes that the storage daemon may hold

CONFIG = """\
[global]
fsid = {fsid}
mon host = {monitor}
public network = 127.0.0.0/8
auth cluster required = cephx
auth service required = cephx
auth client required = cephx
keyring = {folder}/keyring
run dir = {folder}/run
admin socket = {folder}/run/$name.asok
log file = {folder}/$name.ceph.log
mon data = {folder}/mon
mon allow pool size one = true
osd data = {folder}/osd
osd objectstore = memstore
memstore device bytes = {memory}
osd pool default size = 1
osd pool default min size = 1
osd pool default pg num = 8
osd pool default pg autoscale mode = off
osd crush chooseleaf type = 0
rgw data = {folder}/rgw
rgw frontends = beast endpoint={listens}
rgw gc obj min wait = 5
rgw gc processor period = 5
"""


def up(folder: Path, address: str = "127.0.0.1") -> S3Server:
    """Start the server in an empty folder, listening on an address of this host; ready after about 12 s."""
    require("a Ceph S3 server", PROGRAMS)
    try:
        return _up(folder, address)
    except LabError:  # once more, with other ports: somebody may have taken one of them meanwhile
        down(folder)
        shutil.rmtree(folder)
        folder.mkdir()
        return _up(folder, address)


def down(folder: Path) -> None:
    """All of it is in memory and none of it is wanted, so nothing is given time to flush."""
    for name in ("rgw", "osd", "mon"):
        stop(folder, name, grace=3)


def _up(folder: Path, address: str) -> S3Server:
    port, v2, v1 = free_ports(3)
    monitor = f"[v2:127.0.0.1:{v2},v1:127.0.0.1:{v1}]"
    fsid = str(uuid.uuid4())
    for name in ("run", "mon", "osd", "rgw"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    config = folder / "ceph.conf"
    listens = f"{address}:{port}"
    settings = CONFIG.format(folder=folder, fsid=fsid, monitor=monitor, listens=listens, memory=MEMORY)
    config.write_text(settings)
    env = {"CEPH_CONF": str(config)}
    log = folder / "up.log"

    _make_keys(folder, log)
    mon_map = str(folder / "monmap")
    call(["monmaptool", "--create", "--fsid", fsid, "--addv", "a", monitor, mon_map], log=log)
    keyring = str(folder / "keyring")
    call(["ceph-mon", "--mkfs", "-i", "a", "--monmap", mon_map, "--keyring", keyring], log=log, env=env)
    start(folder, "mon", ["ceph-mon", "-f", "-i", "a"], env=env)
    call(["ceph", "osd", "create"], log=log, env=env)
    call(["ceph", "auth", "import", "-i", keyring], log=log, env=env)
    call(["ceph-osd", "-i", "0", "--mkfs", "--osd-uuid", str(uuid.uuid4())], log=log, env=env)
    start(folder, "osd", ["ceph-osd", "-f", "-i", "0"], env=env)
    start(folder, "rgw", ["radosgw", "-f", "-n", "client.admin"], env=env)
    wait_ready(folder, "rgw", lambda: listening(port, address))
    user = ["radosgw-admin", "user", "create", "--uid=lab", "--display-name=lab"]
    keys = [f"--access-key={ACCESS_KEY}", f"--secret-key={SECRET_KEY}"]
    call([*user, *keys], log=log, env=env)
    return S3Server(f"http://{listens}", ACCESS_KEY, SECRET_KEY)


def _make_keys(folder: Path, log: Path) -> None:
    keyring = str(folder / "keyring")
    everything = ["--cap", "mon", "allow *", "--cap", "osd", "allow *"]
    storage = ["--cap", "mon", "allow profile osd", "--cap", "osd", "allow *"]
    tool = ["ceph-authtool", keyring, "--gen-key", "-n"]
    call(["ceph-authtool", "--create-keyring", *tool[1:], "mon.", "--cap", "mon", "allow *"], log=log)
    call([*tool, "client.admin", *everything], log=log)
    call([*tool, "osd.0", *storage], log=log)


def add_user(folder: Path, server: S3Server, uid: str) -> S3Server:
    """The server as another user reaches it, who has no rights but those that a bucket's policy gives."""
    secret = f"secret-of-{uid}"
    user = ["radosgw-admin", "user", "create", f"--uid={uid}", f"--display-name={uid}"]
    keys = [f"--access-key={uid}", f"--secret-key={secret}"]
    call([*user, *keys], log=folder / "up.log", env={"CEPH_CONF": str(folder / "ceph.conf")})
    return S3Server(server.endpoint, uid, secret, server.region)
