"""The options of a pool on Slurm, and the batch script of a job, a pure function of the job."""

from __future__ import annotations

import math
import re
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Final, TypeAlias

import msgspec

from dsv.errors import UsageError
from dsv.run.engines.base import Job, Mount, check_command
from dsv.run.node_order import OUTPUT_SECONDS, PASSED, NodeOrder, meeting_port, node_environment
from dsv.run.part import REPORT
from dsv.run.resources import ALL_GPUS
from dsv.values.units import parse_duration

_SBATCH: Final = ("partition", "account", "qos", "constraint", "reservation", "gres")
"""Options of sbatch that have a key of their own."""
_Line: TypeAlias = Annotated[str, msgspec.Meta(pattern=r"\A[^\n]+\Z")]


def _dsv_here() -> str:
    """Return the dsv beside this Python: in most places, nodes share the folders of users."""
    beside = Path(sys.executable).with_name("dsv")
    return str(beside) if beside.exists() else "dsv"


class SlurmOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The settings of a Slurm pool."""

    partition: _Line | None = None
    account: _Line | None = None
    qos: _Line | None = None
    constraint: _Line | None = None
    reservation: _Line | None = None
    gres: _Line | None = None
    sbatch: tuple[str, ...] = ()
    """Further options of sbatch."""
    container: str = "none"
    dsv: _Line = msgspec.field(default_factory=_dsv_here)
    """The program on the nodes."""
    stage_time: str = "30m"
    """Added to the command's time to get the job's time limit."""

    def __post_init__(self) -> None:
        """Raises `ValueError`."""
        if self.container not in ("none", *CONTAINERS):
            raise ValueError(f"container: it is one of none, {', '.join(CONTAINERS)}")
        try:
            parse_duration(self.stage_time)
        except UsageError as error:
            raise ValueError(f"stage_time: {error.message}") from error


DECODER: Final = msgspec.json.Decoder(SlurmOptions, strict=False)


def _podman(job: Job, passed: tuple[str, ...]) -> tuple[str, ...]:
    """Run it in the job's own control group, so that Slurm limits, measures and ends it."""
    words = ["podman", "run", "--rm", "--cgroups=disabled"]
    words += ["--network=host", "--ipc=host", "--log-driver=none"]
    for mount in job.mounts:
        how = "" if mount.writable else ",ro"
        words += ["--mount", f"type=bind,source={_plain(mount)},target={mount.target}{how}"]
    words += [word for name in passed for word in ("--env", name)]
    words += ["--workdir", job.workdir] if job.workdir else []
    words += ["--device", "nvidia.com/gpu=all", "--env", "CUDA_VISIBLE_DEVICES"] if job.gpus else []
    return (*words, str(job.image), *job.command)


def _apptainer(job: Job, passed: tuple[str, ...]) -> tuple[str, ...]:
    """apptainer passes on the environment by itself."""
    words = ["apptainer", "exec", "--no-home"]
    for mount in job.mounts:
        words += ["--bind", f"{_plain(mount)}:{mount.target}:{'rw' if mount.writable else 'ro'}"]
    words += ["--pwd", job.workdir] if job.workdir else []
    words += ["--nv"] if job.gpus else []
    image = str(job.image)
    is_named = "://" in image or image.startswith(("/", "./", "../")) or image.endswith(".sif")
    return (*words, image if is_named else f"docker://{image}", *job.command)


def _enroot(job: Job, passed: tuple[str, ...]) -> tuple[str, ...]:
    """The image is a squashfs file, or a container on each node. enroot has no option for the workdir. It takes
    one variable a line, and quotes around a value away."""
    for name, value in job.env.items():
        if "\n" in value or re.fullmatch(r"[\"'].*[\"']\s*", value):
            message = f"enroot can't pass on the value of {name}, which has several lines or quotes around it"
            raise UsageError(message, subject=name, hint="pass the name of a file that holds it")
    words = ["enroot", "start"]
    for mount in job.mounts:
        how = "rw" if mount.writable else "ro"
        words += ["--mount", f"{_plain(mount, ' ')}:{mount.target}:none:x-create=auto,bind,{how}"]
    words += [word for name in passed for word in ("--env", name)]
    inside = ("sh", "-c", 'cd "$0" && exec "$@"', job.workdir) if job.workdir else ()
    return (*words, str(job.image), *inside, *job.command)


_LACKS: Final = """! echo 'error: the image '{0}' is not on' "$SLURMD_NODENAME" >&2"""
_IMAGE: Final = {
    "podman": "podman image exists {0} || podman pull --quiet {0}",
    "apptainer": f"case {{0}} in *://*) ;; /* | ./* | ../* | *.sif) [ -e {{0}} ] || {_LACKS} ;; esac",
    "enroot": f"[ -f {{0}} ] || enroot list | grep -qxF -- {{0}} || {_LACKS}",
}
"""Commands that fail if a node can't have the image."""
_CHECK: Final = "{{ {}; }} </dev/null >/dev/null || exit 125"
CONTAINERS: Final[dict[str, Callable[[Job, tuple[str, ...]], tuple[str, ...]]]] = {
    "podman": _podman,
    "apptainer": _apptainer,
    "enroot": _enroot,
}


def _plain(mount: Mount, more: str = "") -> str:
    """Return the source. Raises `UsageError` if an option of a mount can't hold it. more: characters that it
    can't hold either"""
    source = str(mount.source)
    if (character := next((each for each in ",:\n" + more if each in source), None)) is not None:
        raise UsageError(f"{source} can't be mounted: its name has a {character!r}", subject=source)
    return source


LOST: Final = "Node failure on |io error [a-z ]+on node |on node [^ ]+: (Comm|Conn|No r|Sock|Unable|Zero)"
"""How srun says that it lost a node, as a regular expression for Python and for bash."""
_SCRIPTS: Final = Path(__file__).with_name("job")
COMMENT: Final = "dsv:"
"""The prefix of a job's comment, before the run and the folder of the job."""
MEETING: Final = ("NODE_RANK", "PET_NODE_RANK", *node_environment([""], 0))
"""The variables that the script passes to each of several nodes."""
GRACE: Final = 30
"""Seconds that a command has to end once its time is over; as long as Slurm itself gives it in most places."""
CLOSE_SECONDS: Final = 120
"""Seconds for the last step of the job, which completes the record of the run, if it sends no output to the store."""
_HUNG: Final = 30
"""Seconds after which that step is abandoned, once its time is over and it was asked to end."""
_LONGEST: Final = (1 << 17) - 1
"""Bytes of one argument, or of one variable with its name, that Linux takes."""
_SIGNAL: Final = re.compile(r"--signal[= ](?:R:)?(?:SIG)?([A-Z]+[0-9]*|[0-9]+)(?:@([0-9]{1,5}))?")
_WARNED: Final = 60
"""Seconds before the end at which Slurm sends the signal of --signal if that names none."""
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)


class BatchScript:
    """The job of a run, on the Slurm that these options describe."""

    def __init__(self, job: Job, options: SlurmOptions) -> None:
        self.job, self.options = job, options
        self.waits = job.nodes > 1 and bool(job.hold)
        """Nodes with their data wait for nodes that may not have theirs."""
        own = [f"--{key}={value}" for key in _SBATCH if (value := getattr(options, key)) is not None]
        self.sbatch = (*own, *options.sbatch, *job.engine_args)
        """The options of sbatch that the pool names."""

    @property
    def command(self) -> tuple[str, ...]:
        """The command of each node. Raises `UsageError` for an image that this Slurm can't run."""
        job, container = self.job, self.options.container
        check_command(job.command)
        if job.image is not None and container == "none":
            raise UsageError(
                "this Slurm runs no images, as its pool names nothing that does",
                subject=job.image,
                hint="dsv config pools.NAME.slurm.container podman (or apptainer, enroot), or leave out --image",
            )
        if container == "none":
            return job.command
        if job.image is None:
            raise UsageError(
                f"this pool runs its jobs by {container}, which needs an image", hint="--image IMAGE"
            )
        return CONTAINERS[container](job, (*job.env, *(MEETING if job.nodes > 1 else ())))


def comment(run: str, folder: Path) -> str:
    """Return the comment by which a job and its folder are found again."""
    return f"{COMMENT}{run}:{folder}"


def passing(variables: Mapping[str, str]) -> dict[str, str]:
    """Return sbatch's environment for these variables. Raises `UsageError` for odd names and long values."""
    for name, value in variables.items():
        if _NAME.fullmatch(name) is None:
            raise UsageError(f"Slurm can't pass a variable named {name} to a job", subject=name)
        left = _LONGEST - len(f"{PASSED}{name}=")
        if (size := _bytes(value)) > left:
            raise _too_long(f"the value of {name}", size, left, name, "pass the name of a file that holds it")
    return {f"{PASSED}{name}": value for name, value in variables.items()}


def render(batch: BatchScript) -> str:
    """Return the script. Raises `UsageError` for a job that Slurm can't run, or whose command is too long."""
    job, folder = batch.job, shlex.quote(str(batch.job.scratch))
    head = ["#!/bin/bash", *(f"#SBATCH {_line(option)}" for option in sbatch_options(batch))]
    sends_output = NodeOrder.sends_output(job.order, job.run)
    close_seconds = OUTPUT_SECONDS if sends_output else CLOSE_SECONDS
    parts = [
        "\n".join(head) + "\n",
        f"# Run {job.run}. To submit it: mkdir -p {folder} && sbatch THIS-FILE",
        f"folder={folder}",
        f"retries={job.retries}",
        f"export DSV_RUN={shlex.quote(job.run)}" if job.hold else "",
        f"patience={close_seconds + _HUNG}",
        _complete(batch, close_seconds),
        _script("prepare"),
        _script("passing", names=" ".join(job.hidden)) if job.hidden else "",
        _script("meeting", port=meeting_port(job.run)) if job.nodes > 1 else "",
        _task(batch),
        _steps(batch),
        _script("finish", lost=LOST),
    ]
    return "\n".join(filter(None, parts))


def _script(name: str, **values: object) -> str:
    """Return a part of the script, from the folder `job`, with these values in place of `@NAME@`."""
    text = (_SCRIPTS / f"{name}.sh").read_text("utf-8")
    return re.sub(r"@(\w+)@", lambda found: str(values[found[1]]), text)


def sbatch_options(batch: BatchScript) -> list[str]:
    """Return options for sbatch's script or command line. The pool's are last, and so take precedence."""
    job = batch.job
    if job.gpus == ALL_GPUS:
        raise UsageError("Slurm has to know how many GPUs", subject="--gpus", hint="--gpus 8")
    folder = str(job.scratch).replace("%", "%%")
    found = [
        f"--job-name={job.name}",
        f"--comment={comment(job.run, job.scratch)}",
        f"--nodes={job.nodes}",
        "--ntasks-per-node=1",
        f"--output={folder}/slurm.log",
        "--open-mode=append",
        "--requeue" if job.retries else "--no-requeue",
    ]
    if job.gpus is not None:
        found.append(f"--gpus-per-node={f'{job.gpu_type}:' if job.gpu_type else ''}{job.gpus}")
    if job.cpus is not None:
        found.append(f"--cpus-per-task={math.ceil(job.cpus)}")
    if job.memory_bytes is not None:
        found.append(f"--mem={math.ceil(job.memory_bytes / (1 << 20))}M")
    if job.time_seconds is not None:  # Slurm's limit counts from when the job has its nodes
        found.append(
            f"--time={math.ceil((job.time_seconds + parse_duration(batch.options.stage_time) + GRACE) / 60)}"
        )
    return [*found, *batch.sbatch]


def _task(batch: BatchScript) -> str:
    """Return the script of each node; srun gets it as one argument."""
    job, words = batch.job, batch.command
    command = shlex.join(words)
    image, container = shlex.quote(str(job.image)), batch.options.container
    inside = job.workdir is None or container != "none"
    check = "" if container == "none" else _CHECK.format(_IMAGE[container].format(image))
    text = _script(
        "task",
        end=f"END_OF_TASK_{re.sub(r'[^A-Za-z0-9]', '_', job.run)}",
        wait=_script("wait") if batch.waits else "",
        variables=_exports(job),
        workdir="" if inside else f"cd {shlex.quote(str(job.workdir))} || exit 125",
        image=check,
        program=shlex.quote(words[0]),
        command=command,
        clock=_clock(batch),
        stop_clock="" if job.time_seconds is None else 'kill -s KILL -- "-$clock"\n',
    )
    size = _bytes(command)
    if (over := _bytes(text) - _LONGEST) > 0:
        hint = "put it into a script, for instance in the folder of --code, or its arguments into a file"
        raise _too_long("the command", size, max(size - over, 0), job.run, hint)
    return text


def _bytes(text: str) -> int:
    return len(text.encode("utf-8", "surrogateescape"))


def _too_long(what: str, size: int, most: int, subject: str, hint: str) -> UsageError:
    return UsageError(
        f"{what} is too long for a job on Slurm: it has {size:,} bytes, and {most:,} fit",
        subject=subject,
        hint=hint,
    )


def _line(option: str) -> str:
    if "\n" in option or "\0" in option:
        raise UsageError("an option of sbatch is one line", subject=option)
    return shlex.quote(option) if re.search(r"[^\w%+,./:=@\[\]-]", option) else option


def _exports(job: Job) -> str:
    lines = ['export DSV_ATTEMPT="$2"']
    lines += [f"export {name}={shlex.quote(value)}" for name, value in job.shown.items()]
    lines += [f'export {name}="${PASSED}{name}"' for name in job.hidden]
    lines += [f"unset {PASSED}{name}" for name in job.hidden]
    for name in ("PATH", "LD_LIBRARY_PATH"):  # apptainer passes on no other value of these
        lines += [f'export APPTAINERENV_{name}="${name}"'] if name in job.env else []
    return "\n".join(lines)


def _steps(batch: BatchScript) -> str:
    """Return the script that runs the command while dsv holds the data, and that reports the staging."""
    job = batch.job
    held = shlex.join((batch.options.dsv, *job.hold[:-1]))
    for name, value in NodeOrder.shown(job.order, job.run).items():
        held = f"{name}={shlex.quote(value)} {held}"
    if not batch.waits:
        hold = f'env {REPORT}="$folder/stage.$attempt.0" {held} -- ' if job.hold else ""
        return _script("alone", hold=hold)
    said = '"$1/stage.$2.$SLURM_NODEID"'
    begin = f'exec env {REPORT}={said} {held} -- bash -c "$3" task "$1" "$2"'
    return _script("together", begin=shlex.quote(begin))


def _clock(batch: BatchScript) -> str:
    seconds, warning = batch.job.time_seconds, warning_of(batch.sbatch)
    if seconds is None:
        return ""
    left, said = seconds, ""
    if warning is not None:
        name, before = warning
        left = min(before, seconds)
        said = f'\n  sleep {seconds - left}\n  kill -s {name} -- "-$command"'
    return _script("clock", warning=said, seconds=left, grace=GRACE)


def _complete(batch: BatchScript, seconds: int) -> str:
    job = batch.job
    if not job.close or not job.order:
        return "complete() { :; }\n"
    return _script(
        "complete",
        argv=shlex.join(job.command),
        order=shlex.quote(job.order),
        close=shlex.join((batch.options.dsv, *job.close)),
        seconds=seconds,
    )


def warning_of(options: Sequence[str]) -> tuple[str, int] | None:
    """Return the signal of sbatch's `--signal`, and its seconds before the end of the command's time: Slurm
    itself sends it only before its own, later limit. None without one, or for the batch script (`B:`)."""
    given = [option for option in options if option.startswith("--signal")]
    match = None if not given else _SIGNAL.fullmatch(given[-1])
    return None if match is None else (match[1], _WARNED if match[2] is None else int(match[2]))
