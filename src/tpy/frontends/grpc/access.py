"""Policies on the metadata of calls: restricted protocols, and metadata that become request parameters."""

from __future__ import annotations

import hmac
from typing import TYPE_CHECKING

from tpy.echo import echo
from tpy.errors import Forbidden, InvalidArgument, Unauthenticated
from tpy.frontends.access import CREDENTIAL_NAMES, gate_of
from tpy.frontends.grpc.options import GrpcServiceOptions
from tpy.frontends.grpc.transport import Metadata, StreamCall, UnaryCall
from tpy.frontends.header_pattern import HeaderPattern
from tpy.frontends.restrictions import GRPC_KEY_PREFIX, MANAGEMENT, not_managed_here

if TYPE_CHECKING:
    from tpy.frontends.access.gate import Caller

_RESERVED = frozenset({"sequence_id", "sequence_start", "sequence_end", "priority", "timeout", "headers", "binary_data_output"})
_RESERVED_PREFIX = "triton_"


class MetadataPolicy:
    """Built once from the options. Raises InvalidArgument for a pattern that is not a regular expression."""

    def __init__(self, options: GrpcServiceOptions) -> None:
        self.gate = None if options.auth is None else gate_of(options.auth)
        self._keys = {
            api: (f"{GRPC_KEY_PREFIX}{group.header}", group.value) for group in options.restricted for api in group.apis
        }
        self._web_pages = options.web_pages
        pattern = options.header_forward_pattern
        self._elsewhere = MANAGEMENT if options.managed_elsewhere else frozenset()
        self._forward = HeaderPattern(pattern, flag="grpc-header-forward-pattern") if pattern else None
        self.is_open = self.gate is None and not self._keys and self._forward is None
        """True if the metadata of an inference call need no look."""

    def require(self, api: str, metadata: Metadata) -> None:
        """Raise Forbidden unless a call with this metadata may use `api`, and that is served here."""
        if api in self._elsewhere:
            raise not_managed_here()
        key = self._keys.get(api)
        # Keys arrive in lower case, whatever the flag says.
        if key is not None and not any(name == key[0].lower() and _is_same(value, key[1]) for name, value in metadata):
            raise Forbidden(f"This protocol is restricted, expecting header '{key[0]}'")

    def require_no_page(self, metadata: Metadata) -> None:
        """Raise Forbidden for a call that changes something if a web page of others has made it."""
        found = {name: value for name, value in metadata if name in ("origin", "sec-fetch-site")}
        self._web_pages.require_call(found.get("origin"), found.get("sec-fetch-site"))

    def identify(self, call: UnaryCall | StreamCall) -> Caller | None:
        """Returns who makes this call; None: access is not controlled. Raises Unauthenticated."""
        if self.gate is None:
            return None
        tenancy = self.gate.tenancy
        tenant_key = "" if tenancy is None else tenancy.header
        found: dict[str, str] = {}
        for name, value in call.metadata:
            if name in ("authorization", "x-api-key", tenant_key) and isinstance(value, str):
                if name in found:
                    raise Unauthenticated(f"expected '{name}' once in the metadata")
                found[name] = value
        caller = self.gate.identify(found.get("authorization"), found.get("x-api-key"))
        return self.gate.sent_for(caller, found[tenant_key], call.peer) if tenant_key in found else caller

    def forwarded(self, metadata: Metadata) -> dict[str, str] | None:
        """The metadata that become request parameters; None when nothing is forwarded. Binary ones never are: a parameter is
        text. Raises InvalidArgument for one that would take the place of a parameter with a meaning."""
        if self._forward is None:
            return None
        forwarded: dict[str, str] = {}
        for name, value in metadata:
            if isinstance(value, str) and self._forward.matches(name):
                if self.gate is not None and name in CREDENTIAL_NAMES:
                    continue
                if name in _RESERVED or name.startswith(_RESERVED_PREFIX):
                    raise InvalidArgument(f"Header '{echo(name)}' is reserved for Triton usage and cannot be forwarded.")
                forwarded[name] = value
        return forwarded


def _is_same(value: str | bytes, key: str) -> bool:
    """Compares in a time that does not tell how much of a key is right."""
    return isinstance(value, str) and hmac.compare_digest(value.encode(), key.encode())
