"""The options of TLS for a port."""

from __future__ import annotations

from typing import Literal

import msgspec

TlsVersion = Literal["1.2", "1.3"]


class TlsOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Files in PEM. `mutual` also demands a certificate from clients, signed by `root_certificate_file`. `minimum_version`
    of TLS; HTTP/2 requires 1.2. `ciphers` of TLS 1.2, in OpenSSL's notation; "" takes Python's choice."""

    certificate_file: str = ""
    key_file: str = ""
    root_certificate_file: str = ""
    mutual: bool = False
    minimum_version: TlsVersion = "1.2"
    ciphers: str = ""
