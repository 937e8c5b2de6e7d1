"""The policies of docs/reference/policies.md on a real Ceph: what each role may do, and what dsv says else."""

from __future__ import annotations

import json
import os
import re
import secrets
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from dsv.format.keys import METRICS_PREFIX, RUNS_PREFIX, needs_winner
from tests.kit.dsv import Dsv
from tests.labs import ceph_rgw
from tests.labs.s3_server import S3Server

DOC = (Path(__file__).parents[2] / "docs/reference/policies.md").read_text()
ROLES = ("ann", "rob", "ben", "kim")  # a reader, somebody who runs jobs, a writer, an administrator


def policies(heading: str) -> list[dict[str, Any]]:
    """The JSON blocks below a heading of the page."""
    (section,) = re.findall(rf"^## {heading}\n(.*?)(?=^##|\Z)", DOC, re.MULTILINE | re.DOTALL)
    return [
        json.loads(block) for block in re.findall(r"^```json\n(.*?)^```", section, re.MULTILINE | re.DOTALL)
    ]


def put_prefixes(policy: dict[str, Any], sid: str | None = None) -> set[str]:
    """Below which prefixes of the store a policy allows to put; an empty one is all of it."""
    found = set()
    for statement in policy["Statement"]:
        if statement["Effect"] != "Allow" or (sid is not None and statement["Sid"] != sid):
            continue
        actions, resources = statement["Action"], statement["Resource"]
        if "s3:PutObject" in ([actions] if isinstance(actions, str) else actions):
            for resource in [resources] if isinstance(resources, str) else resources:
                found.add(resource.partition("/dsv/")[2].removesuffix("*"))
    return found


def test_every_policy_of_the_page_is_one() -> None:
    blocks = [json.loads(one) for one in re.findall(r"^```json\n(.*?)^```", DOC, re.MULTILINE | re.DOTALL)]
    assert len(blocks) == 4 + 1 + 3 + 1 + 2
    assert all(block["Statement"] for block in blocks)


def test_the_roles_are_the_same_everywhere() -> None:
    """A writer puts below the same prefixes on every server, and below those of the names only where they are."""
    aws, (ceph,), grid = policies("AWS"), policies("Ceph"), policies("StorageGRID")
    (names,) = policies("With names elsewhere")
    writes = put_prefixes(aws[1])
    assert writes == put_prefixes(ceph, "Write")
    assert put_prefixes(ceph, "Run") == {METRICS_PREFIX, RUNS_PREFIX}
    of_names = {prefix for prefix in writes if needs_winner(prefix.removeprefix("names/*/"))}
    assert put_prefixes(names, "Write") == {"refs/", "sessions/", "once/"}
    named = {"refs/", "sessions/", "once/"}
    assert of_names == named | {f"names/*/{prefix}" for prefix in named}
    assert put_prefixes(grid[1]) == writes - of_names
    assert put_prefixes(aws[2]) == put_prefixes(ceph, "Administer") == put_prefixes(grid[2]) == {""}
    assert not put_prefixes(aws[0]) | put_prefixes(grid[0])


def test_the_bucket_of_aws_refuses_a_put_without_the_condition_to_everybody() -> None:
    (statement,) = policies("AWS")[3]["Statement"]
    assert (statement["Effect"], statement["Principal"], statement["Action"]) == ("Deny", "*", "s3:PutObject")
    assert statement["Condition"] == {"Null": {"s3:if-none-match": "true"}}


class Team:
    """A person for each role, at one store whose buckets have the policies of the page."""

    def __init__(self, owner: S3Server, home: Path, users: Mapping[str, S3Server]) -> None:
        self.owner = owner
        self.users = users
        self.uids = {name: server.access_key for name, server in users.items()}
        self._home = home
        self.buckets: list[str] = []

    def bucket(self, policy: dict[str, Any], written: str) -> str:
        """A new bucket with this policy, which the page has for a bucket `written`."""
        bucket = self.owner.bucket()
        self.buckets.append(bucket)
        text = json.dumps(policy).replace(f"s3:::{written}", f"s3:::{bucket}")
        for name, uid in self.uids.items():
            text = text.replace(f"user/{name}", f"user/{uid}")
        self.owner.client().put_bucket_policy(Bucket=bucket, Policy=text)
        return bucket

    def person(self, name: str, store: str, home: str = "") -> Dsv:
        own = self._home / (home or name)
        environ = {"DSV_STORE": store, "DSV_CACHE": str(own / "cache"), **self.users[name].env}
        return Dsv.of(own, own / "data", **environ)


@pytest.fixture(scope="module")
def users(ceph_s3: S3Server) -> Mapping[str, S3Server]:
    folder = Path(os.environ["DSV_LABS"]) / "ceph-rgw"
    return {name: ceph_rgw.add_user(folder, ceph_s3, f"{name}{secrets.token_hex(4)}") for name in ROLES}


@pytest.fixture
def team(ceph_s3: S3Server, users: Mapping[str, S3Server], tmp_path: Path) -> Iterator[Team]:
    made = Team(ceph_s3, tmp_path, users)
    yield made
    for bucket in made.buckets:
        ceph_s3.remove_bucket(bucket)


def refused(person: Dsv, *arguments: str) -> str:
    result = person(*arguments)
    assert result.code == 8, result
    assert "Traceback" not in result.err
    return result.err


def works(team: Team, store: str, names: tuple[str, ...] = ()) -> None:
    """Check what each role can do and what not, in a store that the administrator has just made."""
    ann, rob, ben, kim = (team.person(name, store) for name in ROLES)
    refused(ben, "init", "scans", *names)  # the first one tries and deletes, and writes format/
    kim.ok("init", "scans", *names)
    (kim.cwd / "first").write_bytes(b"first")
    kim.ok("sync", "-q")

    for person in (ann, rob, ben):
        place = ["clone", "-q", "scans", str(person.cwd)]
        person.at(person.home).ok(*place, *names)
        assert (person.cwd / "first").read_bytes() == b"first"
        assert person.ok("datasets").out
        person.ok("log", "-n", "1")

    (ben.cwd / "second").write_bytes(b"second")
    ben.ok("sync", "-q")
    ben.ok("tag", "v1")
    ben.ok("branch", "try")
    for person in (ann, rob):
        person.ok("pull", "-q")
        assert (person.cwd / "second").read_bytes() == b"second"
        (person.cwd / "mine").write_bytes(b"mine")
        head = ben.ok("log", "-n", "1", "--json").json
        refused(person, "sync", "-q")
        refused(person, "tag", "v2")
        refused(person, "branch", "other")
        mine = person.home / "mine"
        mine.mkdir()
        said = refused(person.at(mine), "init", "others", *names)
        assert "you can read" in said and "was refused" in said
        assert not [*mine.iterdir()], "it is bound to nothing"
        assert ben.ok("log", "-n", "1", "--json").json == head
        assert (person.cwd / "mine").read_bytes() == b"mine"

    refused(ben, "branch", "--protect", "main", "--only-merge")
    assert "warn" in ben.ok("store", "check").out, "it can't be tried without the right to write below probe/"
    kim.ok("store", "check")
    kim.ok("branch", "--protect", "try", "--only-merge")


@pytest.mark.real
def test_each_role_can_do_what_the_page_says(team: Team) -> None:
    (policy,) = policies("Ceph")
    works(team, f"s3://{team.bucket(policy, 'lake')}/dsv")


@pytest.mark.real
def test_each_role_with_the_names_in_another_bucket(team: Team) -> None:
    (policy,), (names_policy,) = policies("Ceph"), policies("With names elsewhere")
    store, names = team.bucket(policy, "lake"), team.bucket(names_policy, "names")
    works(team, f"s3://{store}/dsv", ("--names", f"s3://{names}/dsv"))
    assert not any(
        needs_winner(key.removeprefix("dsv/")) and "format/" not in key for key in team.owner.objects(store)
    )
    # The administrator puts them into the store, and a writer continues there.
    kim, ben = (team.person(name, f"s3://{store}/dsv", f"{name} moves") for name in ("kim", "ben"))
    for person in (kim, ben):
        person.at(person.home).ok("clone", "-q", "scans", str(person.cwd), "--names", f"s3://{names}/dsv")
    kim.ok("store", "move-names", f"s3://{store}/dsv")
    (ben.cwd / "third").write_bytes(b"third")
    ben.ok("sync", "-q")
    ben.ok("tag", "v3")


@pytest.mark.real
def test_records_of_runs_reach_the_store_and_nothing_else_does(team: Team) -> None:
    (policy,) = policies("Ceph")
    bucket = team.bucket(policy, "lake")
    rob = team.users["rob"].client()
    rob.put_object(Bucket=bucket, Key="dsv/runs/scans/20261122-000000-00000000/start", Body=b"{}")
    for key in ("dsv/packs/00/00", "dsv/refs/x", "dsv/format/0", "other"):
        with pytest.raises(rob.exceptions.ClientError, match="AccessDenied"):
            rob.put_object(Bucket=bucket, Key=key, Body=b"")


@pytest.mark.real
def test_a_writer_deletes_nothing_and_what_another_tool_overwrote_is_found_out(team: Team) -> None:
    (policy,) = policies("Ceph")
    bucket = team.bucket(policy, "lake")
    store = f"s3://{bucket}/dsv"
    kim, ben = team.person("kim", store), team.person("ben", store)
    kim.ok("init", "scans")
    (kim.cwd / "first").write_bytes(b"first")
    kim.ok("sync", "-q")
    other = team.users["ben"].client()
    for key in team.owner.objects(bucket):
        with pytest.raises(other.exceptions.ClientError, match="AccessDenied"):
            other.delete_object(Bucket=bucket, Key=key)
    (head, *_) = sorted(team.owner.objects(bucket, "dsv/refs/"))
    before = other.get_object(Bucket=bucket, Key=head)["Body"].read()
    other.put_object(Bucket=bucket, Key=head, Body=b"another tool was here")
    damaged = ben.at(ben.home)("clone", "scans", str(ben.cwd))
    assert damaged.code == 5 and head.removeprefix("dsv/") in damaged.err
    other.put_object(Bucket=bucket, Key=head, Body=before)
    ben.at(ben.home).ok("clone", "-q", "scans", str(ben.cwd))


@pytest.mark.real
def test_ceph_honours_no_condition_in_a_bucket_with_versioning(team: Team) -> None:
    """As the page says; and dsv finds it out, at once or later."""
    (policy,) = policies("Ceph")
    owner = team.owner.client()
    versions = {"VersioningConfiguration": {"Status": "Enabled"}}
    buckets = [team.bucket(policy, "lake") for _ in range(2)]
    early, late = (
        team.person("kim", f"s3://{buckets[0]}/dsv"),
        team.person("kim", f"s3://{buckets[1]}/dsv", "late"),
    )
    owner.put_bucket_versioning(Bucket=buckets[0], **versions)
    assert early("init", "scans").code == 9
    late.ok("init", "scans")
    owner.put_bucket_versioning(Bucket=buckets[1], **versions)
    (late.cwd / "first").write_bytes(b"first")
    stopped = late("sync", "-q")
    assert stopped.code == 5 and "no longer lets one writer win" in stopped.err
    for bucket in buckets:
        found = owner.list_object_versions(Bucket=bucket)
        for one in (*found.get("Versions", []), *found.get("DeleteMarkers", [])):
            owner.delete_object(Bucket=bucket, Key=one["Key"], VersionId=one["VersionId"])
