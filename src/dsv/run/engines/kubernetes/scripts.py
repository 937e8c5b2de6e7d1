"""What the containers of a job on Kubernetes run, and what they leave in the pod.

The scripts are plain shell, as an image of a job need not have more. The containers of a pod share an empty folder,
`OWN`. Kubernetes shows annotations of the pod in `TOLD`, so whoever may change the pod can send a signal, without
having to start programs in it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from dsv.fs.files import open_plain
from dsv.run.engines.base import stage_facts
from dsv.run.engines.kubernetes.options import NOT_AGAIN, OWN
from dsv.run.engines.log import LogKeeper
from dsv.run.record import EndCause, RunPart, Usage, deciding_part, exit_signal, may_try_again

TOLD: Final = "/dsv/told"
STAGED: Final = f"{OWN}/staged.json"
"""What `dsv with` says of the data that it made sure of."""
TIME_IS_OVER: Final = "time-limit"
NOT_HELD: Final = "lease-lost"
TOGETHER: Final = "together"
"""Why dsv ended the command, as the script of the job's container tells."""
AGAIN_CODE: Final = 190
"""The exit code of a container that ended because its attempt was over on another node."""
NO_PROGRAM: Final = "the pool's image of dsv has no program"
"""The beginning of the sentence that says so, up to the name of the program."""
METRICS: Final = "--- metrics.json"
"""The line after which the container that holds the data prints what the command has left."""

HOLD: Final = f"""\
umask 002
if [ -n "${{DSV_SETTINGS:-}}" ]; then
  export DSV_CONFIG={OWN}/config.toml
  printf '%s\\n' "$DSV_SETTINGS" >"$DSV_CONFIG"
fi
if [ -n "${{DSV_CERTIFICATES:-}}" ]; then
  export AWS_CA_BUNDLE={OWN}/certificates.pem
  printf '%s\\n' "$DSV_CERTIFICATES" >"$AWS_CA_BUNDLE"
fi
give_up() {{ # and stay: the next container begins only once this one is seen to run, and tells why
  trap 'exit 1' TERM
  : >{OWN}/not-held
  while :; do sleep 3600 & wait $!; done
}}
# Folders that the job writes to, up to the word that is a dash.
while [ "$1" != - ]; do
  mkdir -p "$1" 2>{OWN}/problem || give_up
  [ ! -O "$1" ] || chmod g+rwxs "$1"
  shift
done
shift
if ! command -v "$1" >/dev/null; then
  echo "error: {NO_PROGRAM} $1" >{OWN}/problem
  give_up
fi
[ -z "${{DSV_PARAMS_FILE:-}}" ] || printf '%s\\n' "$DSV_PARAMS" >"$DSV_PARAMS_FILE"
# The data is held until Kubernetes ends this container, which it does once the job's own has ended.
exec 3>&2 2>/dev/null
over=
trap 'over=yes; kill -TERM "$holder"' TERM
holding() {{
  "$@" sh -c ': >{OWN}/held; while :; do sleep 3600 & wait $!; done' 2>>{OWN}/problem 3>&- &
}}
if [ -n "${{DSV_GANG_PORT:-}}" ]; then
  # Beside the program dsv is the Python that it runs with.
  python=$(command -v "$1")
  python=${{python%/*}}/python3
  [ -x "$python" ] || python=python3
  holding() {{ "$@" "$python" -m dsv.run.engines.kubernetes.gang 2>>{OWN}/problem 3>&- & }}
fi
holding "$@"
holder=$!
wait "$holder"
if [ -z "$over" ]; then
  : >{OWN}/not-held
  cat {OWN}/problem >&3
fi
wait "$holder"
if [ -n "${{DSV_METRICS_FILE:-}}" ] && [ -f "$DSV_METRICS_FILE" ]; then
  printf '%s\n%s\n' '{METRICS}' "$(head -c 1048577 "$DSV_METRICS_FILE")"
fi
if [ -n "${{DSV_CLOSE:-}}" ] && [ -e {OWN}/ended ]; then
  umask 077
  attempt=$((${{DSV_FAILED:-0}} + ${{DSV_IGNORED:-0}} + 1))
  printf '%s' "$DSV_ORDER" >{OWN}/order
  eval "$DSV_CLOSE --left {OWN} --rank ${{DSV_INDEX:-0}} --attempt $attempt" <{OWN}/order >{OWN}/complete.log 2>&1 &
  closing=$!
  (sleep "$DSV_CLOSE_SECONDS" && kill -TERM "$closing") >/dev/null 3>&- &
  wait "$closing"
fi
[ -n "$over" ]
"""
"""Makes sure of the data and holds it, in a container that lives on beside the job's own. Once that has ended it
completes the record of the run, if all nodes have, from what the job's own container left."""

STAGE: Final = f"""\
trap 'exit 143' TERM
until [ -e {OWN}/not-held ]; do
  if [ -e {OWN}/held ]; then
    cat {STAGED} >/dev/termination-log
    exit 0
  fi
  [ ! -e {OWN}/verdict ] || exit {AGAIN_CODE}
  sleep 0.1 || sleep 1
done
cat {OWN}/problem >&2
exit 1
"""
"""Ends once the data is held, so that the job's own container does not begin before that. What was said of the data
becomes the end of the container, or if it can't be held the end of its log."""

RUN: Final = f"""\
# Kubernetes signals this shell alone, which only waits for the command; what stops it tells the command itself.
exec 3>&2 2>/dev/null
trap : HUP INT TERM
begun=$(PATH=/usr/bin:/bin:$PATH; date +%s)
DSV_ATTEMPT=$((${{DSV_FAILED:-0}} + ${{DSV_IGNORED:-0}} + 1))
export DSV_ATTEMPT
unset DSV_FAILED DSV_IGNORED

end_command() {{ # WHY
  [ ! -s {OWN}/why ] || return 0
  echo "$1" >{OWN}/why
  kill -TERM "$pid"
  dying=$(($(date +%s) + 30))
}}
watch() {{
  trap - HUP INT TERM
  PATH=/usr/bin:/bin:$PATH
  seen= pid= dying=
  until [ -n "$pid" ]; do
    read -r pid <{OWN}/command || sleep 0.1 || sleep 1
  done
  begun=$(date +%s)
  while :; do
    while read -r number name; do
      case " $seen " in *" $number "*) continue ;; esac
      seen="$seen $number"
      case $name in HUP | INT | QUIT | TERM | KILL) : >{OWN}/told ;; esac
      kill -s "$name" "$pid"
    done <{TOLD}/signal
    [ ! -e {OWN}/stopped ] || [ -n "$dying" ] || dying=$(($(date +%s) + 30))
    [ ! -e {OWN}/not-held ] || end_command {NOT_HELD}
    [ ! -e {OWN}/end ] || end_command {TOGETHER}
    [ -z "$DSV_SECONDS" ] || [ $(($(date +%s) - begun)) -lt "$DSV_SECONDS" ] || end_command {TIME_IS_OVER}
    [ -z "$dying" ] || [ "$(date +%s)" -lt "$dying" ] || kill -KILL "$pid"
    sleep 0.25 || sleep 1
  done
}}
# The command begins once each node has its place, and so a name by which it is found. One that has ended has none any
# more, so this doesn't wait for good.
(
  PATH=/usr/bin:/bin:$PATH
  command -v getent || command -v nslookup || exit
  resolve() {{ # NODE; the nslookup of busybox does not complete a name that has a dot in it
    ! command -v getent || {{ getent hosts "$1"; return; }}
    while read -r key domains; do
      [ "$key" = search ] || continue
      for domain in $domains; do
        nslookup "$1.$domain" && return
      done
    done </etc/resolv.conf
    nslookup "$1"
  }}
  last=$(($(date +%s) + 60))
  for node in $DSV_NODES; do
    until resolve "$node" || [ "$(date +%s)" -ge "$last" ]; do sleep 0.5 || sleep 1; done
  done
) </dev/null >/dev/null
rm -f {OWN}/command {OWN}/why
watch </dev/null >/dev/null &

# What the command writes goes to the log of the pod, and a copy of it into files of at most 8 MiB: the first two and
# the last two of them are kept. If no copy can be made, the log of the pod has all of it nevertheless.
keep_copy() {{
  number=0 lost=0 size=0
  while :; do
    before=$size size=0
    while [ "$size" -lt 4194304 ]; do
      dd bs=65536 count=64 >>{OWN}/log.$number || {{ rm -f {OWN}/log.*; return; }}
      now=$(wc -c <{OWN}/log.$number)
      [ "$now" -gt "$size" ] || return
      size=$now
    done
    number=$((number + 1))
    if [ "$number" -gt 3 ]; then
      lost=$((lost + before))
      echo "$lost" >{OWN}/log.lost
      rm -f {OWN}/log.$((number - 2))
    fi
  done
}}
copied=
if [ -n "$DSV_COPIED" ]; then
  copied=$(
    PATH=/usr/bin:/bin:$PATH
    {{ command -v dd && command -v tee && command -v wc && mkfifo {OWN}/pipe {OWN}/copy; }} >/dev/null && echo yes
  )
  printf '%s\\0' "$@" >{OWN}/argv
fi
[ -z "$copied" ] || (
  PATH=/usr/bin:/bin:$PATH
  exec 3>&-
  keep_copy <{OWN}/copy >/dev/null &
  (trap '' PIPE; exec tee {OWN}/copy) <{OWN}/pipe
  wait
  : >{OWN}/copied
) &
(
  unset DSV_SECONDS DSV_NODES DSV_GANG_PORT DSV_COPIED
  [ -z "$copied" ] || exec 3>{OWN}/pipe >&3
  exec /bin/sh -c 'echo "$$" >{OWN}/command && exec "$@"' sh "$@" </dev/null 2>&3 3>&-
)
code=$?
# What the command started and left behind may still hold the pipe, and is not waited for.
turn=0
while [ -n "$copied" ] && [ ! -e {OWN}/copied ] && [ "$turn" -lt 20 ]; do
  (PATH=/usr/bin:/bin:$PATH; sleep 0.1 || sleep 1)
  turn=$((turn + 1))
done
verdict= reason=
if [ -n "${{DSV_GANG_PORT:-}}" ]; then
  # The container ends as its attempt ends on all nodes.
  (
    PATH=/usr/bin:/bin:$PATH
    echo "$code" >{OWN}/code
    until [ -e {OWN}/verdict ] || [ -e {OWN}/not-held ]; do
      read -r why <{OWN}/why && [ "$why" = {TIME_IS_OVER} ] && break
      sleep 0.25 || sleep 1
    done
  ) </dev/null >/dev/null
  read -r verdict reason <{OWN}/verdict
fi
why=
read -r why <{OWN}/why
# One that ended well, and then lost its data before the others were done, has not ended well for them.
[ -z "${{DSV_GANG_PORT:-}}" ] || [ -n "$verdict$why" ] || [ ! -e {OWN}/not-held ] || why={NOT_HELD}
[ "$why" != {TOGETHER} ] || [ "$verdict" = again ] || why=
case $why in
  {NOT_HELD}) code=125 ;;
  {TIME_IS_OVER}) code=124 ;;
esac
end=$code
if [ "$verdict" = again ] && {{ [ -z "$why" ] || [ "$why" = {TOGETHER} ]; }}; then
  end={AGAIN_CODE} why={TOGETHER}
elif [ "$code" = {AGAIN_CODE} ] && [ -n "$verdict" ]; then
  end=1
fi
for peak in /sys/fs/cgroup/memory.peak /sys/fs/cgroup/memory/memory.max_usage_in_bytes; do
  read -r memory <"$peak" && break
done
read -r _ cpu </sys/fs/cgroup/cpu.stat && cpu=${{cpu}}000 || read -r cpu </sys/fs/cgroup/cpuacct/cpuacct.usage
over=$(PATH=/usr/bin:/bin:$PATH; date +%s)
# How the attempt of several nodes ended is what they agree upon: without that, only the cluster can tell it.
if [ -z "${{DSV_GANG_PORT:-}}" ] || [ -n "$verdict$why" ]; then
  echo "code=$code why=$why begun=$begun over=$over memory=${{memory:-}} cpu=${{cpu:-}} whole=yes" >{OWN}/ended
fi
{{
  echo "end=$why memory=${{memory:-}} cpu=${{cpu:-}} code=$code"
  echo "$reason"
}} >/dev/termination-log
exit "$end"
"""
"""The job's own container. Its exit code is the command's, unless another node ended the attempt. The end that it
leaves has the command's in any case, and how much it took."""

STOP: Final = f': >{OWN}/stopped; read -r pid <{OWN}/command && kill -TERM "$pid"'
"""What Kubernetes runs in the job's container before it stops that, for whatever reason."""


_KILLED: Final = 137
_MOST: Final = 64 << 20
"""Bytes of one file: the script keeps them much smaller."""
CAUSES: Final = {
    TIME_IS_OVER: (EndCause.TIME_LIMIT, "its time was over"),
    NOT_HELD: (EndCause.LEASE_LOST, "the data was not held any more"),
}
"""Why the script ended the command, and in which words that is told."""
_NO_MODULE: Final = re.compile(r"No module named '?dsv")
_TOO_OLD: Final = re.compile(r"No module named '?dsv|[Nn]o such (?:option|command)", re.ASCII)
_OTHER_IMAGE: Final = (
    "dsv config pools.NAME.kubernetes.image REGISTRY/dsv:VERSION names an image of this version of dsv, and "
    "pools.NAME.kubernetes.dsv the program in it"
)


@dataclass(frozen=True, slots=True)
class LeftInPod:
    """part: of this node, in this attempt. is_clear: whether the end can be told here; only the cluster knows why it
    stopped or killed a command. was_stopped: whether the cluster ended the pod, and not dsv the command."""

    part: RunPart
    usage: Usage | None
    is_clear: bool
    was_stopped: bool = False
    folder: Path = Path(OWN)

    def read_log(self) -> LogKeeper | None:
        return read_log(self.folder)

    def is_over(self, parts: Iterable[RunPart], nodes: int, retries: int) -> bool | None:
        return is_over(parts, nodes, retries)

    def put_back(self) -> RunPart:
        """The part of a job in a queue, which may begin again after the cluster has stopped it."""
        return replace(self.part, end=EndCause.EVICTED, error="the cluster took its place away")


def read_left(folder: Path, *, node: int, attempt: int, host: str | None) -> LeftInPod | None:
    """None if the command did not end by itself, or never began."""
    said = dict(re.findall(r"([a-z]+)=(\S*)", _text(folder / "ended")))
    if said.get("whole") != "yes" or not said.get("code", "").isdecimal():
        return None
    code, why = int(said["code"]), said.get("why", "")
    cause, error = CAUSES.get(why, (EndCause.EXITED, None))
    if why == TOGETHER:
        cause, error = EndCause.CANCELLED, with_the_others(_text(folder / "verdict").partition(" ")[2])
    part = RunPart(
        node=node,
        attempt=attempt,
        host=host,
        started_ms=_milliseconds(said.get("begun")),
        ended_ms=_milliseconds(said.get("over")),
        end=cause,
        exit_code=code,
        exit_signal=exit_signal(code),
        error=error,
        **stage_facts(_text(folder / "staged.json")),
    )
    is_clear = why in CAUSES or not _was_ended(folder, code, why)
    was_stopped = not is_clear and (folder / "stopped").exists() and not (folder / "told").exists()
    return LeftInPod(part, told_usage(said), is_clear, was_stopped, folder)


def _was_ended(folder: Path, code: int, why: str) -> bool:
    """Whether the cluster or a person may have ended the command. A pod whose attempt was over by then was ended with
    the others in any case: the cluster stops the pods that are left of a job that has failed."""
    if (folder / "told").exists():
        return True
    stopped = _changed_at(folder / "stopped")
    if why != TOGETHER:
        return stopped is not None or code == _KILLED
    over = _changed_at(folder / "end")
    return stopped is not None and (over is None or stopped < over)


def is_over(parts: Iterable[RunPart], nodes: int, retries: int) -> bool | None:
    """Whether no other attempt follows those that left these parts, as the cluster counts them. None if only the
    cluster can tell that: not every node has left its part in every attempt, or no node failed by itself."""
    found = list(parts)
    last = max((each.attempt for each in found), default=0)
    decided = deciding_part(found)
    if decided is None or len({(each.attempt, each.node) for each in found}) < nodes * last:
        return None
    if decided.succeeded:
        return True
    if decided.end is EndCause.CANCELLED or any(each.end is EndCause.EVICTED for each in found):
        return None
    failed = [each for each in found if not each.succeeded and each.end is not EndCause.CANCELLED]
    if any(each.attempt == last and each.exit_code in NOT_AGAIN for each in failed):
        return True
    return len({each.attempt for each in failed}) > retries or not may_try_again(decided)


def read_log(folder: Path) -> LogKeeper | None:
    """What the command wrote: its beginning and its end, if that was much. None if no copy was made."""
    numbers = sorted(int(each.suffix[1:]) for each in folder.glob("log.*") if each.suffix[1:].isdecimal())
    if not numbers or not (folder / "log.0").is_file():
        return None
    keeper, before = LogKeeper(), -1
    for number in numbers:
        if number != before + 1:
            lost = _text(folder / "log.lost").strip()
            keeper.leave_out(int(lost) if lost.isdecimal() else 1)
        keeper.add(_begin(folder / f"log.{number}"))
        before = number
    return keeper


def with_the_others(reason: str) -> str:
    """What is said of the end of a node whose attempt was over on another one."""
    return f"it was ended with the other nodes: {reason.strip()}"


def told_usage(said: Mapping[str, str]) -> Usage | None:
    memory, cpu = said.get("memory", ""), said.get("cpu", "")
    if not (memory.isdecimal() or cpu.isdecimal()):
        return None
    return Usage(
        peak_memory_bytes=int(memory) if memory.isdecimal() else None,
        cpu_seconds=int(cpu) / 1e9 if cpu.isdecimal() else None,
    )


def _changed_at(path: Path) -> int | None:
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return None


def _milliseconds(seconds: str | None) -> int | None:
    return int(seconds) * 1000 if seconds and seconds.isdecimal() else None


def _begin(path: Path) -> bytes:
    """Its bytes, at most `_MOST`, up to where it can't be read."""
    pieces: list[bytes] = []
    left = _MOST
    with suppress(OSError), open_plain(path) as file:
        while left > 0 and (data := file.read(min(1 << 20, left))):
            pieces.append(data)
            left -= len(data)
    return b"".join(pieces)


def _text(path: Path) -> str:
    return _begin(path).decode("utf-8", "replace")


def last_words(log: str) -> str | None:
    """What dsv said of why it failed: in a document, or else as a person sees it."""
    with suppress(ValueError, KeyError, TypeError):
        return str(json.loads(log)["error"]["message"])
    lines = [line.strip() for line in log.splitlines()]
    said = [line for line in lines if line and not line.startswith(("hint:", "{"))]
    if any(_NO_MODULE.search(line) for line in said):
        return "the pool's image has a dsv that is too old for this one"
    errors = [line for line in said if line.startswith("error:")]
    found = errors or said
    return found[-1].removeprefix("error: ") if found else None


def what_helps(log: str) -> str | None:
    """What helps, as dsv said beside the error; or another image, if this one has no dsv, or an old one."""
    if NO_PROGRAM in log or _TOO_OLD.search(log):
        return _OTHER_IMAGE
    with suppress(ValueError, KeyError, TypeError):
        return json.loads(log)["error"]["hint"] or None
    found = re.findall(r"^\s*hint: (.+)$", log, re.MULTILINE)
    return found[-1].strip() if found else None
