"""dsv with."""  # noqa: N999 (a module has the name of its command)

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from time import sleep

from dsv.api.hold_while import HeldData, Watched, environment_of, hold_while
from dsv.api.lock_files import further_data
from dsv.cache.hold import PROGRAM
from dsv.cli.call import Call
from dsv.cli.commands.cache import item_of
from dsv.cli.declare import COMMAND, argument, command, option
from dsv.cli.launch import launching
from dsv.cli.options import Offline
from dsv.cli.output import document, to_json
from dsv.errors import UsageError
from dsv.run.dirs import SERIES_FILE
from dsv.run.node_order import BEATING, MEASURING, PASSED
from dsv.run.once_claims import Beats
from dsv.run.part import REPORT, NodeReport
from dsv.run.record import RunId
from dsv.run.series import LiveSeries
from dsv.values.names import DatasetName, Target, parse_data
from dsv.values.secrets import Masker


@command(
    "with",
    words=COMMAND,
    examples="""
        dsv with chest-xray@v1 -- python train.py  # the folder is in $DSV_DATA
        dsv with images@v3 --data masks=masks@v3 -- ./train.sh  # and that of the masks in $DSV_DATA_MASKS
        dsv with chest-xray@v1 -- bash  # a shell that keeps the data while it is open
    """,
)
def with_(
    call: Call,
    target: str = argument("TARGET"),
    data: list[str] | None = option("--data NAME=TARGET|@FILE", "Further data, or that of a lock file."),
    jobs: int | None = option("-j --jobs N", "Processes that fetch files."),
    offline: Offline = False,
    json_file: str | None = option(
        "--json-file FILE", "Write there what 'dsv cache --json' says of the data."
    ),
) -> int:
    """Run a command while its data is held in the cache.

    Makes TARGET appear in the cache and holds it for exactly as long as CMD lives, also if dsv is killed. CMD runs
    here as it would without dsv: the same terminal, folder and files, and DSV_DATASET, DSV_COMMIT and DSV_DATA tell
    it what it got. Signals are passed on, and the exit code is that of CMD; 125 says that dsv could not start it, 126
    and 127 as in a shell. Nothing is recorded: 'dsv run' does that.
    """
    texts, first = further_data(data or (), Target.parse(target))
    further = parse_data(texts)
    if call.json:
        raise UsageError("--json is not supported: the command writes to stdout", hint="leave out --json")
    if not call.words or not call.words[0]:
        raise UsageError("no command given", hint="dsv with TARGET -- CMD...")
    wanted = [first, *further.values()]
    environ = dict(call.around.environ)
    beating, measuring = environ.pop(BEATING, ""), environ.pop(MEASURING, "")
    if beating or measuring:
        _show_meanwhile(call, beating, measuring)
    with launching(), call.context() as context:
        held = hold_while(
            context,
            call.settings.cache().path,
            wanted,
            Watched(os.getpid()),
            program=Path(call.words[0]).name,
            run=call.around.environ.get("DSV_RUN") or None,
            job=call.around.environ.get("SLURM_JOB_ID") or None,
            offline=offline,
            jobs=jobs,
        )
    if json_file is not None:
        items = [item_of(each) for each in held.staged]
        _write(call, json_file, to_json(document({"items": items})).encode() + b"\n")
    if report := environ.pop(REPORT, None):
        _write(call, report, NodeReport.of(held.staged).encode())
    variables = environment_of(held.staged[0], dict(zip(further, held.staged[1:], strict=True)))
    with launching():
        _exec(held, call.words, {**environ, **variables})
    raise AssertionError("unreachable")


def _show_meanwhile(call: Call, beating: str, measuring: str) -> None:
    """Show signs of life and the metrics of a run in a process of its own, which ends after this one, as this becomes a
    small program. Of several nodes, the first one does it."""
    environ, watched = call.around.environ, Watched(os.getpid())
    if (environ.get("SLURM_NODEID") or environ.get("DSV_INDEX") or "0") != "0" or os.fork() != 0:
        return
    try:
        os.setsid()
        name, _, out = (measuring or beating).partition(":")
        run = DatasetName.parse(name.rpartition("/")[0]), RunId.parse(name.rpartition("/")[2])
        passed = {each[len(PASSED) :]: value for each, value in environ.items() if each.startswith(PASSED)}
        with call.context() as context, context.repository() as repository:
            if measuring:
                LiveSeries(lambda: repository.store, run, Path(out) / SERIES_FILE, Masker.of(passed, {}))
            if beating:
                Beats(repository.store, *run).start(joins=True)
            while not watched.has_ended():
                sleep(1.0)
    finally:
        os._exit(0)


def _write(call: Call, name: str, data: bytes) -> None:
    """Write a file, or warn: the command runs despite an error."""
    try:
        Path(name).write_bytes(data)
    except OSError as error:
        call.warn(f"{name} can't be written: {error.strerror}")


def _exec(held: HeldData, words: tuple[str, ...], environ: Mapping[str, str]) -> None:
    """Exec the program that waits for the command; `dsv.cache.hold` says why it is a separate one."""
    ends = ("0", "0", "0")
    holder = held.holder
    if holder is not None:
        for descriptor in (holder.commands, holder.answers):
            os.set_inheritable(descriptor, True)
        ends = (str(holder.pid), str(holder.commands), str(holder.answers))
    sys.stderr.flush()
    os.execve(
        sys.executable,
        [sys.executable, "-P", "-m", PROGRAM, "exec", *ends, held.order.encode(), *words],
        environ,
    )
