"""Refuses a response that lacks an output which the client asked for: with status 200 clients would find nothing in its place."""

from __future__ import annotations

from collections.abc import Iterable

from tpy.echo import echo, echo_list, request_prefix
from tpy.errors import Internal
from tpy.messages import InferenceResponse


def missing_outputs(response: InferenceResponse, requested: Iterable[str]) -> Internal | None:
    """The error for a response that lacks any of these outputs, which were asked for."""
    made = [output.name for output in response.outputs]
    missing = [name for name in requested if name not in made]
    if not missing:
        return None
    return Internal(
        f"{request_prefix(response.id)}model '{response.model_name}' made no output {_quoted(missing)}, which was asked for; "
        f"it made {_quoted(made) or 'none'}"
    )


def _quoted(names: Iterable[str]) -> str:
    return echo_list((f"'{echo(name)}'" for name in names), ", ")
