"""The header of the PROXY protocol, with which a balancer begins a connection that it makes for somebody: versions 1 and 2."""

from __future__ import annotations

from collections.abc import Mapping
from ipaddress import AddressValueError, IPv4Address, IPv6Address

from tpy.limits import PROXY_HEADER_BYTES_MAX

_SIGNATURE = b"\r\n\r\n\0\r\nQUIT\n"
_LINE_BYTES_MAX = 107
"""Of version 1, by its specification."""
_LOCAL, _PROXY = 0x20, 0x21
_UNSPECIFIED, _TCP4, _TCP6, _UNIX_STREAM = 0x00, 0x11, 0x21, 0x31
_ADDRESSES_SIZE = {_UNSPECIFIED: 0, _TCP4: 12, _TCP6: 36, _UNIX_STREAM: 216}


_KINDS: Mapping[bytes, type[IPv4Address] | type[IPv6Address]] = {b"TCP4": IPv4Address, b"TCP6": IPv6Address}


class ProxyHeaderError(ValueError):
    """The connection does not begin with such a header."""


class ProxyHeader:
    """Reads a header without a byte of what follows it. `source` is the address that it tells, when `needed` is 0; None: the
    connection's own, as for the balancer's health checks."""

    def __init__(self) -> None:
        self.source: tuple[str, int] | None = None
        self.needed = len(_SIGNATURE)
        """Bytes that certainly belong to the header, and have not been fed; 0: it is complete."""
        self._data = bytearray()

    def feed(self, data: bytes) -> None:
        """Take the next bytes, at most `needed`. Raises ProxyHeaderError."""
        self._data += data
        self.needed -= len(data)
        if self.needed:
            if not _SIGNATURE.startswith(self._data[: len(_SIGNATURE)]) and not _may_be_line(self._data):
                raise ProxyHeaderError("expected a header of the PROXY protocol")
        elif self._data.startswith(_SIGNATURE):
            self._proceed_binary()
        elif _may_be_line(self._data):
            self._proceed_line()
        else:
            raise ProxyHeaderError("expected a header of the PROXY protocol")

    def _proceed_line(self) -> None:
        line = self._data
        if line.endswith(b"\r\n"):
            self._read_line(bytes(line[:-2]))
        elif b"\n" in line or len(line) >= _LINE_BYTES_MAX:
            raise ProxyHeaderError("version 1: expected a line that ends with CR LF")
        else:
            self.needed = 1 if line.endswith(b"\r") or len(line) == _LINE_BYTES_MAX - 1 else 2

    def _read_line(self, line: bytes) -> None:
        words = line.split(b" ")
        if words[1] == b"UNKNOWN":
            return
        kind = _KINDS.get(words[1])
        if kind is None or len(words) != 6:
            raise ProxyHeaderError("version 1: expected PROXY TCP4|TCP6 and two addresses and ports, or PROXY UNKNOWN")
        try:
            source, _ = (str(kind(word.decode("ascii"))) for word in words[2:4])
        except (AddressValueError, UnicodeDecodeError):
            raise ProxyHeaderError("version 1: expected addresses of its family") from None
        ports = words[4:]
        if not all(port.isdigit() and len(port) <= 5 and int(port) < 2**16 for port in ports):
            raise ProxyHeaderError("version 1: expected port numbers")
        self.source = source, int(ports[0])

    def _proceed_binary(self) -> None:
        data = self._data
        if len(data) == len(_SIGNATURE):
            self.needed = 4
            return
        command, family, size = data[12], data[13], int.from_bytes(data[14:16], "big")
        if len(data) == len(_SIGNATURE) + 4:
            if command not in (_LOCAL, _PROXY):
                raise ProxyHeaderError("version 2: expected the command LOCAL or PROXY")
            if size > PROXY_HEADER_BYTES_MAX:
                raise ProxyHeaderError(f"version 2: a header of {size} bytes, at most {PROXY_HEADER_BYTES_MAX} are accepted")
            if command == _PROXY and size < _ADDRESSES_SIZE.get(family, size + 1):
                raise ProxyHeaderError("version 2: expected the addresses of a stream")
            self.needed = size
            if size:
                return
        if command == _PROXY and family == _TCP4:
            self.source = str(IPv4Address(bytes(data[16:20]))), int.from_bytes(data[24:26], "big")
        elif command == _PROXY and family == _TCP6:
            self.source = str(IPv6Address(bytes(data[16:32]))), int.from_bytes(data[48:50], "big")


def _may_be_line(data: bytes | bytearray) -> bool:
    return data[:6] == b"PROXY "[: len(data)]
