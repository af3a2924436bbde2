"""Addresses, listings and credentials of repositories in the cloud, without a cloud."""

from __future__ import annotations

import json
import os
from pathlib import Path

import anyio
import anyio.lowlevel
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from tpy import limits
from tpy.errors import InvalidArgument
from tpy_cloud.address import CloudAddress
from tpy_cloud.core.objects import CloudObject, LocalFile, ModelListing, listing_of, plan_of
from tpy_cloud.credentials import access_of
from tpy_cloud.environment import CREDENTIAL_FILE, CloudEnvironment
from tpy_cloud.errors import CloudErrorKind, translate
from tpy_cloud.locks import Locks
from tpy_control.sources import parse_address


def cloud(text: str) -> CloudAddress:
    found = parse_address(text)
    assert isinstance(found, CloudAddress)
    return found


@pytest.mark.parametrize(
    ("text", "bucket", "prefix", "endpoint", "account"),
    [
        ("s3://bucket", "bucket", "", "", ""),
        ("s3://bucket/path/to/models/", "bucket", "path/to/models", "", ""),
        ("s3://localhost:9000/bucket/models", "bucket", "models", "http://localhost:9000", ""),
        ("s3://https://minio.example:9000/bucket/a/b", "bucket", "a/b", "https://minio.example:9000", ""),
        ("s3://http://10.0.0.1:80/bucket", "bucket", "", "http://10.0.0.1:80", ""),
        ("s3://https://s3.example.com/bucket//x", "bucket", "x", "https://s3.example.com", ""),
        ("gs://bucket.with.dots/m", "bucket.with.dots", "m", "", ""),
        ("as://account/container/m", "container", "m", "", "account"),
        ("as://account.blob.core.windows.net/container", "container", "", "", "account"),
        ("oss://triton-model-repo/models", "triton-model-repo", "models", "", ""),
        ("oss://b1.oss-cn-hangzhou-internal.aliyuncs.com/m", "b1", "m", "https://oss-cn-hangzhou-internal.aliyuncs.com", ""),
    ],
)
def test_addresses(text: str, bucket: str, prefix: str, endpoint: str, account: str) -> None:
    found = cloud(text)
    assert (found.bucket, found.prefix, found.endpoint, found.account) == (bucket, prefix, endpoint, account)
    assert str(found) == text


@pytest.mark.parametrize(
    "text", ["s3://", "s3://http://host:1/", "as://account", "gs:///x", "s3://b/../c", "hdfs://x/y", "as://A_B/c"]
)
def test_addresses_without_a_bucket(text: str) -> None:
    with pytest.raises(InvalidArgument, match=r"--model-repository .*: expected "):
        parse_address(text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("hf://owner/model", "expected a folder, or an address that begins with as://, gs://, oss://, s3://$"),
        ("https://host/models.tar.gz", r"s3://https://HOST:PORT/BUCKET/PATH; archives are not supported: unpack them$"),
        ("http://localhost:9000/bucket", r"an S3 server is s3://http://HOST:PORT/BUCKET/PATH"),
    ],
)
def test_addresses_that_are_not_taken(text: str, expected: str) -> None:
    with pytest.raises(InvalidArgument, match=expected):
        parse_address(text)


@pytest.mark.parametrize("text", ["/models", "models", "s3:bucket", "C://x", "a b://x"])
def test_paths_are_paths(text: str) -> None:
    assert parse_address(text) == Path(text)


def one(path: str, size_bytes: int = 1, etag: str = "e") -> CloudObject:
    return CloudObject(path=path, size_bytes=size_bytes, etag=etag)


def test_objects_that_stand_for_folders() -> None:
    listing = listing_of([one("1", 0), one("2/", 0), one("3/sub", 0), one("3/sub/x"), one("labels", 0)])
    assert [file.path for file in listing.files] == ["3/sub/x", "labels"]
    assert listing.folders == ("1", "2", "3", "3/sub")


@pytest.mark.parametrize("path", ["1/../x", "1//x", "/x", "1/a\0b", "1/" + "x" * 256, "1/" * 70 + "x", "./x"])
def test_keys_that_are_no_paths(path: str) -> None:
    listing = listing_of([one("1/good"), one(path)])
    assert "the key " in listing.error or listing.files == (one("1/good"),)
    assert not any(file.path != "1/good" for file in listing.files)
    assert listing.fingerprint != listing_of([one("1/good")]).fingerprint or not listing.error


def test_an_object_and_a_folder_of_one_name() -> None:
    assert "is both an object and a folder" in listing_of([one("a"), one("a/b")]).error


def test_files_and_folders_of_a_model_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "MODEL_FILES_MAX", 3)
    assert not listing_of([one("1/a"), one("1/b")]).error
    assert listing_of([one("1/a"), one("1/b"), one("2")]).error == "the model has more than 3 files"


NAMES = st.sampled_from(["a", "b", "1/m", "1/n", "2/m", "labels.txt", "1/deep/x"])
OBJECTS = st.builds(one, NAMES, st.integers(0, 2), st.sampled_from(["", "e1", "e2"]))


@given(st.dictionaries(NAMES, OBJECTS), st.dictionaries(NAMES, OBJECTS))
def test_a_plan_makes_the_copy_what_the_listing_says(before: dict[str, CloudObject], after: dict[str, CloudObject]) -> None:
    def files(objects: dict[str, CloudObject]) -> list[CloudObject]:
        return [CloudObject(path=path, size_bytes=found.size_bytes, etag=found.etag) for path, found in objects.items()]

    listing = listing_of(files(after))
    have = {file.path: LocalFile(path=file.path, size_bytes=file.size_bytes, etag=file.etag) for file in files(before)}
    plan = plan_of(listing, have)
    copy = {path: (file.size_bytes, file.etag) for path, file in have.items() if path in plan.keep}
    copy.update({file.path: (file.size_bytes, file.etag) for file in plan.fetch})
    assert copy == {file.path: (file.size_bytes, file.etag) for file in listing.files}
    assert set(plan.keep) | set(plan.remove) | {file.path for file in plan.fetch} >= have.keys()
    assert not set(plan.keep) & set(plan.remove)
    assert all(have[path].etag for path in plan.keep), "without an etag nothing is known to be the same"
    again = {path: LocalFile(path=path, size_bytes=size, etag=etag) for path, (size, etag) in copy.items()}
    assert not plan_of(listing, again).remove
    assert all(not file.etag for file in plan_of(listing, again).fetch)


class FingerprintsFollowObjects(RuleBasedStateMachine):
    """The fingerprint of a bucket changes with every write that changes something, and with nothing else."""

    def __init__(self) -> None:
        super().__init__()
        self.bucket: dict[str, CloudObject] = {}
        self.seen: dict[frozenset[CloudObject], object] = {}

    @rule(path=NAMES, etag=st.sampled_from(["e1", "e2"]), modified_ns=st.integers(0, 1))
    def write(self, path: str, etag: str, modified_ns: int) -> None:
        self.bucket[path] = CloudObject(path=path, size_bytes=1, etag=etag, modified_ns=modified_ns)

    @rule(path=NAMES)
    def remove(self, path: str) -> None:
        self.bucket.pop(path, None)

    @invariant()
    def equal_exactly_for_equal_objects(self) -> None:
        content = frozenset(self.bucket.values())
        fingerprint = listing_of(reversed(self.bucket.values())).fingerprint
        assert self.seen.setdefault(content, fingerprint) == fingerprint
        assert len(set(self.seen.values())) == len(self.seen)


TestFingerprintsFollowObjects = FingerprintsFollowObjects.TestCase
TestFingerprintsFollowObjects.settings = settings(max_examples=30)


def test_an_error_is_a_fingerprint_of_its_own() -> None:
    assert ModelListing(error="x").fingerprint != ModelListing().fingerprint


async def test_locks_are_there_as_long_as_they_are_used() -> None:
    locks = Locks[str]()
    order: list[str] = []

    async def work(key: str, name: str) -> None:
        async with locks.held(key):
            order.append(f"{name} begins")
            await anyio.lowlevel.checkpoint()
            order.append(f"{name} ends")

    async with anyio.create_task_group() as tasks:
        for name in ("first", "second", "third"):
            tasks.start_soon(work, "m", name)
        tasks.start_soon(work, "other", "other")
        with anyio.CancelScope() as cancelled:  # one that stops waiting takes nobody's lock away
            cancelled.cancel()
            await work("m", "cancelled")
        while len(locks) < 2:
            await anyio.lowlevel.checkpoint()
    assert not locks
    assert "cancelled begins" not in order
    for name in ("first", "second", "third"):
        of_m = [entry for entry in order if "other" not in entry]
        assert of_m.index(f"{name} ends") == of_m.index(f"{name} begins") + 1


# Credentials

FILE = {
    "s3": {
        "": {"secret_key": "s0", "key_id": "k0", "region": "r0", "session_token": "", "profile": ""},
        "s3://bucket-2": {"secret_key": "s2", "key_id": "k2", "region": "r2", "session_token": "t2"},
        "s3://bucket-2/deep": {"secret_key": "s3", "key_id": "k3"},
    },
    "gs": {"gs://one": "/nosuch/google.json"},
    "as": {"": {"account_str": "acc", "account_key": "a2V5"}},
}


@pytest.fixture
def credentials(tmp_path: Path) -> CloudEnvironment:
    file = tmp_path / "credentials.json"
    file.write_text(json.dumps(FILE))
    return CloudEnvironment({CREDENTIAL_FILE: str(file), "AWS_ACCESS_KEY_ID": "other", "AWS_SECRET_ACCESS_KEY": "other"})


@pytest.mark.parametrize(
    ("text", "key_id", "region"),
    [
        ("s3://bucket/x", "k0", "r0"),
        ("s3://bucket-2/x", "k2", "r2"),
        ("s3://bucket-2/deep/er", "k3", "us-east-1"),
        ("s3://https://host:1/bucket-2/x", "k0", "r0"),
    ],
)
def test_the_longest_prefix_of_the_file_counts(credentials: CloudEnvironment, text: str, key_id: str, region: str) -> None:
    access = access_of(cloud(text), credentials)
    assert access.keys is not None
    assert (access.keys.key_id, access.settings["region"]) == (key_id, region)


def test_a_repository_that_no_entry_matches(credentials: CloudEnvironment) -> None:
    with pytest.raises(InvalidArgument, match=r"^Cannot match credential for path gs://two/x"):
        access_of(cloud("gs://two/x"), credentials)
    with pytest.raises(InvalidArgument, match=r"/nosuch/google\.json"):
        access_of(cloud("gs://one/x"), credentials)


def test_a_file_of_google_that_has_changed_is_another(tmp_path: Path) -> None:
    file = tmp_path / "google.json"
    file.write_text("{}")
    environment = CloudEnvironment({"GOOGLE_APPLICATION_CREDENTIALS": str(file)})
    before = access_of(cloud("gs://bucket/x"), environment)
    assert before == access_of(cloud("gs://bucket/x"), environment)
    assert before.source == f"the file {file}"
    os.utime(file, (1, 1))
    assert before != access_of(cloud("gs://bucket/x"), environment)


def test_azure_and_oss_credentials(credentials: CloudEnvironment) -> None:
    settings = access_of(cloud("as://account/container/x"), credentials).settings
    assert (settings["account_name"], settings["account_key"]) == ("acc", "a2V5")
    keys = {"OSS_ACCESS_KEY_ID": "k", "OSS_ACCESS_KEY_SECRET": "s", "OSS_REGION": "cn-hangzhou"}
    access = access_of(cloud("oss://bucket/m"), CloudEnvironment(keys))
    assert access.settings["aws_endpoint_url_s3"] == "https://bucket.oss-cn-hangzhou.aliyuncs.com"
    assert access.settings["region"] == "cn-hangzhou"
    with pytest.raises(InvalidArgument, match=r"OSS_ENDPOINT or OSS_REGION must say where"):
        access_of(cloud("oss://bucket/m"), CloudEnvironment({}))


def test_profiles(tmp_path: Path) -> None:
    (tmp_path / ".aws").mkdir()
    (tmp_path / ".aws" / "credentials").write_text("[work]\naws_access_key_id = k\naws_secret_access_key = s\n")
    (tmp_path / ".aws" / "config").write_text("[profile work]\nregion = eu-west-1\n")
    access = access_of(cloud("s3://bucket"), CloudEnvironment({"HOME": str(tmp_path), "AWS_PROFILE": "work"}))
    assert access.keys is not None
    assert (access.keys.key_id, access.settings["region"], access.source) == ("k", "eu-west-1", "profile 'work'")
    with pytest.raises(InvalidArgument, match="AWS profile 'nosuch' has no aws_access_key_id"):
        access_of(cloud("s3://bucket"), CloudEnvironment({"HOME": str(tmp_path), "AWS_PROFILE": "nosuch"}))


@pytest.mark.parametrize("text", ["{", '{"s3": {"": {"secret_key": 12345678}}}', '{"s3": ["TOPSECRET"]}', "\xff"])
def test_a_file_of_credentials_that_is_wrong(tmp_path: Path, text: str) -> None:
    file = tmp_path / "credentials.json"
    file.write_text(text, encoding="latin-1")
    with pytest.raises(InvalidArgument) as error:
        access_of(cloud("s3://bucket"), CloudEnvironment({CREDENTIAL_FILE: str(file)}))
    assert str(file) in error.value.message
    assert "expected {" in error.value.message
    assert not any(secret in error.value.message for secret in ("12345678", "TOPSECRET"))


def test_credentials_are_not_printed(credentials: CloudEnvironment) -> None:
    access = access_of(cloud("s3://bucket"), credentials)
    assert not any(secret in f"{access!r} {access.keys!r} {credentials!r}" for secret in ("s0", "k0", "other"))


def test_the_texts_of_servers_are_not_repeated() -> None:
    text = "status code: 403 Forbidden: <Error><Code>SignatureDoesNotMatch</Code><StringToSign>AKIASECRET</StringToSign></Error>"
    error = translate(cloud("s3://bucket/x"), RuntimeError(text), key="x/m")
    assert "AKIASECRET" not in error.text
    assert "SignatureDoesNotMatch" in error.text
    assert "key 'x/m'" in error.text
    assert error.kind is CloudErrorKind.REFUSED


@pytest.mark.parametrize("before", ["", "user:s3cret@", "s3cret@"])
def test_the_password_of_an_endpoint_is_not_printed(before: str) -> None:
    text = f"Error performing GET http://{before}proxy.example:1/bucket?list-type=2: ConnectionRefused"
    error = translate(cloud("s3://bucket/x"), RuntimeError(text))
    assert "http://proxy.example:1 refuses the connection" in error.text
    assert "s3cret" not in error.text
