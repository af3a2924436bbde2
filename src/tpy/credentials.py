"""Names of headers whose values are credentials: where they become parameters of requests, they are written nowhere."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, TypeVar

CREDENTIAL_HEADERS: Final = frozenset(
    {
        *("authorization", "proxy-authorization", "cookie", "set-cookie", "x-api-key", "api-key", "apikey", "x-auth-token"),
        *("x-access-token", "x-amz-security-token", "x-csrf-token", "x-forwarded-access-token", "x-goog-api-key"),
        *("x-goog-iam-authorization-token", "ocp-apim-subscription-key", "x-vault-token", "x-functions-key"),
    }
)
"""In lower case."""

_Value = TypeVar("_Value")


def without_credentials(parameters: Mapping[str, _Value], more: frozenset[str]) -> Mapping[str, _Value]:
    """The parameters but those that are named as credentials, or as `more` (in lower case): what opens restricted APIs."""
    if not parameters:
        return parameters
    return {name: value for name, value in parameters.items() if name.lower() not in CREDENTIAL_HEADERS | more}
