"""Meaning of the object-store client's errors: by HTTP status, the service's code or network failure.

obstore raises few classes and puts the rest in the text, so the text is parsed here, and nowhere else.
"""

from __future__ import annotations

import re
from typing import Final

import msgspec

from dsv.errors import Denied, DsvError, IntegrityError, NoRoom, Unreachable, Unsupported
from dsv.stores.base import Busy, NoAnswer, StoreMissing, absent

_STATUS: Final = re.compile(r"status code: (\d{3})")
_CODE: Final = re.compile(r"<Code>\s*(\w+)\s*</Code>|\"code\":\s*\"(\w+)\"")
_KIND: Final = re.compile(r"\bkind: (Connect|Timeout|Request|Interrupted|Decode|Unknown),")
_CHAIN: Final = re.compile(
    r"External AWS credential provider: (?:\w+: )?(.*?)\s*(?:Debug source:|\Z)", re.DOTALL
)
PAGE: Final = re.compile(r"<html|<!doctype html", re.IGNORECASE)
"""The beginning of a web page."""

_MISSING_BUCKET: Final = {"NoSuchBucket", "ContainerNotFound", "ContainerBeingDeleted"}
_EXPIRED: Final = {"ExpiredToken", "ExpiredTokenException", "TokenRefreshRequired", "RequestExpired"}
_ARCHIVED: Final = {"InvalidObjectState", "BlobArchived"}
_FULL: Final = {"QuotaExceeded", "QuotaExceededException", "XMinioStorageFull", "InsufficientStorage"}
_REFUSED_WITH_400: Final = {"InvalidToken", "AuthorizationHeaderMalformed", "InvalidAccessKeyId"}
_WRONG_KEY: Final = {
    "SignatureDoesNotMatch": "wrong secret key",
    "InvalidAccessKeyId": "no such access key",
    "AuthenticationFailed": "wrong account key",
}
_BUSY_STATUS: Final = {408, 429, 500, 502, 503, 504}
_BUSY_CODE: Final = {"RequestTimeout", "SlowDown", "InternalError", "ServiceUnavailable"}

_LOGIN: Final = {
    "s3": "aws configure, aws sso login, or set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY",
    "gs": "gcloud auth application-default login, or set GOOGLE_APPLICATION_CREDENTIALS",
    "az": "az login, or set AZURE_STORAGE_ACCOUNT_NAME and AZURE_STORAGE_ACCOUNT_KEY",
}


class ErrorMeaning(msgspec.Struct, frozen=True):
    """The meaning of an error's text. `status` 0: no HTTP answer; `kind`: how the network failed."""

    status: int
    code: str
    kind: str
    text: str

    @classmethod
    def of(cls, error: BaseException) -> ErrorMeaning:
        text = str(error)
        status = _STATUS.search(text)
        code = _CODE.search(text)
        kind = _KIND.search(text)
        return cls(
            int(status[1]) if status else 0,
            (code[1] or code[2]) if code else "",
            kind[1] if kind else "",
            text,
        )

    @property
    def said(self) -> str:
        """The answer in a few words, for a message."""
        return f"{self.status} {self.code}".strip() if self.status else "no answer"

    @property
    def ranges_unusable(self) -> bool:
        """The range was answered with the whole object, or with a Content-Range that makes no sense."""
        return "NotPartial" in self.text or "ParseContentRange" in self.text

    @property
    def beyond_the_end(self) -> bool:
        return self.status == 416 or "Wanted range starting at" in self.text


def login_hint(url: str) -> str:
    """Return how to get credentials for a store of this kind."""
    return _LOGIN[url.partition(":")[0]]


def as_store_error(error: BaseException, url: str, endpoint: str, key: str | None) -> DsvError:
    """Return the error to raise for obstore's `error` about `key` (None: about the whole store)."""
    answer = ErrorMeaning.of(error)
    bucket = url.partition("://")[2].partition("/")[0]
    about = url if key is None else f"{key} in {url}"
    subject = url if key is None else key
    if chain := _CHAIN.search(answer.text):
        what = f"the credentials for {url} can't be obtained: {' '.join(chain[1].split())}"
        return Denied(what, subject=url, hint=login_hint(url))
    if answer.kind == "" and 300 <= answer.status < 500 and PAGE.search(answer.text):
        return no_object_store(endpoint, ": a web page came")
    if answer.code in _ARCHIVED:
        return Unreachable(
            f"{about} is archived ({answer.code}), so it can't be read before it is restored",
            subject=subject,
            hint="aws s3api restore-object (S3) or az storage blob set-tier (Azure) makes it readable, after hours; "
            "the bucket's lifecycle rules must leave a store where it is",
        )
    if answer.code == "RequestTimeTooSkewed":
        return Unreachable(
            f"this machine's clock and that of {endpoint} differ too much for it to answer ({answer.said})",
            subject=endpoint,
            hint="timedatectl status",
        )
    if "token request" in answer.text:
        return Denied(f"there are no credentials for {url}", subject=url, hint=login_hint(url))
    if answer.status == 404 or isinstance(error, FileNotFoundError):
        if key is None or answer.code in _MISSING_BUCKET:
            return StoreMissing(
                f"{url} was not found: there is no {bucket} at {endpoint}",
                subject=url,
                hint=f"create the bucket {bucket}, or check the URL and the endpoint",
            )
        return absent(url, key)
    if answer.code in _FULL or answer.status == 507:
        hint = f"raise the quota of {bucket}, or make room in it"
        return NoRoom(f"{about} could not be written: {answer.said}", subject=subject, hint=hint)
    if answer.status in (401, 403) or answer.code in _EXPIRED | _REFUSED_WITH_400:
        return _denied(answer, about, subject, url)
    if answer.status in _BUSY_STATUS or answer.code in _BUSY_CODE:
        # 503 and 429 refuse a request before it is processed; after a 500 anything may have happened.
        return Busy(
            f"{endpoint} could not serve {about}: {answer.said}",
            subject=subject,
            hint="the server is busy or broken: run the same command again later; it continues where it stopped",
            maybe_done=answer.status not in (429, 503),
        )
    return _unanswered(answer, about, subject, endpoint, url)


def no_object_store(endpoint: str, what: str = "") -> Unreachable:
    """Return the error for an answer that no object store gives, such as a web page."""
    hint = f"is it a network's login page, a proxy, or a console's port? curl -I {endpoint}"
    return Unreachable(f"{endpoint} answers, but not as an object store{what}", subject=endpoint, hint=hint)


def _denied(answer: ErrorMeaning, about: str, subject: str, url: str) -> Denied:
    message, hint = f"{about} was refused: {answer.said}", login_hint(url)
    if answer.code in _EXPIRED:
        message = f"the credentials for {url} have expired: {answer.said}"
    elif answer.code == "AuthorizationHeaderMalformed":
        hint = "set AWS_REGION to the bucket's region"
    elif answer.code in _WRONG_KEY:
        message, subject = f"{url}: {_WRONG_KEY[answer.code]} ({answer.said})", url
        hint = f"see which keys are in effect (environment, ~/.aws): {hint}"
    return Denied(message, subject=subject, hint=hint)


def _unanswered(answer: ErrorMeaning, about: str, subject: str, endpoint: str, url: str) -> DsvError:
    """Return the error for every answer that is not plainly about an object."""
    text = answer.text
    if "certificate" in text.lower():
        return Unreachable(
            f"{endpoint} has a certificate that this machine does not trust",
            subject=endpoint,
            hint="set AWS_CA_BUNDLE (or SSL_CERT_FILE) to a PEM file of the authority that signed it",
        )
    if answer.kind:
        refused = answer.kind == "Connect"
        how = {"Connect": "cannot be reached", "Timeout": "did not answer in time"}
        return NoAnswer(
            f"{endpoint} {how.get(answer.kind, 'broke off the connection')} ({about})",
            subject=subject,
            hint=f"check the endpoint, proxies and network: curl -I {endpoint}",
            maybe_done=not refused,
        )
    if answer.status in (301, 302, 307, 308) or "redirect" in text:
        hint = "set AWS_REGION to the bucket's region, or AWS_ENDPOINT_URL to the right endpoint"
        return StoreMissing(f"{url} is not at {endpoint}, which points elsewhere", subject=url, hint=hint)
    if answer.status in (405, 501):
        return Unsupported(
            f"{endpoint} does not support what {about} needs: {answer.said}",
            subject=subject,
            hint="if it refuses the condition of a write (If-None-Match): dsv init --names LOCATION keeps the names "
            "where one writer wins, and dsv init --single-writer is for one person alone; else use another store",
        )
    if "list response" in text or "from headers" in text:  # XML or headers that no object store sends
        return no_object_store(endpoint)
    lowered = text.lower()
    if "credential" in lowered or "token" in lowered or "metadata" in lowered:
        return Denied(f"there are no credentials for {url}", subject=url, hint=login_hint(url))
    if answer.status:
        return IntegrityError(
            f"{endpoint} answered {answer.said} about {about}", subject=subject, hint=f"curl -I {endpoint}"
        )
    said, _, _ = text.strip().partition("\n")
    return NoAnswer(
        f"{endpoint} failed on {about}: {said[:200] or 'it does not say why'}",
        subject=subject,
        hint=f"check the endpoint, proxies and network: curl -I {endpoint}",
    )
