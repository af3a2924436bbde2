"""The flags of TLS, alike for every port."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import msgspec

from tpy.errors import InvalidArgument
from tpy.flag import Flag, Value, new_flag

if TYPE_CHECKING:
    from tpy.frontends.transport.tls_options import TlsOptions

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


def read_tls(values: Mapping[str, Value], port: str) -> TlsOptions | None:
    """The options that the flags above say for the port of this name, whose files have been read once; None: in the clear.
    Raises InvalidArgument for values that contradict each other, and as `tls_context`."""
    prefix = port.lower()
    key = prefix.replace("-", "_")
    mutual = values[f"{key}_use_ssl_mutual"]
    if not values[f"{key}_use_ssl"]:
        if mutual:
            raise InvalidArgument(f"--{prefix}-use-ssl-mutual: mutual TLS needs TLS to be switched on (--{prefix}-use-ssl)")
        return None
    from tpy.frontends.transport.tls import tls_context  # most ports are in the clear
    from tpy.frontends.transport.tls_options import TlsOptions

    options = msgspec.convert(
        {
            "certificate_file": values[f"{key}_server_cert"],
            "key_file": values[f"{key}_server_key"],
            "root_certificate_file": values[f"{key}_root_cert"],
            "mutual": mutual,
            "minimum_version": values[f"{key}_tls_minimum_version"],
            "ciphers": values[f"{key}_tls_ciphers"],
        },
        TlsOptions,
    )
    tls_context(options, port=port, alpn=())
    return options
