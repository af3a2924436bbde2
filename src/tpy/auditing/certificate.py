"""The name in the certificate of a client."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

_SHORT_NAMES = {
    "commonName": "CN",
    "organizationName": "O",
    "organizationalUnitName": "OU",
    "countryName": "C",
    "stateOrProvinceName": "ST",
    "localityName": "L",
    "domainComponent": "DC",
}


def certificate_name(certificate: Mapping[str, Any] | None) -> str:
    """The subject of a client's certificate as RFC 4514 writes it, `CN=ci,O=Example`, or else its first other name,
    `URI:spiffe://...`; "" without a certificate. `certificate` is what `ssl.SSLSocket.getpeercert` returns."""
    found = certificate or {}
    names = [pair for group in reversed(found.get("subject", ())) for pair in group]
    if names:
        return ",".join(f"{_SHORT_NAMES.get(name, name)}={_escaped(value)}" for name, value in names)
    return next((f"{kind}:{name}" for kind, name in found.get("subjectAltName", ())), "")


def _escaped(value: str) -> str:
    """A value in which nothing looks like the next name."""
    return re.sub(r'[,+"\\<>;=]', lambda found: f"\\{found[0]}", value)
