"""TLS on all ports, with stock clients; wrong files are one line before any port opens."""

from __future__ import annotations

import asyncio
import ssl
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.grpc.aio
import tritonclient.http
import tritonclient.http.aio

from .repositories import AFFINE_CONFIG, ModelFolder
from .server import ServerProcess, run_tpy

CERTIFICATES = Path(__file__).parents[1] / "frontends" / "grpc" / "transport" / "certificates"
SERVER = ("server-cert", "server.pem"), ("server-key", "server.key")


def tls(prefix: str, *, mutual: bool) -> list[str]:
    """The flags of one port."""
    files = [f"--{prefix}-{flag}={CERTIFICATES / name}" for flag, name in (*SERVER, ("root-cert", "ca.pem"))]
    return [f"--{prefix}-use-ssl=true", f"--{prefix}-use-ssl-mutual={str(mutual).lower()}", *files]


@pytest.fixture(scope="module", params=[0, 1], ids=["one process", "frontend process"])
def secured(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server whose ports all demand a certificate."""
    repository = tmp_path_factory.mktemp("secured")
    ModelFolder(repository, "m").config(AFFINE_CONFIG).affine(1, 2)
    flags = [flag for prefix in ("http", "grpc", "metrics") for flag in tls(prefix, mutual=True)]
    flags += ["--http-tls-minimum-version=1.3", f"--frontend-processes={request.param}"]
    with ServerProcess(*flags, repositories=[repository]) as server:
        yield server


def context(client: str = "client") -> ssl.SSLContext:
    made = ssl.create_default_context(cafile=CERTIFICATES / "ca.pem")
    made.check_hostname = False
    if client:
        made.load_cert_chain(CERTIFICATES / f"{client}.pem", CERTIFICATES / f"{client}.key")
    return made


def test_stock_clients_over_mutual_tls(secured: ServerProcess) -> None:
    for module, url in ((tritonclient.http, secured.http), (tritonclient.grpc, secured.grpc)):
        tensor = module.InferInput("INPUT", [1, 3], "FP32")
        tensor.set_data_from_numpy(np.array([[1, 2, 3]], np.float32))
        files = {name: str(CERTIFICATES / name) for name in ("ca.pem", "client.key", "client.pem")}
        if module is tritonclient.http:
            client = module.InferenceServerClient(url, ssl=True, ssl_context_factory=context, insecure=True)
        else:
            client = module.InferenceServerClient(
                f"localhost:{url.rpartition(':')[2]}",
                ssl=True,
                root_certificates=files["ca.pem"],
                private_key=files["client.key"],
                certificate_chain=files["client.pem"],
            )
        with client:
            assert client.is_server_ready()
            assert client.infer("m", [tensor]).as_numpy("OUTPUT").tolist() == [[2, 4, 6]]


def test_asyncio_clients_over_mutual_tls(secured: ServerProcess) -> None:
    async def use() -> None:
        async with tritonclient.http.aio.InferenceServerClient(secured.http, ssl=True, ssl_context=context()) as over_http:
            assert await over_http.is_model_ready("m")
        over_grpc = tritonclient.grpc.aio.InferenceServerClient(
            f"localhost:{secured.grpc.rpartition(':')[2]}",
            ssl=True,
            root_certificates=str(CERTIFICATES / "ca.pem"),
            private_key=str(CERTIFICATES / "client.key"),
            certificate_chain=str(CERTIFICATES / "client.pem"),
        )
        async with over_grpc:
            assert await over_grpc.is_model_ready("m")

    asyncio.run(use())


def test_metrics_over_mutual_tls(secured: ServerProcess) -> None:
    with urllib.request.urlopen(f"https://{secured.metrics}/metrics", context=context()) as page:
        assert b"nv_inference_request_success" in page.read()


@pytest.mark.parametrize("client", ["", "stranger"])
def test_clients_without_the_right_certificate_or_version_get_nothing(secured: ServerProcess, client: str) -> None:
    for address in (secured.http, secured.metrics):
        for scheme in ("https", "http"):
            with pytest.raises(OSError):  # noqa: PT011  # the alert, or a reset, whichever comes first
                urllib.request.urlopen(f"{scheme}://{address}/v2", context=context(client), timeout=10)
    older = context()
    older.maximum_version = ssl.TLSVersion.TLSv1_2
    with pytest.raises(OSError):  # noqa: PT011  # the same
        urllib.request.urlopen(f"https://{secured.http}/v2", context=older, timeout=10)


def test_wrong_files_are_said_before_any_port_opens(tmp_path: Path) -> None:
    flags = ["--metrics-use-ssl=true", f"--metrics-server-cert={CERTIFICATES}/server.pem", "--metrics-server-key=/none/key.pem"]
    ended = run_tpy("serve", f"--model-repository={tmp_path}", "--http-port=0", *flags)
    assert ended.code == 1
    assert ended.err == (
        "tpy: error: --metrics-server-key: cannot read '/none/key.pem': No such file or directory; "
        "expected a private key in PEM\n"
    )
