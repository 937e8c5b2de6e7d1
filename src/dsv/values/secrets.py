"""Hiding secrets in what is recorded of a run.

    by name    the value of `--token X`, `api_key=X`, `"password": "X"`, `-u user:X`, `mysql -pX`
    by looks   private keys, tokens of well-known services, signed URLs
    by value   known secrets, wherever they occur: values that were hidden by name in the command and the
               parameters, values given with `-e`, and the caller's own variables with secret names

Known values of eight characters or more are hidden anywhere, also within a longer word; values of four to seven, and
numbers of six digits or more, only as a word of their own; shorter ones only directly after their name (`token='ab'`).
A command is searched as one text, with NUL before each argument. Each pattern reads a text once, however long. Only
character sets are possessive: groups are wrong in Python below 3.11.5 (gh-106052).
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final
from urllib.parse import quote, quote_plus, unquote

from dsv.values.cached import cached

HIDDEN: Final = "***"
_ANYWHERE, _A_WORD, _GIVEN, _LINE = 8, 4, 6, 16
"""Minimum characters of a known value to be hidden anywhere, as a word, if given with `-e`, and by line."""
_NO_SECRETS: Final = frozenset(("true", "false", "yes", "no", "on", "off", "none", "null", "auto", "default"))

Named = tuple[str, str]
"""A name, and a value that is secret because of it."""

_WORDS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+")
_OF_TEXT = r"pad|eos|bos|unk|sep|cls|mask|special|max|min|num|per|next|first|last|new|extra|sub|pre|ids|type|count|size"
# Matched against the words of a name, joined by underscores: HF_TOKEN, hf-token and hfToken are `hf_token`.
_NAME = re.compile(
    rf"""(?:.*_)?(?:
        [a-z]*(?:password|passwd|passphrase|passcode|secret|credentials?|(?:api|access|secret|private)key
          |connectionstring)
        |(?:ssh|smtp|ftp|db|pg|mysql|redis|ldap|mail|user)?pass
        |pwd|auth|authorization|bearer|cookie|signature|sas|pat|connstr|webhook_url|sentry_dsn
        |conn(?:ection)?_str(?:ings?)?
        |(?:api|access|secret|private|account|encryption|signing|storage|master|license|ssh|kaggle|openai|wandb)_keys?
        |(?!(?:{_OF_TEXT})token)[a-z]+token
    )(?:_.*)?
    |(?!(?:.*_)?(?:{_OF_TEXT}|id(?!_token(?:_|$)))(?:_|$))(?:.*_)?token(?:_.*)?""",
    re.VERBOSE,
)
_RANDOM = re.compile(
    r"(?<![A-Za-z0-9])(?=[A-Za-z]*+[0-9])(?=[0-9]*+[A-Za-z])[A-Za-z0-9]{16,}"
    r"|(?=[0-9a-f-]*?[0-9])(?=[0-9-]*[a-f])[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}",
    re.IGNORECASE,
)
_URL_USER = (  # to the last @ before the path
    r"(?<=//)(?<!\bdsv://)(?:"
    r"[^\s\0/:\"']*+:[^\s\0/\"']+"  # name and password
    r"|[A-Za-z0-9]{1,128}:[A-Za-z0-9/+]{40}"  # a secret key of S3 may hold slashes
    r"|(?!arn:)[^\s\0/:@\"']*+:(?=\S)(?![0-9]{0,5}(?:[/?\s]|\Z))(?:[^\s\0@/\"']|/(?!/)){1,1024}"  # a slash, not a port
    r"|[A-Za-z0-9_-]{20,}+|[^\s\0/:@\"']{64,}+"  # a token in place of a name
    r")(?=@)"
)
_IN_URLS = re.compile(_URL_USER, re.ASCII)  # quotes and spaces end one in a command only
_ANY_USER = r"|(?:(?<=http://)|(?<=https://))(?!git@)[^\s\0/?#]+)(?=@)"  # it may be a token, however short
_IN_A_URL = re.compile(
    _URL_USER.replace("\\\"'", "").replace(r"[^\s\0@/", r"[^\r\n\0@/").removesuffix(")(?=@)") + _ANY_USER,
    re.ASCII,
)
_SHAPES = re.compile(
    r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)"
    r"|\b(?:AKIA|ASIA)[0-9A-Z]{16}\b"
    r"|\bgh[pousr]_[A-Za-z0-9]{36,}|\bgithub_pat_[A-Za-z0-9_]{22,}|\bglpat-[A-Za-z0-9_-]{20,}"
    r"|\bhf_[A-Za-z0-9]{30,}|\bxox[abprs]-[A-Za-z0-9-]{10,}"
    r"|\bsk-(?:proj|ant|svcacct|admin)-[A-Za-z0-9_-]{8,}|\bsk-[A-Za-z0-9_-]{32,}|\bsk-[A-Za-z0-9]{20,}"
    r"|\bAIza[A-Za-z0-9_-]{30,}|\bya29\.[A-Za-z0-9_-]{20,}|\b[rs]k_(?:live|test)_[A-Za-z0-9]{16,}"
    r"|\b(?:npm_|dckr_pat_|pypi-)[A-Za-z0-9_-]{24,}"
    r"|(?i:\b(?:bearer|basic)\s+[A-Za-z0-9._~+/=-]{16,})"
    r"|(?P<head>\b(?i:X-Amz-Signature|X-Goog-Signature|Signature|sig|AccountKey|SharedAccessKey)=)"
    r"[A-Za-z0-9%+/=_-]{16,}"
    r"|(?<![A-Za-z0-9_-])eyJ[A-Za-z0-9_-]{10,}+\.eyJ[A-Za-z0-9_-]{10,}+\.[A-Za-z0-9_-]*+"  # a JSON web token
    rf"|{_URL_USER}",
    re.DOTALL | re.ASCII,
)
_IN_SHAPES: Final = (
    "akia", "asia", "ghp_", "gho_", "ghu_", "ghs_", "ghr_", "github_pat_", "glpat-", "hf_", "xox", "sk-", "aiza",
    "ya29.", "k_live_", "k_test_", "npm_", "dckr_pat_", "pypi-", "bearer", "basic", "signature=", "sig=", "accountkey=",
    "sharedaccesskey=", "eyj", "//", "-----begin",
)  # fmt: skip
"""One of these, in lower case, is in whatever `_SHAPES` matches."""
_PIECES = re.compile(r"(?s:.{4096})[^\n]*\n|(?s:.+)")
_OVER_LINES = re.compile(r"-----begin |(?:bearer|basic)\s*\n", re.ASCII)
_QUERY = re.compile(r"(?P<head>[?&#](?P<name>[A-Za-z][A-Za-z0-9_.-]{0,63})=)(?P<value>[^\s&\"'<>#]+)")
# Of a URL alone, where quotes and the like belong to a value.
_URL_QUERY = re.compile(
    r"(?P<head>[?&;#](?:amp;)?(?P<name>[\w%.\[\]-]{1,64})=)(?P<value>[^\s&;#]+)", re.ASCII
)

# To the closing quote, which does not follow a backslash, or to the end if there is none.
_QUOTED = r"""(?:"(?:[^"\\\0]++|\\[^\0]?)*"?|'(?:[^'\\\0]++|\\[^\0]?)*'?)"""
_SCHEME = r"(?:bearer|basic|token)\s+"
_WORD = r"[A-Za-z][A-Za-z0-9_.-]*+"
_LOGIN = r"[^\s\0\"']"
_IDS = rf"[ =\0]{{0,4}}[\"']?[0-9]{{1,256}}:[0-9]{{1,256}}(?!{_LOGIN})"
# The text before a value; the group is its name, or the user of a login. Only `-c` precedes a script.
_HEADS = re.compile(
    rf"""(?<![\w-])(?:-u|--user|--proxy-user)
        (?!{_IDS})  # of a user and a group
        [ =\0]{{0,4}}["']?(?P<login>[^\s\0:/"']{{1,256}}):(?={_LOGIN})
    |(?<=\0)--?(?P<option>{_WORD})\0(?!--)
    |(?<=\0)(?<!-c\0)(?<!-[le]c\0)-{{0,2}}(?P<whole>{_WORD})=
    |(?<![A-Za-z0-9_.-])[0-9_.-]*+(?P<assigned>{_WORD})["']?+\s*+[=:]\s*+
    |(?<![A-Za-z0-9_.-])(?:[A-Za-z0-9_.]|-(?!-?[A-Za-z]))*--?(?P<followed>{_WORD})\s++(?!--|-[pu])""",
    re.VERBOSE,
)
_VALUES: Final = {
    "login": re.compile(_LOGIN + "{1,1024}"),
    "option": re.compile(r"[^\0]+"),
    "whole": re.compile(r"[^\0]+"),
}
_VALUE = re.compile(rf"""{_QUOTED}|(?:{_SCHEME})?(?:\\[^\0]?+|[^\s\0"'&;,|)}}\\])+""", re.IGNORECASE)
_SHORT = re.compile(rf"(?<=[\s\0])-p(?P<value>{_QUOTED}|[^\s\0\"';|&)]++)")
_TAKES_P = re.compile(r"(?<![\w.-])(?:mysql|mariadb|sshpass)")
_PASSWORD = re.compile(r"(?=[^A-Za-z]*[A-Za-z])(?=[a-z]*[^a-z])(?![./~$-]|[A-Za-z_-]+=|rint0$)[^\s/]{6,}")
_ENV_OPTION = re.compile(r"(?P<head>(?<=\0)(?:--env[=\0]|-e[=\0]?)(?P<name>[^=\0]+)=)(?P<value>[^\0]*)")
_GLANCE = 512
"""Characters of a value to read before it is known to be secret, so that a text is still read once."""


def is_secret_name(name: str) -> bool:
    """Return whether any value of this name is secret: `HF_TOKEN`, `dbPassword`, `PGPASSWORD`, `id_token`.

    `max_tokens`, `pad_token`, `token_id`, `tokenizer`, `compass`, `author`, `key` and `PWD` are not.
    """
    words = "_".join(_WORDS.findall(name)).lower()
    return name not in ("PWD", "OLDPWD") and _NAME.fullmatch(words) is not None


def _is_secret(name: str, value: str) -> bool:
    """Return whether a value is secret by its name or, for a key of any kind, because it looks random."""
    is_key = _WORDS.findall(name)[-1:] in (["key"], ["Key"], ["KEY"])
    return is_secret_name(name) or (is_key and _RANDOM.search(value) is not None)


def hide_in_urls(text: str) -> str:
    """Return a text, such as a message with user input, without passwords and signatures in URLs."""
    if "//" not in text:
        return text

    def hide(match: re.Match[str]) -> str:
        name = unquote(match["name"], "latin-1").strip("_[]0123456789")
        secret = _is_secret(name, match["value"]) or name.lower() in ("sig", "pw")
        return match["head"] + HIDDEN if secret else match[0]

    return _URL_QUERY.sub(hide, _IN_A_URL.sub(HIDDEN, text))


def _hide_queries(text: str) -> str:
    def hide(found: re.Match[str]) -> str:
        secret = _is_secret(found["name"], found["value"]) or found["name"].lower() == "sig"
        return found["head"] + HIDDEN if secret else found[0]

    return _QUERY.sub(hide, text)


def _hide_shapes(text: str) -> str:
    """Hide what has the looks of a secret. A long text is read in pieces of whole lines, unless a secret may go over
    the end of one: `_SHAPES` is slow, and few pieces have any of `_IN_SHAPES`."""
    pieces = [text] if _OVER_LINES.search(text.lower()) else _PIECES.findall(text)
    for at, piece in enumerate(pieces):
        if any(word in piece.lower() for word in _IN_SHAPES):
            pieces[at] = _SHAPES.sub(lambda match: (match["head"] or "") + HIDDEN, piece)
    return "".join(pieces)


def hide_env_values(arguments: Sequence[str]) -> tuple[tuple[str, ...], dict[str, str]]:
    """Return a container engine's arguments without the values of `-e K=V`, `--env=K=V` and the like, and
    those variables."""
    text = _joined(arguments)
    values = {found["name"]: found["value"] for found in _ENV_OPTION.finditer(text)}
    return _arguments(_ENV_OPTION.sub(lambda found: found["head"] + HIDDEN, text)), values


def _joined(argv: Sequence[str]) -> str:
    return "".join("\0" + argument.replace("\0", " ") for argument in argv)


def _arguments(text: str) -> tuple[str, ...]:
    return tuple(text.split("\0")[1:])


def _hide_in_command(argv: Sequence[str]) -> tuple[tuple[str, ...], list[Named]]:
    """Return as many arguments, without the values of secret names and the passwords of `-u` and `-p`, and
    those values. Finds them also inside the values of other names: `url=http://host/?token=X`."""
    text = _joined(argv)
    takes_p = _TAKES_P.search(text) is not None
    secrets = [("password", match[0].partition(":")[2] or match[0]) for match in _IN_URLS.finditer(text)]
    secrets += [(name, unquote(password)) for name, password in secrets]

    def hide_short(match: re.Match[str]) -> str:
        """Hide X in `-pX` if a program takes a password so, or if X looks like neither a port nor a path."""
        value = match["value"]
        if not takes_p and _PASSWORD.fullmatch(value.strip("\"'")) is None:
            return match[0]
        secrets.extend(("password", form) for form in _meanings(value))
        return "-p" + HIDDEN

    parts, done, position = [], 0, 0
    while (head := _HEADS.search(text, position)) is not None:
        position, kind = head.end(), str(head.lastgroup)
        name, pattern = head[kind], _VALUES.get(kind, _VALUE)
        glance = pattern.match(text, position, position + _GLANCE)
        secret = glance is not None and (kind == "login" or _is_secret(name, glance[0]))
        if secret and (value := pattern.match(text, position)) is not None:
            if value[0] != head["login"]:  # a password that equals its user is no secret elsewhere
                secrets += [("password" if kind == "login" else name, form) for form in _meanings(value[0])]
            quoted = value[0][0] if value[0][0] in "\"'" else ""
            parts += [text[done:position], quoted, HIDDEN, quoted]
            done = position = value.end()
    return _arguments(_SHORT.sub(hide_short, "".join((*parts, text[done:])))), secrets


def _meanings(value: str) -> set[str]:
    """Return a value without its quotes and without `Bearer`, with and without its backslashes."""
    if value[:1] in ("'", '"'):
        value = value[1:].removesuffix(value[0])
    value = re.sub(rf"\A{_SCHEME}", "", value, flags=re.IGNORECASE)
    return {value, re.sub(r"\\(.)", r"\1", value, flags=re.DOTALL)}


@dataclass(frozen=True)
class Masker:
    """Hides secrets in what will be recorded."""

    known: tuple[Named, ...] = field(default=(), repr=False)
    """Secrets to hide wherever they occur, longest first. The name is empty if no name says that the value is
    secret: it was only given with `-e`."""
    unknown: tuple[str, ...] = ()
    """Names of variables, or other sources, whose secrets this machine can't know."""

    @classmethod
    def of(
        cls,
        given: Mapping[str, str],
        environ: Mapping[str, str],
        command: Sequence[str] = (),
        params: Mapping[str, object] | None = None,
        unknown: Sequence[str] = (),
    ) -> Masker:
        """Collect secrets from the values of `-e`, the caller's environment, the command with the engine's
        options, and the parameters."""
        pairs = [*given.items(), *environ.items()]
        _mapped(
            params or {}, lambda name, each: pairs.append((name, each)) if isinstance(each, str) else None
        )
        pairs = [pair for pair in pairs if _is_secret(*pair)] + _hide_in_command(command)[1]
        pairs = [pair for pair in pairs if _may_be_secret(pair[1])]
        pairs += [("", value) for value in given.values() if len(value) >= _GIVEN and not _is_number(value)]
        return cls(tuple(sorted(set(pairs), key=lambda pair: (-len(pair[1]), pair))), tuple(unknown))

    @cached
    def _looked_for(self) -> tuple[list[str], re.Pattern[str] | None]:
        """Texts to hide anywhere, longest first, and a pattern of the shorter values, which may begin with a
        group of what stays."""
        forms = {form for _, value in self.known if _anywhere(value) for form in _forms(value)}
        parts = dict.fromkeys(_pattern(*pair) for pair in self.known if not _anywhere(pair[1]))
        return sorted(forms, key=len, reverse=True), re.compile("|".join(parts)) if parts else None

    @property
    def longest(self) -> int:
        """The number of bytes of the longest text to look for."""
        forms = [form for _, value in self.known for form in _forms(value)]
        return max((len(form.encode("utf-8", "surrogatepass")) for form in forms), default=0)

    def data(self, data: bytes) -> bytes:
        """Hide what is known or obvious in a log, or any other text."""
        return self.text(data.decode("utf-8", "surrogateescape")).encode("utf-8", "surrogateescape")

    def text(self, text: str) -> str:
        """Do as `data` for any string, even if no encoding has bytes for it."""
        forms, pattern = self._looked_for
        for form in forms:
            text = text.replace(form, HIDDEN)
        if pattern is not None:
            text = pattern.sub(
                lambda found: (found[found.lastindex or 0] if found.lastindex else "") + HIDDEN, text
            )
        return _hide_shapes(_hide_queries(text))

    @property
    def by_name(self) -> Masker:
        """One for what is repeated or looked up later: it hides no value that was only given with `-e`."""
        return Masker(tuple(pair for pair in self.known if pair[0]))

    def name(self, text: str) -> str:
        """Hide only long secrets, for a name or a path that must not change otherwise."""
        return Masker(tuple(pair for pair in self.by_name.known if len(pair[1]) >= _ANYWHERE)).text(text)

    def value(self, value: object) -> object:
        """Mask all strings and keys of a JSON value, and hide members with secret names."""

        numbers = {known for _, known in self.known if len(known) >= _GIVEN}

        def masked(name: str, each: object) -> object:
            if isinstance(each, str):
                return HIDDEN if _may_be_secret(each) and _is_secret(name, each) else self.text(each)
            is_number = isinstance(each, int | float) and not isinstance(each, bool)
            return HIDDEN if is_number and repr(each) in numbers else each

        return _mapped(value, masked, self.text)

    def argv(self, argv: Sequence[str]) -> tuple[str, ...]:
        """Return as many arguments, without secrets by name and by value."""
        return tuple(map(self.text, _hide_in_command(argv)[0]))


def _mapped(
    value: object, leaf: Callable[[str, object], object], key: Callable[[str], str] = str, name: str = ""
) -> object:
    """Return a JSON value with each leaf, a string or number, replaced by `leaf(its name, its value)`."""
    if isinstance(value, Mapping):
        return {key(str(one)): _mapped(item, leaf, key, str(one)) for one, item in value.items()}
    if isinstance(value, list | tuple):
        return [_mapped(item, leaf, key, name) for item in value]
    return leaf(name, value)


def _may_be_secret(value: str) -> bool:
    """Return whether a value is neither a plain word nor something that a shell replaces."""
    return value != "" and value.lower() not in _NO_SECRETS and not value.startswith(("$", HIDDEN))


def _anywhere(value: str) -> bool:
    return len(value) >= _ANYWHERE and not _is_number(value)


def _forms(value: str) -> list[str]:
    """Return a value as it is, each long line of it, and as JSON, Python, a shell and a URL write it."""
    return [
        value,
        *(line.strip() for line in value.splitlines() if len(line.strip()) >= _LINE),
        json.dumps(value)[1:-1],
        json.dumps(value, ensure_ascii=False)[1:-1],
        repr(value)[1:-1],
        value.replace("'", "'\\''"),
        value.replace("'", "'\"'\"'"),
        quote(value, errors="surrogatepass"),
        quote(value, safe="", errors="surrogatepass"),
        quote_plus(value, errors="surrogatepass"),
    ]


def _pattern(name: str, value: str) -> str:
    """Return a pattern of a value outside a longer word or number; an escape such as `\\n` may precede it.

    Of a very short one, it begins with a group: its name, however the words of that are joined.
    """
    number = _is_number(value)
    if len(value) < (_GIVEN if number else _A_WORD):
        words = "[-_. ]?".join(re.escape(word) for word in _WORDS.findall(name))
        return rf"((?i:{words})[\"']?[ \t]{{0,4}}[=: ][ \t]{{0,4}}[\"']?){re.escape(value)}(?![A-Za-z0-9_])"
    if number:
        return rf"(?<![A-Za-z0-9_.]){re.escape(value)}(?!\.?[A-Za-z0-9_])"
    return rf"(?:(?<![A-Za-z0-9_])|(?<=\\[nrt])){re.escape(value)}(?![A-Za-z0-9_])"


def _is_number(value: str) -> bool:
    return re.fullmatch(r"[-+]?[0-9]*\.?[0-9]+(?:[eE][-+]?[0-9]+)?", value) is not None
