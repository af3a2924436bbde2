"""Access: identifies the sender of a request by an API key or a token, and checks his roles. `--auth-config` switches it on.

core/policy.py has the rules, config.py the file, tokens.py verifies JSON Web Tokens, gate.py puts them together for the ports.
"""

from tpy.frontends.access.core.policy import ALL_ROLES
from tpy.frontends.access.gate import (
    CREDENTIAL_NAMES,
    INFER,
    OBSERVE,
    AuthOptions,
    Caller,
    Gate,
    gate_of,
    read_auth,
    roles_for,
    submit,
)

__all__ = [
    "ALL_ROLES",
    "CREDENTIAL_NAMES",
    "INFER",
    "OBSERVE",
    "AuthOptions",
    "Caller",
    "Gate",
    "gate_of",
    "read_auth",
    "roles_for",
    "submit",
]
