"""The settings of a store configured here that dsv passes to the machines of a cluster."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from dsv.api.settings import StoreChoice
from dsv.api.store_access import store_access
from dsv.errors import NotFound, UsageError
from dsv.run.node_order import StoreAccess
from dsv.stores.options import StoreOptions

CERTIFICATE = "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----"
KEY = "-----BEGIN PRIVATE KEY-----\nhunter2\n-----END PRIVATE KEY-----"


def access(**said: str) -> StoreAccess:
    """Of a store with these settings, on a machine whose environment has keys."""
    choice = StoreChoice(**{"url": "s3://lake/dsv", "origin": "test", "name": "lake", **said})
    options = StoreOptions(access_key="id", secret_key="hunter2", ca_file="/nowhere").overridden(
        endpoint=choice.endpoint, region=choice.region, profile=choice.profile, ca_file=choice.ca_bundle
    )
    return store_access(choice, options)


def table(found: StoreAccess) -> dict[str, str]:
    stores: dict[str, dict[str, str]] = tomllib.loads(found.settings)["stores"]
    return stores["lake"]


def test_where_the_store_is_goes_along_and_keys_of_the_environment_do_not() -> None:
    found = access(endpoint="https://s3.example.org", region="eu", names="s3://lake/names")
    assert table(found) == {
        "url": "s3://lake/dsv", "endpoint": "https://s3.example.org", "region": "eu", "names": "s3://lake/names"
    }  # fmt: skip
    assert (found.certificates, found.folders, found.profile) == ("", (), None)
    assert "hunter2" not in repr(found)


def test_a_store_without_a_name_needs_no_settings() -> None:
    choice = StoreChoice("/srv/store", "test", names="/srv/names")
    assert store_access(choice, StoreOptions()) == StoreAccess(folders=("/srv/store", "/srv/names"))


def test_a_folder_that_is_named_by_its_url_is_a_folder() -> None:
    found = access(url="file:///srv/my%20store", names="file:///srv/names")
    assert found.folders == ("/srv/my store", "/srv/names")


def test_of_a_profile_the_address_goes_along_and_the_credentials_do_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tmp_path / "config"
    config.write_text(
        "[profile team]\nregion = mars\nservices = site\naws_access_key_id = id\naws_secret_access_key = hunter2\n"
        "[services site]\ns3 =\n  endpoint_url = https://s3.example.org\n"
    )
    monkeypatch.setenv("AWS_CONFIG_FILE", str(config))
    found = access(profile="team")
    assert table(found) == {"url": "s3://lake/dsv", "endpoint": "https://s3.example.org", "region": "mars"}
    assert found.profile == "stores.lake.profile"
    assert "hunter2" not in repr(found)
    assert table(access(profile="team", endpoint="https://other", region="eu"))["endpoint"] == "https://other"


def test_certificates_go_along_without_the_keys_beside_them(tmp_path: Path) -> None:
    (tmp_path / "site.pem").write_text(f"a comment\n{KEY}\n{CERTIFICATE}\n{CERTIFICATE}\n")
    found = access(ca_bundle=str(tmp_path / "site.pem"))
    assert found.certificates == f"{CERTIFICATE}\n{CERTIFICATE}\n"
    assert access(ca_bundle=str(tmp_path)).certificates == found.certificates
    assert "ca_bundle" not in table(found)
    cut_short = CERTIFICATE.partition("-----END")[0]
    (tmp_path / "site.pem").write_text(f"{cut_short}\n{KEY}\n{CERTIFICATE}\n")
    assert access(ca_bundle=str(tmp_path / "site.pem")).certificates == f"{CERTIFICATE}\n"


def test_certificates_that_cannot_go_along_are_refused_by_the_name_of_the_setting(tmp_path: Path) -> None:
    for text, words in ((KEY, "has no certificate"), ((CERTIFICATE + "\n") * 2000, "KiB of certificates")):
        (tmp_path / "site.pem").write_text(text)
        with pytest.raises(UsageError, match=words) as caught:
            access(ca_bundle=str(tmp_path / "site.pem"))
        assert caught.value.subject == "stores.lake.ca_bundle"
    with pytest.raises(NotFound):
        access(ca_bundle=str(tmp_path / "none.pem"))
