"""dsv completion."""

from __future__ import annotations

from typing import Annotated

import typer

from dsv.cli.call import Call
from dsv.cli.completion import SCRIPTS
from dsv.cli.declare import command
from dsv.errors import UsageError


@command(
    "completion",
    examples=[
        ("dsv completion bash", 'in ~/.bashrc: eval "$(dsv completion bash)"'),
        ("dsv completion zsh", 'in ~/.zshrc, after compinit: eval "$(dsv completion zsh)"'),
        ("dsv completion fish", "for ~/.config/fish/completions/dsv.fish"),
    ],
    result={"shell": "the shell it is for", "script": "what the shell has to read"},
    unused=("--store", "--cache"),
)
def completion(call: Call, shell: Annotated[str, typer.Argument(metavar="[bash|zsh|fish]")] = "") -> None:
    """Print the script that completes dsv's words in your shell.

    It completes commands and options, datasets, branches, tags, commits, paths in a commit that is cached, runs, and
    configured stores and caches: what this machine knows. Folders are listed, those of a store too, for 0.3 s at most;
    no bucket is asked.
    """
    name = shell or call.around.environ.get("SHELL", "").rpartition("/")[2]
    if name not in SCRIPTS:
        raise UsageError(
            f"dsv has no completion for {name}" if name else "no shell is named",
            subject=name or None,
            hint="dsv completion bash, zsh or fish",
        )
    if call.json:
        call.document({"shell": name, "script": SCRIPTS[name]})
    else:
        call.out.write(SCRIPTS[name].encode())
