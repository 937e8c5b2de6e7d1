"""completion/commands.json, generated from the commands themselves.

python -m dsv.cli.described > src/dsv/cli/completion/commands.json
"""

from __future__ import annotations

import json
import re
import sys

from typer.core import TyperArgument, TyperOption

from dsv.cli.app import load
from dsv.cli.catalogue import COMMANDS
from dsv.cli.declare import Command
from dsv.cli.global_options import global_options

KINDS = {
    "TARGET": "target",
    "TARGET:PATH": "target",
    "DATASET[@REV]": "target",
    "DATASET": "dataset",
    "BRANCH": "branch",
    "RUN": "run",
    "KEY": "key",
    "PATH": "path",
    "PATTERN": "pattern",
    "FILE": "file",
    "DIR": "folder",
    "DIR|NAME": "cache",
    "URL|NAME": "store",
    "NAME=TARGET": "named-target",
    "A": "target",
    "B": "target",
}
"""The kind of a value by its metavar, without brackets and dots."""
OF_COMMANDS = {("tag", "NAME"): "tag", ("branch", "NAME"): "branch"}
CHOICES = {"MODE": "auto|bar|lines|json|none"}


def described() -> str:
    """The whole file: a line for each command."""
    rows = {name: _row(load(name), text) for name, text in COMMANDS.items()}
    own = {"": {"options": [_option("", option) for option in global_options()]}}
    lines = (f"{json.dumps(name)}: {json.dumps(row)}" for name, row in {**own, **rows}.items())
    return "{\n" + ",\n".join(lines) + "\n}\n"


def _row(command: Command, text: str) -> dict[str, object]:
    name = str(command.name)
    arguments = [param for param in command.params if isinstance(param, TyperArgument)]
    return {
        "help": text,
        "options": [_option(name, param) for param in command.params if isinstance(param, TyperOption)],
        "arguments": [_kind(name, str(param.metavar or "")) for param in arguments],
        "repeats": bool(arguments) and arguments[-1].nargs == -1,
        "words": command.takes_words,
    }


def _option(command: str, option: TyperOption) -> tuple[list[str], str, str]:
    kind = "" if option.is_flag else _kind(command, str(option.metavar or "")) or "text"
    return [*option.opts, *option.secondary_opts], kind, str(option.help or "")


def _kind(command: str, metavar: str) -> str:
    """The kind of a value: `a|b` for one of these words."""
    plain = metavar if metavar in KINDS else metavar.replace("...", "").removeprefix("[").removesuffix("]")
    plain = CHOICES.get(plain, plain)
    if re.fullmatch(r"[a-z]+([|][a-z]+)+", plain):
        return plain
    return OF_COMMANDS.get((command, plain)) or KINDS.get(plain, "")


if __name__ == "__main__":
    sys.stdout.write(described())
