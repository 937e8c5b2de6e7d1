"""The conformance suite over every store and every wrapper, and a check that none is left out."""

from __future__ import annotations

import importlib
import itertools
import pkgutil
from collections.abc import Iterator
from pathlib import Path

import pytest

import dsv.stores
from dsv.stores.directory import DirectoryStore
from dsv.stores.memory import MemoryStore
from dsv.stores.open import SCHEMES, OpenStore, open_raw, open_store
from dsv.stores.options import StoreOptions
from dsv.stores.retry import Retrying
from tests.stores.azure import Azurite, OutsideAzure
from tests.stores.buckets import Bucket
from tests.stores.conformance import ANSWERS, SharedStoreConformance, StoreConformance, Subject, subjects
from tests.stores.faulty import Fault, Faulty, Kind, Operation
from tests.stores.outside import OutsideDirectory, OutsideMemory, OutsideS3
from tests.stores.servers_on_moto import TOKEN

_numbers = itertools.count()


def s3_subject(bucket: Bucket, *, raw: bool = False) -> Subject:
    prefix = f"some/prefix-{next(_numbers)}"
    url, options = f"s3://{bucket.name}/{prefix}", StoreOptions.from_environment(bucket.server.env)
    store = open_raw(url, options) if raw else open_store(url, options)
    return Subject(store, OutsideS3(bucket.client, bucket.name, prefix), (url, options))


class TestDirectory(SharedStoreConformance):
    schemes = ("file",)

    @pytest.fixture
    def subject(self, tmp_path: Path) -> Iterator[Subject]:
        root = tmp_path / "store"
        root.mkdir()
        yield from subjects(
            lambda: Subject(DirectoryStore(root), OutsideDirectory(root), (str(root), StoreOptions()))
        )


class TestMemory(StoreConformance):
    schemes = ("memory",)

    @pytest.fixture
    def subject(self) -> Iterator[Subject]:
        store = MemoryStore()
        yield from subjects(lambda: Subject(store, OutsideMemory(store)))


class TestS3OnMoto(SharedStoreConformance):
    schemes = ("s3",)
    many = 110

    @pytest.fixture
    def subject(self, moto_bucket: Bucket) -> Iterator[Subject]:
        yield from subjects(lambda: s3_subject(moto_bucket))


class TestS3OnCeph(SharedStoreConformance):
    schemes = ("s3",)
    wrappers = (Retrying,)

    @pytest.fixture
    def subject(self, ceph_bucket: Bucket) -> Iterator[Subject]:
        yield from subjects(lambda: s3_subject(ceph_bucket))


class TestS3OnCephWithoutRetries(StoreConformance):
    """The store by itself: what Retrying makes good must not be what keeps it right."""

    runs = ANSWERS
    schemes = ("s3",)

    @pytest.fixture
    def subject(self, ceph_bucket: Bucket) -> Iterator[Subject]:
        yield from subjects(lambda: s3_subject(ceph_bucket, raw=True))


class TestGcsOnMoto(StoreConformance):
    schemes = ("gs",)
    many = 50

    @pytest.fixture
    def subject(self, gcs_bucket: Bucket) -> Iterator[Subject]:
        prefix = f"some/prefix-{next(_numbers)}"
        url = f"gs://{gcs_bucket.name}/{prefix}"
        options = StoreOptions(gcs_endpoint=gcs_bucket.server.endpoint, google_token=TOKEN)
        outside = OutsideS3(gcs_bucket.client, gcs_bucket.name, prefix)
        yield from subjects(lambda: Subject(open_store(url, options), outside, (url, options)))


class TestAzureOnAzurite(SharedStoreConformance):
    schemes = ("az",)
    many = 50

    @pytest.fixture
    def subject(self, azurite: Azurite) -> Iterator[Subject]:
        prefix = f"some/prefix-{next(_numbers)}"
        url, options = f"az://box/{prefix}", azurite.options
        outside = OutsideAzure(azurite, "box", prefix)
        yield from subjects(lambda: Subject(open_store(url, options), outside, (url, options)))


class TestRetrying(StoreConformance):
    runs = ANSWERS
    wrappers = (Retrying,)

    @pytest.fixture
    def subject(self) -> Iterator[Subject]:
        store = MemoryStore()
        retrying = Retrying(store, sleep=lambda seconds: None)
        yield from subjects(lambda: Subject(retrying, OutsideMemory(store)))


class TestRetryingOnADirectory(StoreConformance):
    runs = ANSWERS
    wrappers = (Retrying,)

    @pytest.fixture
    def subject(self, tmp_path: Path) -> Iterator[Subject]:
        url = f"file://{tmp_path}/store"
        store = open_store(url, create=True)
        yield from subjects(
            lambda: Subject(store, OutsideDirectory(tmp_path / "store"), (url, StoreOptions()))
        )


class TestRetryingWhatLosesEveryThirdAnswer(StoreConformance):
    """All of the suite holds although every third put's answer is lost."""

    wrappers = (Retrying, Faulty)

    @pytest.fixture
    def subject(self) -> Iterator[Subject]:
        store = MemoryStore()
        lost = {number: Fault(Kind.LOST_ANSWER) for number in range(3, 10_000, 3)}
        faulty = Faulty(store, lost, only=[Operation.PUT])
        retrying = Retrying(faulty, sleep=lambda seconds: None)
        yield from subjects(lambda: Subject(retrying, OutsideMemory(store)))


class TestOpenStore(StoreConformance):
    runs = ANSWERS
    wrappers = (OpenStore,)

    @pytest.fixture
    def subject(self) -> Iterator[Subject]:
        store = MemoryStore()
        yield from subjects(lambda: Subject(OpenStore(store), OutsideMemory(store)))


class TestFaultyWithoutAPlan(StoreConformance):
    runs = ANSWERS
    wrappers = (Faulty,)

    @pytest.fixture
    def subject(self) -> Iterator[Subject]:
        store = MemoryStore()
        yield from subjects(lambda: Subject(Faulty(store), OutsideMemory(store)))


def test_every_scheme_and_wrapper_has_the_suite() -> None:
    """Fails when somebody adds a store or a wrapper and leaves it out above."""
    for module in pkgutil.iter_modules(dsv.stores.__path__):
        importlib.import_module(f"dsv.stores.{module.name}")
    suites = _below(StoreConformance)
    schemes = {scheme for suite in suites for scheme in getattr(suite, "schemes", ())}
    wrappers = {wrapper for suite in suites for wrapper in getattr(suite, "wrappers", ())}
    assert schemes == set(SCHEMES)
    assert wrappers >= {OpenStore, Retrying}


def _below(base: type) -> set[type]:
    return {sub for direct in base.__subclasses__() for sub in {direct, *_below(direct)}}
