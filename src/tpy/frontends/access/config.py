"""The file of --auth-config: keys, tokens and what they may do, in TOML or JSON."""

from __future__ import annotations

import hashlib
import secrets
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal, get_args

import msgspec

from tpy.errors import InvalidArgument
from tpy.frontends.access.core.policy import Role
from tpy.limits import ACCESS_FILE_BYTES_MAX

Algorithm = Literal["RS256", "RS384", "RS512", "PS256", "ES256", "ES384", "EdDSA", "HS256", "HS384", "HS512"]
_Rate = Annotated[float, msgspec.Meta(ge=1e-6, le=1e9)]
_Count = Annotated[int, msgspec.Meta(ge=1, le=1_000_000_000)]
_KEY_BYTES = 32


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """Requests a second, how many at once after a pause, and how many at the same time. None: any number."""

    requests_per_s: _Rate | None = None
    burst: _Count | None = None
    concurrency: _Count | None = None


class KeyEntry(Limits, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An API key, by the SHA-256 of it in hexadecimal digits."""

    name: str
    sha256: Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{64}$")]
    roles: tuple[Role, ...]
    models: tuple[str, ...] = ("*",)


class JwtEntry(Limits, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """JSON Web Tokens of one issuer, whose public keys are in the file `jwks`, a path from the folder of the configuration.
    Roles and models are those of the entry, or of the token where a claim is named. Limits hold for each subject."""

    issuer: str
    audience: str
    jwks: str
    algorithms: Annotated[tuple[Algorithm, ...], msgspec.Meta(min_length=1)]
    leeway_s: Annotated[int, msgspec.Meta(ge=0, le=600)] = 30
    roles: tuple[Role, ...] = ()
    models: tuple[str, ...] = ("*",)
    roles_claim: str = ""
    models_claim: str = ""


class AuthConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The whole file. `anonymous` are the roles of requests without a credential."""

    anonymous: tuple[Role, ...] = tuple(Role)
    keys: tuple[KeyEntry, ...] = ()
    jwt: tuple[JwtEntry, ...] = ()


def read_auth_config(path: str) -> AuthConfig:
    """Raises InvalidArgument for a file that cannot be read or is not as it should be. Its text is never repeated: what stands in
    the wrong place may be a secret."""
    try:
        with open(path, "rb") as file:
            content = file.read(ACCESS_FILE_BYTES_MAX + 1)
    except OSError as error:
        raise InvalidArgument(
            f"--auth-config: cannot read '{path}': {error.strerror}; expected a file in TOML or JSON"
        ) from error
    if len(content) > ACCESS_FILE_BYTES_MAX:
        raise InvalidArgument(f"--auth-config: '{path}' has more than {ACCESS_FILE_BYTES_MAX} bytes")
    try:
        if Path(path).suffix == ".json" or content.lstrip()[:1] == b"{":
            document = msgspec.json.decode(content)
        else:
            document = tomllib.loads(content.decode())
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise InvalidArgument(f"--auth-config: '{path}' is neither TOML nor JSON: {error}") from None
    try:
        config = msgspec.convert(document, AuthConfig)
    except msgspec.ValidationError as error:
        raise InvalidArgument(f"--auth-config: '{path}': {_without_value(str(error))}") from None
    for kind, values in (
        ("names of keys", [key.name for key in config.keys]),
        ("keys", [key.sha256 for key in config.keys]),
        ("issuers", [entry.issuer for entry in config.jwt]),
    ):
        if len(set(values)) != len(values):
            raise InvalidArgument(f"--auth-config: '{path}': expected different {kind}, two entries have the same")
    return config


def _without_value(error: str) -> str:
    """Returns the text of an error of msgspec, with what was expected in place of the value that came."""
    if "sha256" in error:
        return f"{error}; `tpy auth-key` makes a key and its entry"
    _, wrong, place = error.partition(" - at ")
    if not error.startswith("Invalid enum value"):
        return error
    expected = get_args(Algorithm) if "algorithms" in place else [role.value for role in Role]
    return f"Expected one of {', '.join(expected)}{wrong}{place}"


def new_key() -> str:
    """Returns an API key of 256 random bits: too many to guess, so that a fast hash of it may be stored."""
    return f"tpy_{secrets.token_urlsafe(_KEY_BYTES)}"


def key_entry(name: str, sha256: str, roles: Sequence[str], models: Sequence[str]) -> str:
    """Returns the entry of a key in TOML."""
    quoted = {"roles": roles, "models": models}
    lists = [f"{field} = {msgspec.json.encode(list(values)).decode()}" for field, values in quoted.items()]
    return "\n".join(("[[keys]]", f"name = {msgspec.json.encode(name).decode()}", f'sha256 = "{sha256}"', *lists))


def digest(key: str) -> str:
    """Returns the SHA-256 of a key in hexadecimal digits."""
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).hexdigest()
