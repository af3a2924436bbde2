"""TLS of a port: what is wrong with its files is said in one line, and files that change are read again."""

from __future__ import annotations

import datetime
import os
import shutil
import ssl
import subprocess
from pathlib import Path

import pytest
import trio
import trio.testing
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from tpy.errors import InvalidArgument
from tpy.flag import Value
from tpy.frontends.core.certificate import validity
from tpy.frontends.tls_flags import read_tls, tls_flags, unused_tls_files
from tpy.frontends.transport import TlsOptions
from tpy.frontends.transport.tls import ServerTls, tls_context
from tpy.limits import TLS_FILES_LOOK_S

CERTIFICATES = Path(__file__).parents[1] / "grpc" / "transport" / "certificates"


def values(**given: Value) -> dict[str, Value]:
    """The values of all flags of a port's TLS."""
    flags: dict[str, Value] = {flag.field: flag.default for flag in tls_flags("HTTP", "http")}
    good: dict[str, Value] = {
        "http_use_ssl": True,
        "http_server_cert": str(CERTIFICATES / "server.pem"),
        "http_server_key": str(CERTIFICATES / "server.key"),
    }
    return {**flags, **good, **given}


def test_flags_become_options() -> None:
    assert read_tls(values(http_use_ssl=False), "HTTP") is None
    options = read_tls(values(http_tls_minimum_version="1.3", http_tls_ciphers="ECDHE+AESGCM"), "HTTP")
    assert options is not None
    context = tls_context(options, port="HTTP", alpn=())
    assert context.minimum_version is ssl.TLSVersion.TLSv1_3
    assert {cipher["name"] for cipher in context.get_ciphers() if cipher["protocol"] == "TLSv1.2"} <= {
        "ECDHE-ECDSA-AES256-GCM-SHA384",
        "ECDHE-RSA-AES256-GCM-SHA384",
        "ECDHE-ECDSA-AES128-GCM-SHA256",
        "ECDHE-RSA-AES128-GCM-SHA256",
    }


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        ({"http_use_ssl": False, "http_use_ssl_mutual": True}, r"--http-use-ssl-mutual: .*--http-use-ssl"),
        ({"http_server_cert": ""}, r"both .*--http-server-cert, --http-server-key"),
        ({"http_use_ssl_mutual": True}, r"--http-root-cert"),
        ({"http_server_cert": "/none"}, r"--http-server-cert: cannot read '/none': No such file .*expected a certificate in PEM"),
        ({"http_server_cert": "/"}, r"--http-server-cert: cannot read '/': Is a directory"),
        ({"http_server_key": str(CERTIFICATES / "server.pem")}, r"--http-server-key: expected a private key in PEM"),
        ({"http_server_key": str(CERTIFICATES / "stranger.key")}, r"--http-server-key: .*does not belong to the certificate in"),
        ({"http_root_cert": str(CERTIFICATES / "server.key")}, r"--http-root-cert: expected a certificate in PEM"),
        ({"http_tls_ciphers": "ROT13"}, r"--http-tls-ciphers: expected ciphers of TLS 1.2 .*'ROT13'"),
    ],
)
def test_wrong_files_are_one_line(given: dict[str, Value], complaint: str) -> None:
    with pytest.raises(InvalidArgument, match=complaint) as refused:
        read_tls(values(**given), "HTTP")
    assert "\n" not in refused.value.message


def certificate(folder: Path, *years: int) -> TlsOptions:
    """The files of a certificate that is valid between two years."""
    key, name = ec.generate_private_key(ec.SECP256R1()), x509.Name([])
    begin, end = (datetime.datetime(year, 1, 2, 3, 4, 5) for year in years)
    made = x509.CertificateBuilder(name, name, key.public_key(), 1, begin, end).sign(key, hashes.SHA256())
    form = serialization.PrivateFormat.PKCS8
    (folder / "own.pem").write_bytes(made.public_bytes(serialization.Encoding.PEM))
    (folder / "own.key").write_bytes(key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption()))
    return TlsOptions(certificate_file=str(folder / "own.pem"), key_file=str(folder / "own.key"))


@pytest.mark.parametrize("years", [(1960, 1970), (2020, 2021), (2001, 2099), (2090, 2100)])
def test_a_certificate_that_is_not_valid_now_is_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, years: tuple[int, int]
) -> None:
    """Both forms of a time: with two digits of the year up to 2049, with four from then on."""
    options = certificate(tmp_path, *years)
    times = validity(Path(options.certificate_file).read_bytes())
    assert times is not None
    assert [f"{each:%Y-%m-%dT%H:%M:%S%z}" for each in times] == [f"{year}-01-02T03:04:05+0000" for year in years]
    ServerTls(options, port="HTTP", alpn=())
    warned = (
        f"--http-server-cert: the certificate in '{options.certificate_file}' is valid from {years[0]}-01-02 to {years[1]}-01-02"
    )
    assert (warned in caplog.text) == (years != (2001, 2099))


@pytest.mark.parametrize("content", [b"", *(b"-----BEGIN CERTIFICATE-----\n" + each + b"\n-----END" for each in (b"MIIB", b"="))])
def test_a_certificate_without_times(content: bytes) -> None:
    assert validity(content) is None


def test_files_of_tls_that_is_not_switched_on_are_a_warning() -> None:
    (warning,) = unused_tls_files(values(http_use_ssl=False))
    assert warning.startswith("--http-server-cert, --http-server-key: without --http-use-ssl=true ")
    assert not [*unused_tls_files(values())]
    assert not [*unused_tls_files(values(http_use_ssl=False, http_server_cert="", http_server_key=""))]


def test_a_certificate_that_is_broken_inside(tmp_path: Path) -> None:
    broken = tmp_path / "server.pem"
    broken.write_text("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n")
    with pytest.raises(InvalidArgument, match=r"--http-server-cert, --http-server-key: .*OpenSSL cannot use them"):
        read_tls(values(http_server_cert=str(broken)), "HTTP")


def test_a_key_with_a_password_is_refused_without_asking(tmp_path: Path) -> None:
    """OpenSSL would ask at the terminal, where nobody may be."""
    key = tmp_path / "locked.key"
    command = ["openssl", "pkey", "-in", str(CERTIFICATES / "server.key"), "-aes256", "-passout", "pass:x", "-out", str(key)]
    subprocess.run(command, check=True, capture_output=True)
    with pytest.raises(InvalidArgument, match=r"--http-server-key: .*protected by a password"):
        read_tls(values(http_server_key=str(key)), "HTTP")


async def test_files_that_change_are_read_again(tmp_path: Path, mock_clock: trio.testing.MockClock) -> None:
    """Also one after the other, and through a link that is moved, as Kubernetes does. Until they fit the old ones are used."""
    certificate, key = tmp_path / "tls.pem", tmp_path / "tls.key"

    def install(name: str, *paths: Path) -> None:
        for path in paths:
            new = path.with_suffix(".new")
            shutil.copy(CERTIFICATES / f"{name}{path.suffix}", new)
            new.rename(path)

    install("server", certificate, key)
    tls = ServerTls(TlsOptions(certificate_file=str(certificate), key_file=str(key)), port="HTTP", alpn=())
    first = tls.context
    looks = 0
    fingerprint = tls.fingerprint

    def counted() -> tuple[tuple[int, ...], ...]:
        nonlocal looks
        looks += 1
        return fingerprint()

    tls.fingerprint = counted  # type: ignore[method-assign]  # to know when it has looked

    async def look() -> None:
        # A look is counted when it begins, and one that finds a change once more: with the third one the first has ended.
        enough = looks + 3
        while looks < enough:
            mock_clock.jump(TLS_FILES_LOOK_S + 0.01)
            await trio.to_thread.run_sync(os.getpid)
        await trio.testing.wait_all_tasks_blocked(0)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(tls.follow_files)
        await trio.testing.wait_all_tasks_blocked(0)
        await look()
        assert tls.context is first
        install("stranger", certificate)
        await look()
        assert tls.context is first
        whole = (CERTIFICATES / "stranger.pem").read_bytes()
        certificate.write_bytes(whole[: len(whole) // 2])
        await look()
        assert tls.context is first, "half of a file that is being written"
        certificate.write_bytes(whole)
        install("stranger", key)
        await look()
        assert tls.context is not first
        second = tls.context
        certificate.unlink()
        await look()
        assert tls.context is second
        nursery.cancel_scope.cancel()
