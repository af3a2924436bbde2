"""The target of `mlflow deployments`: `tpy:http://HOST:PORT?repository=DIRECTORY&mlflow-port=N`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final
from urllib.parse import parse_qsl, urlsplit

import msgspec

from tpy_tools.commands.importing.core.plan import Unimportable

_EXPECTED: Final = "expected tpy:http://HOST:PORT?repository=DIRECTORY&mlflow-port=N"
REPOSITORY: Final = "TPY_MLFLOW_REPOSITORY"
API_KEY: Final = "TPY_MLFLOW_API_KEY"
_URL: Final = "http://localhost:8000"
_PORTS: Final = {"http": 80, "https": 443}
_MLFLOW_PORT: Final = 5000
_SETTINGS: Final = frozenset({"repository", "mlflow-port"})


class DeploymentTarget(msgspec.Struct, frozen=True, kw_only=True):
    """A server, and its model repository as this machine sees it: "" where nothing says so. `headers` go with every request."""

    host: str
    port: int
    mlflow_port: int
    is_tls: bool
    repository: str
    headers: Mapping[str, str]


def parse_target(uri: str, environment: Mapping[str, str]) -> DeploymentTarget:
    """The target of a URI; what it does not say is in the environment. Raises Unimportable."""
    _, _, rest = uri.partition(":")
    try:
        parts = urlsplit(rest or _URL)
        port = parts.port or _PORTS.get(parts.scheme, 0)
    except ValueError as error:
        raise Unimportable(f"target '{uri}': {error}; {_EXPECTED}") from None
    said = dict(parse_qsl(parts.query, keep_blank_values=True))
    if (
        parts.scheme not in _PORTS
        or not port
        or not parts.hostname
        or parts.path.strip("/")
        or parts.username
        or parts.fragment
        or set(said) - _SETTINGS
    ):
        raise Unimportable(f"target '{uri}': {_EXPECTED}")
    number = said.get("mlflow-port", str(_MLFLOW_PORT))
    if not (number.isascii() and number.isdigit() and 0 < int(number[:6]) < 65536):
        raise Unimportable(f"target '{uri}': mlflow-port is '{number}'; {_EXPECTED}")
    key = environment.get(API_KEY, "")
    return DeploymentTarget(
        host=parts.hostname,
        port=port,
        mlflow_port=int(number),
        is_tls=parts.scheme == "https",
        repository=said.get("repository") or environment.get(REPOSITORY, ""),
        headers={"Authorization": f"Bearer {key}"} if key else {},
    )


def is_trusted(config: Mapping[str, object] | None) -> bool:
    """The value of `trust` in the configuration of a deployment. Raises Unimportable for any other key or value."""
    said = dict(config or {})
    trust = str(said.pop("trust", "false")).lower()
    if said or trust not in ("true", "false"):
        raise Unimportable(f"config: expected trust=true or trust=false, got {', '.join(map(str, said)) or f'trust={trust}'}")
    return trust == "true"
