"""The options of access."""

from __future__ import annotations

import msgspec

CREDENTIAL_NAMES = frozenset({"authorization", "x-api-key", "proxy-authorization"})
"""Headers and metadata that become no parameter of a request, whatever the forward pattern says."""


class AuthOptions(msgspec.Struct, frozen=True, kw_only=True):
    """`file` is that of --auth-config, "" for none: everybody may do everything. `required`: nothing is served to those without a
    credential but whether the server lives and is ready. `tenants_file` is --tenants-file, "" for none."""

    file: str = ""
    required: bool = False
    tenants_file: str = ""
