"""Secrets in a command line, told by the names that stand before them: `--token X`, `DB_PASSWORD=X`, `-u user:X`."""

from __future__ import annotations

import re
from collections.abc import Sequence

from dsv.model.secret_names import is_secret
from dsv.model.secret_shapes import HIDDEN, passwords_in_urls

# To the closing quote, which is none after a backslash, or to the end where there is none.
_QUOTED = r"""(?:"(?:[^"\\]++|\\.?)*"?|'(?:[^'\\]++|\\.?)*'?)"""

# A name and what stands between it and its value, within a longer text such as the argument of `sh -c`. A name
# is looked for where a run of its characters begins, and once in each run; so a text is read once, however long.
# Possessive are sets of characters alone: of groups, Python below 3.11.5 gets them wrong (gh-106052).
_ASSIGNED = re.compile(
    r"""(?<![A-Za-z0-9_.-])[0-9_.-]*+(?P<name>[A-Za-z][A-Za-z0-9_.-]*+)["']?+\s*+[=:]\s*+""", re.IGNORECASE
)
_SCHEME = r"(?:bearer|basic|token)\s+"
_ASSIGNED_VALUE = re.compile(
    rf"""{_QUOTED}|(?:{_SCHEME})?(?:\\.?+|[^\s"'&;,|)}}\\])+""", re.IGNORECASE | re.DOTALL
)
_FOLLOWED = re.compile(
    r"(?<![A-Za-z0-9_.-])(?:[A-Za-z0-9_.]|-(?!-?[A-Za-z]))*--?(?P<name>[A-Za-z][A-Za-z0-9_.-]*+)\s++"
)
_FOLLOWED_VALUE = re.compile(rf"""{_QUOTED}|(?:\\.?+|[^\s"'&;|)\\])+""", re.DOTALL)
_WHOLE = re.compile(r"(?P<head>-{0,2}(?P<name>[A-Za-z][A-Za-z0-9_.-]*+)=)(?P<value>.+)", re.DOTALL)
_FLAG = re.compile(r"--?(?P<name>[A-Za-z][A-Za-z0-9_.-]*)")
_LOGIN = re.compile(r"(?P<user>[^\s:/\"']{1,256}):(?P<password>[^\s\"']{1,1024})")
_LOGIN_FLAGS = ("-u", "--user", "--proxy-user")
_LOGIN_IN_TEXT = re.compile(
    rf"(?P<head>(?<![\w-])(?:{'|'.join(_LOGIN_FLAGS)})[ =]{{0,4}}[\"']?(?=\S)){_LOGIN.pattern}"
)

_GLANCE = 512
"""Characters of a value that are looked at before it is known to be secret: a text is still read once."""

Found = list[tuple[str, str]]


def hide_in_command(argv: Sequence[str]) -> tuple[tuple[str, ...], Found]:
    """The arguments, as many as before, without what their names say is secret; and what that was, by name."""
    kept: list[str] = []
    found: Found = []
    before = ""
    for argument in argv:
        flag = _FLAG.fullmatch(before)
        if flag is not None and not argument.startswith("--") and is_secret(flag["name"], argument):
            found.append((flag["name"], argument))
            kept.append(HIDDEN)
            before = ""
            continue
        login = _LOGIN.fullmatch(argument) if before in _LOGIN_FLAGS else None
        shown = argument if login is None else _hide_login(login, found)
        kept.append(_hide_within(shown, before in ("-c", "-lc", "-ec"), found))
        found += [("password", password) for password in passwords_in_urls(argument)]
        before = argument
    return tuple(kept), found


def _hide_within(argument: str, script: bool, found: Found) -> str:
    whole = None if script else _WHOLE.fullmatch(argument)
    if whole is not None and is_secret(whole["name"], whole["value"]):
        found.append((whole["name"], whole["value"]))
        return whole["head"] + HIDDEN
    argument = _LOGIN_IN_TEXT.sub(lambda match: _hide_login(match, found), argument)
    argument = _hide_values(_ASSIGNED, _ASSIGNED_VALUE, argument, found)
    return _hide_values(_FOLLOWED, _FOLLOWED_VALUE, argument, found)


def _hide_login(match: re.Match[str], found: Found) -> str:
    """`user:password`; numbers are the ids of a user and a group, and a password like its user hides nothing."""
    user, password = match["user"], match["password"]
    if user.isdigit() and password.isdigit():
        return match[0]
    if user != password:
        found.append(("password", password))
    return match[0][: -len(password)] + HIDDEN


def _hide_values(names: re.Pattern[str], values: re.Pattern[str], text: str, found: Found) -> str:
    """Goes on inside the value of a name that isn't secret: `url=http://host/?token=X`."""
    parts, done, position = [], 0, 0
    while (head := names.search(text, position)) is not None:
        position = head.end()
        glance = values.match(text, position, position + _GLANCE)
        if glance is not None and is_secret(head["name"], glance[0]):
            value = values.match(text, position)
            assert value is not None  # as a part of it did
            quote = value[0][0] if value[0][0] in "\"'" else ""
            found += [(head["name"], each) for each in _meanings(value[0], quote)]
            parts += [text[done:position], quote, HIDDEN, quote]
            done = position = value.end()
    return "".join((*parts, text[done:]))


def _meanings(value: str, quote: str) -> set[str]:
    """What a quoted value means, with and without its backslashes, and without `Bearer`."""
    if quote:
        value = value[1:].removesuffix(quote)
    value = re.sub(rf"\A{_SCHEME}", "", value, flags=re.IGNORECASE)
    return {value, re.sub(r"\\(.)", r"\1", value, flags=re.DOTALL)}
