"""Repositories in the cloud, on a real server of S3's protocol: 50 models in all modes, changes, faults, restarts without it."""

from __future__ import annotations

import os
import re
import signal
import urllib.request
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest
from tritonclient.http import InferenceServerClient, InferenceServerException

from tests.backends import onnx_models
from tests.cloud_servers import BUCKET, KEYS, Answer, FaultyProxy, S3Server, refuse
from tpy.clock import SystemClock
from tpy.errors import Unavailable
from tpy_control.address import CloudAddress, parse_address
from tpy_control.core.scan import ModelLocation, ModelScan
from tpy_control.sources import CloudEnvironment, CloudOptions, CloudSource

from .repositories import AFFINE_CONFIG, IDENTITY_PAIR, ModelFolder
from .server import ServerProcess, run_tpy
from .test_poll import scaled
from .waiting import wait_until

IDENTITY = f'backend: "identity"\nmax_batch_size: 8\n{IDENTITY_PAIR}'
SECRETS = tuple(KEYS.values())[:2]


@pytest.fixture(scope="module")
def s3() -> Iterator[S3Server]:
    with S3Server() as server:
        yield server


@pytest.fixture
def proxy(s3: S3Server) -> Iterator[FaultyProxy]:
    with FaultyProxy(s3.host) as proxy:
        yield proxy


@pytest.fixture
def prefix(request: pytest.FixtureRequest) -> str:
    """The path of this test's repository in the bucket."""
    return f"of/{abs(hash(request.node.nodeid))}"


def affine(s3: S3Server, prefix: str, name: str, scale: float, version: int = 1) -> None:
    """A model that multiplies."""
    s3.put(f"{prefix}/{name}/{version}/model.onnx", onnx_models.affine(scale, 0))
    s3.put(f"{prefix}/{name}/config.pbtxt", AFFINE_CONFIG)


def address(host: str, prefix: str) -> str:
    return f"s3://{host}/{BUCKET}/{prefix}"


def serve(*flags: str, expect_exit: int = 0, environment: dict[str, str] | None = None) -> ServerProcess:
    return ServerProcess(*flags, expect_exit=expect_exit, environment=environment or KEYS)


def ready(server: ServerProcess) -> set[str]:
    with InferenceServerClient(server.http) as client:
        return {entry["name"] for entry in client.get_model_repository_index() if entry.get("state") == "READY"}


def metric(server: ServerProcess, name: str) -> float:
    with urllib.request.urlopen(f"http://{server.metrics}/metrics") as answer:
        lines = answer.read().decode().splitlines()
    return float(next(line for line in lines if line.startswith(f"{name}{{")).rpartition(" ")[2])


@pytest.fixture(scope="module")
def fifty(s3: S3Server) -> str:
    """The prefix of a repository of 50 models."""
    for number in range(50):
        s3.put(f"fifty/m{number:02}/config.pbtxt", IDENTITY)
        s3.put(f"fifty/m{number:02}/1/weights.bin", bytes([number]) * 1000)
    return "fifty"


def test_fifty_models_in_mode_poll_then_without_the_cloud(s3: S3Server, proxy: FaultyProxy, fifty: str, tmp_path: Path) -> None:
    names = {f"m{number:02}" for number in range(50)}
    flags = (f"--model-repository={address(proxy.host, fifty)}", f"--repository-cache={tmp_path / 'cache'}")
    poll = ("--model-control-mode=poll", "--repository-poll-secs=1", "--repository-settle-ms=200")
    disk = ModelFolder(tmp_path / "disk", "local").identity()
    with serve(*flags, *poll, f"--model-repository={tmp_path / 'disk'}") as server:
        assert ready(server) == {*names, "local"}
        del proxy.requests[:]
        affine(s3, fifty, "new", 3)
        with InferenceServerClient(server.http) as client:
            wait_until(lambda: scaled(client, "new") == 3)
            affine(s3, fifty, "new", 4)  # the configuration is written again, too, with the same content
            wait_until(lambda: scaled(client, "new") == 4)
        fetched = [path for path in proxy.requests if "list-type" not in path]
        assert len(fetched) == 3, "what has changed was downloaded, and nothing else"
        s3.delete(f"{fifty}/new/")
        wait_until(lambda: ready(server) == {*names, "local"})

        # The cloud goes away, and comes back.
        proxy.fault = refuse(503, "SlowDown")
        server.wait_log("served models go on: .*503 SlowDown")
        assert metric(server, "tpy_repository_reachable") == 0
        disk.file("1/touched", "changes on a disk are followed meanwhile")
        ModelFolder(tmp_path / "disk", "later").identity()
        wait_until(lambda: "later" in ready(server))
        assert ready(server) == {*names, "local", "later"}
        proxy.fault = None
        server.wait_log("can be read again")
        assert server.log.count("served models go on") == 1
    assert not any(secret in server.log for secret in SECRETS)

    proxy.fault = refuse(503, "SlowDown")
    with serve(*flags) as server:
        assert ready(server) == names
    with serve(*flags, "--model-control-mode=explicit", "--load-model=m07") as server:
        assert ready(server) == {"m07"}
        with InferenceServerClient(server.http) as client:
            client.load_model("m08")
            assert ready(server) == {"m07", "m08"}


def test_mode_explicit_fetches_what_is_loaded_and_gives_it_back(
    s3: S3Server, proxy: FaultyProxy, fifty: str, tmp_path: Path
) -> None:
    environment = {**KEYS, "TMPDIR": str(tmp_path)}
    with (
        serve(
            f"--model-repository={address(proxy.host, fifty)}", "--model-control-mode=explicit", environment=environment
        ) as server,
        InferenceServerClient(server.http) as client,
    ):
        assert len(client.get_model_repository_index()) >= 50
        assert not any("m17/" in path for path in proxy.requests)
        client.load_model("m17")
        copies = list(tmp_path.glob("tpy-repository-*/*/models/*"))
        assert [path.name for path in copies] == ["m17"]
        assert not [path for path in proxy.requests if "m18" in path]
        client.unload_model("m17")
        wait_until(lambda: not copies[0].exists())
        client.load_model("m17")  # and again
        assert client.is_model_ready("m17")
        with pytest.raises(InferenceServerException, match="model not found"):
            client.load_model("nosuch")
    assert not list(tmp_path.glob("tpy-repository-*")), "nothing is left behind"


def test_python_models_and_backends_of_a_repository(s3: S3Server, prefix: str) -> None:
    model = "class TritonPythonModel:\n    def execute(self, requests):\n        return [None for _ in requests]\n"
    s3.put(f"{prefix}/backends/mine/model.py", model)
    s3.put(f"{prefix}/m/config.pbtxt", IDENTITY.replace('"identity"', '"mine"'))
    s3.put(f"{prefix}/m/1/data", "x")
    with serve(f"--model-repository={address(s3.host, prefix)}") as server:
        assert ready(server) == {"m"}


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


def test_a_start_that_cannot_be(proxy: FaultyProxy, prefix: str) -> None:
    proxy.hangs.set()
    flags = (f"--model-repository={address(proxy.host, prefix)}", "--repository-start-secs=1", "--exit-on-error=false")
    with serve(*flags) as server, InferenceServerClient(server.http) as client:
        assert not client.is_server_live()
        assert not client.is_server_ready()


def test_a_server_stops_while_the_cloud_hangs(s3: S3Server, proxy: FaultyProxy, prefix: str) -> None:
    affine(s3, prefix, "m", 2)
    flags = (f"--model-repository={address(proxy.host, prefix)}", "--model-control-mode=poll", "--repository-poll-secs=1")
    with serve(*flags) as server, InferenceServerClient(server.http) as client:
        proxy.hangs.set()
        count = len(proxy.requests)
        wait_until(lambda: len(proxy.requests) > count)
        assert scaled(client, "m") == 2
        assert server.stop(signal.SIGTERM) == 0


def test_check_reads_a_repository_in_the_cloud(s3: S3Server, prefix: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in KEYS.items():
        monkeypatch.setenv(name, value)
    s3.put(f"{prefix}/bad/config.pbtxt", 'backend: "identity"\nmax_batch_size: many')
    s3.put(f"{prefix}/bad/1/x", "x")
    outcome = run_tpy("check", address(s3.host, prefix))
    assert outcome.code == 1
    assert f"{address(s3.host, prefix)}/bad/config.pbtxt:2" in outcome.out


# The source alone, with the same server.


@asynccontextmanager
async def opened(host: str, prefix: str, tmp_path: Path, **more: object) -> AsyncIterator[CloudSource]:
    parsed = parse_address(address(host, prefix))
    assert isinstance(parsed, CloudAddress)
    options = CloudOptions(directory=tmp_path / "cache", keep=True, start_ns=0, environment=CloudEnvironment(KEYS))
    source = CloudSource([parsed], msgspec.structs.replace(options, **more), SystemClock())
    try:
        yield source
    finally:
        await source.aclose()


async def scan_of(source: CloudSource, name: str = "m") -> ModelScan:
    locations = {location.name: location for location in await source.list_models()}
    scan = await source.scan(locations[name], config_name="")
    assert scan is not None
    return scan


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
        (_tamper, "the MD5 of what came is [0-9a-f]{32}, that of the object [0-9a-f]{32}"),
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


async def test_a_copy_that_was_touched_is_fetched_again_after_a_restart(s3: S3Server, prefix: str, tmp_path: Path) -> None:
    affine(s3, prefix, "m", 2)
    async with opened(s3.host, prefix, tmp_path) as source:
        directory = (await scan_of(source)).directory
    good = (directory / "1/model.onnx").read_bytes()
    (directory / "1/model.onnx").write_bytes(bytes(len(good)))
    (directory / "1/planted.py").write_text("not of the repository")
    async with opened(s3.host, prefix, tmp_path) as source:
        await scan_of(source)
        assert (directory / "1/model.onnx").read_bytes() == good
        assert not (directory / "1/planted.py").exists()


async def test_two_servers_do_not_share_a_directory(s3: S3Server, prefix: str, tmp_path: Path) -> None:
    affine(s3, prefix, "m", 2)
    async with opened(s3.host, prefix, tmp_path) as source, opened(s3.host, prefix, tmp_path) as other:
        await source.list_models()
        with pytest.raises(Unavailable, match="is used by another server"):
            await other.list_models()


async def test_the_copies_have_no_more_bytes_than_they_may(s3: S3Server, prefix: str, tmp_path: Path) -> None:
    for name in ("a", "b", "c"):
        s3.put(f"{prefix}/{name}/1/data", os.urandom(1000))
    async with opened(s3.host, prefix, tmp_path, bytes_max=2500) as source:
        scans = {name: await scan_of(source, name) for name in ("a", "b")}
        source.prepared(scans["a"].directory, is_used=False)
        source.prepared(scans["b"].directory, is_used=True)
        assert not (await scan_of(source, "c")).error
        assert not scans["a"].directory.exists(), "the one that is not used made room"
        refused = await scan_of(source, "a")
        assert "do not fit" in refused.error
        assert "--repository-cache-byte-size" in refused.error


async def test_a_key_that_is_no_path_hides_no_other_model(s3: S3Server, prefix: str, tmp_path: Path) -> None:
    affine(s3, prefix, "good", 2)
    s3.put(f"{prefix}/bad/1/../../../evil", "x")
    async with opened(s3.host, prefix, tmp_path) as source:
        assert not (await scan_of(source, "good")).error
        await source.list_models()
        location = ModelLocation(address(s3.host, prefix), "good")
        assert (await source.fingerprints([location]))[0] == (await scan_of(source, "good")).fingerprint


async def test_a_public_bucket_needs_no_credentials(s3: S3Server, prefix: str, tmp_path: Path) -> None:
    affine(s3, prefix, "m", 2)
    s3.publish(f"{prefix}/m/")
    async with opened(s3.host, prefix, tmp_path, environment=CloudEnvironment({})) as source:
        assert not (await scan_of(source)).error


async def test_some_providers_list_etags_without_quotes(s3: S3Server, proxy: FaultyProxy, prefix: str, tmp_path: Path) -> None:
    affine(s3, prefix, "m", 2)

    def fault(path: str, answer: Answer) -> None:
        answer.content = re.sub(rb"<ETag>[^<]*?([0-9a-f]{32})[^<]*</ETag>", rb"<ETag>\1</ETag>", answer.content)

    proxy.fault = fault
    async with opened(proxy.host, prefix, tmp_path) as source:
        assert not (await scan_of(source)).error
