"""Addresses of servers and headers, as they are written on the command line."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from tpy.cli.parsing import UsageError
from tpy.flag import PORT_MAX

_PORTS = {"http": 8000, "grpc": 8001}
_ADDRESS = re.compile(r"(?:(?:https?|grpcs?)://)?(\[[0-9a-fA-F:.]+\]|[^\[\]:/\s]+)(?::(\d{1,5}))?/?")


_EVERYWHERE = ("", "0.0.0.0", "::")


def port_of_server(protocol: str, environment: Mapping[str, str]) -> int:
    """The default port of HTTP or gRPC: from the variable that `tpy serve` reads, too."""
    text = environment.get(f"TPY_{protocol.upper()}_PORT", "")
    return int(text) if re.fullmatch(r"[1-9]\d{0,4}", text) and int(text) <= PORT_MAX else _PORTS[protocol]


def url_of_server(environment: Mapping[str, str]) -> str:
    """The default URL of the server, as `port_of_server`."""
    address = environment.get("TPY_HTTP_ADDRESS", "")
    host = "127.0.0.1" if address in _EVERYWHERE or address.startswith("unix:") else address
    return f"http://{f'[{host}]' if ':' in host else host}:{port_of_server('http', environment)}"


def parse_address(text: str, port_default: int) -> tuple[str, int]:
    """Host and port of HOST, HOST:PORT or [IPV6]:PORT. Raises UsageError."""
    found = _ADDRESS.fullmatch(text or "127.0.0.1")
    port = int(found[2] or port_default) if found else 0
    if found is None or not 0 < port <= PORT_MAX:
        raise UsageError(f"--url: expected HOST:PORT, got '{text}'")
    return found[1].strip("[]"), port


def parse_headers(texts: Sequence[str]) -> dict[str, str]:
    """Headers of NAME:VALUE. Raises UsageError."""
    headers = {}
    for text in texts:
        name, colon, value = text.partition(":")
        if not colon or not re.fullmatch(r"[\w.-]+", name, re.ASCII) or not value.isprintable() or not value.isascii():
            raise UsageError(f"--header: expected NAME:VALUE, got '{name}'")  # the value may be a secret
        headers[name.lower()] = value.strip()
    return headers
