"""What goes wrong at a place that fsspec reaches, told as dsv's errors: what happened, and what helps there.

Each of its file systems raises errors of its own, for the same few things: no such host, nobody listens, no rights, not
there. They are told apart by what they carry, an HTTP status or the system's error, as their classes may not be loaded.
"""

from __future__ import annotations

import errno
import re
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from http import HTTPStatus
from urllib.parse import urlsplit

from dsv.errors import Denied, DsvError, NotFound, Unreachable, Unsupported, UsageError
from dsv.model.secret_shapes import hide_in_urls

BY_SSH = ("sftp", "ssh")
_ALIASES = {"ssh": "sftp", "https": "http", "gcs": "gs", "abfs": "az", "abfss": "az", "s3a": "s3"}
_PACKAGES = {
    "sftp": "paramiko", "hf": "huggingface_hub", "gs": "gcsfs", "http": "aiohttp", "az": "adlfs",
}  # fmt: skip
_LOGINS = {
    "sftp": "'{ssh}' has to log in without asking anything: ssh-copy-id, ssh-add and ~/.ssh/id_* serve dsv too",
    "hf": "hf auth login, or set HF_TOKEN; some datasets have terms to accept on their page first",
    "http": "if the server takes a password, put USER:PASSWORD@ before the host in the URL",
    "gs": "gcloud auth application-default login, or set GOOGLE_APPLICATION_CREDENTIALS",
    "az": "az login, or set AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY",
    "s3": "name other credentials, such as AWS_PROFILE",
}
_RIGHTS = {
    **_LOGINS,
    "sftp": "whom you log in as must be allowed to: sftp://USER@HOST/PATH names another user",
}
_ABSENT = {
    "hf": "check the name; a private one is hidden from anyone without a token: hf auth login, or set HF_TOKEN",
    "sftp": "check the path, which begins at the root of that machine: '{ssh} ls {path}'",
    "s3": "check the URL: 'aws s3 ls {url}'",
    "gs": "check the URL: 'gcloud storage ls {url}'",
}
_SHAPES = {"hf": "hf://datasets/OWNER/NAME", "sftp": "sftp://USER@HOST/PATH", "http": "https://HOST/PATH"}
_ENDPOINTS = {"hf": "variable HF_ENDPOINT", "s3": "endpoint (--source-endpoint, AWS_ENDPOINT_URL)"}
"""What names the server, if the URL does not."""
_ERRNO = re.compile(r"^\[Errno [^]]*\] ")
_NOT_SSH = "protocol banner"
_NO_METHODS = "No authentication methods"


def check_url(shown: str, url: str) -> None:
    """Raises `UsageError` for a URL that needs a host and has none."""
    kind = kind_of(url)
    if kind in ("sftp", "http") and not urlsplit(url.partition("::")[0]).hostname:
        raise UsageError(f"{shown} names no host", subject=shown, hint=_SHAPES[kind])


def kind_of(url: str) -> str:
    """Its protocol; the same for all names of one."""
    protocol = url.partition("://")[0].partition("::")[0]
    return _ALIASES.get(protocol, protocol)


@contextmanager
def telling(shown: str, done: str) -> Iterator[None]:
    """What goes wrong becomes an error that names the URL. done: what could not be done, such as `read`."""
    try:
        yield
    except (ImportError, DsvError):
        raise
    except FileNotFoundError as error:
        cause = error.__cause__  # fsspec says so of a web server that is away or is not trusted, too
        if isinstance(cause, Exception) and _status(cause) not in (None, 404, 410):
            raise told(cause, shown, done) from error
        if isinstance(cause, OSError) and type(cause).__module__.startswith("aiohttp"):
            raise told(cause, shown, done) from error
        raise absent(shown) from error
    except PermissionError as error:
        raise Denied(
            f"{shown} may not be {done}: {_line(error)}", subject=shown, hint=_hint(_RIGHTS, shown)
        ) from error
    except NotImplementedError as error:
        raise Unsupported(
            f"{shown} can't be {done}: its kind of server has no such thing", subject=shown
        ) from error
    except Exception as error:
        raise told(error, shown, done) from error


def told(error: Exception, shown: str, done: str) -> DsvError:
    """What to raise for any other error of a file system."""
    name, status = type(error).__name__, _status(error)
    login = _hint(_LOGINS, shown)
    if "NoCredentials" in name:
        return Denied(f"there are no credentials for {shown}", subject=shown, hint=login)
    if status in (404, 410):
        return absent(shown)
    if status is not None:
        answer = f"the server answered {status} {_phrase(status)}".rstrip()
        if status in (401, 403):
            return Denied(f"{shown} may not be {done}: {answer}", subject=shown, hint=login)
        return Unreachable(
            f"{shown} could not be {done}: {answer}", subject=shown, hint="run the same command again later"
        )
    if "Authentication" in name or "PasswordRequired" in name or _NO_METHODS in str(error):
        return Denied(f"{shown} may not be {done}: {_line(error)}", subject=shown, hint=login)
    if isinstance(error, ValueError) and kind_of(shown) == "hf":  # a name that the Hub can't have
        return UsageError(
            f"{shown} is no URL that can be reached: {_line(error)}", subject=shown, hint=_SHAPES["hf"]
        )
    reason, hint = _unreachable(error, shown)
    return Unreachable(f"{shown} could not be {done}: {reason}", subject=shown, hint=hint)


def missing_package(url: str, error: ImportError) -> Unsupported:
    shown, package = hide_in_urls(url), _PACKAGES.get(kind_of(url))
    more = f" {package}" if package else ""
    return Unsupported(
        f"{shown} is reached by a package that is not installed: {error}",
        subject=shown,
        hint=f"pip install 'dsv-data[import]'{more}",
    )


def absent(shown: str, lacking: str = "nothing") -> NotFound:
    return NotFound(
        f"there is {lacking} at {shown}",
        subject=shown,
        hint=_hint(_ABSENT, shown) or "check the URL: upper and lower case differ",
    )


def _unreachable(error: Exception, shown: str) -> tuple[str, str | None]:
    """Why a server was not reached, and what helps."""
    causes = [each for each in _chain(error) if isinstance(each, OSError)]
    unknown = next((each for each in causes if isinstance(each, socket.gaierror)), None)
    place = _ENDPOINTS.get(kind_of(shown), "host and the port in the URL")
    if unknown is not None:
        hint = f"check the {place}, and whether this machine has a network"
        return f"its host is not known here ({unknown.strerror})", hint
    if any(each.errno == errno.ECONNREFUSED for each in causes):
        return "nothing listens there (connection refused)", f"check the {place}, and whether the server runs"
    text = _line(error) or type(error).__name__
    if isinstance(error, TimeoutError):
        return (
            f"the server did not answer in time ({text})",
            "check the host, and the network on the way there",
        )
    if "OfflineMode" in type(error).__name__:
        return text, "unset HF_HUB_OFFLINE"
    if _NOT_SSH in text:
        return f"what answers there is no SSH server ({text})", "check the port: sftp://USER@HOST:PORT/PATH"
    if "known_hosts" in text:
        return text, f"{_ssh(shown)}, and compare the key before you say yes"
    if "WRONG_VERSION_NUMBER" in text:
        return "what answers there does not speak TLS", "http:// reads from a server without encryption"
    if "certificate" in text.lower():
        return text, "SSL_CERT_FILE=FILE names the certificates to trust"
    return text, None


def _chain(error: BaseException) -> Iterator[BaseException]:
    """The error and those below it: clients of HTTP and SSH wrap the system's."""
    found, at = [error], 0
    while at < len(found):
        one = found[at]
        below = [getattr(one, "os_error", None), one.__cause__, one.__context__]
        several = getattr(one, "errors", None)  # paramiko's, for each address of the host
        below += several.values() if isinstance(several, dict) else []
        found += [each for each in below if isinstance(each, BaseException) and each not in found]
        at += 1
    yield from found


def _status(error: Exception) -> int | None:
    """The HTTP status of a server's refusal, wherever a client puts it."""
    response = getattr(error, "response", None)
    for found in (getattr(error, "status", None), getattr(response, "status_code", None)):
        if isinstance(found, int) and found >= 400:
            return found
    return None


def _phrase(status: int) -> str:
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return ""


def _line(error: Exception) -> str:
    """The first line of what an error says, without the system's number."""
    return _ERRNO.sub("", next(iter(str(error).strip().splitlines()), "").strip())


def _hint(hints: dict[str, str], shown: str) -> str | None:
    hint = hints.get(kind_of(shown))
    if hint is None:
        return None
    parts = urlsplit(shown)
    return hint.format(ssh=_ssh(shown), path=parts.path, url=shown)


def _ssh(shown: str) -> str:
    """How the same server is reached by `ssh`."""
    parts = urlsplit(shown)
    user = f"{parts.username}@" if parts.username else ""
    port = f"-p {parts.port} " if parts.port else ""
    return f"ssh {port}{user}{parts.hostname}"
