"""The resources that a job asks for, and those that the machines of a pool have."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any, Final

from dsv.errors import UsageError
from dsv.values.json import Json
from dsv.values.units import format_bytes, format_count, parse_duration, parse_size

ALL_GPUS: Final = -1
MAX_NODES: Final = 10_000
MAX_RETRIES: Final = 1000
LEAST_MEMORY: Final = 6 << 20
"""Bytes: docker gives no container less."""

_CPUS = re.compile(r"[0-9]{1,5}(?:\.[0-9]{1,3})?", re.ASCII)
_GPU_TYPE = re.compile(r"[A-Za-z0-9][A-Za-z0-9 ._-]{0,62}", re.ASCII)
_TPU = re.compile(r"(v[0-9]{1,2}[a-z]?)-([1-9][0-9]{0,4})", re.ASCII)
_TOPOLOGY = re.compile(r"[1-9][0-9]{0,3}(?:x[1-9][0-9]{0,3}){1,2}", re.ASCII)


@dataclass(frozen=True, slots=True)
class Option:
    """The source of a field of `JobSpec`: an option of `dsv run`, or a setting of the run's pool."""

    written: str
    """The option as in the help, such as `--cpus N`; or the key of a pool's setting."""
    help: str
    parse: Callable[[Any], Any]
    """Converts what was typed to the value of the field. Raises `UsageError`."""
    several: bool = False
    """It may be given several times."""
    text: bool = False
    """It is recorded as text, so it must be UTF-8."""
    anew: bool = False
    """`--again` accepts another value."""

    @property
    def flag(self) -> str:
        return next(word for word in reversed(self.written.split()) if word[0] == "-" or word == self.written)


def option(
    written: str,
    meaning: str,
    parse: Callable[[Any], Any] = lambda value: value,
    default: Any = None,
    **more: bool,
) -> Any:
    """Make a field of `JobSpec` or a base class that an option of `dsv run` fills. An option needs no more;
    what engines and records do with it is their part."""
    made = {"default_factory": dict} if more.get("several") and default is None else {"default": default}
    return field(**made, metadata={"option": Option(written, meaning, parse, **more)})


def setting(key: str, parse: Callable[[str], Any], default: Any = None) -> Any:
    """Make a field that a pool's setting fills. `POOL_FIELDS` of api/settings.py has the key."""
    return field(default=default, metadata={"option": Option(key, "", parse)})


def parse_gpus(text: str) -> int:
    """Read a number from 1, or `all`. Raises `UsageError`."""
    if text == "all":
        return ALL_GPUS
    if not re.fullmatch(r"[1-9][0-9]{0,3}", text, re.ASCII):
        raise UsageError(f"{text!r} is not a number of GPUs", subject=text, hint="--gpus 2, or --gpus all")
    return int(text)


def _matching(pattern: re.Pattern[str], what: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if pattern.fullmatch(text) is None:
            raise UsageError(f"{text!r} is not {what}", subject=text)
        return text

    return parse


parse_gpu_type = _matching(_GPU_TYPE, "a type of GPU, such as A100")
parse_tpu = _matching(_TPU, "a TPU slice, such as v5e-8")
parse_topology = _matching(_TOPOLOGY, "a topology of a TPU slice, such as 2x4")


def _whole(what: str, least: int, most: int, hint: str) -> Callable[[str], int]:
    def parse(text: str) -> int:
        if not re.fullmatch(r"[0-9]{1,6}", text, re.ASCII) or not least <= int(text) <= most:
            raise UsageError(f"{text!r} is not a {what} ({least} to {most:,})", subject=text, hint=hint)
        return int(text)

    return parse


parse_nodes = _whole("number of nodes", 1, MAX_NODES, "--nodes 2")
parse_retries = _whole("number of retries", 0, MAX_RETRIES, "--retries 2")


def parse_cpus(text: str) -> float:
    value = float(text) if _CPUS.fullmatch(text) else 0.0
    if value <= 0:
        raise UsageError(f"{text!r} is not a number of CPUs", subject=text, hint="--cpus 4, or --cpus 1.5")
    return value


def parse_memory(text: str) -> int:
    size = parse_size(text)
    if size < LEAST_MEMORY:
        raise UsageError(
            f"{text} of memory is too little to start a command", subject=text, hint="--memory 16G"
        )
    return size


def parse_time(text: str) -> int:
    seconds = parse_duration(text)
    if seconds < 1:
        raise UsageError(
            f"a time limit has to be at least a second, not {text}", subject=text, hint="--time 12h"
        )
    return seconds


def parse_words(text: str) -> tuple[str, ...]:
    try:
        return tuple(shlex.split(text))
    except ValueError as error:
        raise UsageError(f"{text!r} can't be split into words: {error}", subject=text) from error


def parse_yes(text: str) -> bool:
    if text not in ("yes", "no"):
        raise UsageError(f"{text!r} is neither yes nor no", subject=text)
    return text == "yes"


@dataclass(frozen=True, slots=True, kw_only=True)
class Resources:
    """The resources that a run requests, per node except `tpu`, `nodes` and `retries`; recorded as such."""

    gpus: int | None = option("--gpus N|all", "GPUs that the job gets.", parse_gpus)
    """A number, `ALL_GPUS` or None."""
    gpu_type: str | None = setting("gpu_type", parse_gpu_type)
    """A part of the model's name, such as A100."""
    tpu: str | None = setting("tpu", parse_tpu)
    """A slice such as v5e-8."""
    tpu_topology: str | None = setting("tpu_topology", parse_topology)
    """The shape of the slice, such as 2x4."""
    cpus: float | None = option("--cpus N", "CPUs that each node of the job gets.", parse_cpus)
    """May be a fraction."""
    memory_bytes: int | None = option(
        "--memory SIZE", "Memory that each node of the job gets; more ends it.", parse_memory
    )
    time_seconds: int | None = option(
        "--time DURATION", "How long an attempt may take; then it is ended.", parse_time
    )
    """The limit for one attempt."""
    nodes: int = option("--nodes N", "Number of cluster machines.", parse_nodes, 1)
    retries: int = option("--retries N", "Retries after a failure.", parse_retries, 0)
    """The number of attempts after failed ones."""


def check_resources(wanted: Resources) -> None:
    """Raises `UsageError` for resources that can't be combined."""
    if wanted.gpu_type is not None and wanted.gpus is None:
        raise UsageError(
            "gpu_type says which GPUs, and not how many", subject=wanted.gpu_type, hint="--gpus 1"
        )
    if wanted.tpu_topology is not None and wanted.tpu is None:
        raise UsageError(
            "tpu_topology is the shape of a TPU slice, and none is asked for",
            subject=wanted.tpu_topology,
            hint="dsv config pools.NAME.tpu v5e-8",
        )
    if wanted.tpu is not None and wanted.gpus is not None:
        raise UsageError("no machine has GPUs and TPUs", subject=wanted.tpu, hint="leave out --gpus")
    if wanted.tpu is None or wanted.tpu_topology is None:
        return
    chips, product = tpu_chips(wanted.tpu), prod(map(int, wanted.tpu_topology.split("x")))
    if product != chips:
        raise UsageError(
            f"the topology {wanted.tpu_topology} has {product} chips, and {wanted.tpu} has {chips}",
            subject=wanted.tpu_topology,
        )


def tpu_chips(tpu: str) -> int:
    """Return the number of chips in a slice of this name."""
    match = _TPU.fullmatch(tpu)
    assert match is not None  # it was parsed
    return int(match[2])


def is_type(model: str, wanted: str) -> bool:
    """Check that a GPU model is of the requested type: its name has all words of the type. `A100` and
    `a100-80gb` mean `NVIDIA A100-SXM4-80GB`; `A10` doesn't."""
    return set(_words(wanted)) <= set(_words(model))


def _words(text: str) -> list[str]:
    return re.findall(r"[a-z0-9]+", text.lower())


@dataclass(frozen=True, slots=True)
class GpuCount:
    """GPUs of one kind."""

    kind: str
    free: int
    total: int


@dataclass(frozen=True, slots=True)
class NodeRoom:
    """A machine that jobs may run on. None means unknown, which is no reason against a job."""

    name: str = ""
    gpus: tuple[GpuCount, ...] = ()
    free_cpus: float | None = None
    total_cpus: float | None = None
    free_memory: int | None = None
    total_memory: int | None = None


@dataclass(frozen=True, slots=True)
class Capacity:
    """The machines of an engine that matter to one job."""

    nodes: tuple[NodeRoom, ...] = ()
    """The nodes that can ever run the job."""
    waiting: int | None = None
    """Jobs in the queue; None if the engine doesn't report it."""
    grows: bool = False
    """The cluster adds machines on demand, so a job can wait for machines that don't exist yet."""
    never: str | None = None
    """The reason why the job can never run there, in the engine's words."""
    not_now: str | None = None
    """The reason why the job can't begin now although there is room, such as a quota, in the engine's words."""
    unseen: tuple[str, ...] = ()
    """Information that the caller has no permission to see, with reasons."""

    def gpus(self) -> tuple[GpuCount, ...]:
        """Add up the GPUs of all nodes, by kind."""
        return counted(each for node in self.nodes for each in node.gpus)


def counted(counts: Iterable[GpuCount]) -> tuple[GpuCount, ...]:
    """Add up the GPUs of each kind, in the order in which the kinds first appear."""
    free: dict[str, int] = {}
    total: dict[str, int] = {}
    for each in counts:
        free[each.kind] = free.get(each.kind, 0) + each.free
        total[each.kind] = total.get(each.kind, 0) + each.total
    return tuple(GpuCount(kind, free[kind], total[kind]) for kind in total)


def fit(wanted: Resources, capacity: Capacity) -> Capacity:
    """Return the capacity with the reason why the job can never begin, or can't begin now, if any."""
    if capacity.never is not None:
        return capacity
    able = [node for node in capacity.nodes if _has(wanted, node, free=False)]
    if len(able) < wanted.nodes and not capacity.grows:
        return replace(capacity, never=_lack(wanted, len(able)))
    ready = [node for node in able if _has(wanted, node, free=True)]
    if capacity.not_now is None and len(ready) < wanted.nodes:
        return replace(capacity, not_now=_busy(wanted, capacity, len(ready)))
    return capacity


def _has(wanted: Resources, node: NodeRoom, *, free: bool) -> bool:
    cpus = node.free_cpus if free else node.total_cpus
    memory = node.free_memory if free else node.total_memory
    if wanted.cpus is not None and cpus is not None and cpus < wanted.cpus:
        return False
    if wanted.memory_bytes is not None and memory is not None and memory < wanted.memory_bytes:
        return False
    if wanted.gpus is None:
        return True
    fitting = [each for each in node.gpus if wanted.gpu_type is None or is_type(each.kind, wanted.gpu_type)]
    there = sum(each.free if free else each.total for each in fitting)
    if wanted.gpus == ALL_GPUS:
        return 0 < sum(each.total for each in fitting) == there
    return there >= wanted.gpus


def _lack(wanted: Resources, able: int) -> str:
    """Return why the pool can never run the job."""
    machines = format_count(able, "machine") if able else "no machine"
    what = "" if wanted.nodes == 1 else f", and {wanted.nodes} are asked for"
    return f"{machines} of it {'have' if able > 1 else 'has'} {_in_words(wanted)}{what}"


def _busy(wanted: Resources, capacity: Capacity, ready: int) -> str:
    waiting = f", {format_count(capacity.waiting, 'job')} waiting" if capacity.waiting else ""
    if wanted.gpus is not None and wanted.nodes == 1:
        fitting = [
            gpu for gpu in capacity.gpus() if not wanted.gpu_type or is_type(gpu.kind, wanted.gpu_type)
        ]
        free, total = sum(gpu.free for gpu in fitting), sum(gpu.total for gpu in fitting)
        return f"{free} of {format_count(total, 'GPU')} {'is' if free == 1 else 'are'} free{waiting}"
    if wanted.nodes > 1:
        return f"{format_count(ready, 'machine')} of {wanted.nodes} could begin now{waiting}"
    return f"too little of {_in_words(wanted)} is free{waiting}"


def _in_words(wanted: Resources) -> str:
    parts = []
    if wanted.gpus is not None:
        kind = f"{wanted.gpu_type or ''} GPU".strip()
        parts.append(f"all {kind}s" if wanted.gpus == ALL_GPUS else format_count(wanted.gpus, kind))
    if wanted.cpus is not None:
        parts.append(f"{wanted.cpus:g} CPUs")
    if wanted.memory_bytes is not None:
        parts.append(f"{format_bytes(wanted.memory_bytes)} of memory")
    return ", ".join(parts) or "room"


DEFAULT_WAIT: Final = 15 * 60


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool:
    """A set of machines that run jobs, as the configuration describes it."""

    name: str
    engine: str | None
    """None for `HERE`, which uses the first engine that answers."""
    cache: str | None = None
    """Its folder on the machines of the pool; None for the cache in effect here."""
    out: str | None = None
    """The folder in which runs get their output folders; None for one among the user's state."""
    run: Mapping[str, Any] = field(default_factory=dict)
    """Its settings for each run; keys as in `POOL_OPTIONS` of spec.py."""
    options: Mapping[str, Json] = field(default_factory=dict)
    """The options of its engine, as in its table in the configuration."""

    @property
    def wait(self) -> float:
        """Seconds that a job waits in its queue before it moves to the next pool."""
        return float(self.run.get("wait", DEFAULT_WAIT))


@dataclass(frozen=True, slots=True)
class PassedOver:
    """A pool where a run did not begin, with the reason as part of a sentence."""

    pool: str
    reason: str
