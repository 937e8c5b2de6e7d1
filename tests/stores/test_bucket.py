from __future__ import annotations

import datetime
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from dsv.stores.bucket import BucketSettings, bucket_warnings, names_anybody, warnings_for
from dsv.stores.options import StoreOptions
from tests.labs.s3_server import S3Server

EXPIRES: dict[str, Any] = {
    "ID": "tidy",
    "Status": "Enabled",
    "Filter": {"Prefix": ""},
    "Expiration": {"Days": 30},
}


def said(prefix: str, **settings: Any) -> str:
    return "\n".join(warnings_for("lake", prefix, BucketSettings(**settings)))


def test_a_plain_bucket_is_not_warned_of() -> None:
    assert said("dsv") == ""


@pytest.mark.parametrize(
    ("rule", "concerns"),
    [
        ({"Filter": {}}, True),
        ({"Filter": {"Prefix": "dsv/"}}, True),
        ({"Filter": {"Prefix": "dsv/packs/"}}, True),
        ({"Filter": {"Prefix": "ds"}}, True),
        ({"Filter": {"Prefix": "other/"}}, False),
        ({"Filter": {"Prefix": "dsv-old/"}}, False),
        ({"Filter": None, "Prefix": "dsv"}, True),
        ({"Filter": None, "Prefix": "logs"}, False),
        ({"Filter": {"Tag": {"Key": "temporary", "Value": "yes"}}}, False),
        ({"Filter": {"And": {"Prefix": "dsv", "Tags": [{"Key": "a", "Value": "b"}]}}}, False),
        ({"Filter": {"And": {"Prefix": "dsv", "ObjectSizeGreaterThan": 100}}}, True),
        ({"Status": "Disabled"}, False),
        ({"Expiration": {"ExpiredObjectDeleteMarker": True}}, False),
        ({"Expiration": None, "AbortIncompleteMultipartUpload": {"DaysAfterInitiation": 1}}, False),
    ],
)
def test_a_rule_that_deletes_parts_of_the_store_is_reported(rule: dict[str, Any], concerns: bool) -> None:
    text = said("dsv", lifecycle=[EXPIRES | rule])
    assert (
        "lifecycle rule tidy of bucket lake deletes what is in the store after 30 days" in text
    ) is concerns
    assert bool(text) is concerns


def test_a_rule_on_a_date_and_one_without_a_name() -> None:
    date = datetime.datetime(2027, 1, 2, tzinfo=datetime.UTC)
    rule = {"Status": "Enabled", "Expiration": {"Date": date}}
    assert "a lifecycle rule of bucket lake deletes what is in the store on 2027-01-02" in said(
        "", lifecycle=[rule]
    )


@pytest.mark.parametrize(
    ("kind", "told"), [("GLACIER", True), ("DEEP_ARCHIVE", True), ("STANDARD_IA", False)]
)
def test_a_rule_that_moves_the_store_where_it_can_not_be_read_is_reported(kind: str, told: bool) -> None:
    rule = EXPIRES | {"Expiration": None, "Transitions": [{"Days": 90, "StorageClass": kind}]}
    assert (f"to {kind} after 90 days, where dsv can't read it" in said("dsv", lifecycle=[rule])) is told


def test_old_versions_that_nothing_removes_are_reported() -> None:
    assert "keeps old versions" in said("dsv", versioning="Enabled")
    assert said("dsv", versioning="Suspended") == ""
    rule = {"Status": "Enabled", "Filter": {}, "NoncurrentVersionExpiration": {"NoncurrentDays": 7}}
    assert said("dsv", versioning="Enabled", lifecycle=[rule]) == ""
    assert "keeps each object for a fixed time" in said("dsv", versioning="Enabled", locked=True)


def test_a_public_bucket_and_a_key_of_kms_are_reported() -> None:
    assert "lets anybody in" in said("dsv", public=True)
    assert "kms:Decrypt" in said("dsv", kms_key="arn:aws:kms:1")


def policy(*principals: object) -> str:
    return json.dumps(
        {"Statement": [{"Effect": "Allow", "Principal": one, "Action": "*"} for one in principals]}
    )


@pytest.mark.parametrize(
    ("text", "public"),
    [
        (policy({"AWS": ["arn:aws:iam:::user/ann"]}), False),  # of which Ceph says that it is public
        (policy({"AWS": "arn:aws:iam::1:root"}, {"AWS": ["arn:aws:iam::1:user/a", "*"]}), True),
        (policy("*"), True),
        (policy({"AWS": "*"}), True),
        (json.dumps({"Statement": [{"Effect": "Deny", "Principal": "*", "Action": "*"}]}), False),
        (json.dumps({"Statement": [{"Effect": "Allow", "NotPrincipal": {"AWS": "x"}, "Action": "*"}]}), True),
        (None, True),
        ("no JSON", True),
    ],
)
def test_a_policy_that_names_users_lets_nobody_else_in(text: str | None, public: bool) -> None:
    assert names_anybody(text) is public


def options(server: S3Server) -> StoreOptions:
    return StoreOptions.from_environment(server.env)


@pytest.mark.parametrize("server", ["moto_s3", pytest.param("ceph_s3", marks=pytest.mark.real)])
def test_a_real_bucket_is_asked(server: str, request: pytest.FixtureRequest) -> None:
    reached: S3Server = request.getfixturevalue(server)
    bucket = reached.bucket()
    url = f"s3://{bucket}/dsv"
    assert bucket_warnings(url, options(reached)) == ()
    client = reached.client()
    client.put_bucket_versioning(Bucket=bucket, VersioningConfiguration={"Status": "Enabled"})
    client.put_bucket_lifecycle_configuration(Bucket=bucket, LifecycleConfiguration={"Rules": [EXPIRES]})
    text = "\n".join(bucket_warnings(url, options(reached)))
    assert "lifecycle rule tidy" in text
    assert "keeps old versions" in text
    assert bucket_warnings("s3://no-such-bucket-here/dsv", options(reached)) == ()


def test_init_of_a_new_store_warns_and_the_next_one_does_not(moto_s3: S3Server, tmp_path: Path) -> None:
    bucket = moto_s3.bucket()
    moto_s3.client().put_bucket_lifecycle_configuration(
        Bucket=bucket, LifecycleConfiguration={"Rules": [EXPIRES]}
    )

    def init(name: str) -> tuple[dict[str, Any], str]:
        (tmp_path / name).mkdir()
        done = subprocess.run(
            [sys.executable, "-m", "dsv.cli.main", "init", name, "--store", f"s3://{bucket}/dsv", "--json"],
            cwd=tmp_path / name,
            env={**os.environ, **moto_s3.env},
            capture_output=True,
            check=True,
            text=True,
        )
        return json.loads(done.stdout), done.stderr

    document, stderr = init("first")
    assert ["lifecycle rule tidy" in text for text in document["warnings"]] == [True]
    assert "warning: lifecycle rule tidy" in stderr
    document, stderr = init("second")
    assert document["warnings"] == []
    assert "lifecycle" not in stderr
