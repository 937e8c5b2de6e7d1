"""dsv doctor."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import ExitStack
from textwrap import wrap

from dsv.api.doctor import CheckState, Finding, examine
from dsv.cli.call import Call
from dsv.cli.declare import command
from dsv.cli.output import printable
from dsv.cli.terminal import Style

_INDENT = 23
_STYLES = {CheckState.OK: Style.ADDED, CheckState.WARN: Style.WARNING, CheckState.FAIL: Style.ERROR}


@command(
    "doctor",
    examples="""
        dsv doctor  # the store, the cache and the engines in effect here
        dsv doctor --store s3://lake/dsv  # another store, before it is used
        dsv doctor --json | jq -r '.items[] | select(.state != "ok")'  # what needs attention
    """,
    result="items(check state text hint)",
)
def doctor(call: Call) -> int:
    """Check the settings, store, cache and engines in effect here.

    Each check reports ok, warn or fail, and how to fix it. The store is tested by writing: small objects under probe/
    are made by many writers at once, listed, and removed. Nothing else is changed. The exit code is 1 if something
    fails.
    """
    with call.context(writes=True) as context, ExitStack() as opened:
        return show_findings(call, examine(context, call.around.environ, opened))


def show_findings(call: Call, findings: Iterable[Finding]) -> int:
    """Print each finding as soon as it is known, and return the exit code."""
    known: list[Finding] = []
    for finding in findings:
        known.append(finding)
        if not call.json:
            _write_finding(call, finding)
    call.results(known)
    return 1 if any(finding.state is CheckState.FAIL for finding in known) else 0


def _write_finding(call: Call, finding: Finding) -> None:
    ink = call.around.stdout_ink
    state = ink.paint(_STYLES[finding.state], f"{finding.state.value:<4}")
    lines = _wrapped(call, finding.text)
    call.out.line(f"{state}  {finding.check + ':':<16} {lines[0]}")
    if finding.hint and finding.state is not CheckState.OK:
        first, *more = _wrapped(call, f"hint: {finding.hint}")
        lines += [first.replace("hint:", ink.paint(Style.HINT, "hint:"), 1), *more]
    for line in lines[1:]:
        call.out.line(f"{'':<{_INDENT}}{line}")


def _wrapped(call: Call, text: str) -> list[str]:
    """Return the text in lines that fit the terminal, broken between words only."""
    text = printable(text)
    if not call.around.stdout_is_terminal:
        return [text]
    room = max(call.around.columns() - _INDENT, 20)
    return wrap(text, room, break_long_words=False, break_on_hyphens=False) or [""]
