"""The global options, which may stand before or after the name of a command."""

from __future__ import annotations

from functools import cache
from typing import Annotated, Any

import typer
from typer.main import get_command

from dsv.cli.call import Session
from dsv.cli.param_types import take_as_typed


def _remember(ctx: typer.Context, param: typer.CallbackParam, value: Any) -> None:
    session = ctx.find_object(Session)
    if session is not None and value not in (None, False):
        setattr(session.flags, param.name, value)


def _show_help(ctx: typer.Context, value: bool) -> None:
    session = ctx.find_object(Session)
    if session is not None and value and not ctx.resilient_parsing:
        session.out.line(ctx.get_help())
        raise typer.Exit


_FLAG: dict[str, Any] = {"expose_value": False, "is_eager": True, "callback": _remember}
_HELP: dict[str, Any] = {**_FLAG, "callback": _show_help}


def _declare(
    store: Annotated[
        str | None, typer.Option("--store", metavar="URL|NAME", help="The store.", **_FLAG)
    ] = None,
    cache: Annotated[
        str | None, typer.Option("--cache", metavar="DIR|NAME", help="The cache.", **_FLAG)
    ] = None,
    directory: Annotated[
        str | None, typer.Option("-C", metavar="DIR", help="Do as if started in DIR.", **_FLAG)
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="One JSON document on stdout.", **_FLAG)] = False,
    progress: Annotated[
        str | None, typer.Option("--progress", metavar="MODE", help="auto, bar, lines, json, none.", **_FLAG)
    ] = None,
    quiet: Annotated[bool, typer.Option("-q", "--quiet", help="No progress, no notes.", **_FLAG)] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of a failure.", **_FLAG)] = False,
    help: Annotated[bool, typer.Option("-h", "--help", help="Show help.", **_HELP)] = False,  # noqa: A002
) -> None:
    """Nobody calls this; `global_options` has typer read it."""


@cache
def global_options() -> tuple[Any, ...]:
    """Their values go to the session's `Flags`, whichever command meets them."""
    app = typer.Typer(add_completion=False)
    app.command(add_help_option=False)(_declare)
    params = get_command(app).params
    take_as_typed(params, _declare)
    return tuple(params)
