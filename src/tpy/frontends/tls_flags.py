"""The flags of TLS, alike for every port."""

from __future__ import annotations

from tpy.flag import Flag, new_flag


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
        new_flag(group, f"{prefix}-tls-minimum-version", "1.2", "Oldest version of TLS that is spoken.", choices=("1.2", "1.3")),
        new_flag(
            group,
            f"{prefix}-tls-ciphers",
            "",
            "Ciphers of TLS 1.2, in OpenSSL's notation; empty means OpenSSL's secure ones. Those of TLS 1.3 are fixed.",
            metavar="CIPHERS",
        ),
    )
