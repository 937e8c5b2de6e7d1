"""Erased contents of a store: nobody gives them out, and nobody stores them again.

Each erasure is a record with a random key, `erased/<id>`, which is never changed or deleted. So the erasures of a store
are a set that only grows: two that are made at the same moment do not disturb each other, and a copy of the store's
data has them too. A store has the feature `erased-contents` from before its first erasure. Without it nothing is asked.

Races: whoever erases contents puts the record, and then looks at what names refer to. Whoever publishes a commit reads
the erasures when its session is opened and again just before its name is written (`Session.declare`).
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable
from typing import TYPE_CHECKING

from msgspec.structs import replace

from dsv.errors import IntegrityError
from dsv.format import keys
from dsv.format.erasure import Erasure
from dsv.format.records import Feature, FeatureRule
from dsv.repo.errors import may_write, put_back
from dsv.repo.format_log import ERASED_CONTENTS
from dsv.store.base import Put
from dsv.values.ids import ErasureId, Nonce

if TYPE_CHECKING:
    from dsv.format.erasure import Named
    from dsv.format.records import Writer
    from dsv.repo.objects.erasures import Erasures
    from dsv.repo.repository import Repository
    from dsv.values.ids import FileId

FEATURE = Feature(ERASED_CONTENTS, FeatureRule.REFUSE)


def put_erasure(
    repository: Repository,
    writer: Writer,
    files: Iterable[FileId],
    objects: Iterable[Named],
    reason: str,
    nonce: Nonce,
) -> ErasureId:
    """Erase contents. From when this returns, no reader that begins gives them out.

    Raises `Denied`, `Conflict` if somebody moves the names, and what the store raises.
    """
    repository.format.check(repository.store.url, writing=True)
    repository.add_feature(FEATURE, author=writer.author, tool=writer.tool)
    record = Erasure(
        tuple(sorted(set(files))), tuple(sorted(set(objects))), nonce, repository.clock(), writer.author, reason,
        writer.tool,
    )  # fmt: skip
    erasure_id = ErasureId.random()
    key = keys.erasure_key(erasure_id)
    with may_write(repository.store.url):
        put = repository.store.put_if_absent(key, record.encode())
    if put is Put.LOST:
        raise IntegrityError(
            f"{key} in {repository.store.url} has a random name and is there already",
            subject=key,
            hint=put_back(key),
        )
    repository.objects.forget_erasures()
    return erasure_id


def adopt(
    repository: Repository,
    writer: Writer,
    theirs: Erasures,
    needed: Callable[[Repository, Iterable[Erasure]], Container[Named]],
) -> int:
    """Take over the erasures of another store, with their ids. Return how many this one lacked.

    needed: returns what of them other files of this store have. That stays.
    """
    if not theirs:
        return 0
    missing = {
        one: record for one, record in theirs.known.items() if one not in repository.objects.erasures.known
    }
    if missing:
        stays = needed(repository, missing.values())
        repository.add_feature(FEATURE, author=writer.author, tool=writer.tool)
        with may_write(repository.store.url):
            for one, record in missing.items():
                taken = replace(record, objects=tuple(each for each in record.objects if each not in stays))
                if taken.files or taken.objects:
                    repository.store.put_if_absent(keys.erasure_key(one), taken.encode())
        repository.objects.forget_erasures()
    return len(missing)
