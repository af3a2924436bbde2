"""Web pages that ask the server through a visitor's browser: which may change what the server does.

A browser sends requests for any page that is open in it, also to addresses that only its machine reaches. It says so: by `Origin`
where something may change, and by `Sec-Fetch-Site`. A page whose name was made to lead to this server (DNS rebinding) is of the
same origin, but the name in `Host` is not one of the server's. Programs other than browsers send neither header.
"""

from __future__ import annotations

import ipaddress
import re
import socket
from collections.abc import Mapping

import msgspec

from tpy.echo import echo
from tpy.errors import Forbidden, InvalidArgument
from tpy.flag import Value, read_values

_ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://[^/?#@\s]+")
_HOST = re.compile(r"(?:\[([^\]]*)\]|([^:\[\]]*))(?::[0-9]*)?")
_OWN_SITES = frozenset({None, b"same-origin", b"none"})
"""Of Sec-Fetch-Site. Any other value, also one that no browser sends, is another site's."""
_LOCAL = "localhost"


class WebPages(msgspec.Struct, frozen=True, kw_only=True):
    """The pages that may change something, beside the server's own: those of `origins`, and of the server under the names
    `hosts`. `hosts_only`: a request by any other name is refused, whoever sends it."""

    origins: frozenset[str] = frozenset()
    hosts: frozenset[str] = frozenset()
    hosts_only: bool = False

    def require(self, fields: Mapping[bytes, bytes], *, changes: bool) -> None:
        """Raise Forbidden for a request with these header fields if a page of others may have sent it. `changes`: it changes
        something; if not, only the name is looked at."""
        if not changes and not self.hosts_only:
            return
        origin, site = fields.get(b"origin"), fields.get(b"sec-fetch-site")
        if origin is not None and _text(origin) in self.origins:
            return
        host = fields.get(b"host")
        if changes and (
            (origin is not None and (host is None or _text(origin).partition("://")[2] != _text(host))) or site not in _OWN_SITES
        ):
            raise foreign_page(origin)
        by_browser = origin is not None or site is not None
        if host is not None and (by_browser or self.hosts_only) and not self._is_known(_text(host)):
            raise Forbidden(
                f"the host '{echo(_text(host))}' is not known to be this server's, as with DNS rebinding: --allowed-host adds it"
            )

    def require_call(self, origin: str | bytes | None, site: str | bytes | None) -> None:
        """Raise Forbidden for a call over gRPC, whose port has no pages: one that a browser has sent is a page's of others."""
        given = None if origin is None else _text(origin)
        if given in self.origins or (origin is None and site is None):
            return
        raise foreign_page(origin)

    def _is_known(self, host: str) -> bool:
        """Returns True for an address, a name without a domain (which nobody can have in the DNS of others), and names of
        this server."""
        found = _HOST.fullmatch(host)
        if found is None:
            return False
        name = (found[1] or found[2] or "").rstrip(".")
        return "." not in name or name.endswith(f".{_LOCAL}") or name in self.hosts or _is_address(name)


def foreign_page(origin: str | bytes | None) -> Forbidden:
    """The error of a page of others."""
    who = "another site" if origin is None else f"the origin '{echo(_text(origin))}'"
    return Forbidden(f"a web page of {who} may not use this API: --allowed-origin allows an origin")


def _text(value: str | bytes) -> str:
    return (value if isinstance(value, str) else value.decode("latin-1")).lower()


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name.partition("%")[0])
    except ValueError:
        return False
    return True


class _Values(msgspec.Struct, frozen=True, kw_only=True):
    """The values of the flags that are read here."""

    allowed_origin: tuple[str, ...]
    allowed_host: tuple[str, ...]


def read_web_pages(values: Mapping[str, Value], *, address: str, hosts_only: bool = False) -> WebPages:
    """The pages that may change something at a port of this address. Raises InvalidArgument for an invalid origin or host."""
    v = read_values(values, _Values)
    for origin in v.allowed_origin:
        if _ORIGIN.fullmatch(origin.lower()) is None:
            raise InvalidArgument(f"--allowed-origin: expected SCHEME://HOST[:PORT], as browsers send it, got '{origin}'")
    for host in v.allowed_host:
        if not host or set(host) & set(":/ "):
            raise InvalidArgument(f"--allowed-host: expected a name without a port, got '{host}'")
    names = (*v.allowed_host, socket.gethostname(), address)
    return WebPages(
        origins=frozenset(origin.lower() for origin in v.allowed_origin),
        hosts=frozenset(name.lower().rstrip(".") for name in names),
        hosts_only=hosts_only,
    )
