"""Runs for MLflow: each becomes one of its runs, which is found again by its tag, and so is made only once."""

from __future__ import annotations

import json
import posixpath
import re
import shlex
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import groupby
from operator import attrgetter
from pathlib import Path
from typing import Final
from urllib.request import url2pathname

from blake3 import blake3
from google.protobuf.json_format import ParseError
from mlflow import MlflowClient, MlflowException, get_tracking_uri
from mlflow.entities import Dataset, DatasetInput, InputTag, Metric, Param, RunTag
from mlflow.environment_variables import MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT
from yaml import YAMLError

from dsv.api.runs import Runs
from dsv.errors import Conflict, Unreachable, Unsupported
from dsv.run.lineage import inputs_of, results_of
from dsv.run.listing import RunView
from dsv.run.record import RunRecord, RunState
from dsv.run.series import number
from dsv.stores.base import batches
from dsv.values.json import as_text, flattened
from dsv.values.secrets import Masker, hide_in_urls

_PARAMS, _METRICS = 20, 500
"""How many go into one request, of which MLflow takes no megabyte."""
_NAME, _VALUE, _TAG, _DIGEST, _DATASET = 250, 6000, 5000, 36, 500
"""The most characters that MLflow takes."""
_ENDS: Final = {"succeeded": "FINISHED", "failed": "FAILED", "cancelled": "KILLED"}
_NONE: Final = ("", "")
_META = ("*/meta.yaml", "*/*/meta.yaml", "*/datasets/*/meta.yaml", "*/*/inputs/*/meta.yaml")
"""Of experiments, runs, datasets, and their uses by runs."""
_REFUSED = re.compile(r"[^\w/. :-]")


def export(
    runs: Runs, views: Sequence[RunView], experiment: str | None, environ: Mapping[str, str]
) -> tuple[int, list[str]]:
    """Make each of these runs one of MLflow's, where its own variables point. Return how many it lacked or had not seen
    the end of, and notes. MLflow has a run as ended only once the whole of it is there. experiment: its name"""
    shown = hide_in_urls(place := get_tracking_uri())
    MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT.set(True)  # it has the password of the server
    try:
        client = MlflowClient(place)
    except (MlflowException, ImportError, ValueError) as error:
        hint = "MLFLOW_TRACKING_URI names a server; folders need MLFLOW_ALLOW_FILE_STORE=true, databases all of mlflow"
        raise Unsupported(f"MLflow can't open {shown}", subject=shown, hint=hint) from error
    if place.startswith(("file:", "/", ".")):
        _repair(Path(url2pathname(place.removeprefix("file:"))))
    try:
        exporter = _Exporter(client, experiment, environ, str(runs.repository.id))
        exporter.find([view.record.run for view in views])
        new = [view for view in views if exporter.known.get(view.record.run, _NONE)[1] not in _ENDS.values()]
        for some in batches(new, 64):
            for view in runs.with_series(some, ended=True):  # MLflow fails if two make a dataset at once
                exporter.put(view)
    except (MlflowException, ParseError, YAMLError, ValueError) as error:
        is_refused = getattr(error, "error_code", "").startswith(("INVALID", "RESOURCE"))
        kind = Conflict if is_refused else Unreachable
        why = hide_in_urls(str(error).strip().partition("\n")[0])[:500]
        hint = "the same command goes on; --experiment NAME names another experiment"
        raise kind(f"MLflow at {shown} did not take it: {why}", subject=shown, hint=hint) from error
    return len(new), sorted(set(exporter.notes))


def _repair(folder: Path) -> None:
    """Make what a kill has left in a folder of MLflow readable for it again."""
    empty = [one for pattern in _META for one in folder.glob(pattern) if _is_empty(one)]
    if empty:
        time.sleep(1)  # whoever makes one now fills it at once
    for one in filter(_is_empty, empty):
        with suppress(OSError):
            one.unlink()  # MLflow passes over what has none
    with suppress(OSError):
        for run in folder.glob("*/*/meta.yaml"):
            for name in ("metrics", "params", "artifacts"):
                (run.parent / name).mkdir(exist_ok=True)
    for left in (*folder.glob("*/datasets/*"), *folder.glob("*/*/inputs/*")):
        with suppress(OSError):
            left.rmdir()  # if it is empty


def _is_empty(file: Path) -> bool:
    try:
        return not file.stat().st_size
    except OSError:
        return False


class _Exporter:
    def __init__(self, client: MlflowClient, experiment: str | None, environ: Mapping[str, str], store: str):
        self._client, self._store, self._mask = client, store, Masker.of({}, environ)
        self.notes, self.known = list[str](), dict[str, tuple[str, str]]()
        self._place = environ.get("MLFLOW_EXPERIMENT_ID", "0")
        if name := environ.get("MLFLOW_EXPERIMENT_NAME") if experiment is None else experiment:
            known = client.get_experiment_by_name(name)
            self._place = client.create_experiment(name) if known is None else known.experiment_id

    def find(self, runs: Sequence[str]) -> None:
        """Note id and status of MLflow's runs by dsv's id: the tag, or the end of the name of one without tags yet."""
        tagged = f"= '{runs[0]}'" if len(runs) == 1 else "LIKE '%'"
        for text in (f"tags.`dsv.run` {tagged}", "attributes.status = 'RUNNING'"):
            page, token = None, None
            while page is None or (token := page.token):
                page = self._client.search_runs([self._place], text, max_results=5000, page_token=token)
                for run in page:
                    name = run.data.tags.get("dsv.run") or (run.info.run_name or "").rpartition(" ")[2]
                    self.known.setdefault(name, (run.info.run_id, run.info.status))

    def put(self, view: RunView) -> None:
        """Make or complete a run; its end is the last that it gets."""
        client, record, metrics = self._client, view.record, self._metrics(view)
        tags = self._tags(record)
        if run := self.known.get(record.run, _NONE)[0]:
            client.log_batch(run, tags=[RunTag(*pair) for pair in tags.items()])
            metrics = self._missing(run, metrics)
        else:
            run = client.create_run(self._place, max(record.started_ms, 1), tags).info.run_id
            if not run:
                raise ValueError("it gives a run no id, so it is something else")
        for params in batches(self._params(record), _PARAMS):
            client.log_batch(run, params=params)
        for points in batches(metrics if record.state.is_terminal else (), _METRICS):
            client.log_batch(run, metrics=points)
        inputs = {(each.dataset.name, each.dataset.digest): each for each in self._inputs(record)}
        client.log_inputs(run, list(inputs.values()))
        if record.outcome is not None:
            client.set_terminated(run, _ENDS[record.outcome], max(record.ended_ms or 1, 1))
        else:
            client.update_run(run, "RUNNING" if record.state is RunState.RUNNING else "SCHEDULED")

    def _text(self, text: str, most: int) -> str:
        return self._mask.text(text).encode("utf-8", "backslashreplace").decode()[:most]

    def _tags(self, record: RunRecord) -> dict[str, str]:
        code, made = record.code, results_of(record, folder=False)
        name = f"{self._text(record.name or '', 200)} {record.run}".strip()
        tags = {
            "dsv.run": record.run, "mlflow.runName": name, "dsv.store": self._store,
            "dsv.target": record.target, "dsv.name": record.name,
            "dsv.state": record.state, "dsv.exit_code": record.exit_code, "dsv.host": record.host,
            "dsv.sweep": record.sweep and record.sweep.id, "dsv.image": record.image_digest or record.image,
            "dsv.output": " ".join(f"{it.dataset}@{it.commit}" for it in made), "mlflow.user": record.user,
            "mlflow.source.name": shlex.join(record.command),
            "mlflow.source.git.commit": code and code.commit, "mlflow.source.git.repoURL": code and code.remote,
        }  # fmt: skip
        return {name: self._text(str(value), _TAG) for name, value in tags.items() if value not in (None, "")}

    def _params(self, record: RunRecord) -> Iterator[Param]:
        for name, value in flattened(self._mask.value(record.params)).items():  # type: ignore[arg-type]
            if len(text := as_text(value)) > _VALUE:
                self.notes.append(f"parameters of run {record.run} were cut at {_VALUE:,} characters")
            yield Param(mlflow_name(name), self._text(text, _VALUE))

    def _metrics(self, view: RunView) -> Iterator[Metric]:
        """Yield curves, at the time of the start, and at the end what differs from their last values."""
        record, curves = view.record, view.series or {}
        values, begun = flattened(record.metrics or {}), max(record.started_ms, 1)
        for name in dict.fromkeys((*values, *curves)):
            steps = curves[name].points if name in curves else []
            if any(step != int(step) or abs(step) >= 1 << 53 for step, _ in steps):  # such as half an epoch
                steps = [(at, value) for at, (_, value) in enumerate(steps)]
            points = [(float(value), begun, int(step)) for step, value in steps]
            last = number(values.get(name))
            if last is not None and (not points or last != points[-1][0]):
                at = max((step for *_, step in points), default=0)
                points.append((float(last), max(record.ended_ms or begun, 1), at))
            if not points:
                self.notes.append(f"metrics of run {record.run} that are no numbers were left out")
            yield from (Metric(mlflow_name(name), *point) for point in dict.fromkeys(points))

    def _missing(self, run: str, metrics: Iterable[Metric]) -> Iterator[Metric]:
        """Yield the points that a run lacks: MLflow adds whatever it gets."""
        for name, points in groupby(metrics, key=attrgetter("key")):
            seen = self._client.get_metric_history(run, name)
            there = {(point.timestamp, point.step, str(float(point.value))) for point in seen}
            yield from (p for p in points if (p.timestamp, p.step, str(p.value)) not in there)

    def _inputs(self, record: RunRecord) -> Iterator[DatasetInput]:
        """MLflow keeps one input of a name and digest, and for all runs the source that was first given with them."""
        for linked in inputs_of(record):
            role, part = linked.name.removeprefix("data "), f"-{_hash(linked.path)}" if linked.path else ""
            name = f"{linked.dataset}" if role in ("data", "read") else f"{linked.dataset} ({role})"
            target = f"{linked.dataset}@{linked.commit}"
            source = {"target": target, "path": linked.path, "store": self._store}
            digest = f"{str(linked.commit)[: _DIGEST - len(part)]}{part}"
            dataset = Dataset(self._text(name, _DATASET), digest, "dsv", json.dumps(source))
            yield DatasetInput(dataset, [InputTag("mlflow.data.context", self._text(role, _DATASET))])


def _hash(text: str) -> str:
    return blake3(text.encode("utf-8", "surrogatepass")).hexdigest()[:8]


def mlflow_name(name: str) -> str:
    """Return what MLflow calls a parameter or metric: a character that it refuses is _, and a name that changes or is
    too long ends in a hash."""
    text = _REFUSED.sub("_", name)
    if posixpath.normpath(text) != text or text.startswith(("/", "..")) or text == ".":
        text = re.sub("[/.]", "_", text)  # it takes names for paths
    return text if text == name and 0 < len(text) <= _NAME else f"{text[: _NAME - 9]}-{_hash(name)}"
