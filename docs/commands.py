"""The site's page of commands, made from the commands themselves when `mkdocs` builds the site."""

from __future__ import annotations

import inspect
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from dsv.cli.app import load
from dsv.cli.catalogue import GLOBAL_OPTIONS, SECTIONS, look_alikes
from dsv.cli.declare import Command

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files

HEAD = """\
# Command line reference

This page is made from the commands themselves. `dsv COMMAND --help` says the same in a terminal.

Data goes to stdout and everything else to stderr. Without `--json`, stdout stays empty when a
command fails; results come with the exit codes 0 and 1, and with 7 from `dsv evict`. A command
asks a question only on a terminal.

A terminal gets colours, unless `NO_COLOR` is set or `TERM` is `dumb`; words or signs say the same.
What `log`, `diff`, `show` and `runs` print there is shown by a pager: `$DSV_PAGER`, or else
`$PAGER`, or else `less`, for which `LESS` is set to `FRX` if it is unset, so that only what does
not fit waits for a key. `--no-pager`, `--json`, and a pager called `cat` or nothing print at once.

A target is `[DATASET][@REV][:PATH]`. REV is a branch, a tag, or at least 8 hex digits of a commit
id, with `~N` for the N-th commit before it. A dataset without REV means the head of its `main`. In
a workspace the dataset may be left out: `@v1`, `:train/`, or nothing at all, which is the
workspace's base.

Durations are written `30m`, `12h`, `1d`, `2w`; sizes `500M`, `1T`, `1.5GiB`, `10B`, and a small
number without a unit is refused.
"""

SETTINGS = """\
## Settings

The first of these that says something decides: the flag, the workspace's `.dsv/config.toml`, the
environment (`DSV_STORE`, `DSV_CACHE`, `DSV_AUTHOR`), the user's `config.toml` (in
`$XDG_CONFIG_HOME/dsv`, or where `DSV_CONFIG` says), `/etc/dsv/config.toml`. With none of them the
store is a folder under `$XDG_DATA_HOME/dsv`, the cache is `$XDG_CACHE_HOME/dsv`, and the author is
git's, or else `user@host`. `dsv config` shows what is in effect and why.

```toml
store = "lake"
cache = "gpu-nfs"
author = "Ann Lee <ann@example.org>"

[stores.lake]
url = "s3://lake/dsv"
endpoint = "https://s3.example.org"
profile = "lake"
ca_bundle = "/etc/ssl/certs/site.pem"

[caches.gpu-nfs]
path = "/nfs/gpu/dsv"

[runs]
keep_local = "30d"

[metadata]
max_size = "512M"
max_files = 50_000
```

`metadata` limits the [copies of metadata](guide/cache.md#copies-of-metadata) on this machine; these two values are the
defaults.

Credentials are found as the AWS tools find them: variables, profiles, SSO, roles. dsv stores none.
Proxies and certificate authorities come from the usual variables (`HTTPS_PROXY`, `NO_PROXY`,
`AWS_CA_BUNDLE`, `SSL_CERT_FILE`).

## JSON

With `--json` stdout is one document with `"schema": 1`; several results are always `items`. Times
are RFC 3339 in UTC, sizes are bytes, ids are whole. Keys are added, never renamed. A failure prints

```json
{"schema": 1, "error": {"kind": "not-found", "exit": 3, "message": "…", "object": "…",
                        "hint": "…", "retryable": false}}
```

`--progress=json` prints one object a line to stderr: `event` is `progress`, `note` or `end`; the
counts are `files`, `total_files`, `bytes`, `total_bytes`, `transferred_bytes`, `bytes_per_second`
and `seconds_left`, null where unknown.

## Shell completion

`dsv completion bash|zsh|fish` prints what the shell has to read; [Install](guide/install.md#completion)
has the line for each.
"""


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add cli.md, which no folder has."""
    from mkdocs.structure.files import File

    files.append(File.generated(config, "cli.md", content=reference()))
    return files


def reference() -> str:
    """Return the whole page."""
    return "\n".join(_lines()) + "\n"


def _lines() -> Iterator[str]:
    yield HEAD
    for section, commands in SECTIONS.items():
        yield f"- {section}: " + ", ".join(f"[{name}](#dsv-{name})" for name in commands)
    yield ""
    yield "## Options of every command"
    yield ""
    yield "They may stand before or after the command's name."
    yield ""
    yield from _table(
        ("option", "meaning"), [(f"`{_cell(option)}`", text) for option, text in GLOBAL_OPTIONS]
    )
    yield ""
    yield SETTINGS
    yield "## Exit codes"
    yield ""
    page = (Path(__file__).parent / "operations/automation.md").read_text("utf-8")
    yield page.partition("## Exit codes")[2].partition("\n## ")[0].strip()
    for commands in SECTIONS.values():
        for name in commands:
            yield ""
            yield from _command(load(name))


def _command(command: Command) -> Iterator[str]:
    context = typer.Context(command, info_name=f"dsv {command.name}")
    yield f"## dsv {command.name}"
    yield ""
    yield f"`{context.command_path} {' '.join(command.collect_usage_pieces(context))}`"
    yield ""
    yield inspect.cleandoc(command.help or "").replace("\b\n", "")
    for heading, rows in command.option_rows(context).items():
        shown = [(f"`{_cell(option)}`", meaning) for option, meaning in rows]
        yield ""
        yield from _table(("option" if heading == "Options" else heading.lower(), "meaning"), shown)
    if others := look_alikes(str(command.name)):
        yield ""
        yield "Not to be confused with " + ", ".join(f"[{name}](#dsv-{name})" for name in others) + "."
    yield ""
    for line, meaning in command.examples:
        yield f"    {line}{'    # ' + meaning if meaning else ''}"
    if command.result:
        yield ""
        yield "JSON:"
        yield ""
        yield from _table(("key", "meaning"), [(f"`{key}`", text) for key, text in meanings(command).items()])


def meanings(command: Command) -> dict[str, str]:
    """Return the keys of a command's JSON, each with what it means. Raises `KeyError` for one that json.toml lacks."""
    known = tomllib.loads((Path(__file__).parent / "json.toml").read_text("utf-8"))
    texts = {**known["shared"], **known.get(str(command.name), {})}
    return {key: texts[key] for key in command.result.dotted()}


def _table(head: tuple[str, str], rows: object) -> Iterator[str]:
    yield f"| {head[0]} | {head[1]} |"
    yield "|---|---|"
    assert isinstance(rows, list | tuple)
    for left, right in rows:
        yield f"| {left} | {right} |"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
