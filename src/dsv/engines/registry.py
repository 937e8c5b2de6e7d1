"""The engines, and how one is chosen for a run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from dsv.engines.base import Engine, Facts, NoEngine
from dsv.engines.docker import Docker
from dsv.engines.podman import Podman
from dsv.engines.process import Process
from dsv.errors import LaunchError, UsageError

ENGINES: Final[Mapping[str, Callable[[Mapping[str, str]], Engine]]] = {
    Docker.name: Docker,
    Podman.name: Podman,
    Process.name: Process,
}
"""By name, in the order in which they are tried. Each is made from the caller's environment."""


_PLAIN: Final = (
    "without --image the command runs as a plain process: file modes alone keep it from writing to its data "
    "(this is said once)"
)


@dataclass(frozen=True, slots=True)
class Chosen:
    """note: what to tell the user once about the choice, if it may surprise."""

    engine: Engine
    facts: Facts
    note: str | None = None


def choose(environ: Mapping[str, str], name: str | None, image: str | None) -> Chosen:
    """The engine of this name; without a name the first that answers, or `process` if there is no image.

    Raises `UsageError` for an unknown name, or an image that the engine can't run; `LaunchError` if the named engine,
    or every engine, doesn't answer.
    """
    if name is not None:
        return _named(environ, name, image)
    if image is None:
        chosen = _named(environ, Process.name, None)
        return Chosen(chosen.engine, chosen.facts, _PLAIN)
    reasons = []
    for make in ENGINES.values():
        engine = make(environ)
        if not engine.takes_image:
            continue
        answer = engine.probe()
        if not isinstance(answer, NoEngine):
            return Chosen(engine, answer)
        reasons.append(answer.reason)
    raise LaunchError(
        f"no engine can run {image}: {'; '.join(reasons)}",
        subject=image,
        hint="start docker or podman, or leave out --image to run a plain process",
    )


def _named(environ: Mapping[str, str], name: str, image: str | None) -> Chosen:
    make = ENGINES.get(name)
    if make is None:
        raise UsageError(f"there is no engine {name}", subject=name, hint=f"one of {', '.join(ENGINES)}")
    engine = make(environ)
    if engine.takes_image and image is None:
        raise UsageError(
            f"{name} needs an image", subject=name, hint=f"dsv run --engine {name} --image IMAGE …"
        )
    if image is not None and not engine.takes_image:
        raise UsageError(
            f"the {name} engine runs no images", subject=image, hint="leave out --image or --engine"
        )
    answer = engine.probe()
    if isinstance(answer, NoEngine):
        raise LaunchError(
            answer.reason, subject=name, hint="dsv run chooses one that answers, without --engine"
        )
    return Chosen(engine, answer)
