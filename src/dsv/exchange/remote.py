"""Places that fsspec can reach: opening them by URL, and translating their errors into dsv's.

Each file system of fsspec has its own errors for the same few causes: unknown host, connection refused,
access denied, not found. They are recognized by HTTP status or errno: their classes may not be loaded.
"""

from __future__ import annotations

import errno
import logging
import os
import re
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from datetime import datetime
from http import HTTPStatus
from ipaddress import ip_address
from pathlib import Path
from typing import Any
from urllib.parse import SplitResult, urlsplit

from dsv.errors import Changing, Denied, DsvError, NotFound, Unreachable, Unsupported, UsageError
from dsv.stores.options import StoreOptions
from dsv.values.secrets import hide_in_urls

BY_SSH = ("sftp", "ssh")
S3 = ("s3", "s3a")
OBJECT_STORES = (*S3, "gs", "gcs", "az", "abfs", "abfss")
"""Protocols in which files appear only when complete, and one request reads one version of a file."""
HTTP = ("http", "https")
_LISTED_AT_ONCE = (*OBJECT_STORES, "hf", "zip")
"""Protocols whose file systems list all files below a path by one call, which raises if there is no answer."""
_CAN_REFRESH = (*S3, "az", "abfs", "abfss", "hf")
"""Protocols whose file systems cache listings, and take `refresh` to ask the server."""
_ETAGS = ("ETag", "etag", "blob_id", "md5Hash", "crc32c", "content_md5", "Content-MD5", "Digest")
_TIMES = ("LastModified", "Last-Modified", "last_modified", "updated", "mtime", "created")
_KNOWN_HOSTS = (Path("/etc/ssh/ssh_known_hosts"), Path.home() / ".ssh/known_hosts")
_ALIASES = {"ssh": "sftp", "https": "http", "gcs": "gs", "abfs": "az", "abfss": "az", "s3a": "s3"}
_PACKAGES = {
    "sftp": "paramiko", "hf": "huggingface_hub", "gs": "gcsfs", "http": "aiohttp", "az": "adlfs",
    "dvc": "pyyaml",
}  # fmt: skip
_PORTS = {"http": 80, "https": 443, "ssh": 22, "sftp": 22}
_ACCESS = {
    "sftp": "'{ssh} ls {path}' must work without a prompt: dsv uses the same keys; paths begin at that machine's root",
    "hf": "check the name; a private dataset needs 'hf auth login' or HF_TOKEN, and some have terms to accept",
    "http": "check the URL; if the server asks for a password, put USER:PASSWORD@ before the host",
    "gs": "'gcloud storage ls {url}' must work: gcloud auth application-default login",
    "az": "check the URL; az login, or set AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY",
    "s3": "'aws s3 ls {url}' must work; use other credentials, such as AWS_PROFILE",
}
"""The hint if something is absent or access is denied: servers often answer one for the other."""
_SHAPES = {"hf": "hf://datasets/OWNER/NAME", "sftp": "sftp://USER@HOST/PATH", "http": "https://HOST/PATH"}
_ENDPOINTS = {"hf": "variable HF_ENDPOINT", "s3": "endpoint (--source-endpoint, AWS_ENDPOINT_URL)"}
"""The setting that names the server, if the URL does not."""
_UNREACHABLE = {
    "ECONNREFUSED": ("connection refused", "check the {place}, and that the server runs"),
    "gaierror": ("unknown host ({text})", "check the {place}, and the network of this machine"),
    "TimeoutError": ("the server did not answer in time ({text})", "check the {place}, and the network"),
    "protocol banner": (
        "the server does not speak SSH ({text})",
        "check the port: sftp://USER@HOST:PORT/PATH",
    ),
    "known_hosts": ("{text}", "{ssh}, and compare the key before you accept it"),
    "WRONG_VERSION_NUMBER": ("the server does not use TLS", "use http:// for a server without encryption"),
    "certificate": ("{text}", "SSL_CERT_FILE=FILE names the certificates to trust"),
}
"""The reason and the hint for errors with these words."""
_ERRNO = re.compile(r"^\[Errno [^]]*\] ")


@dataclass(frozen=True, slots=True)
class RemoteRoot:
    """A file system, and the root in it that the URL names."""

    fs: Any
    root: str
    protocol: str
    shown: str
    """The URL without secrets."""
    turn: AbstractContextManager[object]
    """A lock for file systems that several threads can't use at once."""

    @property
    def by_ssh(self) -> bool:
        return self.protocol in BY_SSH

    @property
    def protocols(self) -> tuple[str, ...]:
        return (self.fs.protocol,) if isinstance(self.fs.protocol, str) else tuple(self.fs.protocol)

    def name(self, key: str) -> str:
        """Return the path of a file relative to the root."""
        return key.strip("/").removeprefix(self.root.strip("/")).strip("/")

    @contextmanager
    def at_work(self, done: str) -> Iterator[None]:
        """Surround each call of the file system. done: the participle for errors, such as `read`."""
        with converting(self.shown, done), self.turn:
            yield

    def find(self) -> dict[str, dict[str, Any]]:
        """Return what is at and below the root, by key: files, and folders if they are listed one by one. Raises if
        one can't be listed, which `find` and `walk` of fsspec take for an empty one. An empty place may be
        `NotFound`."""
        if self.protocol in _LISTED_AT_ONCE:
            with self.at_work("read"):
                self.fs.invalidate_cache()
                return self.fs.find(self.root, detail=True)  # type: ignore[no-any-return]
        top = self.root_info()
        if top is None or top["type"] != "directory":
            return {} if top is None else {self.root: top}
        found: dict[str, dict[str, Any]] = {}
        folders: list[str] = [self.root]
        while folders:
            for info in self.list_folder(folders.pop()):
                found[info["name"]] = info
                if info["type"] == "directory":
                    folders.append(info["name"].rstrip("/"))
        return found

    def list_folder(self, folder: str) -> list[dict[str, Any]]:
        """Return what is in a folder, as the server has it. Raises `Changing` if the folder has gone."""
        shown = f"{self.shown.rstrip('/')}/{self.name(folder)}".rstrip("/")
        try:
            with converting(shown, "read"), self.turn:
                self.fs.invalidate_cache(folder)
                listed: list[dict[str, Any]] = self.fs.ls(folder or "/", detail=True)
        except NotFound:
            raise changed(shown) from None
        return [one for one in listed if one["name"].rstrip("/") != folder]

    def info(self, key: str) -> dict[str, Any]:
        """Return the server's current information on a file, never from a cache."""
        with self.at_work("read"):
            if self.protocol in _CAN_REFRESH:
                found: dict[str, Any] = self.fs.info(key, refresh=True)
            else:
                self.fs.invalidate_cache(key.rpartition("/")[0])
                found = self.fs.info(key)
            return found

    def root_info(self) -> dict[str, Any] | None:
        """Return the information on what is at the root; None if nothing is."""
        with suppress(NotFound):
            return self.info(self.root)
        return None

    def rename(self, old: str, new: str) -> None:
        """Rename a file. The `mv` of fsspec itself takes names for patterns, and copies too."""
        from fsspec import AbstractFileSystem

        if "file" in self.protocols:
            os.replace(old, new)  # noqa: PTH105 (names, no paths)
        elif type(self.fs).mv is AbstractFileSystem.mv:
            self.fs.cp_file(old, new)
            self.fs.rm_file(old)
        else:
            self.fs.mv(old, new)


def open_place(url: str, options: StoreOptions) -> RemoteRoot:
    """Raises `Unsupported` if a package is missing, `UsageError` for an unknown URL or a missing host."""
    shown = hide_in_urls(url)
    kind = kind_of(url)
    if kind in ("sftp", "http") and not split_url(url.partition("::")[0]).hostname:
        raise UsageError(f"{shown} has no host name", subject=shown, hint=_SHAPES[kind])
    protocol = url.partition("://")[0].partition("::")[0]
    try:
        from fsspec.core import url_to_fs

        with converting(shown, "reached"):
            try:
                fs, root = url_to_fs(url, **storage_options(protocol, options))
            except ValueError as error:
                text = f"{shown} is not a URL that dsv can read or write: {error}"
                hint = "dsv import --help shows URLs of each kind"
                raise UsageError(text, subject=shown, hint=hint) from None
    except ImportError as error:
        raise missing_package(url, error) from None
    # paramiko mixes up the answers of two threads
    turn = threading.Lock() if protocol in BY_SSH else nullcontext()
    return RemoteRoot(fs, root.rstrip("/") or root[:1], protocol, shown, turn)


def etag_and_time(info: dict[str, Any]) -> tuple[object, object]:
    """Return the entity tag and the time of a file, each None if the server does not give it."""
    etag = next((info[name] for name in _ETAGS if info.get(name)), None)
    time = next((info[name] for name in _TIMES if info.get(name)), None)
    if isinstance(time, str):
        with suppress(ValueError):
            time = datetime.fromisoformat(time)
    if isinstance(time, datetime):  # some file systems write one time in several ways
        time = time.timestamp()
    return etag, time


def version_of(info: dict[str, Any]) -> str | None:
    """Return the entity tag, or else size and time, which differs in precision between a listing and a file;
    None if the server gives neither tag nor time."""
    etag, time = etag_and_time(info)
    if etag is not None:
        return str(etag).strip('"')
    return None if time is None else f"{info.get('size')} {time}"


def is_same(before: dict[str, Any], now: dict[str, Any]) -> bool:
    """Return whether a file is unchanged, by its size, its entity tag or else its times, and its inode."""
    if before.get("size") != now.get("size"):
        return False
    (tag, time), (tag_now, time_now) = etag_and_time(before), etag_and_time(now)
    if tag and tag_now:  # a listing may give times of another precision
        return str(tag).strip('"') == str(tag_now).strip('"')
    local = ("ino", "created") if "ino" in before and "ino" in now else ()
    return time == time_now and all(before[name] == now[name] for name in local)


def changed(shown: str) -> Changing:
    """Return the error for a file that was written to while it was read."""
    shown = hide_in_urls(shown)
    text = f"{shown} was changed while it was read; nothing was published"
    return Changing(text, subject=shown, hint="run the same command again: what was read is not read again")


def storage_options(protocol: str, options: StoreOptions) -> dict[str, Any]:
    """Return fsspec's options: those of dsv's stores for s3://. Other protocols find their credentials."""
    if protocol in BY_SSH:
        return _ssh_options()
    if protocol in HTTP:  # what is packed is unpacked by `bodies`, if it should be
        mine = {"connector": _public_only(options.named_by)} if options.named_by else {}
        return {"client_kwargs": {"auto_decompress": False, **mine}}
    if protocol not in S3:
        return {}
    endpoint = options.endpoint or options.s3_endpoint
    client = {"endpoint_url": endpoint, "region_name": options.region, "verify": options.ca_file}
    found: dict[str, Any] = {"client_kwargs": {name: value for name, value in client.items() if value}}
    if options.anonymous:
        return {**found, "anon": True}
    named = {"key": options.access_key, "secret": options.secret_key, "token": options.session_token}
    named["profile"] = options.profile if not options.access_key else None
    return {**found, **{name: value for name, value in named.items() if value}}


def _public_only(git: str) -> Any:
    """Return what connects to the server of a repository and to those on the internet, also after redirects."""
    from aiohttp import TCPConnector
    from fsspec.asyn import get_loop

    class Connector(TCPConnector):
        async def _resolve_host(self, host: str, port: int, traces: Any = None) -> Any:
            addresses = await super()._resolve_host(host, port, traces=traces)
            for address in () if (host, port) == server_of(git)[1:] else addresses:
                ip: Any = ip_address(address["host"])
                ip = getattr(ip, "ipv4_mapped", None) or getattr(ip, "sixtofour", None) or ip
                if ip.is_reserved or ip.is_multicast or not ip.is_global:
                    text = f"{git} may not name a remote at {host}, which could be there for you alone"
                    raise UsageError(text, subject=host, hint="--dvc-remote URL if you trust it")
            return addresses

    return Connector(loop=get_loop())


def server_of(url: str) -> tuple[str, str | None, int | None]:
    """Return the kind, the host and the port in a URL, also in one as `git@host:path`. Raises `ValueError`."""
    parts = split_url(url if "://" in url else "ssh://" + url.replace(":", "/", 1))
    return kind_of(f"{parts.scheme}://"), parts.hostname, parts.port or _PORTS.get(parts.scheme)


def _ssh_options() -> dict[str, Any]:
    """Return a policy to trust the servers that `ssh` trusts. Older fsspecs take none, and trust any."""
    import paramiko
    from fsspec.implementations import sftp

    class KnownHosts(paramiko.MissingHostKeyPolicy):  # type: ignore[misc]
        """Refuses a server whose key is not in OpenSSH's files of known hosts: it may be an impostor."""

        def missing_host_key(self, client: Any, hostname: str, key: Any) -> None:
            for path in _KNOWN_HOSTS:
                if path.is_file() and paramiko.HostKeys(str(path)).check(hostname, key):
                    return
            raise paramiko.SSHException(
                f"the {key.get_name()} key of {hostname} is not in {_KNOWN_HOSTS[-1]}; "
                "ssh asks whether it is the right one"
            )

    logging.getLogger("paramiko").addHandler(logging.NullHandler())  # it logs a traceback of what it raises
    return {"host_key_policy": KnownHosts()} if hasattr(sftp, "_resolve_host_key_policy") else {}


def kind_of(url: str) -> str:
    """Return the protocol of a URL, the same for all its aliases."""
    protocol = url.partition("://")[0].partition("::")[0].partition("+")[0]
    return _ALIASES.get(protocol, protocol)


def path_in(url: str) -> str:
    """Return the part of a URL that ends with the name of the file. Only URLs of HTTP have queries."""
    return split_url(url).path if kind_of(url) == "http" else url


def hub_endpoint() -> str:
    """Return the URL of the Hugging Face Hub: `HF_ENDPOINT`, or the default."""
    try:
        from huggingface_hub import constants
    except ImportError:
        return "https://huggingface.co"
    return str(constants.ENDPOINT)


def is_on_hub(url: str) -> bool:
    """Return whether an HTTP URL belongs to a dataset of the Hub."""
    return kind_of(url) == "http" and "/datasets/" in url and url.startswith(f"{hub_endpoint()}/datasets/")


def hub_headers(url: str) -> dict[str, str]:
    """Return the header with the user's token for a file of the Hub, none for other URLs or without
    huggingface_hub. aiohttp drops it when it follows a redirect to another host."""
    if is_on_hub(url):
        with suppress(ImportError):
            from huggingface_hub import constants, get_token

            token = None if constants.HF_HUB_DISABLE_IMPLICIT_TOKEN else get_token()
            return {"Authorization": f"Bearer {token}"} if token else {}
    return {}


def split_url(url: str) -> SplitResult:
    """Return the parts of a URL. One with half an IPv6 address has none."""
    with suppress(ValueError):
        return urlsplit(url)
    return SplitResult("", "", "", "", "")


@contextmanager
def converting(shown: str, done: str) -> Iterator[None]:
    """Turn any error into a dsv error that names the URL. done: the participle in it, such as `read`."""
    try:
        yield
    except (ImportError, DsvError):
        raise
    except Exception as error:
        raise as_error(error, shown, done) from error


def as_error(error: Exception, shown: str, done: str) -> DsvError:
    """Return the dsv error for an error of a file system."""
    cause = error.__cause__
    if ours := next((fault for fault in _chain(error) if isinstance(fault, DsvError)), None):
        return ours
    if isinstance(error, FileNotFoundError) and isinstance(cause, Exception):
        # fsspec raises it also if a web server is down or not trusted
        is_away = isinstance(cause, TimeoutError) or (
            type(cause).__module__.startswith("aiohttp") and "url" not in type(cause).__name__.lower()
        )
        if is_away if _status(cause) is None else _status(cause) not in (404, 410):
            return as_error(cause, shown, done)
    name, text, status = type(error).__name__, _line(error), _status(error)
    leads_nowhere = done == "read" and getattr(error, "errno", None) in (errno.ENOTDIR, errno.ELOOP)
    if isinstance(error, FileNotFoundError) or status in (404, 410) or leads_nowhere:
        return absent(shown)
    if isinstance(error, NotImplementedError):
        return Unsupported(f"{shown} can't be {done}: {kind_of(shown)}:// does not support it", subject=shown)
    if any(_is_expired(fault) for fault in _chain(error)):
        return changed(shown)
    if status is not None:
        phrase = next((code.phrase for code in HTTPStatus if code == status), "")
        text = f"the server answered {status} {phrase}".rstrip()
    denied = ("NoCredentials", "Authentication", "PasswordRequired", "No authentication methods")
    is_denied = isinstance(error, PermissionError) or status in (401, 403)
    if is_denied or any(word in name + text for word in denied):
        return Denied(f"access to {shown} was denied: {text}", subject=shown, hint=_access(shown))
    reason, hint = _unreachable(error, shown)
    if status is not None:
        reason, hint = text, "run the same command again later"
    elif isinstance(error, ValueError) and kind_of(shown) == "hf":  # a name that the Hub can't have
        return UsageError(f"{shown} is not a valid URL: {text}", subject=shown, hint=_SHAPES["hf"])
    return Unreachable(f"{shown} could not be {done}: {reason}", subject=shown, hint=hint)


def missing_package(url: str, error: ImportError) -> Unsupported:
    shown = hide_in_urls(url)
    text = f"{shown} needs a package that is not installed: {error}"
    return Unsupported(text, subject=shown, hint=f"pip install {_PACKAGES.get(kind_of(url), 'fsspec s3fs')}")


def absent(shown: str, lacking: str = "nothing") -> NotFound:
    return NotFound(f"there is {lacking} at {shown}", subject=shown, hint=_access(shown))


def _unreachable(error: Exception, shown: str) -> tuple[str, str | None]:
    """Return the reason why a server can't be reached, and the hint for it."""
    text = _line(error) or type(error).__name__
    chain = _chain(error)
    numbers = [errno.errorcode.get(getattr(one, "errno", None) or 0) for one in chain]
    words = f"{[type(one).__name__ for one in chain]} {numbers} {text}"
    reason, hint = next((both for word, both in _UNREACHABLE.items() if word in words), ("{text}", None))
    place = _ENDPOINTS.get(kind_of(shown), "host and the port in the URL")
    return reason.format(text=text), hint and hint.format(place=place, ssh=_ssh(shown))


def _chain(error: BaseException) -> list[BaseException]:
    chain: list[BaseException] = [error]
    for fault in chain:  # which grows
        below = [getattr(fault, "os_error", None), fault.__cause__, fault.__context__]
        several = getattr(fault, "errors", None)  # paramiko's, for each address of the host
        below += several.values() if isinstance(several, dict) else []
        chain += [lower for lower in below if isinstance(lower, BaseException) and lower not in chain]
    return chain


def _status(error: Exception) -> int | None:
    """Return the HTTP status of a server's refusal, wherever a client puts it."""
    response = getattr(error, "response", None)
    statuses = (getattr(error, "status", None), getattr(response, "status_code", None))
    return next((status for status in statuses if isinstance(status, int) and status >= 400), None)


def _is_expired(error: BaseException) -> bool:
    """Return whether S3 has lost the version that s3fs opened, the only one that it reads."""
    response = getattr(error, "response", None)
    answer = response.get("ResponseMetadata", {}) if isinstance(response, dict) else {}
    return type(error).__name__ == "FileExpired" or answer.get("HTTPStatusCode") == 412


def _line(error: Exception) -> str:
    return _ERRNO.sub("", next(iter(str(error).strip().splitlines()), "").strip())


def _access(shown: str) -> str:
    kind = "hf" if is_on_hub(shown) else kind_of(shown)
    hint = _ACCESS.get(kind, "check the URL: upper and lower case differ")
    return hint.format(ssh=_ssh(shown), path=split_url(shown).path, url=shown)


def _ssh(shown: str) -> str:
    parts = split_url(shown)
    user = f"{parts.username}@" if parts.username else ""
    port = ""
    with suppress(ValueError):  # it is no port, as in s3://arn:aws:s3:...
        port = f"-p {parts.port} " if parts.port else ""
    return f"ssh {port}{user}{parts.hostname}"
