"""Runs whose outputs become commits, beside all that frees, erases, copies and renames: random rounds, with kills."""

from __future__ import annotations

import os
import random
import shutil
import time
from collections import Counter
from pathlib import Path

import pytest

from dsv.api import environment
from dsv.format.keys import LINEAGE_PREFIX, parse_lineage_key
from dsv.run.edges import edge_keys
from dsv.run.record import RECORD
from dsv.run.record_store import RunStore
from dsv.stores.open import open_raw
from dsv.stores.options import StoreOptions
from tests.exhaustive import is_full
from tests.kit.dsv import Dsv

ROUNDS = int(os.environ.get("LINEAGE_ROUNDS", "60" if is_full() else "4"))
SEED = int(os.environ.get("LINEAGE_SEED", "11"))
JOB = 'cat "$DSV_DATA"/* >"$DSV_OUT/all"; echo {} >"$DSV_OUT/$1"'
pytestmark = pytest.mark.timeout(24 * 3600 if is_full() else 900)


class Rounds:
    def __init__(self, folder: Path) -> None:
        self.chance = random.Random(SEED)
        self.store, self.mirror = folder / "store", str(folder / "mirror")
        work = folder / "workspace"
        work.mkdir()
        self.dsv = Dsv.of(folder / "home", DSV_STORE=str(self.store), DSV_CACHE=str(folder / "cache"))
        self.raw, self.number, self.counts = "raw0", 0, Counter[str]()
        self.dsv.at(work).ok("init", "raw0")
        self.put("raw0")
        self.dsv.ok("put", "--create", str(self.file("first")), "made:", "-m", "made by hand")

    def file(self, name: str) -> Path:
        path = self.dsv.cwd / name
        path.write_bytes(self.chance.randbytes(50))
        return path

    def put(self, dataset: str | None = None) -> None:
        path = self.file(f"f{self.chance.randrange(3)}")
        self.dsv.ok("put", "--create", str(path), f"{dataset or self.raw}:", "-m", "more")

    def words(self) -> list[str]:
        self.number += 1
        into = self.chance.choice(["made", "made:part", f"made@b{self.chance.randrange(2)}"])
        job = ["sh", "-c", JOB, "sh", str(self.chance.randrange(3))]
        return ["run", self.raw, "--into", into, "--", *job]

    def run(self) -> None:
        done = self.dsv.process(*self.words())
        assert done.code == 0, done

    def killed_run(self) -> None:
        with self.dsv.start(*self.words()) as process:
            time.sleep(1.5 * self.chance.random())
            process.kill()
            process.communicate()
        shutil.rmtree(self.store / "sessions", ignore_errors=True)  # gc would wait for it for an hour
        self.dsv.ok("runs", "--dataset", self.raw)  # completes the record

    def finish(self) -> None:
        """Put the kept output of some run into the branch again."""
        kept = [each for each in self.runs() if each["output"] and each["output"]["tree"]]
        if kept:
            run = self.chance.choice(kept)
            done = self.dsv("runs", run["run"], "--into", "made")
            assert done.code in (0, 3), done  # 3: it has expired, or gc has freed it

    def expire(self) -> None:
        some = self.chance.choice([("--outputs",), ("--also-runs",)])
        dataset = self.raw if "--outputs" in some else self.chance.choice([self.raw, "made"])
        self.dsv.ok("expire", dataset, "--keep-last", "1", *some, "--undo-for", "0s")

    def collect(self) -> None:
        self.dsv.ok("gc", "--yes", "--grace", "0s")

    def delete(self) -> None:
        ended = [each for each in self.runs() if each["exit_code"] is not None]
        if ended:
            self.dsv.ok("runs", "--delete", self.chance.choice(ended)["run"], "--yes")

    def copy(self) -> None:
        done = self.dsv("copy", "--all", "--runs", "--to", self.mirror, "--create")
        assert done.code in (0, 4), done  # 4: what expired there can't be named again
        self.dsv.ok("gc", "--yes", "--grace", "0s", "--store", self.mirror)

    def rename(self) -> None:
        new = f"raw{self.number}-{self.chance.randrange(1 << 20)}"
        self.dsv.ok("datasets", "--rename", self.raw, new)
        self.raw = new

    def erase(self) -> None:
        self.put()
        done = self.dsv("erase", f"{self.raw}:f0", "--reason", "withdrawn", "--shared", "erase", "--yes")
        assert done.code in (0, 3), done  # 3: there is no such file

    def runs(self) -> list[dict[str, object]]:
        items: list[dict[str, object]] = self.dsv.ok("runs", "--json", "-n", "1000").json["items"]
        return items

    def check(self, url: str) -> None:
        store = open_raw(url, StoreOptions())
        runs = RunStore(store)
        listed = runs.listing()
        there = {item.key for item in store.list(LINEAGE_PREFIX)}
        needed = {key for stored in listed if RECORD in stored.parts for key in edge_keys(runs.read(stored))}
        assert needed <= there
        known = {(stored.dataset, stored.run) for stored in listed}
        assert all(edge is not None and edge[2:] in known for edge in map(parse_lineage_key, there))
        store.close()

    def play(self) -> None:
        actions = [self.put, self.run, self.run, self.killed_run, self.finish, self.expire, self.collect]
        actions += [self.delete, self.copy, self.rename, self.erase]
        for _ in range(ROUNDS):
            for action in self.chance.choices(actions, k=5):
                self.counts[action.__name__] += 1
                action()
            self.check(str(self.store))
            for branch in self.dsv.ok("branch", "--list", "made", "--json").json["items"]:
                if branch["commit"] is not None:
                    shown = self.dsv.ok("lineage", f"made@{branch['branch']}", "--json").json
                    assert shown["nodes"]
            self.collect()
            self.dsv.ok("verify")
        self.copy()
        self.check(self.mirror)
        self.dsv.ok("verify", "--store", self.mirror)
        print(self.counts)


def test_edges_and_outputs_stay_whole_whatever_happens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(environment, "SYSTEM_CONFIG", tmp_path / "none")
    Rounds(tmp_path).play()
