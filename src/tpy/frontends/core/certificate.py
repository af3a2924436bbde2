"""The time for which a certificate is valid. Python's `ssl` does not tell it of a certificate that one serves with."""

from __future__ import annotations

import binascii
import datetime
import re

_PEM = re.compile(rb"-----BEGIN (?:X509 |TRUSTED )?CERTIFICATE-----([A-Za-z0-9+/=\s]*)-----END")
_VERSION = 0xA0
_UTC_TIME = 0x17
_BEFORE_VALIDITY = 3
"""Serial number, algorithm of the signature, issuer."""


def validity(pem: bytes) -> tuple[datetime.datetime, datetime.datetime] | None:
    """The first and the last moment of the first certificate in a PEM file (RFC 5280, 4.1.2.5); None if it cannot be read."""
    found = _PEM.search(pem)
    try:
        if found is None:
            return None
        _, certificate, _ = _element(binascii.a2b_base64(found[1]))
        _, rest, _ = _element(certificate)
        if rest[0] == _VERSION:
            rest = _element(rest)[2]
        for _ in range(_BEFORE_VALIDITY):
            rest = _element(rest)[2]
        _, times, _ = _element(rest)
        tag, begin, times = _element(times)
        end_tag, end, _ = _element(times)
        return _moment(tag, begin), _moment(end_tag, end)
    except (IndexError, ValueError):
        return None


def _element(data: bytes) -> tuple[int, bytes, bytes]:
    """The first element of some DER: its tag, its content, and what is behind it."""
    length, at = data[1], 2
    if length & 0x80:
        at += length & 0x7F
        length = int.from_bytes(data[2:at], "big")
    return data[0], data[at : at + length], data[at + length :]


def _moment(tag: int, text: bytes) -> datetime.datetime:
    """A UTCTime (two digits of the year, of 1950 to 2049) or GeneralizedTime, both in UTC."""
    form = "%y%m%d%H%M%SZ" if tag == _UTC_TIME else "%Y%m%d%H%M%SZ"
    found = datetime.datetime.strptime(text.decode("ascii"), form).replace(tzinfo=datetime.UTC)
    return found.replace(year=found.year - 100) if tag == _UTC_TIME and found.year >= 2050 else found
