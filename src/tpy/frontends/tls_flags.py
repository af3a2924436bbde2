"""The flags of TLS, alike for every port."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from tpy.flag import Flag, Value, new_flag

_FILES = ("server-cert", "server-key", "root-cert")


def tls_flags(group: str, prefix: str) -> tuple[Flag, ...]:
    """The flags of a port's TLS, named as Triton's of gRPC."""
    return (
        new_flag(group, f"{prefix}-use-ssl", False, f"Serve {group} over TLS; needs certificate and key."),
        new_flag(
            group,
            f"{prefix}-use-ssl-mutual",
            False,
            "Also demand a certificate from clients; needs the certificate authority.",
        ),
        new_flag(group, f"{prefix}-server-cert", "", "Certificate of the server (PEM).", metavar="FILE"),
        new_flag(group, f"{prefix}-server-key", "", "Key of the server (PEM).", metavar="FILE"),
        new_flag(group, f"{prefix}-root-cert", "", "Certificate authority of clients (PEM).", metavar="FILE"),
        new_flag(group, f"{prefix}-tls-minimum-version", "1.2", "Lowest TLS version that is accepted.", choices=("1.2", "1.3")),
        new_flag(
            group,
            f"{prefix}-tls-ciphers",
            "",
            "TLS 1.2 ciphers, in OpenSSL's notation; empty: OpenSSL's secure ones. TLS 1.3 ciphers are fixed.",
            metavar="CIPHERS",
        ),
    )


def unused_tls_files(values: Mapping[str, Value]) -> Iterator[str]:
    """Warnings of files that are given for the TLS of a port that speaks none: whoever named them expects it. Triton says
    nothing."""
    for field, used in values.items():
        if not field.endswith("_use_ssl") or used:
            continue
        prefix = field.removesuffix("_use_ssl").replace("_", "-")
        given = [name for name in _FILES if values[f"{prefix}-{name}".replace("-", "_")]]
        if given:
            flags = ", ".join(f"--{prefix}-{name}" for name in given)
            yield f"{flags}: without --{prefix}-use-ssl=true this port does not use TLS, and its traffic is not encrypted"
