"""dsv run."""

from __future__ import annotations

from typing import Annotated

import typer

from dsv.cli.call import Call
from dsv.cli.declare import COMMAND, command, text, whole

Data = Annotated[
    list[str] | None, typer.Option("--data", metavar="NAME=TARGET", help="Further data, at /data/NAME.")
]
Image = Annotated[str | None, typer.Option("--image", metavar="IMAGE", help="The container's image.")]
Engine = Annotated[
    str | None,
    typer.Option(
        "--engine", metavar="ENGINE", help="docker, podman or process; else the first that answers."
    ),
]
Code = Annotated[
    str | None,
    typer.Option("--code", metavar="DIR", help="The code: read-only at /code, the working directory."),
]
On = Annotated[
    str | None,
    typer.Option(
        "--on", parser=text, metavar="POOL[,POOL]", help="The pools to try; 'here' is this machine."
    ),
]
Force = Annotated[
    bool,
    typer.Option(
        "--force",
        help="Take code of more than 200 MB.",
    ),
]
Out = Annotated[
    str | None,
    typer.Option("--out", metavar="DIR", help="The folder for /out, instead of one of the run's own."),
]
KeepOutput = Annotated[
    bool, typer.Option("--keep-output", help="Commit what is in /out into the store, at the end.")
]
Gpus = Annotated[str | None, typer.Option("--gpus", metavar="N|all", help="How many GPUs the job gets.")]
Cpus = Annotated[str | None, typer.Option("--cpus", metavar="N", help="CPUs that each node of the job gets.")]
Memory = Annotated[
    str | None,
    typer.Option("--memory", metavar="SIZE", help="Memory that each node of the job gets; more ends it."),
]
Time = Annotated[
    str | None,
    typer.Option("--time", metavar="DURATION", help="How long an attempt may take; then it is ended."),
]
Nodes = Annotated[
    str | None, typer.Option("--nodes", metavar="N", help="On how many machines of a cluster it runs.")
]
Retries = Annotated[
    str | None,
    typer.Option("--retries", metavar="N", help="How often it is started again if it fails."),
]
Env = Annotated[
    list[str] | None,
    typer.Option("-e", "--env", metavar="K[=V]", help="A variable; K alone passes your value."),
]
Param = Annotated[
    list[str] | None,
    typer.Option(
        "-p", "--param", parser=text, metavar="K=V", help="A parameter, in DSV_PARAMS and the record."
    ),
]
Sweep = Annotated[
    bool, typer.Option("--sweep", help="A run for each combination of the values in -p K=V,V,…")
]
Parallel = Annotated[
    int | None,
    typer.Option(
        "--parallel", parser=whole(1), metavar="N", help="How many runs of a sweep at once (default: 1)."
    ),
]
Name = Annotated[
    str | None,
    typer.Option("--name", parser=text, metavar="NAME", help="A name for the container and the record."),
]
Again = Annotated[
    str | None,
    typer.Option("--again", metavar="RUN", help="Repeat this run, as far as that can be done."),
]
Offline = Annotated[
    bool, typer.Option("--offline", help="Don't ask the store; the record is sent by a later run.")
]
JsonFile = Annotated[
    str | None,
    typer.Option(
        "--json-file", metavar="FILE", help="Write the result there: stdout and stderr are the job's."
    ),
]
DryRun = Annotated[
    bool, typer.Option("-n", "--dry-run", help="Print what would be executed, and start nothing.")
]

Detach = Annotated[
    bool, typer.Option("-d", "--detach", help="Run in the background: print the run's id and return.")
]


@command(
    "run",
    words=COMMAND,
    examples=[
        ("dsv run chest-xray@v1 --image team/resnet --code . --gpus 2 -p lr=0.1 -- python train.py", ""),
        ("dsv run chest-xray@v1 -- sh -c 'ls $DSV_DATA'", "without an image: a plain process"),
        (
            "dsv run images@v3 --data masks=masks@v3 --image team/unet -- python train.py",
            "/data and /data/masks",
        ),
        (
            "dsv run chest-xray@v1 --cpus 4 --memory 16G --time 12h --retries 2 -- python train.py",
            "ended by TERM, then KILL, if an attempt takes longer; begun again if it fails",
        ),
        ("dsv run chest-xray --image team/resnet --dry-run -- python train.py", "what would be executed"),
        (
            "dsv run chest-xray@v1 --on a100,cloud --gpus 8 --image team/resnet -- python train.py",
            "the first that can",
        ),
        (
            "dsv run chest-xray@v1 -p lr=0.1,0.01,0.001 --sweep --parallel 2 --code . -- python train.py",
            "a run for each; then: dsv runs --sort metrics.acc",
        ),
        ("dsv run --detach chest-xray@v1 -- python train.py", "then: dsv logs, dsv stop, dsv wait"),
        ("dsv run --again 20261120-132145-1f2e3d4c", "the same commit, image and command"),
        ("dsv run --again sweep-1f2e3d4c", "the runs of a sweep that have not begun"),
    ],
    result={
        "run": "its id",
        "dataset": "the dataset",
        "commit": "the commit that it saw",
        "engine": "what started it",
        "exit_code": "the command's own, or 125 to 127",
        "cache_hit": "true where the data was cached already",
        "stage_seconds": "how long getting the data took",
        "params": "the parameters",
        "metrics": "what the job wrote to metrics.json; null for nothing",
        "out": "the output folder on this machine",
        "sweep.id": "with --sweep: its id",
        "sweep.exit_code": "with --sweep: 0 if all runs have succeeded, else that of the first that has not",
        "sweep.runs": "with --sweep: its runs, as dsv runs --json shows them",
    },
)
def run(
    call: Call,
    target: Annotated[str | None, typer.Argument(metavar="[TARGET]")] = None,
    data: Data = None,
    image: Image = None,
    engine: Engine = None,
    on: On = None,
    code: Code = None,
    force: Force = False,
    out: Out = None,
    keep_output: KeepOutput = False,
    gpus: Gpus = None,
    cpus: Cpus = None,
    memory_bytes: Memory = None,
    time_seconds: Time = None,
    nodes: Nodes = None,
    retries: Retries = None,
    env: Env = None,
    params: Param = None,
    sweep: Sweep = False,
    parallel: Parallel = None,
    name: Name = None,
    again: Again = None,
    offline: Offline = False,
    json_file: JsonFile = None,
    dry_run: DryRun = False,
    detach: Detach = False,
) -> int:
    """Run a command on a cached commit, in a container.

    Makes sure that TARGET is cached and stays, starts CMD with the data read-only at /data and an output folder
    at /out, streams what it prints, passes signals on, and ends with its exit code; 125 says that it was not
    launched. DSV_DATASET, DSV_COMMIT, DSV_DATA, DSV_OUT and DSV_PARAMS tell the job what it got; what it writes
    to /out/metrics.json goes into the record that 'dsv runs' shows.

    With --detach the run goes on without this terminal, with its lease and its record. With --json that prints the
    keys run and out alone.
    """
    typed = dict(locals())
    del typed["call"]
    from dsv.cli.launch import launch
    from dsv.cli.options.run import Typed
    from dsv.cli.sweep import is_sweep
    from dsv.cli.sweep import sweep as start_sweep

    asked = Typed.of(typed)
    if call.session.member is None and is_sweep(asked):
        return start_sweep(call, asked)
    return launch(call, asked)
