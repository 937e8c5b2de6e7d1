"""Rounds of whatever people do to a store, with garbage collections among it, some of them killed.

python -m tests.upkeep.gc_rounds STORE FOLDER SEED ROUNDS    on a host of its own: does all of it
python -m tests.upkeep.gc_rounds STORE FOLDER SEED           collects and fills the same cache, until FOLDER/stop
"""

from __future__ import annotations

import random
import shutil
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path

import pytest

from dsv.errors import Conflict, DsvError, IntegrityError
from dsv.format.records import ExpiryAction
from dsv.repo.expiry import append, read_expiry
from dsv.repo.merge_indexes import merge_indexes
from dsv.repo.refs.branches import Head
from dsv.repo.repository import Repository
from dsv.repo.session import point_branch
from dsv.stores.base import StoreBackend
from dsv.stores.open import open_raw, open_store
from dsv.stores.options import StoreOptions
from dsv.upkeep.datasets import rename_dataset
from dsv.upkeep.erase import Choice, Eraser
from dsv.values.ids import CommitId, FileId
from dsv.values.names import MAIN, BranchName, DatasetName
from tests.kit.dsv import Dsv, Result
from tests.kit.repositories import DATASET, WRITER, Files, commit, create
from tests.stores.faulty import Crash, Fault, Faulty, Kind
from tests.upkeep.gc_world import Beside, Meanwhile, Writing, collect, read_left

OTHER = DatasetName.parse("another")
REQUESTS = 200
"""About as many as a gc of such a store has."""
TRIES = 40
SIZES = (80, 700, 5_000, 30_000, 60_000, 1_500_000)


class Rounds:
    """A store, what each commit had when it was made, and a writer that was stopped."""

    def __init__(
        self,
        store: StoreBackend,
        folder: Path,
        seed: int,
        dsv: Dsv | None = None,
        elsewhere: str = "",
        *,
        alone: bool = True,
    ) -> None:
        """dsv: somebody who uses the same store by commands. elsewhere: a URL below which there is room for exports and
        another store. alone: nobody else collects."""
        self.store = store
        self.dsv = dsv
        self.elsewhere = elsewhere
        self.alone = alone
        self.folder = folder
        self.chance = random.Random(seed)
        self.contents = [self.chance.randbytes(size) for size in SIZES]
        self.files: dict[CommitId, Files] = {}
        self.erased: set[FileId] = set()
        self.stopped: tuple[Writing, Files] | None = None
        self.counts: Counter[str] = Counter()
        self.refusal: Result | None = None
        self.changed: Files = {}
        """What the command that is running changes on `main`."""
        self.number = 0
        create(store)
        self.put()

    def open(self) -> Repository:
        return Repository.open(self.store, None)

    def next(self) -> int:
        self.number += 1
        return self.number

    def some_content(self) -> bytes:
        return self.chance.choice(self.contents) + bytes([self.chance.randrange(3)])

    def some_files(self) -> Mapping[str, bytes | None]:
        names = [f"{folder}/{number}" for folder in "ab" for number in range(4)]
        return {name: self.some_content() for name in self.chance.sample(names, self.chance.randrange(1, 5))}

    def left(self, commit_id: CommitId) -> dict[str, bytes]:
        """Return what a commit had, without what was erased."""
        files = {name: data for name, data in self.files[commit_id].items() if data is not None}
        return {name: data for name, data in files.items() if FileId.hash(data) not in self.erased}

    def main(self) -> CommitId:
        found = self.open().refs.head(DATASET, MAIN).commit
        assert found is not None
        return found

    def put(self) -> None:
        repository, files = self.open(), self.some_files()
        head = repository.refs.head(DATASET, MAIN).commit
        before = {} if head is None else self.files_of(head)
        try:
            made = commit(repository, files)
        except Conflict as error:
            self.refuse(error)
        else:
            self.files[made] = {**before, **files}
            self.counts["puts"] += 1

    def edits(self) -> None:
        """Leave small packs, which gc joins."""
        for _ in range(5):
            self.put()

    def stop(self) -> None:
        """Begin to write, and be stopped."""
        if self.stopped is None:
            files = self.some_files()
            try:
                writing = Writing(self.store, files)
            except Conflict as error:
                self.refuse(error)
            else:
                assert writing.head.commit is not None
                self.stopped = writing, {**self.files_of(writing.head.commit), **files}

    def refuse(self, error: Conflict) -> None:
        """A gc on another host may fence a writer at any moment, or remove what he was about to read."""
        assert not self.alone, error.message
        self.counts["writers refused"] += 1

    def wake(self) -> None:
        """Continue with what was stopped. Its branch has moved on, it was fenced, or it publishes."""
        if self.stopped is None:
            return
        (writing, files), self.stopped = self.stopped, None
        if self.open().refs.head(DATASET, MAIN).number != writing.head.number:
            writing.session.close()
            writing.session.__exit__()
        elif writing.publish():
            self.files[writing.commit] = files
            self.counts["stopped writers that published"] += 1
        else:
            self.counts["writers fenced"] += 1

    def expire(self) -> None:
        repository = self.open()
        heads, _ = repository.refs.names(DATASET)
        named = {head.commit for head in heads}
        old = [one for one in list(self.files)[:-2] if one not in named]
        chosen = [one for one in old if self.chance.random() < 0.6]
        append(repository, WRITER, DATASET, ExpiryAction.EXPIRE, lambda _: chosen)

    def undo(self) -> None:
        repository = self.open()
        append(repository, WRITER, DATASET, ExpiryAction.UNDO, lambda log: list(log.expired)[:1])

    def branch(self) -> None:
        """A branch at an older commit, if that is not expired."""
        commit_id = self.chance.choice(list(self.files))
        where = DATASET, BranchName.parse(f"b{self.number}-{self.chance.randrange(1 << 30)}")
        try:
            moved = point_branch(self.open(), WRITER, where, None, commit_id, "create")
        except DsvError as error:
            assert "expired" in error.message or "gc" in error.message or not self.alone
        else:
            assert isinstance(moved, Head)

    def merge_indexes(self) -> None:
        merge_indexes(self.open(), WRITER)

    def rename(self) -> None:
        """Give the dataset another name, and then its own again. Whoever does so is killed, and a gc comes between."""
        for old, new in ((DATASET, OTHER), (OTHER, DATASET)):
            with suppress(Crash, DsvError):
                rename_dataset(Repository.open(self.failing(REQUESTS), None), WRITER, old, new)
            self.collect(alone=True)
            rename_dataset(self.open(), WRITER, old, new)
            self.counts["renamings"] += 1

    def failing(self, most: int) -> Faulty:
        kind = self.chance.choice([Kind.CRASH_AFTER, Kind.CRASH_BEFORE, Kind.LOST_ANSWER])
        return Faulty(self.store, {self.chance.randrange(1, most): Fault(kind)})

    def erase(self) -> None:
        """Erase a content, be killed at it, and let a gc come between; then do the same again."""
        if self.chance.random() < 0.6:
            return  # an erasure is for good, and each one is read by everybody who opens the store
        left = [data for data in self.left(self.main()).values() if data]
        if not left:
            return
        data = self.chance.choice(sorted(left))
        choice: Choice = self.chance.choice(["erase", "keep"])
        for store in (self.failing(80), self.store):
            with suppress(*([] if store is self.store else [Crash, DsvError])):
                eraser = Eraser(Repository.open(store, None))
                plan = eraser.plan([FileId.hash(data)], None, choice)
                self.erased |= plan.files.keys()
                eraser.carry_out(plan, WRITER, "consent withdrawn")
            if store is not self.store:
                self.collect(alone=True)
        self.counts["contents erased"] = len(self.erased)
        # What resembles it may have lost a part, and nobody may store that again.
        self.contents = [
            self.chance.randbytes(len(one)) if data.startswith(one) else one for one in self.contents
        ]

    def collect(self, *, alone: bool = False) -> None:
        """A gc, with others beside it, that is killed or whose requests fail. alone: without others."""
        others = [self.put, self.stop, self.wake, self.expire, self.undo, self.branch, self.merge_indexes]
        beside: dict[int | str, Callable[[], None]] = {
            self.chance.randrange(1, REQUESTS): self.chance.choice(others) for _ in range(0 if alone else 3)
        }
        kind = self.chance.choice(
            [Kind.CRASH_AFTER, Kind.CRASH_BEFORE, Kind.LOST_ANSWER, Kind.SLOW, Kind.SLOW]
        )
        faulty = Faulty(Beside(self.store, beside), {self.chance.randrange(1, REQUESTS): Fault(kind)})
        try:
            done = collect(faulty, self.folder / str(self.next()), notes=self.folder / "notes")
            self.counts["gcs"] += 1
            self.counts["packs joined"] += done.plan.joined.packs if done.plan is not None else 0
        except (Crash, DsvError):
            self.counts["gcs that failed"] += 1

    # --- by commands

    def beside(self, dsv: Dsv, *words: str) -> Result:
        """Run a command with a gc between two of its requests."""
        with pytest.MonkeyPatch.context() as patch:
            Meanwhile(patch, self.chance.randrange(1, 25), self.collect)
            return dsv(*words)

    def tries(self) -> Iterator[Callable[..., Result]]:
        """Yield ways to run a command: with a gc beside it, then, if that was in its way, when the gc has ended."""
        yield self.beside
        for _ in range(TRIES):
            with suppress(DsvError):
                collect(self.store, self.folder / str(self.next()))
            yield lambda dsv, *words: dsv(*words)
        raise AssertionError(f"it was refused each time: {self.refusal}")

    def note_refusal(self, done: Result) -> None:
        """Count a command that was refused; any other end is a fault."""
        assert done.code == Conflict.exit_code, done
        self.refusal = done
        self.counts["commands refused"] += 1

    def insist(self, dsv: Dsv, *words: str) -> Result:
        """Run a command until it is not refused any more."""
        for run in self.tries():
            done = run(dsv, *words)
            if done.code == 0:
                break
            self.note_refusal(done)
        return done

    def files_of(self, commit_id: CommitId) -> Files:
        """Return what a head of `main` has, which the command that is running may have published just now."""
        if commit_id not in self.files:
            self.adopt(self.changed)
        return self.files[commit_id]

    def adopt(self, changed: Files) -> None:
        """Note what the commits have that were published on `main`: what their first parents have, and this."""
        repository, new = self.open(), list[CommitId]()
        at = self.main()
        while at not in self.files:
            new.append(at)
            at = repository.objects.commit(at).parents[0]
        for one in reversed(new):
            self.files[one] = {**self.files[repository.objects.commit(one).parents[0]], **changed}

    def sync(self) -> None:
        """Change a workspace, and sync it; perhaps a first sync is killed."""
        assert self.dsv is not None
        work = self.dsv.home / "workspace"
        here, name = self.dsv.at(work.parent), f"w/{self.chance.randrange(5)}"
        content, killed = self.some_content(), self.chance.random() < 0.3
        self.changed = {name: content}
        for run in self.tries():
            if not work.exists():
                self.insist(here, "clone", str(DATASET), str(work))
            pulled = here("pull", "-C", str(work))
            if pulled.code:
                assert pulled.code == 3 and "expired" in pulled.err, pulled
                shutil.rmtree(work)
                self.counts["workspaces made anew"] += 1
                continue
            (work / name).parent.mkdir(exist_ok=True)
            (work / name).write_bytes(content)
            if killed:
                killed = False
                self.kill(here, "sync", "-C", str(work))
            done = run(here, "sync", "-C", str(work))
            if done.code == 0:
                break
            self.note_refusal(done)
        self.adopt({name: content})
        self.counts["syncs"] += 1

    def kill(self, dsv: Dsv, *words: str) -> None:
        """Run a command in a process that is killed at some moment, perhaps after its end."""
        with dsv.start(*words) as process:
            time.sleep(2 * self.chance.random())
            process.kill()
            process.communicate()
        self.counts["commands killed"] += 1

    def merge(self) -> None:
        """Put a file on a branch of one of the last commits of `main`, and merge that."""
        assert self.dsv is not None
        name, path, repository = f"m{self.next()}", f"m/{self.number}", self.open()
        base = self.main()
        for _ in range(self.chance.randrange(3)):
            base = next(iter(repository.objects.commit(base).parents), base)
        made = self.dsv("branch", f"{DATASET}@{name}", f"{DATASET}@{base}")
        if made.code:  # it is expired, or gc may be about to remove it
            assert made.code in (3, Conflict.exit_code), made
            return
        file = self.folder / "content"
        file.parent.mkdir(exist_ok=True)
        file.write_bytes(self.chance.randbytes(300))
        put = self.insist(self.dsv, "put", str(file), f"{DATASET}@{name}:{path}", "--json").json
        changed: Files = {path: file.read_bytes()}
        self.files[CommitId.parse(put["commit"])] = {**self.files[base], **changed}
        self.changed = changed
        self.insist(self.dsv, "merge", f"{DATASET}@{name}", "--into", str(MAIN))
        self.adopt(changed)
        self.dsv.ok("branch", "--delete", f"{DATASET}@{name}")
        self.counts["merges"] += 1

    def copy(self) -> None:
        """Copy the dataset to another store, and read the head there."""
        assert self.dsv is not None
        there = f"{self.elsewhere}/copy".removeprefix("file://")
        head, out = self.main(), self.folder / f"out {self.next()}"
        for run in self.tries():
            copied = run(self.dsv, "copy", str(DATASET), "--to", there, "--create")
            if copied.code == 0:
                break
            self.note_refusal(copied)
            if "is expired in" in copied.err:
                self.delete_refused(there)
        done = self.dsv("export", f"{DATASET}@{head}", str(out), "--store", there)
        if done.code:  # it is no head any more, and has expired meanwhile
            assert done.code == 3 and "was expired on" in done.err and head != self.main(), done
            return
        self.compare(out, head)
        shutil.rmtree(out)
        self.counts["copies to another store"] += 1

    def delete_refused(self, url: str) -> None:
        """Delete the branches whose commits had expired when they were copied, as their content is never copied."""
        assert self.dsv is not None
        there = open_raw(url, StoreOptions.from_environment(self.dsv.environ))
        freed = read_expiry(Repository.open(there, None).refs, DATASET).freed
        there.close()
        for head in self.open().refs.heads(DATASET):
            if head.commit in freed:
                self.insist(self.dsv, "branch", "--delete", f"{DATASET}@{head.branch}", "--force")
                self.counts["branches that could not be copied"] += 1

    def compare(self, folder: Path, commit_id: CommitId, *, cached: bool = False) -> None:
        """cached: a commit that was there already may have files that were erased in the last hour."""
        left = self.left(commit_id)
        assert {one: (folder / one).read_bytes() for one in left} == left
        there = {str(one.relative_to(folder)) for one in folder.rglob("*") if one.is_file()}
        assert there == left.keys() or (cached and left.keys() < there <= self.files[commit_id].keys())

    def read_while_collecting(self) -> None:
        """Run a command that reads a commit, with a gc between two of its requests."""
        assert self.dsv is not None
        readable = [one for one in self.files if self.left(one)]
        if not readable:
            return
        commit_id = self.chance.choice(readable)
        kind = self.chance.choice(["cat", "export", "export to a URL", "cache", "cache in a process"])
        out, target = self.folder / f"out {self.next()}", f"{DATASET}@{commit_id}"
        name, url = (
            self.chance.choice(sorted(self.left(commit_id))),
            f"{self.elsewhere}/exports/{self.number}",
        )
        words = {
            "cat": ["cat", f"{target}:{name}"],
            "export": ["export", target, str(out)],
            "export to a URL": ["export", target, url],
        }.get(kind, ["cache", target])
        if kind == "cache in a process":
            with self.dsv.start(*words) as process:
                self.collect()
                stdout, stderr = process.communicate()
            done = Result(process.returncode, stdout.decode(), stderr.decode())
        else:
            done = self.beside(self.dsv, *words)
        if done.code:
            assert done.code == 3 and "was expired on" in done.err, (words, done)
            assert commit_id in read_expiry(self.open().refs, DATASET).states, done
            self.counts["reads that ended as expired"] += 1
            return
        if kind == "cat":
            assert done.out.encode("utf-8", "surrogateescape") == self.left(commit_id)[name]
        elif kind == "export to a URL":
            self.fetch(url, out)
            self.compare(out, commit_id)
        else:
            top = out if kind == "export" else Path(done.out.strip())
            self.compare(top, commit_id, cached=kind != "export")
        self.counts[f"{kind} beside a gc"] += 1
        shutil.rmtree(out, ignore_errors=True)
        shutil.rmtree(self.dsv.home / ".cache", ignore_errors=True)

    def fetch(self, url: str, out: Path) -> None:
        """Copy what was exported to a URL, and remove it there."""
        assert self.dsv is not None
        there = open_raw(url.removeprefix("file://"), StoreOptions.from_environment(self.dsv.environ))
        for item in list(there.list("")):
            (out / item.key).parent.mkdir(parents=True, exist_ok=True)
            (out / item.key).write_bytes(there.get(item.key))
            there.delete(item.key)
        there.close()

    def verify(self) -> None:
        if self.dsv is not None:
            done = self.dsv("verify", "--json")
            assert done.code == 0 and done.json["whole"], done
            self.counts["verifications"] += 1

    def check(self) -> None:
        """Every commit that is not freed restores byte for byte, and lists what was erased as erased."""
        repository = self.open()
        freed = read_expiry(repository.refs, DATASET).freed
        for one in self.files.keys() - freed:
            try:
                found, gone = read_left(repository, one)
            except IntegrityError:
                if self.alone or one not in read_expiry(self.open().refs, DATASET).freed:
                    raise
            else:
                assert found == self.left(one)
                assert gone == self.files[one].keys() - found.keys()
        repository.objects.threads.close()

    def run(self, rounds: int) -> None:
        actions = [
            self.put,
            self.edits,
            self.stop,
            self.wake,
            self.expire,
            self.undo,
            self.branch,
            self.merge_indexes,
            self.rename,
            self.erase,
        ]
        if self.dsv is not None:
            actions += [
                self.read_while_collecting,
                self.read_while_collecting,
                self.sync,
                self.merge,
                self.copy,
            ]
        for number in range(rounds):
            for action in self.chance.choices(actions, k=4):
                action()
            self.collect()
            self.check()
            if self.alone:
                self.verify()
            if number % 10 == 9:
                print(
                    f"{number + 1} of {rounds} rounds, {len(self.files)} commits: {self.summary}", flush=True
                )
        self.wake()  # else its session would still beat while the bucket is removed
        if self.alone:
            assert self.counts["gcs"]
            assert self.counts["packs joined"] or rounds < 60, "few rounds make few packs"
            collect(self.store, self.folder / "last")
            self.check()
        print(f"{rounds} rounds: {self.summary}")

    @property
    def summary(self) -> str:
        return ", ".join(f"{count} {what}" for what, count in sorted(self.counts.items()))


def only_collect(store: StoreBackend, folder: Path, seed: int, dsv: Dsv) -> None:
    """Collect, and fill the cache that the other host fills as well."""
    chance, counts = random.Random(seed), Counter[str]()
    while not (folder / "stop").exists():
        if chance.random() < 0.3:
            done = dsv("cache", str(DATASET))
            again = done.code == 6 and "is being changed by others: try again" in done.err
            assert done.code == 0 or again or (done.code == 3 and "renamed" in done.err), done
            counts["fills" if done.code == 0 else "fills during a change by others"] += 1
        kind = chance.choice([Kind.CRASH_AFTER, Kind.LOST_ANSWER, Kind.SLOW, Kind.SLOW])
        faulty = Faulty(store, {chance.randrange(1, REQUESTS): Fault(kind)})
        try:
            collect(faulty, folder / f"{seed} {counts.total()}")
            counts["gcs"] += 1
        except (Crash, DsvError):
            counts["gcs that failed"] += 1
    print(", ".join(f"{count} {what}" for what, count in sorted(counts.items())))


def main(url: str, where: str, seed: str, rounds: str = "") -> None:
    folder, cache = Path(where), str(Path(url).parent / "cache")
    dsv = Dsv.of(folder / f"home {seed}", DSV_STORE=url, DSV_CACHE=cache)
    if not rounds:
        while not (folder / "begun").exists():
            time.sleep(0.1)
        only_collect(open_store(url, StoreOptions()), folder, int(seed), dsv)
        return
    store = open_raw(url, StoreOptions(), create=True)
    try:
        made = Rounds(store, folder / "ids", int(seed), dsv, f"file://{folder}/elsewhere", alone=False)
        (folder / "begun").touch()
        made.run(int(rounds))
    finally:
        (folder / "stop").touch()


if __name__ == "__main__":
    main(*sys.argv[1:])
