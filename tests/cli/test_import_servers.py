"""dsv import from real servers on loopback: HTTP, HTTPS, SSH, and a Hub."""

from __future__ import annotations

import getpass
import http.server
import json
import os
import random
import shutil
import signal
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from dsv.exchange.sources import FolderSource, RemoteFile
from tests.cli.test_import_errors import check_told
from tests.kit.dsv import Dsv, write_files
from tests.kit.web import web_server
from tests.labs.machine import free_ports
from tests.labs.s3_server import S3Server
from tests.waiting import until

pytest.importorskip("fsspec")
BIG = random.Random(9).randbytes(9 << 20)
SSHD = shutil.which("sshd", path="/usr/sbin:/usr/bin")


@dataclass
class Web:
    """A web server of a folder. requests: method and path of each that it got."""

    folder: Path
    url: str
    requests: list[str] = field(default_factory=list)

    @property
    def reads(self) -> list[str]:
        return [each.split()[1] for each in self.requests if each.startswith("GET")]


@contextmanager
def serving(folder: Path, certificate: Path | None = None) -> Iterator[Web]:
    web = Web(folder, "")

    class Handler(http.server.SimpleHTTPRequestHandler):
        def __init__(self, *arguments: object) -> None:
            super().__init__(*arguments, directory=str(folder))  # type: ignore[arg-type]

        def log_request(self, *_: object) -> None:
            web.requests.append(self.requestline)

        def log_error(self, *_: object) -> None:
            pass

    with web_server(Handler, certificate) as port:
        web.url = f"{'http' if certificate is None else 'https'}://localhost:{port}"
        yield web


@pytest.fixture
def web(tmp_path: Path) -> Iterator[Web]:
    pytest.importorskip("aiohttp")
    write_files(tmp_path / "www", {"labels.csv": b"a,b\n1,2\n", "big.bin": BIG})
    with serving(tmp_path / "www") as server:
        yield server


def test_a_file_is_imported_from_a_web_server(pets: Dsv, web: Web) -> None:
    pets.ok("import", f"{web.url}/labels.csv", "pets:labels/")
    assert pets.ok("cat", "pets:labels/labels.csv").out == "a,b\n1,2\n"
    done = pets.ok("import", f"{web.url}/big.bin", "pets:", "--json").json
    assert (done["read"], done["read_bytes"]) == (1, len(BIG))


def test_a_web_page_that_did_not_change_is_not_read_again(pets: Dsv, web: Web) -> None:
    pets.ok("import", f"{web.url}/labels.csv", "pets:")
    web.requests.clear()
    done = pets.ok("import", f"{web.url}/labels.csv", "pets:", "--json").json
    assert (done["known"], done["any_change"], web.reads) == (1, False, [])
    write_files(web.folder, {"labels.csv": b"a,b\n3,4,5\n"})
    assert pets.ok("import", f"{web.url}/labels.csv", "pets:", "--json").json["changed"] == 1


@pytest.mark.parametrize("login", ["user:hunter2XY", f"user:{'x' * 400}hunter2XY", "a@b.c:pq@hunter2XY"])
def test_the_secrets_of_a_url_are_kept_nowhere(pets: Dsv, web: Web, tmp_path: Path, login: str) -> None:
    url = f"{web.url.replace('://', f'://{login}@')}/labels.csv?token=hunter2XY&X-Amz-Signature=hunter2XY"
    imports = [pets("import", url, "pets:", "--json") for _ in range(2)]
    said = "".join(one.out + one.err for one in imports) + pets.ok("log", "pets", "--json").out
    if "@" not in login:  # aiohttp takes no other
        assert [one.json["known"] for one in imports] == [0, 1]
        [journal] = tmp_path.rglob("imports/*.jsonl")
        assert journal.stat().st_mode & 0o777 == 0o600
        assert f"{web.url}/labels.csv" in said
    with_secret = [
        path for path in tmp_path.rglob("*") if path.is_file() and b"hunter2XY" in path.read_bytes()
    ]
    assert not with_secret and "hunter2XY" not in said


def test_a_folder_of_a_web_server_is_refused(pets: Dsv, web: Web) -> None:
    """Its page is a listing; the server leads from the name without a slash to the one with it."""
    write_files(web.folder, {"d/a": b"1"})
    for path in ("/", "/d/", "/d"):
        done = pets("import", web.url + path, "pets:raw")
        assert done.code == 9 and "HTTP does not list files" in done.err and "wget" in done.err, done
    assert pets("ls", "pets:raw").code == 3


def test_what_a_web_server_says(pets: Dsv, web: Web) -> None:
    gone = pets("import", f"{web.url}/none.csv", "pets:")
    assert gone.code == 3 and "none.csv" in gone.err
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        away = pets("import", f"http://127.0.0.1:{closed.getsockname()[1]}/x", "pets:")
    assert away.code == 6


def test_https_is_checked_against_trusted_certificates(
    pets: Dsv, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("aiohttp")
    if shutil.which("openssl") is None:
        pytest.skip("needs openssl")
    pem = tmp_path / "server.pem"
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", tmp_path / "key", "-out",
         tmp_path / "crt", "-days", "2", "-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"],
        check=True, capture_output=True,
    )  # fmt: skip
    pem.write_bytes((tmp_path / "key").read_bytes() + (tmp_path / "crt").read_bytes())
    write_files(tmp_path / "www", {"labels.csv": b"1"})
    with serving(tmp_path / "www", pem) as web:
        refused = pets.process("import", f"{web.url}/labels.csv", "pets:")
        assert refused.code == 6 and "certificate" in refused.err
        trusting = pets.at(pets.cwd, SSL_CERT_FILE=str(tmp_path / "crt"))
        done = trusting.process("import", f"{web.url}/labels.csv", "pets:")
        assert done.code == 0, done


@dataclass
class Ssh:
    """An SSH server of a folder, and a home whose key it takes."""

    port: int
    home: Path
    folder: Path

    def url(self, path: str = "") -> str:
        return f"sftp://{getpass.getuser()}@localhost:{self.port}{self.folder}{path}"


@pytest.fixture
def ssh(tmp_path: Path, pets: Dsv) -> Iterator[Ssh]:
    pytest.importorskip("paramiko", reason="needs paramiko")
    if SSHD is None or os.geteuid() != 0:
        pytest.skip("needs root and openssh-server")
    server, home = tmp_path / "sshd", pets.home
    server.mkdir()
    (home / ".ssh").mkdir(mode=0o700)
    for key in (server / "host", home / ".ssh/id_ed25519"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key], check=True)
    (server / "keys").write_bytes((home / ".ssh/id_ed25519.pub").read_bytes())
    (port,) = free_ports(1)
    (server / "config").write_text(
        f"ListenAddress 127.0.0.1:{port}\nHostKey {server}/host\nAuthorizedKeysFile {server}/keys\nPidFile none\n"
        "StrictModes no\nUsePAM no\nPermitRootLogin yes\nSubsystem sftp internal-sftp\nMaxStartups 100\n"
    )
    Path("/run/sshd").mkdir(exist_ok=True)
    write_files(tmp_path / "there", {"a.txt": b"1", "d/b": b"22", "d/zero": b"", "big": BIG})
    with subprocess.Popen([SSHD, "-D", "-e", "-f", server / "config"], stderr=subprocess.DEVNULL) as process:
        try:
            until(lambda: _answers(port), "sshd listens")
            host = (server / "host.pub").read_text().split()
            (home / ".ssh/known_hosts").write_text(f"[localhost]:{port} {host[0]} {host[1]}\n")
            yield Ssh(port, home, tmp_path / "there")
        finally:
            process.terminate()


def _answers(port: int) -> bool:
    with socket.socket() as trial:
        return trial.connect_ex(("127.0.0.1", port)) == 0


def test_a_folder_is_imported_over_ssh(pets: Dsv, ssh: Ssh) -> None:
    done = pets.process("import", ssh.url(), "pets:raw", "--json")
    assert done.code == 0, done
    assert (done.json["found"], done.json["read"]) == (4, 4)
    assert pets.ok("cat", "pets:raw/d/b").out == "22"
    again = pets.process("import", ssh.url(), "pets:raw", "--json")
    assert (again.json["known"], again.json["read"]) == (4, 0)


def test_over_ssh_a_symlink_is_read_as_its_file_and_a_pipe_is_not_opened(pets: Dsv, ssh: Ssh) -> None:
    (ssh.folder / "link").symlink_to("d/b")
    (ssh.folder / "away").symlink_to("none")
    os.mkfifo(ssh.folder / "pipe")
    refused = pets.process("import", ssh.url(), "pets:raw")
    assert refused.code == 9 and "named pipe" in refused.err and "away" in refused.err, refused
    assert ".dsvignore" not in refused.err
    done = pets.process("import", ssh.url(), "pets:raw", "--skip-unsupported", "--json")
    assert done.code == 0 and done.json["found"] == 5, done
    assert pets.ok("cat", "pets:raw/link").out == "22"


def test_a_folder_in_the_place_of_a_file_is_reported_over_ssh(pets: Dsv, ssh: Ssh) -> None:
    (ssh.folder / "out/a.txt").mkdir(parents=True)
    done = pets.process("export", "pets", ssh.url("/out"))
    assert done.code == 4 and "out/a.txt/" in done.err, done


def test_a_server_over_ssh_that_nobody_knows_is_refused(pets: Dsv, ssh: Ssh) -> None:
    (ssh.home / ".ssh/known_hosts").write_text("")
    done = pets.process("import", ssh.url(), "pets:raw")
    check_told(done, 6, "known_hosts", f"ssh -p {ssh.port} ")


def test_a_key_that_is_not_taken_over_ssh_is_denied(pets: Dsv, ssh: Ssh) -> None:
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", ssh.home / "other"], check=True)
    for name in ("id_ed25519", "id_ed25519.pub"):
        (ssh.home / "other").with_suffix(Path(name).suffix).replace(ssh.home / ".ssh" / name)
    done = pets.process("import", ssh.url(), "pets:raw")
    check_told(done, 8, "was denied", f"'ssh -p {ssh.port} ")


def test_what_is_not_there_over_ssh(pets: Dsv, ssh: Ssh) -> None:
    done = pets.process("import", ssh.url("/none"), "pets:raw")
    check_told(done, 3, "there is no", f" ls {ssh.folder}/none'")


def test_a_commit_is_exported_over_ssh(pets: Dsv, ssh: Ssh) -> None:
    write_files(pets.cwd, {"big": BIG})
    pets.ok("sync")
    done = pets.process("export", "pets", ssh.url("/out"), "--json")
    assert done.code == 0, done
    out = ssh.folder / "out"
    assert (out / "big").read_bytes() == BIG and (out / "train/1.png").read_bytes() == b"1"
    assert sorted(path.name for path in out.iterdir()) == ["a.txt", "big", "test", "train"]
    (out / "a.txt").unlink()
    again = pets.process("export", "pets", ssh.url("/out"), "--json")
    assert (again.json["known"], again.json["written"]) == (4, 1)


class Hub(http.server.BaseHTTPRequestHandler):
    """The few answers of the Hugging Face Hub that reading a dataset takes."""

    files: dict[str, bytes] = {}  # noqa: RUF012 (set by the test)
    seen: list[str] = []  # noqa: RUF012

    def do_HEAD(self) -> None:
        self.do_GET(body=False)

    def do_POST(self) -> None:
        self.asked = self.rfile.read(int(self.headers["Content-Length"])).decode()
        self.do_GET()

    def do_GET(self, *, body: bool = True) -> None:
        self.seen.append(f"{self.command} {self.path}")
        path = self.path.partition("?")[0]
        sha = "f" * 40
        if "/resolve/" in path:
            data = self.files[path.split("/resolve/")[1].partition("/")[2]]
            start = self.headers.get("Range")
            whole = len(data)
            if start:
                first, last = start.removeprefix("bytes=").split("-")
                data = data[int(first) : int(last) + 1]
            self.send_response(206 if start else 200)
            self.send_header("ETag", '"1"')
            self.send_header("X-Repo-Commit", sha)
            if start:
                self.send_header("Content-Range", f"bytes {start.removeprefix('bytes=')}/{whole}")
            self._end(data, body)
        elif "/tree/" in path or "/paths-info/" in path:
            rows = [
                {"type": "file", "oid": f"{len(data):040x}", "size": len(data), "path": name}
                for name, data in self.files.items()
                if "/tree/" in path or name in self.asked
            ]
            self.send_response(200)
            self._end(json.dumps(rows).encode(), body)
        elif path.startswith("/api/datasets/"):
            self.send_response(200)
            found = {
                "id": "team/pets",
                "sha": sha,
                "siblings": [],
                "private": False,
                "tags": [],
                "downloads": 0,
            }
            self._end(json.dumps(found).encode(), body)
        else:
            self.send_response(404)
            self._end(b"", body)

    def _end(self, data: bytes, body: bool) -> None:
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if body:
            self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        pass


def test_a_dataset_of_the_hub_is_imported(pets: Dsv) -> None:
    pytest.importorskip("huggingface_hub", reason="needs huggingface_hub")
    Hub.files = {"README.md": b"# pets", "big.bin": BIG}
    with web_server(Hub) as port:
        person = pets.at(pets.cwd, HF_ENDPOINT=f"http://127.0.0.1:{port}", HF_HUB_DISABLE_XET="1")
        done = person.process("import", "hf://datasets/team/pets", "pets:hub", "--json")
        assert done.code == 0, (done, Hub.seen)
        assert person.ok("cat", "pets:hub/README.md").out == "# pets"
        assert done.json["read_bytes"] == len(BIG) + 6
        again = person.process("import", "hf://datasets/team/pets", "pets:hub", "--json")
        assert again.json["known"] == 2


@pytest.mark.parametrize(
    ("url", "module", "package"),
    [
        ("sftp://host/x", "paramiko", "paramiko"),
        ("hf://datasets/team/pets", "huggingface_hub", "huggingface_hub"),
        ("https://host/x", "aiohttp", "aiohttp"),
        ("gs://bucket/x", "gcsfs", "pip install gcsfs"),
        ("dvc+.", "yaml", "pip install pyyaml"),
        ("s3://bucket/x", "fsspec", "pip install fsspec s3fs"),
    ],
)
def test_the_error_names_the_package_that_is_missing(
    pets: Dsv, tmp_path: Path, url: str, module: str, package: str
) -> None:
    write_files(tmp_path / "none", {f"{module}/__init__.py": f"raise ImportError('no {module}')".encode()})
    without = pets.at(pets.cwd, PYTHONPATH=str(tmp_path / "none"))
    done = without.process("import", url, "pets:")
    assert done.code == 9 and package in done.err, done


def test_an_import_that_was_killed_reads_only_what_is_missing(pets: Dsv, ceph_s3: S3Server) -> None:
    """From Ceph; the second import's reads are counted by what it says, and by the bytes that were stored."""
    pytest.importorskip("s3fs")
    bucket, client = ceph_s3.bucket(), ceph_s3.client()
    count, size = 400, 1 << 20
    for number in range(count):
        client.put_object(Bucket=bucket, Key=f"scans/{number:03}", Body=os.urandom(size))
    person = pets.at(pets.cwd, **ceph_s3.env)
    try:
        journals = [*pets.home.rglob("imports")]
        assert journals == []
        with person.start("import", f"s3://{bucket}/scans", "pets:raw") as process:
            until(lambda: _noted(pets.home) > 0 or process.poll() is not None, "the import notes")
            process.send_signal(signal.SIGKILL)
            process.wait()
        noted = _noted(pets.home)
        assert 0 < noted < count
        done = person.ok("import", f"s3://{bucket}/scans", "pets:raw", "--json").json
        assert (done["known"], done["read"]) == (noted, count - noted)
        assert person.ok("ls", "pets:raw", "--json").json["items"][-1]["size"] == size
    finally:
        ceph_s3.remove_bucket(bucket)


def test_an_object_that_is_replaced_while_it_is_read_is_a_conflict(
    pets: Dsv, ceph_s3: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("s3fs")
    bucket, client = ceph_s3.bucket(), ceph_s3.client()
    client.put_object(Bucket=bucket, Key="big", Body=BIG * 4)
    opened = FolderSource.open

    def replaced(self: FolderSource, file: RemoteFile) -> object:
        read = opened(self, file)

        def then(buffer: memoryview) -> int:
            count = read(buffer)
            client.put_object(Bucket=bucket, Key="big", Body=BIG[::-1] * 4)
            return count

        return then

    monkeypatch.setattr(FolderSource, "open", replaced)
    try:
        done = pets.at(pets.cwd, **ceph_s3.env)("import", f"s3://{bucket}", "pets:raw")
        assert done.code == 4 and "was changed while it was read" in done.err, done
    finally:
        ceph_s3.remove_bucket(bucket)


def _noted(home: Path) -> int:
    lines = [path.read_bytes().split() for path in home.rglob("imports/*.jsonl")]
    return sum(line.endswith(b"]") for each in lines for line in each)
