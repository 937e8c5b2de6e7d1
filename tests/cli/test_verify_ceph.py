"""`dsv verify`, `--repair` and `dsv export --skip-damaged` of a store on Ceph."""

from __future__ import annotations

from pathlib import Path

from dsv.format.locator import ObjectKind
from tests.api.test_damage_marks import flip
from tests.kit.dsv import Dsv, write_files
from tests.kit.people import Person
from tests.labs.s3_server import S3Server

FILES = {f"d/{number}": b"%d" % number * 60 for number in range(6)}


def sync_all(person: Dsv, store: str) -> Dsv:
    """Sync the files one by one, so that each is in a pack of its own."""
    ann = person.at(person.cwd, DSV_STORE=store)
    ann.ok("init", "scans")
    for name, content in FILES.items():
        write_files(ann.cwd, {name: content})
        ann.ok("sync", "-q")
    return ann


def test_on_ceph(dsv: Dsv, ceph_s3: S3Server, tmp_path: Path) -> None:
    bucket, client = ceph_s3.bucket(), ceph_s3.client()
    try:
        ann = sync_all(dsv.at(dsv.cwd, **ceph_s3.env), f"s3://{bucket}/store")
        listed = client.list_objects_v2(Bucket=bucket, Prefix="store/packs/")["Contents"]
        keys = [item["Key"] for item in listed]
        copy = tmp_path / "copy"
        for key in keys:
            path = copy / key.removeprefix("store/")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(client.get_object(Bucket=bucket, Key=key)["Body"].read())
        flipped = [path for path, _ in flip(Person(tmp_path, str(copy)), ObjectKind.CHUNK)]
        assert len(flipped) == len(FILES)
        for path in flipped[1:]:
            client.put_object(Bucket=bucket, Key=f"store/{path.relative_to(copy)}", Body=path.read_bytes())
        client.delete_object(Bucket=bucket, Key=f"store/{flipped[0].relative_to(copy)}")
        bob = Dsv.of(tmp_path / "bob", **ceph_s3.env).at(tmp_path, DSV_STORE=f"s3://{bucket}/store")
        assert len(bob("verify", "--json").json["items"]) >= 1  # the pack that is gone
        found = bob("verify", "--full", "--json")
        assert found.code == 5 and {item["path"] for item in found.json["items"]} == {*FILES}
        done = bob("export", "scans", "out", "--skip-damaged", "--json")
        assert done.code == 5 and {item["path"] for item in done.json["damaged"]} == {*FILES}
        failed = bob("cache", "scans", "--cache", str(tmp_path / "cache"))
        assert failed.code == 5 and all(f"scans:{name} can't be read" in failed.err for name in FILES)
        (ann.cwd / "d/5").rename(tmp_path / "kept")
        found = bob("verify", "--repair", "--from", str(ann.cwd), "--json")
        assert found.code == 5 and {item["path"] for item in found.json["items"]} == {"d/5"}
        (tmp_path / "kept").rename(ann.cwd / "d/5")
        assert ann.ok("sync", "--json").json["reuploaded"] == 1
        assert bob.ok("verify", "--full", "--json").json["whole"]
        found = bob.ok("gc", "--dry-run", "--json").json
        assert found["price_usd"] > 0 and "us-east-1" in found["price_list"]
        assert "DELETE requests, $0.00" in bob.ok("gc", "--dry-run").lines[-1]
        bob.ok("export", "scans", "out2")
        assert {name: (tmp_path / "out2" / name).read_bytes() for name in FILES} == FILES
    finally:
        ceph_s3.remove_bucket(bucket)
