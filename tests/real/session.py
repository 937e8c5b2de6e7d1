"""The sessions of the README and of docs/guide/editing.md, typed and printed anew.

`python -m tests.real.session` rewrites them where they stand.
"""

from __future__ import annotations

import os
import re
import shlex
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from dsv.files.process import user_name

ROOT = Path(__file__).parents[2]
README = ROOT / "README.md"
RELABELLING = ROOT / "docs/guide/editing.md"
SHOWN_FOLDER, SHOWN_HOME, SHOWN_PERSON = "/tmp/session", "/home/ann", "ann@laptop"

_BLOCK = re.compile(r"```console\n(.*?)```", re.DOTALL)
_PATTERNS = {
    r"\b\d{4}-\d\d-\d\d[ T]\d\d:\d\d(?::\d\dZ|[+-]\d\d:\d\d)?": "TIME",
    r"\b(?:(?:just )?now\b|(?:[\d.]+ s|\d+[wdhms](?: \d+[dhms])?) ago)": "AGO",
    r"\b[\d.]+ (?:s|ms)\b": "DURATION",
    r"\b[\d.]+ (?:B|kB|MB|GB|TB)\b": "SIZE",
    r"\b0\.9\d+": "ACCURACY",
    r" +": " ",
}


def block(readme: str) -> str:
    found = _BLOCK.search(readme)
    assert found is not None
    return found[1]


def commands(session: str) -> list[str]:
    return [line.removeprefix("$ ") for line in session.splitlines() if line.startswith("$ ")]


def typed(lines: Sequence[str], folder: Path, environ: Mapping[str, str]) -> str:
    """Return what a terminal would show of these commands, typed in the checkout; `folder` stands for /tmp/session."""
    home = folder.parent / "home"
    programs = folder.parent / "programs"
    for path in (home, programs):
        path.mkdir()
    (programs / "dsv").symlink_to(Path(sys.executable).with_name("dsv"))
    python = f'#!/bin/sh\nexec {shlex.quote(sys.executable)} "$@"\n'
    (programs / "python").write_text(python)
    (programs / "python").chmod(0o755)
    script = []
    for line in lines:
        script += [f"printf '%s\\n' {shlex.quote(f'$ {line}')}", line.replace(SHOWN_FOLDER, str(folder))]
    done = subprocess.run(
        ["bash", "-c", "\n".join(["set -e", *script])],
        cwd=ROOT,
        env={**environ, "HOME": str(home), "PATH": f"{programs}:{os.environ['PATH']}", "TZ": "UTC"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    text = done.stdout.expandtabs().replace(str(folder), SHOWN_FOLDER).replace(str(home), SHOWN_HOME)
    return with_shown_person(text, user_name(), socket.gethostname())


def with_shown_person(text: str, user: str, host: str) -> str:
    """The text with another user and host, where dsv names them: the user's name may be an English word."""
    user = re.escape(user)
    text = re.sub(rf"\b{user}@{re.escape(host)}\b", SHOWN_PERSON, text)
    return re.sub(rf"(?m)(?<=held by ){user}\b|(?<=  ){user}$", SHOWN_PERSON.partition("@")[0], text)


def comparable(session: str) -> str:
    """The text without what differs each time: ids, times, sizes, figures, widths of columns."""
    ids: dict[str, int] = {}

    def numbered(match: re.Match[str]) -> str:
        return f"ID-{ids.setdefault(match[0][:12], len(ids) + 1)}"

    session = re.sub(r"\b(?:\d{8}-\d{6}-[0-9a-f]{8}|[0-9a-f]{12,64})\b", numbered, session)
    for pattern, word in _PATTERNS.items():
        session = re.sub(pattern, word, session)
    return session


def main() -> None:
    for page in (README, RELABELLING):
        with tempfile.TemporaryDirectory() as temporary:
            text = page.read_text()
            environ = {"LANG": "C.UTF-8", "PYTHONPATH": os.environ.get("PYTHONPATH", "")}
            session = typed(commands(block(text)), Path(temporary, "session"), environ)
            page.write_text(text.replace(block(text), session))


if __name__ == "__main__":
    main()
