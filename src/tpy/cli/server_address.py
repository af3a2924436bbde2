"""Addresses of servers and headers, as they are written on the command line."""

from __future__ import annotations

import re
from collections.abc import Sequence

from tpy.cli.parsing import UsageError
from tpy.flag import PORT_MAX

_ADDRESS = re.compile(r"(?:(?:https?|grpcs?)://)?(\[[0-9a-fA-F:.]+\]|[^\[\]:/\s]+)(?::(\d{1,5}))?/?")


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
