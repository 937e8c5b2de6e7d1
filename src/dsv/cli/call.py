"""One invocation of a command: its global options, its settings and its output."""

from __future__ import annotations

import gc
import os
import shlex
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager, suppress
from functools import cached_property
from typing import TYPE_CHECKING, Any, BinaryIO

import msgspec

from dsv.cli.catalogue import MODES
from dsv.cli.declare import Command, Parameter, global_options, with_option
from dsv.cli.output import Keys, document, printable, to_item, to_json, write_items, write_table
from dsv.cli.terminal import Style, wrapped
from dsv.errors import Conflict, DsvError, NotFound, UsageError

if TYPE_CHECKING:
    from pathlib import Path

    from dsv.api.context import Context
    from dsv.api.settings import Settings
    from dsv.cli.output import Column, CommandOutput
    from dsv.cli.progress import Meter
    from dsv.cli.terminal import Surroundings


class Flags(msgspec.Struct):
    """The global options, before or after the name of the command; the last one counts."""

    store: str | None = None
    cache: str | None = None
    names: str | None = None
    """The location of a store's names: an option of the commands that bind a folder to a store."""
    directory: str | None = None
    json: bool = False
    quiet: bool = False
    debug: bool = False
    progress: str | None = None
    no_pager: bool = False


PAGED = frozenset({"diff", "log", "runs", "show"})
"""Commands whose output is for a pager."""


class CommandLine(msgspec.Struct):
    """The state of one command line. Typer passes it as `obj`."""

    around: Surroundings
    out: CommandOutput
    flags: Flags = msgspec.field(default_factory=Flags)
    command: str = ""
    arguments: tuple[str, ...] = ()
    reported_moves: set[str] = msgspec.field(default_factory=set)
    """Stores whose moved names were reported already."""
    announce: Callable[[str, Path | None, Path | None], None] | None = None
    """In the process of a detached run: reports the run to the process that started this one."""
    member: dict[str, Any] | None = None
    """In the process of a run of a sweep: which run it is, and what all runs have in common."""
    later: list[str] = msgspec.field(default_factory=list)
    """Notes and warnings that follow the output, as a pager would hide them."""

    @property
    def pager(self) -> str | None:
        """The command line of the pager that shows the output, if one does."""
        flags, around = self.flags, self.around
        if self.command not in PAGED or flags.json or flags.no_pager or around.is_dumb:
            return None
        if self.out.streaming or not self.out.isatty():
            return None
        line = around.environ.get("DSV_PAGER", around.environ.get("PAGER", "less")).strip()
        return None if line in ("", "cat") else line

    def tell(self, text: str) -> None:
        """Print a text on stderr."""
        with suppress(BrokenPipeError):
            self.around.stderr.write(text)
            self.around.stderr.flush()


class Call(msgspec.Struct, eq=False, dict=True):
    """The first argument of every command: what was typed, with settings and output."""

    session: CommandLine
    command: Command
    params: dict[str, Any]
    typed: Set[str]
    """The names of the parameters that were given on the command line."""
    words: tuple[str, ...] = ()
    """The words after `--`, for commands that take some."""
    answered: bool = False
    """The result was printed as JSON, so nothing more is printed for people."""

    @property
    def flags(self) -> Flags:
        return self.session.flags

    @property
    def around(self) -> Surroundings:
        return self.session.around

    @property
    def out(self) -> CommandOutput:
        return self.session.out

    @property
    def stdin(self) -> BinaryIO:
        if not (self.around.stdin or sys.stdin):  # what the caller has closed is not empty
            raise UsageError("stdin is closed, so nothing can be read from it", subject="stdin")
        return self.around.stdin or sys.stdin.buffer

    @property
    def json(self) -> bool:
        return self.flags.json

    @property
    def quiet(self) -> bool:
        return self.flags.quiet

    def run(self) -> int | None:
        """Run the command, and return its exit code. An error that is about an option names it."""
        if not gc.isenabled():  # see `main`
            gc.freeze()
            gc.enable()
        self._refuse_empty()
        try:
            self.enter()
            return self.command.body(self, **self.params)
        except UsageError as error:
            about = list(self._about(error.subject)) if error.subject else []
            named = with_option(error, about[0]) if len(about) == 1 and about[0].names else error
            if named is error:
                raise
            raise named from error

    def _about(self, subject: str) -> Iterator[Parameter]:
        """Yield the parameters that were typed as `subject`, or as the end of that path. A part of
        NAME=TARGET or of a list with commas counts too."""
        values = [
            (each, self.params[each.name]) for each in self.command.parameters if each.name in self.typed
        ]
        values += [(each, getattr(self.flags, each.name, None)) for each in global_options()]
        for parameter, value in values:
            parts = {
                part for word in _words(value) for part in (word, *word.partition("="), *word.split(","))
            }
            if subject in parts or any(part and subject.endswith(f"/{part}") for part in parts):
                yield parameter

    def _refuse_empty(self) -> None:
        """Raises `UsageError` for an empty word: usually a variable that is not set."""
        for each in self.command.parameters:
            typed = each.name in self.typed and each.name != "message"
            if typed and not all(word.strip() for word in _words(self.params[each.name])):
                hint = f"is a variable unset? dsv {self.command.name} --help"
                raise UsageError(f"{each.label} is empty", subject=each.label, hint=hint)

    def takes_only(self, form: str, *names: str) -> None:
        """Raises `UsageError` if any other parameter was typed. form: what does not take it."""
        more = [each for each in self.command.parameters if each.name in self.typed - set(names)]
        if more:
            named = more[0].label
            raise UsageError(
                f"{form} does not take {named}", subject=named, hint=f"dsv {self.command.name} --help"
            )

    def enter(self) -> None:
        """Change to the folder of -C, and check the other global options. Raises `NotFound` and `UsageError`."""
        for option, value in (("--store", self.flags.store), ("--cache", self.flags.cache)):
            if value is not None and not value.strip():
                raise UsageError(f"{option} is empty", subject=option, hint="is a variable unset?")
        mode = self.flags.progress
        if mode is not None and mode not in MODES:
            hint = f"--progress {'|'.join(MODES)}"
            raise UsageError(f"--progress has no mode {mode!r}", subject=mode, hint=hint)
        directory = self.flags.directory
        if directory is None:
            return
        if not directory:
            raise UsageError("-C needs a folder", hint="-C DIR")
        try:
            os.chdir(directory)
        except (FileNotFoundError, NotADirectoryError):
            raise NotFound(
                f"there is no folder {directory}",
                subject=directory,
                hint=f"mkdir -p {shlex.quote(str(directory))}",
            ) from None

    @cached_property
    def settings(self) -> Settings:
        from dsv.api.environment import gather, working_folder

        flags = {"store": self.flags.store, "names": self.flags.names, "cache": self.flags.cache}
        found = gather(self.around.environ, working_folder(self.around.environ), flags)
        used, said = found.get("store"), self.around.environ.get("DSV_STORE")
        is_other = used is not None and used.origin not in ("DSV_STORE", "--store")
        if used is not None and is_other and said and used.value not in (said, found.location(said)):
            from dsv.values.secrets import hide_in_urls  # takes a while to import

            self.warn(f"DSV_STORE={hide_in_urls(said)} is not used: this workspace has its own store")
        return found

    def line(self, text: str, style: str = "") -> None:
        """Print a line of the result, for people: nothing with --json."""
        if not self.json:
            self.prose(self.around.stdout_ink.paint(style, printable(text)))

    def prose(self, text: str) -> None:
        """Print printable text that a terminal breaks between words."""
        self.out.line(wrapped(text, self.around.columns()) if self.around.stdout_is_terminal else text)

    def routine(self, text: str) -> None:
        """Print a line of the result that says that all went well: nothing with --quiet, as cron mails it."""
        if not self.quiet:
            self.line(text)

    def table(
        self,
        columns: Sequence[Column | str],
        rows: Sequence[Sequence[str]],
        details: Sequence[Sequence[str]] = (),
    ) -> None:
        """Print a table, for people: nothing with --json."""
        if not self.json:
            write_table(self.out, self.around, columns, rows, details)

    def document(self, fields: Mapping[str, object]) -> None:
        """Print the result as one JSON document."""
        self.out.line(to_json(document(fields), indent=self.around.stdout_is_terminal))

    def result(self, found: object = None, /, **more: object) -> None:
        """With --json, print a result with the keys that the command declares: see `to_item`. After that,
        `line`, `table`, `say` and `warn`, which print the result for people, do nothing."""
        if self.json:
            self.document(to_item(found, self._keys, **more))
            self.answered = True

    def results(self, found: Iterable[object], about: object = None, /, **more: object) -> None:
        """As `result`, with several results as `items`, and beside them the keys of `about`."""
        self.items(map(self.item, found), self.head(about, **more) if about or more else None)

    def item(self, found: object, /, **more: object) -> dict[str, object]:
        """Return a result with the keys that the command declares below `items`: see `to_item`."""
        return to_item(found, self._keys["items"], self.command.nulls, **more)

    def head(self, found: object, /, **more: object) -> dict[str, object]:
        """Return a result with the keys that the command declares beside `items`: see `to_item`."""
        keys = Keys(self._keys)
        keys.pop("items", None)
        return to_item(found, keys, self.command.nulls, **more)

    @property
    def _keys(self) -> Keys:
        return self.command.result

    def items(
        self,
        items: Iterable[Mapping[str, object]],
        head: Mapping[str, object] | None = None,
        *,
        lines: bool = False,
    ) -> None:
        """As `result`, with several results as `items`. lines: print each as a line, even without --json."""
        if lines:
            for item in items:
                self.out.line(to_json(item))
        elif self.json:
            write_items(self.out, items, head)
            self.answered = True

    def say(self, text: str, style: str = "") -> None:
        """Print a note for people on stderr, unless --quiet is given, or the result was printed as JSON."""
        if not (self.quiet or self.answered):
            self._stderr(self.around.stderr_ink.paint(style, printable(text)))

    def warn(self, text: str) -> None:
        """Print a warning on stderr, with --quiet too, unless the result was printed as JSON."""
        if not self.answered:
            self._stderr(f"{self.around.stderr_ink.paint(Style.WARNING, 'warning:')} {printable(text)}")

    def complain(self, error: DsvError) -> None:
        """Print a failure that doesn't end the command."""
        from dsv.cli.failure import failure_text, of_error

        self._stderr(failure_text(of_error(error), self.around.stderr_ink).rstrip("\n"))

    @contextmanager
    def context(
        self,
        *,
        writes: bool = False,
        author: str | None = None,
        offline: bool | None = None,
        override: str | None = None,
    ) -> Iterator[Context]:
        """Yield a context for the functions of `dsv.api`, with a meter that ends with it.
        writes: records are signed; only then is git asked for a name. offline: of commands with that
        option."""
        from dsv.api import environment
        from dsv.api.connection import make_context

        name = environment.author(self.settings, author).value if writes else environment.user_at_host()
        hint = self._offline_hint() if offline is False else None
        with self.progress() as meter:
            made = make_context(
                self.settings, self.around.environ, name, meter, offline=bool(offline), offline_hint=hint
            )
            yield msgspec.structs.replace(made, override=override, moved=self._tell_moved)

    def confirm(self, what: str, name: str, *, yes: bool, act: str = "delete") -> None:
        """Ask the user to type a name before something is deleted, or another act is done, unless `yes`. what: a
        sentence about that.

        Raises `UsageError` if there is no terminal to ask on, and `Conflict` if anything else is typed.
        """
        if yes:
            return
        undone = f"nothing was {act.removesuffix('e')}ed"
        if not self.can_ask:
            raise UsageError(
                f"{what}. There is no terminal to confirm on, so {undone}",
                subject=name,
                hint="the same command with --yes",
            )
        self._stderr(printable(what))
        self._stderr(printable(f"type {name} to {act} it:"))
        typed = self.stdin.readline().decode("utf-8", "replace").strip()
        if typed != name:
            raise Conflict(f'expected "{name}", got "{typed}"; {undone}', subject=name)

    def confirm_published(self, yes: bool) -> Callable[[str, str], None]:
        """Return what to call with a sentence about what would be published, and the dataset."""
        return lambda what, name: self.confirm(what, name, yes=yes, act="publish")

    @property
    def can_ask(self) -> bool:
        """True if a user at a terminal can answer a question."""
        has_stdin = self.around.stdin or sys.stdin
        return bool(has_stdin) and self.stdin.isatty() and self.around.stderr_is_terminal

    def author(self) -> str:
        """Return the author of new records; git may be asked for the name."""
        from dsv.api import environment

        return environment.author(self.settings, None).value

    def _tell_moved(self, url: str, before: str, names: str) -> None:
        """Warn of a store whose names have moved, once for each store."""
        if url in self.session.reported_moves:
            return
        self.session.reported_moves.add(url)
        choice = self.settings.store()
        key = f"stores.{(choice.name if choice.url == url else None) or 'NAME'}.names"
        change = f"dsv config {key} {shlex.quote(names)}"
        if names.startswith(f"{url.rstrip('/')}/"):
            change = f"dsv config --unset {key}"
        elif choice.names_kept is not None and choice.url == url:
            change = "the line names in .dsv/config.toml"
        self.warn(f"the names of {url} have moved from {before} to {names}; change the setting: {change}")

    def _offline_hint(self) -> str:
        typed = self.session.arguments
        at = typed.index(self.session.command) + 1
        return shlex.join(["dsv", *typed[:at], "--offline", *typed[at:]])

    @contextmanager
    def progress(self) -> Iterator[Meter]:
        """Show a meter for as long as the work lasts."""
        meter = self._meter()
        try:
            yield meter
        finally:
            meter.finish()

    def _meter(self) -> Meter:
        from dsv.cli import progress

        mode = "auto" if self.flags.progress is None else self.flags.progress
        stream = self.around.stderr
        if mode == "none" or (self.quiet and self.flags.progress is None):
            return progress.Meter(self.session.command)
        what = "looking through" if self.session.command == "erase" else self.session.command
        if mode == "json":
            return progress.JsonLines(self.session.command, stream)
        drawable = self.around.stderr_is_terminal and not self.around.is_dumb
        if mode == "bar" or (mode == "auto" and drawable):
            return progress.Bar(what, stream, self.around.columns(), self.around.colour)
        return progress.Lines(what, stream)

    def _stderr(self, text: str) -> None:
        from dsv.cli.failure import without_passwords

        text = without_passwords(text)
        if self.around.stderr_is_terminal:
            text = wrapped(text, self.around.columns())
        tell = self.session.tell if self.session.pager is None else self.session.later.append
        tell(text + "\n")


def _words(value: object) -> list[str]:
    return [word for word in (value if isinstance(value, list) else [value]) if isinstance(word, str)]
