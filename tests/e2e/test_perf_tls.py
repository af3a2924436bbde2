"""`tpy perf` over TLS, with perf_analyzer's flags: trust, certificates of the client, and what is refused."""

from __future__ import annotations

import ssl
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from .perf_runs import refused, results_of, run_perf
from .repositories import AFFINE_CONFIG, ModelFolder
from .server import ServerProcess
from .test_access import CERTIFICATES, tls

CA = str(CERTIFICATES / "ca.pem")
TRUST = {"http": "--ssl-https-ca-certificates-file", "grpc": "--ssl-grpc-root-certifications-file"}
OWN = {
    "http": ("--ssl-https-client-certificate-file", "--ssl-https-private-key-file"),
    "grpc": ("--ssl-grpc-certificate-chain-file", "--ssl-grpc-private-key-file"),
}


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server whose ports all demand a certificate."""
    repository = tmp_path_factory.mktemp("secured")
    ModelFolder(repository, "m").config(AFFINE_CONFIG).affine(1, 2)
    flags = [flag for prefix in ("http", "grpc", "metrics") for flag in tls(prefix, mutual=True)]
    with ServerProcess(*flags, repositories=[repository]) as server:
        yield server


def address(server: ServerProcess, protocol: str) -> list[str]:
    """The flags of the server's port: the certificate is for localhost."""
    port = (server.http if protocol == "http" else server.grpc).rpartition(":")[2]
    use = ["--ssl"] if protocol == "http" else ["--ssl-grpc-use-ssl", "true"]
    return ["-m", "m", "-i", protocol, "-u", f"localhost:{port}", *use, "--shape", "INPUT:3", "--request-count", "10"]


def own(protocol: str, certificate: Path, key: Path) -> list[str]:
    """The flags of the client's certificate."""
    return [OWN[protocol][0], str(certificate), OWN[protocol][1], str(key)]


@pytest.mark.parametrize(("protocol", "streaming"), [("http", ()), ("grpc", ()), ("grpc", ("--streaming",))])
def test_a_server_that_demands_a_certificate(secured: ServerProcess, protocol: str, streaming: Sequence[str]) -> None:
    client = own(protocol, CERTIFICATES / "client.pem", CERTIFICATES / "client.key")
    arguments = [*address(secured, protocol), *streaming, TRUST[protocol], CA, *client, "--processes", "2", "--concurrency", "2"]
    (result,) = results_of(*arguments)
    assert (result["requests"], result["errors"]) == (10, {})
    assert result["server_statistics"]["inferences"] == 10


def test_a_certificate_in_der(secured: ServerProcess, tmp_path: Path) -> None:
    certificate, key = tmp_path / "client.der", tmp_path / "key.der"
    certificate.write_bytes(ssl.PEM_cert_to_DER_cert((CERTIFICATES / "client.pem").read_text()))
    convert = ["openssl", "pkcs8", "-topk8", "-nocrypt", "-in", str(CERTIFICATES / "client.key"), "-outform", "DER"]
    subprocess.run([*convert, "-out", str(key)], check=True)
    kinds = ["--ssl-https-client-certificate-type", "DER", "--ssl-https-private-key-type", "DER"]
    (result,) = results_of(*address(secured, "http"), TRUST["http"], CA, *own("http", certificate, key), *kinds)
    assert (result["requests"], result["errors"]) == (10, {})
    said = refused(*address(secured, "http"), TRUST["http"], CA, *own("http", certificate, key))
    assert "the files of --ssl cannot be used: " in said


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_a_server_that_is_not_trusted_gets_nothing(secured: ServerProcess, protocol: str) -> None:
    client = own(protocol, CERTIFICATES / "client.pem", CERTIFICATES / "client.key")
    said = refused(*address(secured, protocol), *client)
    assert "CERTIFICATE_VERIFY_FAILED" in said
    (result,) = results_of(*address(secured, protocol), *client, "--ssl-https-verify-peer", "0")
    assert result["requests"] == 10


def test_the_name_is_verified_apart(secured: ServerProcess) -> None:
    """127.1 is 127.0.0.1 to the resolver, and a name that the certificate does not have."""
    client = own("http", CERTIFICATES / "client.pem", CERTIFICATES / "client.key")
    arguments = [*address(secured, "http"), TRUST["http"], CA, *client]
    arguments[arguments.index("-u") + 1] = f"127.1:{secured.http.rpartition(':')[2]}"
    assert "CERTIFICATE_VERIFY_FAILED" in refused(*arguments)
    assert results_of(*arguments, "--ssl-https-verify-host", "0")[0]["requests"] == 10


def test_metrics_over_tls(secured: ServerProcess) -> None:
    client = own("http", CERTIFICATES / "client.pem", CERTIFICATES / "client.key")
    page = f"https://localhost:{secured.metrics.rpartition(':')[2]}/metrics"
    outcome = run_perf(*address(secured, "http"), TRUST["http"], CA, *client, "--collect-metrics", "--metrics-url", page)
    assert outcome.code == 0
    assert "the metrics page shows no GPUs" in outcome.err
