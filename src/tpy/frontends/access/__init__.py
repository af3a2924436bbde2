"""Access: identifies the sender of a request by an API key or a token, and checks his roles. `--auth-config` switches it on.

core/policy.py has the rules, config.py the file, tokens.py verifies JSON Web Tokens. gate.py puts them together for the ports; it
is imported where one of them has a gate.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import msgspec

from tpy.errors import InvalidArgument
from tpy.flag import Value
from tpy.frontends.access.core.policy import ALL_ROLES, INFER, OBSERVE, roles_for
from tpy.frontends.access.options import CREDENTIAL_NAMES, AuthOptions
from tpy.messages import InferenceRequest
from tpy.services import RequestHandle, ResolvedModel, ResponseSink

if TYPE_CHECKING:
    from tpy.clock import Clock
    from tpy.frontends.access.gate import Caller, Gate

__all__ = [
    "ALL_ROLES",
    "CREDENTIAL_NAMES",
    "INFER",
    "OBSERVE",
    "AuthOptions",
    "gate_of",
    "read_auth",
    "roles_for",
    "submit",
]


def read_auth(values: Mapping[str, Value]) -> AuthOptions | None:
    """The options that the flags say, whose file has been read once; None: everybody may do everything. Raises InvalidArgument
    for a file that cannot be used."""
    named = {"file": "auth_config", "required": "auth_required", "tenants_file": "tenants_file"}
    options = msgspec.convert({field: values[flag] for field, flag in named.items()}, AuthOptions)
    if options.required and not options.file:
        raise InvalidArgument("--auth-required: expected --auth-config FILE, too; without it nobody could be served")
    if not options.file and not options.tenants_file:
        return None
    gate_of(options)
    return options


def gate_of(options: AuthOptions, clock: Clock | None = None) -> Gate:
    """The gate of these options, the same for all who ask while one of them has it. Raises InvalidArgument as `read_auth`."""
    from tpy.frontends.access.gate import shared_gate  # few servers control access

    return shared_gate(options, clock)


def submit(
    caller: Caller | None, model: ResolvedModel, request: InferenceRequest, sink: ResponseSink, now_ns: int
) -> RequestHandle:
    """Submit a request of this caller; None: access is not controlled. Raises as Caller.submit."""
    return model.submit(request, sink) if caller is None else caller.submit(model, request, sink, now_ns)
