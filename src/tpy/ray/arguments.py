"""Arguments: what an application is made from, as words of a command line or values of a YAML file."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import msgspec

from tpy.errors import InvalidArgument

_LISTS = ("models", "beside", "calls", "applications")


class Arguments(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`repository`: a folder or a bucket that every node reads, several separated by commas. `models`: those to be loaded, all by
    default. `model`: the only one of an application that serves one model; `beside`: models that are loaded with it, because it
    calls them; `calls`: models of other applications that it calls by name, or has as steps,
    through Ray. `applications`: the models, each in an application of its name, that an application with the server's own routes
    speaks for.

    `replicas`, or `min_replicas` and `max_replicas`, between which Serve scales by `scale_by`: "load" (`tpy_load`) or "ongoing"
    (requests under way), each replica to be at `target`. `cpus` and `gpus` are what Ray reserves for a replica.
    `max_ongoing_requests` of a replica, `max_queued_requests` in front of all of them (-1: any number); `drain_s`: how long a
    replica that is to stop may take for what it has; `max_surge_percent`: how many replicas of a new version, at least one, start
    before old ones stop (0: none). `session_affinity`: requests with the same `x-session-id` go to the same
    replica. `flags` are those of tpy serve."""

    repository: tuple[str, ...]
    models: tuple[str, ...] = ()
    model: str = ""
    beside: tuple[str, ...] = ()
    calls: tuple[str, ...] = ()
    applications: tuple[str, ...] = ()
    replicas: int = 1
    min_replicas: int | None = None
    max_replicas: int | None = None
    scale_by: str = "load"
    target: float | None = None
    upscale_delay_s: float = 10.0
    downscale_delay_s: float = 120.0
    cpus: float = 1.0
    gpus: float = 0.0
    max_ongoing_requests: int = 1000
    max_queued_requests: int = -1
    drain_s: float = 30.0
    max_surge_percent: int = 25
    session_affinity: bool = False
    flags: Mapping[str, str | int | float | bool | tuple[str, ...]] = msgspec.field(default_factory=dict)


def read_arguments(given: Mapping[str, Any]) -> Arguments:
    """The arguments by their names; all others are flags of tpy serve, with underscores. Raises InvalidArgument."""
    if "repository" not in given:
        raise InvalidArgument("tpy.ray: expected repository=FOLDER, the model repository that every node can read")
    known = {name: value for name, value in given.items() if name in Arguments.__struct_fields__ and name != "flags"}
    for name in (*_LISTS, "repository"):
        if isinstance(known.get(name), str):
            known[name] = [each for each in known[name].split(",") if each]
    flags = {name: value for name, value in given.items() if name not in known}
    try:
        arguments = msgspec.convert({**known, "flags": flags}, Arguments, strict=False)
    except msgspec.ValidationError as error:
        raise InvalidArgument(f"tpy.ray: {error}") from None
    _check(arguments)
    return arguments


def _check(arguments: Arguments) -> None:
    if arguments.calls and not arguments.model:
        raise InvalidArgument("tpy.ray: calls is for an application of one model: expected model=NAME beside it")
    if arguments.scale_by not in ("load", "ongoing"):
        raise InvalidArgument(f"tpy.ray: expected scale_by to be load or ongoing, got '{arguments.scale_by}'")
    if arguments.replicas < 1:
        raise InvalidArgument(f"tpy.ray: expected replicas from 1 on, got {arguments.replicas}")
    lowest, highest = arguments.min_replicas, arguments.max_replicas
    if lowest is not None and highest is None:
        raise InvalidArgument("tpy.ray: min_replicas needs max_replicas")
    if highest is not None and not 0 <= (1 if lowest is None else lowest) <= highest:
        raise InvalidArgument(f"tpy.ray: expected 0 <= min_replicas <= max_replicas, got {lowest} and {highest}")
    if not 0 <= arguments.max_surge_percent <= 100:
        raise InvalidArgument(f"tpy.ray: expected max_surge_percent from 0 to 100, got {arguments.max_surge_percent}")
    if arguments.target is not None and not (math.isfinite(arguments.target) and arguments.target > 0):
        raise InvalidArgument(f"tpy.ray: expected target above 0, got {arguments.target:g}")
