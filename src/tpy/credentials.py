"""Names of headers whose values are credentials: where they become parameters of requests, they are written nowhere."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, TypeVar

CREDENTIAL_HEADERS: Final = frozenset(
    {
        *("authorization", "proxy-authorization", "cookie", "set-cookie", "x-api-key", "api-key", "apikey", "x-auth-token"),
        *("x-access-token", "x-amz-security-token", "x-csrf-token", "x-forwarded-access-token", "x-goog-api-key"),
        *("x-goog-iam-authorization-token", "ocp-apim-subscription-key", "x-vault-token", "x-functions-key"),
        *("token", "bearer", "jwt", "authentication", "x-amzn-oidc-data"),
    }
)
"""In lower case."""

_CREDENTIAL_WORDS: Final = frozenset(
    {
        *("token", "accesstoken", "jwt", "assertion", "apikey", "secret", "signature", "password", "passwd", "cookie"),
        *("authorization", "authentication", "credential", "credentials"),
    }
)
_CREDENTIAL_ENDS: Final = ("api-key", "access-key", "auth-key", "subscription-key")

_Value = TypeVar("_Value")


def is_credential(name: str) -> bool:
    """Returns True for a header with one of these names, or with a name made of words that say so, as those of proxies and
    providers are (`X-Goog-IAP-JWT-Assertion`, `Private-Token`). Such names have hyphens; parameters of a request's body, as
    `pad_token`, do not."""
    name = name.lower()
    if name in CREDENTIAL_HEADERS:
        return True
    return "-" in name and (name.endswith(_CREDENTIAL_ENDS) or not _CREDENTIAL_WORDS.isdisjoint(name.split("-")))


def without_credentials(parameters: Mapping[str, _Value], more: frozenset[str]) -> Mapping[str, _Value]:
    """The parameters except credentials, by their names, and `more` names (in lower case), which open restricted APIs."""
    if not parameters:
        return parameters
    return {name: value for name, value in parameters.items() if not (is_credential(name) or name.lower() in more)}
