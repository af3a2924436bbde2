"""Policies on request headers: restricted APIs, and headers that become request parameters."""

from __future__ import annotations

import hmac
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from tpy.echo import echo
from tpy.errors import Forbidden, InvalidArgument
from tpy.frontends.access import CREDENTIAL_NAMES
from tpy.frontends.header_pattern import HeaderPattern
from tpy.frontends.restrictions import MANAGEMENT, RestrictedApi, not_managed_here
from tpy.frontends.web_pages import WebPages

if TYPE_CHECKING:
    from tpy.frontends.access.gate import Caller, Gate

_RESERVED = frozenset({"sequence_id", "sequence_start", "sequence_end", "priority", "timeout", "headers", "binary_data_output"})
_RESERVED_PREFIX = "triton_"


class HeaderPolicy:
    """Built once from the options. Raises InvalidArgument for a pattern that is not a regular expression."""

    def __init__(
        self,
        *,
        restricted: Sequence[RestrictedApi],
        forward_pattern: str,
        gate: Gate | None = None,
        managed_elsewhere: bool = False,
        web_pages: WebPages | None = None,
    ) -> None:
        self.gate = gate
        self.web_pages = WebPages() if web_pages is None else web_pages
        self._managed_elsewhere = managed_elsewhere
        self._keys = {
            api: (group.header, group.header.lower().encode(), group.value.encode()) for group in restricted for api in group.apis
        }
        self._forward = HeaderPattern(forward_pattern, flag="http-header-forward-pattern") if forward_pattern else None
        self.is_open = gate is None and not self._keys and self._forward is None
        """True if no header of a request matters."""

    def require(self, api: str, fields: Mapping[bytes, bytes]) -> None:
        """Raise Forbidden unless a request with these header fields may use `api`."""
        key = self._keys.get(api)
        if key is not None and not hmac.compare_digest(fields.get(key[1], b""), key[2]):
            raise Forbidden(f"This API is restricted, expecting header '{key[0]}'")

    def require_here(self, api: str) -> None:
        """Raise Forbidden for an API that another port serves."""
        if self._managed_elsewhere and api in MANAGEMENT:
            raise not_managed_here()

    def identify(self, fields: Mapping[bytes, bytes], peer: str | None = None) -> Caller | None:
        """Returns who has sent these header fields from the address `peer`; None: access is not controlled. Raises
        Unauthenticated."""
        if self.gate is None:
            return None
        authorization, key = fields.get(b"authorization"), fields.get(b"x-api-key")
        caller = self.gate.identify(
            None if authorization is None else authorization.decode("latin-1"), None if key is None else key.decode("latin-1")
        )
        tenancy = self.gate.tenancy
        if tenancy is None or peer is None or not (tenant := fields.get(tenancy.header_field)):
            return caller
        return self.gate.sent_for(caller, tenant.decode("latin-1"), peer)

    def forwarded(self, headers: Sequence[tuple[bytes, bytes]]) -> dict[str, str] | None:
        """The headers that become request parameters, by name as sent; None when nothing is forwarded. Raises InvalidArgument
        for one that would take the place of a parameter with a meaning."""
        if self._forward is None:
            return None
        forwarded: dict[str, str] = {}
        for raw_name, raw_value in headers:
            name = raw_name.decode("latin-1")
            if self._forward.matches(name) and (self.gate is None or name.lower() not in CREDENTIAL_NAMES):
                if name in _RESERVED or name.startswith(_RESERVED_PREFIX):
                    raise InvalidArgument(f"Header '{echo(name)}' is reserved for Triton usage and cannot be forwarded.")
                forwarded[name] = raw_value.decode("latin-1")
        return forwarded
