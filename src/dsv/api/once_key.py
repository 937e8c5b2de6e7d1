"""What decides the result of a run, collected before anything of it is staged; and the run that is most like it."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Final, TypeAlias

from dsv.api.run_code import code_entries
from dsv.api.run_staging import RunStaging
from dsv.errors import DsvError, IntegrityError, NotFound, UsageError
from dsv.files.descriptors import Opened
from dsv.format.columns import cut
from dsv.format.tree import Entry
from dsv.repo.repository import Repository
from dsv.repo.tree.diff import diff_entries, difference
from dsv.repo.tree.hashing import root_of
from dsv.repo.tree.reader import TreeReader
from dsv.run.once import differences, document, key_of
from dsv.run.plan import Launch
from dsv.run.record import OnceKey, RunRecord
from dsv.run.record_store import RunStore
from dsv.transfer.stable_read import hash_content
from dsv.values.ids import CommitId, FileId
from dsv.values.progress import Progress
from dsv.values.secrets import HIDDEN, hide_env_values, is_secret_name
from dsv.values.units import format_bytes

LARGEST_FILE: Final = 64 << 20
"""Bytes of a file that the command names, if its content is to count."""
_SECRET_FILES: Final = (".netrc", ".pgpass")
_MOST_RUNS: Final = 200
_MOST_NAMES: Final = 5
Near: TypeAlias = tuple[RunRecord, tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class MadeKey:
    """The key of a run that has not begun."""

    record: RunRecord
    """As it will be at the start, with `once`."""
    values: dict[str, str]
    """Of the variables whose values are in the key."""
    code: list[Entry]
    left_out: tuple[str, ...]
    """What may decide too, and is not in the key."""

    @property
    def once(self) -> OnceKey:
        assert self.record.once is not None
        return self.record.once


def once_key(launch: Launch, staging: RunStaging, progress: Progress, *, pull: bool = True) -> MadeKey:
    """Make the key of a run. pull: fetch an image that is not on this machine.

    Raises `UsageError` for an image that a cluster knows by a mere tag, and for a `--key` that can't be used,
    `NotFound` for an image that was not pulled, and the errors of the store, the code and the engine.
    """
    spec, early, machine, code = launch.spec, launch.record(launch.plan(), 0), os.uname(), list[Entry]()
    if early.code is not None and launch.code is not None:
        tree = early.code.tree
        code = _entries(staging.repository, tree) if tree else code_entries(launch.code, force=staging.force)
        early = replace(early, code=replace(early.code, root=root_of(code).hex()))
    values, image = dict(_values(launch)), _image(launch, progress, pull)
    keys, files, left_out = dict[str, str | None](), dict[str, str](), list[str]()
    if image is None and launch.code is None:
        left_out.append(
            "what its command imports is not in its key: --code DIR or an image would put that there"
        )
    # The record hides each value of -e wherever that occurs; the key what is known to be secret.
    secrets = replace(launch.masker, known=tuple(pair for pair in launch.masker.known if pair[0]))
    exact = replace(early, command=secrets.argv(spec.command), engine_args=secrets.argv(spec.engine_args))
    unrecorded = {*values}
    if (exact.command, exact.engine_args) != (early.command, early.engine_args):
        given = {*hide_env_values(spec.engine_args)[1], *spec.env}
        unrecorded |= {name for name in given if not is_secret_name(name)} or given
    if any(word.startswith("--env-file") for word in spec.engine_args):
        left_out.append("the content of --env-file is not in its key")
    for text in spec.key:
        (shown,) = secrets.argv((text,))
        keys[shown], why = _content(launch, text)
        if why is not None:
            raise UsageError(f"--key {text}: {why}", subject=text, hint="--key TEXT, or --key FILE")
    for at, (word, kept, shown) in enumerate(zip(spec.command, exact.command, early.command, strict=True)):
        # With --code, which is in the key anyway, the command runs in that folder.
        if word == kept and image is None and (launch.code is None or word.startswith("/")):
            digest, why = _content(launch, word, LARGEST_FILE)
            files |= {} if digest is None else {word if word == shown else f"{shown} (word {at})": digest}
            left_out += [] if why is None else [f"the content of {shown} is not in its key: {why}"]
    if (exact.command, early.params) != (spec.command, spec.params) or not {*spec.key} <= keys.keys():
        left_out.append("its key hides the secrets in its command, its parameters and --key")
    once = OnceKey(
        key="", image=image, files=files, keys=keys, erased=_erased(staging, code), values=tuple(sorted(unrecorded)),
        system=None if image else f"{machine.sysname.lower()}/{machine.machine}",
    )  # fmt: skip
    key = key_of(document(replace(exact, once=once), values))
    return MadeKey(replace(early, once=replace(once, key=key)), values, code, tuple(left_out))


def _entries(repository: Repository, tree: str) -> list[Entry]:
    return [entry for entry, _ in TreeReader(repository.objects, CommitId.parse(tree)).below(b"")]


def _erased(staging: RunStaging, code: Iterable[Entry]) -> tuple[str, ...]:
    """Return the ids of erased files that the inputs and the code list."""
    objects = staging.repository.objects
    erasures, listed = objects.erasures, list(code)
    for found in staging.found.values() if erasures else ():
        tree = TreeReader(objects, found.commit)
        for located in tree.segments(tree.leaves_of(found.selection)):
            if any(map(erasures.file, map(FileId, cut(located.segment.file_ids, 32)))):
                listed += [row for row in located.segment.entries() if row.path in found.selection]
    return tuple(sorted({str(row.file_id) for row in listed if erasures.of(row) is not None}))


def _values(launch: Launch) -> Iterator[tuple[str, str]]:
    """Yield the variables whose values count, without what looks like a secret in them."""
    for name, value in launch.spec.env.items():
        if name not in launch.spec.passed and not is_secret_name(name):
            yield name, launch.masker.by_name.argv((f"{name}={value}",))[0].partition("=")[2]


def _image(launch: Launch, progress: Progress, pull: bool) -> str | None:
    """Return the digest of the image, or its local id if no registry has it."""
    image, engine = launch.spec.image, launch.chosen.engine
    named = re.fullmatch(r".+@(sha256:[0-9a-f]{64})", image or "", re.ASCII)
    if image is None or named is not None:
        return None if named is None else named[1]
    if engine.queues:
        why = f"each node may have another image {image}, so no result of it can be known"
        raise UsageError(why, subject=image, hint="give NAME@sha256:… with --image")
    there = engine.find_image(image, pulling=progress.note if pull else None)
    if there is None:
        why = f"the digest of {image} is not known until it is pulled"
        raise NotFound(why, subject=image, hint=f"{engine.name} pull {image}")
    return there.id if there.digest is None else there.digest.rpartition("@")[2]


def _content(launch: Launch, word: str, most: int | None = None) -> tuple[str | None, str | None]:
    """Return the BLAKE3 of a file's content, or why that does not count; neither if the word names no file. A file that
    is a secret does not count, because the digest of a short one would give it away."""
    path = launch.place.cwd / word
    if not word or not os.path.exists(path):  # noqa: PTH110 (any text, however long)
        return None, None
    try:
        if not path.is_file():
            return None, "it is no file"
        with Opened(os.open(path, os.O_RDONLY | os.O_CLOEXEC)) as file:
            size, start = os.fstat(file).st_size, os.pread(file, 4096, 0)
            if _is_secret(path.name, start) or launch.masker.data(start).strip() == HIDDEN.encode():
                return None, "it is a secret"
            if most is not None and size > most:
                return None, f"it has more than {format_bytes(most)}"
            return hash_content(file, size)[0].hex(), None
    except OSError as error:
        return None, f"it can't be read: {error.strerror}"


def _is_secret(name: str, start: bytes) -> bool:
    """Return whether a file with this name and this start has one secret, or sets variables of which one is secret."""
    lines = [line for line in start.splitlines() if line.strip() and not line.startswith(b"#")]
    sets = [re.fullmatch(rb"\s*(?:export\s+)?(\w+)\s*=.*", line, re.ASCII) for line in lines]
    alone = len(lines) == 1 and is_secret_name(name)
    return (
        alone
        or name in _SECRET_FILES
        or (all(sets) and any(each is not None and is_secret_name(each[1].decode()) for each in sets))
    )


def nearest(made: MadeKey, repository: Repository, runs: RunStore) -> Near | None:
    """Return the run that is most like this one, among the newest of its dataset that have a result, and in words what
    changed since then. Records that can't be read are left out."""
    mine, found = document(made.record, made.values), list[Near]()
    newest = runs.listing(made.record.dataset)[: -_MOST_RUNS - 1 : -1]
    for record in runs.read_all(newest, lambda _: None):
        if record.once is not None and not record.once.hit_of and record.exit_code == 0:
            with suppress(IntegrityError):
                names = record.once.values
                others = {name: HIDDEN for name in names if name not in made.once.values}
                theirs = document(
                    record, {**others, **{name: made.values[name] for name in names if name in made.values}}
                )
                unknown = tuple(f"env.{name} may have another value" for name in names)
                found.append((record, differences(mine, theirs) or unknown))
    if not found:
        return None
    best, changed = min(found, key=lambda near: len(near[1]))
    with suppress(DsvError):
        if best.code is not None and best.code.tree is not None and made.code:
            before, after = _entries(repository, best.code.tree), ((entry, None) for entry in made.code)
            changes = (row for row in diff_entries(before, after) if difference(row.before, row.after))
            paths = [row.path.decode("utf-8", "backslashreplace") for row in changes]
            shown = ", ".join(paths[:_MOST_NAMES]) + (", …" if len(paths) > _MOST_NAMES else "")
            changed = tuple(f"code {shown} changed" if each.startswith("code ") else each for each in changed)
    return best, changed
