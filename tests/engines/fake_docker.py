"""A docker program that answers as a test sets it: with a daemon that goes away in the middle of a job."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from tests.waiting import until

# Files of its folder say how the world stands: `down` (no daemon answers), `refused` (why no container is made),
# `unlogged` (`logs` fails), `left` (what the attached program exits with), `over` (the container's exit code), `gone`
# (there is no such container), `log` (what the engine keeps of the container's output), `unnoted` (the engine has not
# noted that the container began), `no-image` (the engine has no image until it pulls one), `unknown` (no registry has
# one), `digests` (those of the image, as JSON has them), `said` (the container ends at once, with this on stderr).
PROGRAM = r"""#!/bin/sh
pwd >> '{folder}/started-in'
cd '{folder}' || exit 1
level=error
[ "$1" = --log-level ] && {{ level=$2; shift 2; }}
echo "$*" >> calls
unreachable() {{ echo 'Cannot connect to the Docker daemon. Is it running?' >&2; exit 1; }}
await() {{ until [ -e "$1" ]; do sleep 0.05; done; }}
case "$1" in
info) echo '{{"ServerVersion": "27.0", "OSType": "linux", "InitBinary": "docker-init"}}'; exit ;;
create) [ -e refused ] && {{ cat refused >&2; exit 125; }}; echo deadbeefcafe; exit ;;
start)
  echo $$ > pid.new; mv pid.new pid; [ -e said ] && {{ cat said >&2; exit "$(cat over)"; }}
  echo up; touch up; await left
  [ $level = fatal ] || echo 'level=error msg="error waiting for container: unexpected EOF"' >&2
  exit "$(cat left)" ;;
esac
[ -e down ] && unreachable
case "$1" in
container)
  if [ -e gone ]; then echo 'Error response from daemon: No such container: deadbeefcafe' >&2; exit 1; fi
  running=true; code=0
  if [ -e over ]; then running=false; code=$(cat over); fi
  [ -e pid ] || running=false
  began=2026-01-01T00:00:00Z
  [ -e unnoted ] && running=false && began=0001-01-01T00:00:00Z
  state='"Running": '$running', "Pid": '$(cat pid 2>/dev/null || echo 0)', "ExitCode": '$code', "StartedAt": "'$began'"'
  echo '[{{"Image": "sha256:1", "Config": {{"Cmd": ["train"]}}, "State": {{'$state'}}}}]' ;;
wait) await over ;;
logs)
  [ -e unlogged ] && {{ echo 'configured logging driver does not support reading' >&2; exit 1; }}
  if [ -e log ]; then cat log; else echo up; fi
  [ "$2" = --follow ] || exit 0
  until [ -e over ] || [ -e down ]; do sleep 0.05; done ;;
kill) echo $((128 + $3)) > over.new; mv over.new over ;;
image) [ -e no-image ] && {{ echo 'no such image' >&2; exit 1; }}
  echo '[{{"Id": "sha256:1", "RepoDigests": ['"$(cat digests 2>/dev/null)"']}}]' ;;
pull) [ -e unknown ] && {{ echo 'Error response from daemon: manifest unknown' >&2; exit 1; }}; rm -f no-image ;;
rm) [ -e over ] || touch removed-alive ;;
esac
"""


@dataclass(frozen=True)
class FakeDocker:
    """folder: also its `bin`, for PATH."""

    folder: Path

    @classmethod
    def make(cls, folder: Path) -> FakeDocker:
        (folder / "bin").mkdir(parents=True)
        program = folder / "bin" / "docker"
        program.write_text(PROGRAM.format(folder=folder))
        program.chmod(0o755)
        return cls(folder)

    @property
    def environ(self) -> dict[str, str]:
        return {**os.environ, "PATH": f"{self.folder}/bin:{os.environ['PATH']}"}

    def set(self, name: str, content: object = "") -> None:
        new = self.folder / f"{name}.being-set"
        new.write_text(str(content))
        new.rename(self.folder / name)

    def clear(self, name: str) -> None:
        (self.folder / name).unlink()

    def await_up(self) -> None:
        until((self.folder / "up").exists, "the container's start")

    def calls(self, command: str) -> int:
        """Return how often it was called with this command."""
        return sum(line.startswith(command) for line in (self.folder / "calls").read_text().splitlines())

    def await_calls(self, command: str, more: int) -> None:
        wanted = self.calls(command) + more
        until(lambda: self.calls(command) >= wanted, f"asking {command} again")

    @property
    def removed_alive(self) -> bool:
        return (self.folder / "removed-alive").exists()
