"""Tenancy: says which tenant a caller's requests are of. `--tenants-file` switches it on."""

from __future__ import annotations

import ipaddress

from tpy.frontends.access.config import AuthConfig, read_auth_config
from tpy.limits.tenants import TENANT_PEERS_REMEMBERED_MAX
from tpy.tenants import UNIX, TenantsConfig, read_tenants, require_keys


def check_tenants(path: str, auth_file: str, config: TenantsConfig) -> None:
    """Raise InvalidArgument for a file of tenants that cannot be used with that of --auth-config, "" for none. Blocks."""
    _require(config, path, read_auth_config(auth_file) if auth_file else AuthConfig())


def _require(config: TenantsConfig, path: str, access: AuthConfig) -> None:
    require_keys(config, path, {key.name for key in access.keys}, tokens=bool(access.jwt))


class Tenancy:
    """The senders of requests, as a file has them now. Raises InvalidArgument for a file that cannot be used with the keys of
    --auth-config."""

    def __init__(self, path: str, access: AuthConfig) -> None:
        self._config = config = read_tenants(path)
        _require(config, path, access)
        self._names = {each.name for each in config.tenants}
        self._of_key = {key: each.name for each in config.tenants for key in each.keys}
        self._proxies = [ipaddress.ip_network(proxy) for proxy in config.trusted_proxies if proxy != UNIX]
        self._trusted: dict[str, bool] = {"": UNIX in config.trusted_proxies}
        self.default = config.default
        self.header = config.header
        self.header_field = config.header.encode()
        self.token_claim = config.token_claim

    def of_key(self, name: str) -> str:
        """The tenant of a key; "" for none."""
        return self._of_key.get(name, self.default)

    def of_claim(self, value: str) -> str:
        """The tenant that a token names; "" for none."""
        return value if value in self._names else self.default

    def of_header(self, value: str, peer: str) -> str | None:
        """The tenant that the header names, "" for none; None: whoever sent it is not trusted."""
        address = peer.rpartition(":")[0].strip("[]")
        trusted = self._trusted.get(address)
        if trusted is None:
            if len(self._trusted) >= TENANT_PEERS_REMEMBERED_MAX:
                self._trusted = {"": self._trusted[""]}
            trusted = self._trusted[address] = self._is_proxy(address)
        return self.of_claim(value) if trusted else None

    def _is_proxy(self, address: str) -> bool:
        try:
            found = ipaddress.ip_address(address)
        except ValueError:
            return False
        mapped = getattr(found, "ipv4_mapped", None)
        return any((mapped or found) in network for network in self._proxies)
