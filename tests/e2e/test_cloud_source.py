"""The source of repositories in the cloud, on a real server of S3's protocol: faults, uploads, credentials."""

from __future__ import annotations

import json
import logging
import os
import re
import ssl
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest

from tests.backends import onnx_models
from tests.cloud_servers import BUCKET, KEYS, Answer, Fault, FaultyProxy, S3Server, refuse
from tpy import limits
from tpy.errors import Unavailable
from tpy.testing.loop_guard import LoopGuard
from tpy.units import NS_PER_MS, NS_PER_S
from tpy_control.core.scan import ModelLocation
from tpy_control.sources import HiddenEnvironment

from .clouds import SECRETS, address, affine, opened, scan_of
from .repositories import AFFINE_CONFIG

CERTIFICATES = Path(__file__).parents[1] / "frontends" / "grpc" / "transport" / "certificates"


@pytest.mark.parametrize(
    ("status", "code", "advice"),
    [
        (403, "InvalidAccessKeyId", "the key id is unknown there: check AWS_ACCESS_KEY_ID"),
        (403, "SignatureDoesNotMatch", "the secret key does not belong to the key id"),
        (400, "ExpiredToken", "the session token has expired"),
        (403, "RequestTimeTooSkewed", "the clock of this machine is wrong"),
        (400, "AuthorizationHeaderMalformed", "the bucket is in another region: set AWS_DEFAULT_REGION"),
        (403, "AccessDenied", "permissions to list and to read"),
    ],
)
async def test_refusals_name_the_cause_and_the_remedy(
    proxy: FaultyProxy, prefix: str, tmp_path: Path, status: int, code: str, advice: str
) -> None:
    proxy.fault = refuse(status, code)
    async with opened(proxy.host, prefix, tmp_path) as source:
        with pytest.raises(Unavailable) as error:
            await source.list_models()
    assert all(text in error.value.message for text in (f"'{BUCKET}'", code, advice, "from the environment"))
    assert not any(secret in error.value.message for secret in SECRETS)
    assert len(proxy.requests) == 1, "asking again does not help"


async def test_an_endpoint_that_hangs(proxy: FaultyProxy, prefix: str, tmp_path: Path) -> None:
    proxy.hangs.set()
    async with opened(proxy.host, prefix, tmp_path) as source:
        with pytest.raises(Unavailable, match=r"no answer within|does not answer in time"):
            await source.list_models()


async def test_a_scan_is_that_of_a_disk_and_equals_the_fingerprint(s3: S3Server, prefix: str, tmp_path: Path) -> None:
    affine(s3, prefix, "m", 2)
    s3.put(f"{prefix}/m/1/sp ace/ü%20#?+&.txt", "names are not changed")
    s3.put(f"{prefix}/m/1/empty", "")
    s3.put(f"{prefix}/m/2/", "")
    s3.put(f"{prefix}/m/.hidden/x", "left out")
    async with opened(s3.host, prefix, tmp_path) as source:
        scan = await scan_of(source)
        await source.list_models()
        assert await source.fingerprints([scan.location]) == [scan.fingerprint]
        assert [version.version for version in scan.versions] == [1, 2]
        assert (scan.directory / "1/sp ace/ü%20#?+&.txt").read_text() == "names are not changed"
        assert (scan.directory / "1/empty").read_bytes() == b""
        assert not (scan.directory / ".hidden").exists()
        assert scan.config_text == AFFINE_CONFIG
        assert await source.fingerprints([ModelLocation(scan.location.repository, "nosuch")]) == [None]


def _of(name: str, change: object) -> object:
    def fault(path: str, answer: Answer) -> None:
        if name in path and "list-type" not in path and answer.status < 300:
            change(answer)  # type: ignore[operator]

    return fault


def _cut(answer: Answer) -> None:
    answer.close_after = len(answer.content) // 2


def _short(answer: Answer) -> None:
    answer.content = answer.content[:-1]


def _tamper(answer: Answer) -> None:
    answer.content = b"!" + answer.content[1:]


@pytest.mark.parametrize(
    ("change", "cause"),
    [
        (_cut, "^$"),  # as if the cloud were away: the copy stands
        (_short, "truncated|ended the connection"),
        (_tamper, "the MD5 of the download is [0-9a-f]{32}, that of the object [0-9a-f]{32}"),
    ],
)
async def test_an_object_that_is_not_the_one_in_the_bucket_is_never_used(
    s3: S3Server, proxy: FaultyProxy, prefix: str, tmp_path: Path, change: object, cause: str
) -> None:
    affine(s3, prefix, "m", 2)
    async with opened(proxy.host, prefix, tmp_path) as source:
        before = await scan_of(source)
        old = (before.directory / "1/model.onnx").read_bytes()
        affine(s3, prefix, "m", 3)
        proxy.fault = _of("model.onnx", change)  # type: ignore[assignment]
        scan = await scan_of(source)
        assert re.search(cause, scan.error), scan.error
        assert (before.directory / "1/model.onnx").read_bytes() == old
        proxy.fault = None
        assert not (await scan_of(source)).error
        assert (before.directory / "1/model.onnx").read_bytes() != old


async def test_an_object_that_changes_while_it_is_downloaded_is_fetched_again(
    s3: S3Server, proxy: FaultyProxy, prefix: str, tmp_path: Path
) -> None:
    affine(s3, prefix, "m", 2)
    changes = [b"second", b"third"]

    def fault(path: str, answer: Answer) -> None:
        if "list-type" in path and changes and "m%2F" in path:
            s3.put(f"{prefix}/m/1/model.onnx", changes.pop())

    proxy.fault = fault
    async with opened(proxy.host, prefix, tmp_path) as source:
        scan = await scan_of(source)
        assert not scan.error
        assert (scan.directory / "1/model.onnx").read_bytes() == b"second"


def uploading(s3: S3Server, keys: list[str], when: str) -> object:
    """A fault that is none: somebody writes the next of these objects whenever the path of a request has `when` in it."""

    def fault(path: str, answer: Answer) -> None:
        if when in path and keys:
            s3.put(keys.pop(0), "of a version that is being uploaded")

    return fault


async def test_an_upload_that_is_going_on_is_waited_for(s3: S3Server, proxy: FaultyProxy, prefix: str, tmp_path: Path) -> None:
    affine(s3, prefix, "m", 2)
    proxy.fault = uploading(s3, [f"{prefix}/m/1/weights.data"], "m%2F")  # type: ignore[assignment]
    async with opened(proxy.host, prefix, tmp_path, settle_ns=NS_PER_MS) as source:
        scan = await scan_of(source)
        assert (scan.directory / "1/weights.data").exists()
    assert len([path for path in proxy.requests if "model.onnx" in path]) == 1, "nothing was downloaded before"


async def test_half_of_an_upload_is_never_used(s3: S3Server, proxy: FaultyProxy, prefix: str, tmp_path: Path) -> None:
    """Objects that come while others are downloaded: all of them are used, or, when there is no end of them, none."""
    affine(s3, prefix, "m", 2)
    async with opened(proxy.host, prefix, tmp_path) as source:
        old = await scan_of(source)
        affine(s3, prefix, "m", 3, version=2)
        proxy.fault = uploading(s3, [f"{prefix}/m/2/{number}" for number in range(100)], "/m/")  # type: ignore[assignment]
        refused = await scan_of(source)
        assert "objects were written or removed during the download: try again when the upload is complete" in refused.error
        assert f"key '{prefix}/m'" in refused.error
        assert not (old.directory / "2").exists(), "the copy is as it was"
        await source.list_models()
        assert await source.fingerprints([old.location]) != [refused.fingerprint], "so mode poll tries again"
        proxy.fault = uploading(s3, [f"{prefix}/m/2/last"], "/m/")  # type: ignore[assignment]
        scan = await scan_of(source)
        assert not scan.error
        assert (scan.directory / "2/last").exists()


async def test_a_download_is_parallel_and_tells_of_its_progress(
    s3: S3Server,
    proxy: FaultyProxy,
    prefix: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(limits, "CLOUD_PROGRESS_S", 0)
    monkeypatch.setattr(limits, "CLOUD_BLOCK_BYTES", 1000)
    content = os.urandom(15_000)
    s3.put(f"{prefix}/m/1/large", content)
    s3.put(f"{prefix}/m/1/small", "x")
    proxy.delay_s = 0.05
    caplog.set_level(logging.INFO)
    async with opened(proxy.host, prefix, tmp_path) as source:
        scan = await scan_of(source)
    assert (scan.directory / "1/large").read_bytes() == content
    assert 3 <= proxy.at_once <= limits.CLOUD_REQUESTS_MAX
    lines = [record.getMessage() for record in caplog.records if "model 'm'" in record.getMessage()]
    assert lines[0] == f"model 'm': downloading 2 files, 15001 bytes, from {address(proxy.host, prefix)}"
    assert re.fullmatch(r"model 'm': \d+ % of 15001 bytes downloaded", lines[1])
    assert re.fullmatch(r"model 'm': downloaded 15001 bytes in \d\.\d s", lines[-1])


async def test_a_cloud_that_is_there_late(s3: S3Server, proxy: FaultyProxy, prefix: str, tmp_path: Path) -> None:
    affine(s3, prefix, "m", 2)

    def fault(path: str, answer: Answer) -> None:
        if len(proxy.requests) <= limits.CLOUD_RETRIES_MAX + 2:  # more than the client library repeats
            refuse(503, "SlowDown")(path, answer)

    proxy.fault = fault
    async with opened(proxy.host, prefix, tmp_path, start_ns=60 * NS_PER_S) as source:
        assert not (await scan_of(source)).error


async def test_credentials_in_a_file_are_read_again(
    s3: S3Server, proxy: FaultyProxy, prefix: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "credentials.json"

    def write(key_id: str) -> None:
        file.write_text(json.dumps({"s3": {"": {"key_id": key_id, "secret_key": "sEcReT", "session_token": "tOkEn"}}}))

    def fault(path: str, answer: Answer) -> None:
        if "Credential=NEW/" not in answer.signed_by:
            refuse(400, "ExpiredToken")(path, answer)

    affine(s3, prefix, "m", 2)
    write("NEW")
    caplog.set_level(logging.INFO)
    environment = HiddenEnvironment({**KEYS, "TRITON_CLOUD_CREDENTIAL_PATH": str(file)})
    proxy.fault = fault
    async with opened(proxy.host, prefix, tmp_path, environment=environment) as source:
        assert not (await scan_of(source)).error, "those of the file count, not those of the environment"
    write("OLD")
    async with opened(proxy.host, prefix, tmp_path / "2", environment=environment) as source:
        with pytest.raises(Unavailable) as error:
            await source.list_models()
        assert f"get new credentials, which are read again; credentials are from TRITON_CLOUD_CREDENTIAL_PATH={file}" in (
            error.value.message
        )
        write("NEW")
        assert not (await scan_of(source)).error
    assert "were read again" in caplog.text
    assert not any(secret in caplog.text + error.value.message for secret in ("sEcReT", "tOkEn"))


async def test_throttling_is_waited_out(s3: S3Server, proxy: FaultyProxy, prefix: str, tmp_path: Path) -> None:
    affine(s3, prefix, "m", 2)
    seen: set[str] = set()

    def fault(path: str, answer: Answer) -> None:
        if path not in seen:
            seen.add(path)
            refuse(503, "SlowDown")(path, answer)

    proxy.fault = fault
    async with opened(proxy.host, prefix, tmp_path) as source:
        assert not (await scan_of(source)).error
    assert len(seen) >= 3


async def test_a_key_that_is_no_path_hides_no_other_model(s3: S3Server, prefix: str, tmp_path: Path) -> None:
    affine(s3, prefix, "good", 2)
    s3.put(f"{prefix}/bad/1/../../../evil", "x")
    async with opened(s3.host, prefix, tmp_path) as source:
        assert not (await scan_of(source, "good")).error
        await source.list_models()
        location = ModelLocation(address(s3.host, prefix), "good")
        assert (await source.fingerprints([location]))[0] == (await scan_of(source, "good")).fingerprint


@pytest.mark.parametrize("key", ["/evil/1/x", "../evil/1/x", "a\nb/1/x"])
async def test_a_name_of_a_model_that_is_no_path(
    s3: S3Server, proxy: FaultyProxy, prefix: str, tmp_path: Path, caplog: pytest.LogCaptureFixture, key: str
) -> None:
    affine(s3, prefix, "m", 2)
    name = key.partition("/1/")[0] if not key.startswith("/") else ""
    folder = f"<CommonPrefixes><Prefix>{prefix}/{name}/</Prefix></CommonPrefixes>"
    date = "<LastModified>2026-01-01T00:00:00Z</LastModified>"
    found = f"<Contents><Key>{prefix}/{key}</Key>{date}<Size>1</Size></Contents>"

    def fault(path: str, answer: Answer) -> None:
        if "list-type" in path and "m%2F" not in path:
            more = folder if "delimiter" in path else found
            answer.content = answer.content.replace(b"</ListBucketResult>", f"{more}</ListBucketResult>".encode())

    async with opened(proxy.host, prefix, tmp_path) as source:
        scan = await scan_of(source)
        proxy.fault = fault
        for _ in range(2):
            assert await source.list_models() == [scan.location]
            assert await source.fingerprints([scan.location]) == [scan.fingerprint]
        affine(s3, prefix, "m", 3)
        assert await source.fingerprints(await source.list_models()) != [scan.fingerprint], "what is known is followed"
        assert not (await scan_of(source)).error
        s3.delete(f"{prefix}/m/")
        assert await source.fingerprints(await source.list_models()) == [None]
    assert caplog.text.count("new models are not detected") == 1
    assert "is not a file path" in caplog.text
    async with opened(proxy.host, prefix, tmp_path / "2") as source:
        with pytest.raises(Unavailable, match="is not a file path"):
            await source.list_models()


def answering(content: bytes) -> Fault:
    """All requests are answered with this, as by a proxy on the way that has a page to show."""

    def fault(path: str, answer: Answer) -> None:
        answer.status, answer.content = 200, content

    return fault


async def test_an_answer_that_is_no_listing_removes_no_model(
    s3: S3Server, proxy: FaultyProxy, prefix: str, tmp_path: Path
) -> None:
    affine(s3, prefix, "m", 2)
    async with opened(proxy.host, prefix, tmp_path) as source:
        scan = await scan_of(source)
        for page in (b"<html>Welcome!</html>", b"", b"{}"):
            proxy.fault = answering(page)
            assert await source.list_models() == [scan.location], page
            assert await source.fingerprints([scan.location]) == [scan.fingerprint], page
            assert not (await source.scan(scan.location, config_name="")).error, page  # type: ignore[union-attr]
            proxy.fault = None
            await source.list_models()
            proxy.fault = answering(page)  # only now
            assert await source.fingerprints([scan.location]) == [scan.fingerprint], page
            proxy.fault = None
            await source.list_models()
            proxy.fault = answering(page)
            assert await source.scan(scan.location, config_name="") is not None, page
            proxy.fault = None
        assert await source.list_models() == [scan.location]
        s3.delete(f"{prefix}/m/")
        assert await source.list_models() == [], "but it is believed when the objects are gone"
    proxy.fault = answering(b"{}")
    async with opened(proxy.host, prefix, tmp_path / "2") as source:
        with pytest.raises(Unavailable, match="the endpoint did not answer with a listing: check"):
            await source.list_models()


async def test_a_provider_without_etags(s3: S3Server, proxy: FaultyProxy, prefix: str, tmp_path: Path) -> None:
    affine(s3, prefix, "m", 2)

    def fault(path: str, answer: Answer) -> None:
        answer.content = re.sub(rb"<ETag>[^<]*</ETag>", b"", answer.content)

    proxy.fault = fault
    async with opened(proxy.host, prefix, tmp_path) as source:
        scan = await scan_of(source)
    assert not scan.error
    assert (scan.directory / "1/model.onnx").read_bytes() == onnx_models.affine(2, 0)


async def test_a_listing_without_an_end(
    s3: S3Server, proxy: FaultyProxy, prefix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "MODEL_FILES_MAX", 1500)
    affine(s3, prefix, "m", 2)
    pages: list[str] = []

    def fault(path: str, answer: Answer) -> None:
        if "list-type" in path and "m%2F" in path:
            pages.append(path)
            more = f"<IsTruncated>true</IsTruncated><NextContinuationToken>{len(pages)}</NextContinuationToken>"
            date = "<LastModified>2026-01-01T00:00:00Z</LastModified>"
            keys = (f"{prefix}/m/{len(pages)}/{number}" for number in range(1000))
            objects = "".join(f"<Contents><Key>{key}</Key>{date}<Size>1</Size></Contents>" for key in keys)
            answer.status = 200
            answer.content = f"<ListBucketResult>{more}{objects}</ListBucketResult>".encode()

    proxy.fault = fault
    async with opened(proxy.host, prefix, tmp_path) as source:
        assert "there are more than 1500 objects" in (await scan_of(source)).error
    assert len(pages) < 10


async def test_tls_with_an_authority_of_ones_own(
    s3: S3Server, prefix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    affine(s3, prefix, "m", 2)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(CERTIFICATES / "server.pem", CERTIFICATES / "server.key")
    with FaultyProxy(s3.host, context) as proxy:
        host = f"https://{proxy.host}"
        async with opened(host, prefix, tmp_path, start_ns=5 * NS_PER_S) as source:
            with pytest.raises(
                Unavailable, match=r"TLS with https://.* failed: .* set SSL_CERT_FILE to trust your own authority"
            ):
                await source.list_models()
        monkeypatch.setenv("SSL_CERT_FILE", str(CERTIFICATES / "ca.pem"))
        async with opened(host, prefix, tmp_path) as source:
            assert not (await scan_of(source)).error


async def test_a_redirect_does_not_lead_out_of_tls(
    s3: S3Server, prefix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def redirect(path: str, answer: Answer) -> None:
        answer.status, answer.headers["Location"] = 307, f"http://{elsewhere.host}{path}"

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(CERTIFICATES / "server.pem", CERTIFICATES / "server.key")
    monkeypatch.setenv("SSL_CERT_FILE", str(CERTIFICATES / "ca.pem"))
    with FaultyProxy(s3.host, context) as proxy, FaultyProxy(s3.host) as elsewhere:
        proxy.fault = redirect
        async with opened(f"https://{proxy.host}", prefix, tmp_path) as source:
            with pytest.raises(Unavailable, match=r"https://.* redirects to an address without TLS, which is not followed"):
                await source.list_models()
        assert elsewhere.requests == []


async def test_a_public_bucket_needs_no_credentials(s3: S3Server, prefix: str, tmp_path: Path) -> None:
    affine(s3, prefix, "m", 2)
    s3.publish(f"{prefix}/m/")
    async with opened(s3.host, prefix, tmp_path, environment=HiddenEnvironment({})) as source:
        assert not (await scan_of(source)).error


async def test_some_providers_list_etags_without_quotes(s3: S3Server, proxy: FaultyProxy, prefix: str, tmp_path: Path) -> None:
    affine(s3, prefix, "m", 2)

    def fault(path: str, answer: Answer) -> None:
        answer.content = re.sub(rb"<ETag>[^<]*?([0-9a-f]{32})[^<]*</ETag>", rb"<ETag>\1</ETag>", answer.content)

    proxy.fault = fault
    async with opened(proxy.host, prefix, tmp_path) as source:
        assert not (await scan_of(source)).error


async def test_the_log_tells_the_latest_cause_once(
    s3: S3Server, proxy: FaultyProxy, prefix: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    affine(s3, prefix, "m", 2)
    async with opened(proxy.host, prefix, tmp_path) as source:
        await scan_of(source)
        for code in ("AccessDenied", "AccessDenied", "ExpiredToken", "ExpiredToken"):
            proxy.fault = refuse(403, code)
            await source.list_models()
        proxy.fault = None
        await source.list_models()
        proxy.fault = refuse(403, "ExpiredToken")
        await source.list_models()
    told = [record.getMessage() for record in caplog.records if "served models stay loaded" in record.getMessage()]
    assert [re.findall("AccessDenied|ExpiredToken", line) for line in told] == [
        ["AccessDenied"],
        ["ExpiredToken"],
        ["ExpiredToken"],
    ]


def _of_many(count: int) -> Fault:
    """A bucket with one model of so many objects."""

    def fault(path: str, answer: Answer) -> None:
        query = parse_qs(urlsplit(path).query)
        prefix = query["prefix"][0]
        if "delimiter" in query:
            found, more = f"<CommonPrefixes><Prefix>{prefix}m/</Prefix></CommonPrefixes>", ""
        else:
            begin = int(query.get("continuation-token", ["0"])[0])
            end, model = min(begin + 1000, count), prefix if prefix.endswith("/m/") else f"{prefix}m/"
            kept = "<Size>9</Size><ETag>&quot;0123456789abcdef&quot;</ETag><LastModified>2025-01-01T00:00:00.000Z</LastModified>"
            keys = [f"{model}1/{number:06d}" for number in range(begin, end)]
            found = "".join(f"<Contents><Key>{key}</Key>{kept}</Contents>" for key in keys)
            more = f"<NextContinuationToken>{end}</NextContinuationToken>" if end < count else ""
        is_cut = "true" if more else "false"
        answer.status, answer.headers = 200, {"Content-Type": "application/xml"}
        answer.content = f"<ListBucketResult><IsTruncated>{is_cut}</IsTruncated>{more}{found}</ListBucketResult>".encode()

    return fault


async def test_a_model_of_many_objects_holds_up_nobody(
    proxy: FaultyProxy, prefix: str, tmp_path: Path, loop_guard: LoopGuard
) -> None:
    """Its listing, its fingerprint, and all of its scan but the downloads, for which there is no room."""
    count = 90_000
    proxy.fault = _of_many(count)
    async with opened(proxy.host, prefix, tmp_path, bytes_max=1) as source:
        (location,) = await source.list_models()
        (fingerprint,) = await source.fingerprints([location])
        assert fingerprint is not None
        assert len(fingerprint.stat_keys) == count
        scan = await source.scan(location, config_name="")
        assert scan is not None
        assert f"its {9 * count} bytes do not fit" in scan.error
