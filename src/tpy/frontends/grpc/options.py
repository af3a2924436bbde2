"""Options of the gRPC services; those of the port are the transport's `GrpcOptions`."""

from __future__ import annotations

import msgspec

from tpy.frontends.access import AuthOptions
from tpy.frontends.grpc.transport import GrpcOptions
from tpy.frontends.restrictions import RestrictedApi
from tpy.frontends.web_pages import WebPages


class GrpcServiceOptions(msgspec.Struct, frozen=True, kw_only=True):
    """`restricted` protocols are served only to calls that carry the metadata `triton-grpc-protocol-<header>` with its value.
    Metadata in whose key `header_forward_pattern` is found become request parameters; "" forwards nothing.
    `auth` None: everybody may do everything. `managed_elsewhere`: the calls of restrictions.MANAGEMENT are refused.
    `web_pages`: the pages that may change something."""

    restricted: tuple[RestrictedApi, ...] = ()
    header_forward_pattern: str = ""
    auth: AuthOptions | None = None
    managed_elsewhere: bool = False
    web_pages: WebPages = WebPages()


class GrpcFrontendOptions(GrpcOptions, frozen=True, kw_only=True):
    """The gRPC port with its services."""

    services: GrpcServiceOptions = GrpcServiceOptions()
