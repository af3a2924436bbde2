"""JSON Web Tokens: verification. The one module that imports PyJWT."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from tpy.errors import InvalidArgument, Unauthenticated
from tpy.frontends.access.config import JwtEntry
from tpy.frontends.access.core.policy import Role

_FAMILIES = {"RSA": ("RS", "PS"), "EC": ("ES",), "OKP": ("EdDSA",), "oct": ("HS",)}
"""The algorithms of each kind of key: a public RSA key is never the secret of an HMAC."""


class ValidToken(NamedTuple):
    """A token that is good until `expires_ms` of the wall clock, leeway included."""

    subject: str
    roles: frozenset[Role]
    models: tuple[str, ...]
    expires_ms: int
    tenant: str = ""


class JwtVerifier:
    """The tokens of one issuer."""

    def __init__(self, entry: JwtEntry, folder: Path, jwt: Any, tenant_claim: str = "") -> None:
        """`jwt` is the package; `tenant_claim` names a tenant. Raises InvalidArgument for an invalid key file."""
        self.entry = entry
        self._jwt = jwt
        self._tenant_claim = tenant_claim
        path = folder / entry.jwks
        try:
            document = msgspec.json.decode(path.read_bytes())
            found = [jwt.PyJWK(each) for each in document["keys"] if each.get("use", "sig") == "sig"]
        except OSError as error:
            raise InvalidArgument(f"--auth-config: jwks: cannot read '{path}': {error.strerror}; expected a JWK set") from error
        except (jwt.PyJWTError, msgspec.DecodeError, KeyError, TypeError, AttributeError, ValueError):
            raise InvalidArgument(f"--auth-config: jwks: expected a JWK set, {{\"keys\": [...]}}, in '{path}'") from None
        self._keys = [(each, names) for each in found if (names := self._allowed(each))]
        if not self._keys:
            raise InvalidArgument(
                f"--auth-config: jwks: no key in '{path}' signs with {', '.join(entry.algorithms)}; expected one at least"
            )

    def _allowed(self, key: Any) -> list[str]:
        """The algorithms that are configured and that this key may be used with."""
        families = _FAMILIES.get(key.key_type, ())
        return [name for name in self.entry.algorithms if name.startswith(families) and name == key.algorithm_name]

    def verify(self, text: str) -> ValidToken:
        """Raises Unauthenticated for a token that is not signed by one of the keys, is for others, or is not valid now."""
        jwt, entry = self._jwt, self.entry
        try:
            header = jwt.get_unverified_header(text)
            fitting = [
                (key, names)
                for key, names in self._keys
                if header.get("alg") in names and header.get("kid") in (None, key.key_id)
            ]
            if not fitting:
                raise Unauthenticated("the token is not signed by a trusted key")
            failed: Exception | None = None
            for key, names in fitting:
                try:
                    claims = jwt.decode(
                        text,
                        key,
                        algorithms=names,
                        audience=entry.audience,
                        issuer=entry.issuer,
                        leeway=entry.leeway_s,
                        options={"require": ["exp", "iss", "aud"]},
                    )
                except jwt.InvalidSignatureError as error:
                    failed = error
                else:
                    return self._token(claims)
            raise Unauthenticated("the token's signature is wrong") from failed
        except jwt.ExpiredSignatureError:
            raise Unauthenticated("the token has expired") from None
        except jwt.PyJWTError as error:
            raise Unauthenticated(f"the token is not valid: {type(error).__name__.removesuffix('Error')}") from None

    def _token(self, claims: dict[str, Any]) -> ValidToken:
        entry = self.entry
        roles = frozenset(entry.roles)
        if entry.roles_claim:
            known = {role.value: role for role in Role}
            roles = frozenset(known[name] for name in _words(claims.get(entry.roles_claim)) if name in known)
        models = tuple(_words(claims.get(entry.models_claim))) if entry.models_claim else entry.models
        subject, tenant = claims.get("sub"), claims.get(self._tenant_claim)
        return ValidToken(
            subject if isinstance(subject, str) else "",
            roles,
            models,
            (int(claims["exp"]) + entry.leeway_s) * 1000,
            tenant if isinstance(tenant, str) else "",
        )


def _words(value: object) -> Collection[str]:
    """A claim that is a list of words, or a text of them with spaces in between, as `scope`."""
    if isinstance(value, str):
        return value.split()
    return [each for each in value if isinstance(each, str)] if isinstance(value, list) else ()


def issuer_of(text: str, jwt: Any) -> object:
    """The issuer that a token names, which nobody has checked."""
    try:
        return jwt.decode(text, options={"verify_signature": False}).get("iss")
    except (jwt.PyJWTError, ValueError):
        raise Unauthenticated("the token is not valid: expected a JSON Web Token") from None
