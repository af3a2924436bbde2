"""`tpy dev`: the defaults of the server that suit someone who writes models, all of them flags of `tpy serve`."""

from __future__ import annotations

from collections.abc import Mapping

from tpy.cli.flags import FLAG_BY_NAME

DEFAULTS: Mapping[str, str] = {
    "model-control-mode": "poll",
    "repository-poll-secs": "1",
    "repository-settle-ms": "200",
    "exit-on-error": "false",
    "serve-while-loading": "true",
    "log-format": "plain",
    "http-address": "127.0.0.1",
    "grpc-address": "127.0.0.1",
    "exit-timeout-secs": "5",
    "page-on-http": "true",
}
"""A change is looked for at once, a broken model is waited for, one that loads for long holds up nothing, people read the log,
the ports are this machine's, and the page is there."""


def with_development_defaults(given: Mapping[str, tuple[str, ...]], environment: Mapping[str, str]) -> dict[str, tuple[str, ...]]:
    """`given`, by `Flag.field`, with the defaults of development where neither it nor the environment has a value."""
    values = dict(given)
    for name, text in DEFAULTS.items():
        flag = FLAG_BY_NAME[name]
        if not values.get(flag.field) and not environment.get(flag.environment):
            values[flag.field] = (text,)
    return values
