"""dsv completion: completion of command lines in bash, zsh and fish.

At each press of Tab the shell starts `dsv` with `_DSV_COMPLETE` set. typer parses the line as far as it is
typed, and `dsv.api.complete` knows the names.
"""

from __future__ import annotations

import io
import os
import re
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from typer.core import TyperArgument, TyperOption

from dsv.cli.call import Call, CommandLine
from dsv.cli.catalogue import COMMANDS, HIDDEN, MODES
from dsv.cli.declare import argument, load
from dsv.cli.declare import command as declare_command
from dsv.cli.output import CommandOutput
from dsv.cli.parser import parser_of, root
from dsv.cli.terminal import Surroundings
from dsv.errors import UsageError

if TYPE_CHECKING:
    from dsv.api.complete import Names, Row, Rows

FILES, FOLDERS, NOTHING_ELSE = "files", "folders", "words"
"""The first line of an answer: what the shell adds by itself."""
_MAX_ROWS = 500
_QUOTED = re.compile(r"([\s'\"\\$`&|;<>()*?\[\]#!{}])")


def answer(environ: Mapping[str, str], arguments: Sequence[str]) -> str:
    """Return the answer to the shell that `_DSV_COMPLETE` names.
    arguments: COMP_LINE, COMP_POINT and COMP_WORDBREAKS for bash, the words after `dsv` for the others."""
    shell = environ.get("_DSV_COMPLETE", "")
    environ = {name: value for name, value in environ.items() if name != "_DSV_COMPLETE"}
    if shell != "bash":
        otherwise, rows = complete(arguments or [""], environ)
        separator = "\t" if shell == "fish" else "\x1f"
        return _lines(
            otherwise, (f"{word}{separator}{_plain(text)}".rstrip(separator) for word, text in rows)
        )
    line, point, breaks = (*arguments, "", "", "")[:3]
    typed = os.fsencode(line)[: int(point) if point.isdecimal() else None]
    words = split(os.fsdecode(typed))[1:] or [""]
    otherwise, rows = complete(words, environ)
    # bash replaces only what follows the last of its word breaks.
    breaking = [words[-1].rfind(each) for each in breaks if not each.isspace() and each not in "\"'"]
    kept = max(breaking, default=-1) + 1
    return _lines(otherwise, (_QUOTED.sub(r"\\\1", word[kept:]) for word, _ in rows))


def complete(words: Sequence[str], environ: Mapping[str, str]) -> tuple[str, list[Row]]:
    """Return what the shell adds by itself, and the words that the last one may become."""
    *typed, word = words
    around = Surroundings(environ, io.BytesIO(), io.StringIO(), False, False)
    session = CommandLine(around, CommandOutput(around.stdout))
    # typer's resilient parsing, for completion: nothing is refused, no command runs.
    top = root()
    context = top.make_context("dsv", list(typed), obj=session, resilient_parsing=True)
    rest = top.make_parser(context).parse_args(list(typed))[1]
    command: Any = top
    if rest:
        if rest[0] not in COMMANDS:
            return NOTHING_ELSE, []
        declared = load(rest[0])
        if declared.takes_words and "--" in rest:
            return FILES, []
        command = parser_of(declared)
        context = command.make_context(rest[0], rest[1:], parent=context, resilient_parsing=True)
    param, before = _asked(command, context, typed, word)
    word = word[len(before) :]
    if param is None:
        if word.startswith("-"):
            return NOTHING_ELSE, [
                (item.value, item.help or "") for item in command.shell_complete(context, word)
            ]
        commands = {} if rest else COMMANDS
        return NOTHING_ELSE, [
            (name, text) for name, text in commands.items() if name.startswith(word) and name not in HIDDEN
        ]
    otherwise, rows = _values(param, context, word)
    return otherwise, [(f"{before}{value}", text) for value, text in rows if value.startswith(word)][
        :_MAX_ROWS
    ]


def _asked(command: Any, context: Any, typed: Sequence[str], word: str) -> tuple[Any, str]:
    """Return the option or argument whose value is typed, and what precedes it in its word: `--cache=`."""
    params = command.get_params(context)
    options = {
        name: param
        for param in params
        if isinstance(param, TyperOption) and not param.is_flag
        for name in param.opts
    }
    name, equals, _ = word.partition("=")
    if typed and typed[-1] in options:
        return options[typed[-1]], ""
    if word.startswith("-"):
        return (options[name], f"{name}=") if equals and name in options else (None, "")
    for param in params:
        if isinstance(param, TyperArgument):
            source = context.get_parameter_source(str(param.name))
            if param.nargs == -1 or source is None or source.name != "COMMANDLINE":
                return param, ""
    return None, ""


def _values(param: Any, context: Any, word: str) -> tuple[str, list[Row]]:
    """Return what the shell adds, and the values of an option or argument, by its metavar."""
    named = str(param.metavar or "")
    plain = named if named in _FINDERS or named in _BY_SHELL else named.replace("...", "").strip("[]")
    plain = _OF_COMMANDS.get((context.info_name or "", plain), plain)
    if re.fullmatch(r"[a-z0-9-]+([|][a-z0-9-]+)+", plain):
        return NOTHING_ELSE, [(choice, "") for choice in plain.split("|")]
    if plain == "MODE":
        return NOTHING_ELSE, [(mode, "") for mode in MODES]
    rows: list[Row] = []
    if plain in _FINDERS:
        rows = _known(context, lambda names: _FINDERS[plain](names, word))
    elif choices := param.shell_complete(context, word):
        rows = [(item.value, item.help or "") for item in choices]
    return _BY_SHELL.get(plain, NOTHING_ELSE), rows


def _known(context: Any, find: Callable[[Names], Rows]) -> list[Row]:
    from dsv.api.complete import SECONDS, in_time

    session = context.find_object(CommandLine)
    assert session is not None
    flags, environ = session.flags, session.around.environ
    named = {"store": flags.store or None, "cache": flags.cache or None}
    try:
        seconds = min(3600.0, float(environ["DSV_COMPLETION_SECONDS"]))
    except (KeyError, ValueError):
        seconds = SECONDS
    folder = Path(os.path.abspath(flags.directory or "."))  # noqa: PTH100 (which asks no file server)
    return in_time(find, environ, folder, named, seconds)


def _targets(names: Names, word: str) -> Rows:
    """Yield words of `[DATASET][@REV][:PATH]`."""
    before, colon, path = word.partition(":")
    dataset, at, revision = before.partition("@")
    if colon:
        yield from _behind(f"{before}:", names.paths(dataset, revision, path))
    elif at:
        yield from _behind(f"{dataset}@", names.revisions(dataset))
    else:
        found = set()
        for name, about in names.datasets():
            yield name, about
            found.add(name)
        found = {name for name in found if name.startswith(word)}
        if len(found) == 1:  # else the shell would end the word
            (name,) = found
            yield from _behind(f"{name}@", names.revisions(name))


def _named_targets(names: Names, word: str) -> Rows:
    name, equals, target = word.partition("=")
    return _behind(f"{name}=", _targets(names, target) if equals else iter(()))


def _behind(before: str, rows: Rows) -> Rows:
    return ((before + word, about) for word, about in rows)


_FINDERS: dict[str, Callable[[Names, str], Rows]] = {
    **dict.fromkeys(("TARGET", "TARGET|FILE", "TARGET:PATH", "DATASET[@REV]", "A", "B"), _targets),
    "NAME=TARGET": _named_targets,
    "DATASET": lambda names, _: names.datasets(),
    "BRANCH": lambda names, _: names.branches(),
    "TAG": lambda names, _: names.tags(),
    "RUN": lambda names, _: names.runs(),
    "KEY": lambda names, _: names.keys(),
    "PATTERN": lambda names, word: names.paths("", "", word),
    "URL|NAME": lambda names, _: names.configured("stores", "url"),
    "DIR|NAME": lambda names, _: names.configured("caches", "path"),
}
"""The values by the metavar of their option or argument, without brackets and dots."""
_BY_SHELL = dict.fromkeys(("PATH", "FILE", "TARGET|FILE"), FILES)
_BY_SHELL |= dict.fromkeys(("DIR", "URL|NAME", "DIR|NAME"), FOLDERS)
_OF_COMMANDS = {("tag", "NAME"): "TAG", ("branch", "NAME"): "BRANCH"}


def split(line: str) -> list[str]:
    """Return the words of an unfinished line as a shell takes them; the last one is empty after a space."""
    for end in ("x", "x'", 'x"'):  # ends the last word, in quotes too
        with suppress(ValueError):
            *words, last = shlex.split(line + end)
            return [*words, last[:-1]]
    return [""]


def _lines(otherwise: str, rows: Iterable[str]) -> str:
    return "".join(f"{line}\n" for line in (otherwise, *rows))


def _plain(text: str) -> str:
    return "".join(each if each.isprintable() else " " for each in text)[:72]


_SCRIPTS = Path(__file__).parents[1] / "completion"
SHELLS = ("bash", "zsh", "fish")


@declare_command(
    "completion",
    examples="""
        dsv completion bash  # in ~/.bashrc: eval "$(dsv completion bash)"
        dsv completion zsh  # in ~/.zshrc, after compinit: eval "$(dsv completion zsh)"
        dsv completion fish  # for ~/.config/fish/completions/dsv.fish
    """,
    result="shell script",
    unused=("--store", "--cache"),
)
def completion(call: Call, shell: str = argument("[bash|zsh|fish]")) -> None:
    """Print the script that completes dsv's words in your shell.

    It completes commands and options, datasets, branches, tags, commits, paths in a commit that is cached, runs, and
    configured stores and caches: what this machine knows. Folders are listed, those of a store too, for 0.3 s at most;
    no bucket is asked.
    """
    name = shell or call.around.environ.get("SHELL", "").rpartition("/")[2]
    if name not in SHELLS:
        raise UsageError(
            f"dsv has no completion for {name}" if name else "no shell is named",
            subject=name or None,
            hint="dsv completion bash, zsh or fish",
        )
    script = (_SCRIPTS / f"dsv.{name}").read_text("utf-8")
    if call.json:
        call.document({"shell": name, "script": script})
    else:
        call.out.write(script.encode())
