"""TraceSettings: the trace settings of the server and of single models, and the sampling of requests by them.

A model has the settings that it was given; the others are the server's. As in Triton, each update begins the
counting of requests anew for the settings that it concerns, and `trace_count` is the number of traces that are still to be taken.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from tpy.echo import echo
from tpy.errors import InvalidArgument, Unsupported
from tpy.telemetry.traces.core.setting import TENSORS, TIMESTAMPS, TraceSetting

LEVEL: Final = "trace_level"
RATE: Final = "trace_rate"
COUNT: Final = "trace_count"
FREQUENCY: Final = "log_frequency"
FILE: Final = "trace_file"
MODE: Final = "trace_mode"

OFF: Final = "OFF"

_UINT32_MAX: Final = 2**32 - 1
_INT32_MAX: Final = 2**31 - 1

Updates = Mapping[str, Sequence[str]]
"""The new texts of settings, by name; a setting without texts is cleared."""

Changes = Mapping[str, frozenset[str] | int | None]
"""The new values of settings, by name; None clears."""


class ActiveSetting:
    """A setting in force, with its counters."""

    def __init__(self, setting: TraceSetting) -> None:
        self.setting = setting
        self.remaining = setting.count
        self._seen = 0
        self._under_way = 0
        self._unwritten = 0

    def sample(self) -> bool:
        """A request has arrived: returns True if it is to be traced."""
        setting = self.setting
        if not setting.levels or not self.remaining or not setting.rate:
            return False
        self._seen += 1
        if self._seen < setting.rate:
            return False
        self._seen = 0
        self.take()
        return True

    def take(self) -> None:
        """A request is to be traced, whatever the rate says."""
        self._under_way += 1
        if self.remaining > 0:
            self.remaining -= 1

    def end(self, *, collected: bool) -> bool:
        """A request that was sampled is over; its trace is `collected`, or it was refused and has no trace. Returns True if the
        traces collected so far make a complete file."""
        self._under_way -= 1
        self._unwritten += collected
        frequency = self.setting.log_frequency
        full = frequency > 0 and self._unwritten >= frequency
        if not full and (self.remaining or self._under_way):
            return False
        self._unwritten = 0
        return True


class TraceSettings:
    """Those of a server that was started with `default`. `may_be_asked`: callers may ask for traces, and the rate may be 0."""

    def __init__(self, default: TraceSetting, *, has_file: bool = True, may_be_asked: bool = False) -> None:
        self._has_file = has_file
        self._may_be_asked = may_be_asked
        self._default = default
        self._specified: dict[str, dict[str, frozenset[str] | int]] = {}
        """The settings that updates have given, by model, "" for the server."""
        self._server = ActiveSetting(default)
        self._models: dict[str, ActiveSetting] = {}

    def active(self, model: str = "") -> ActiveSetting:
        """The setting that requests to the model are sampled by; "" for the server's."""
        return self._models.get(model, self._server)

    @property
    def may_trace(self) -> bool:
        """True while a request could be traced."""
        if not self._has_file:
            return False
        return any(active.setting.levels and active.remaining for active in (self._server, *self._models.values()))

    def update(self, model: str, changes: Changes) -> list[ActiveSetting]:
        """Change the settings of a model, or the server's for "". Returns the settings that are no longer in force.

        Raises InvalidArgument, with Triton's texts, for settings that could not trace anything; then nothing has changed.
        """
        specified = {name: value for name, value in self._kept(model).items() if name not in changes}
        specified.update({name: value for name, value in changes.items() if value is not None})
        server = self._server if model else ActiveSetting(_with(self._default, specified))
        active = ActiveSetting(_with(self._limits_of(server), specified)) if model else server
        self._require_valid(active.setting, changes)
        if model:
            replaced = self._put(model, specified, active)
        else:
            replaced = [self._server]
            self._specified[""], self._server = specified, server
            for name in list(self._models):
                own = self._kept(name)
                replaced += self._put(name, own, ActiveSetting(_with(self._limits_of(server), own)))
        return replaced

    def _put(self, model: str, specified: dict[str, frozenset[str] | int], active: ActiveSetting) -> list[ActiveSetting]:
        former = self._models.pop(model, None)
        self._specified.pop(model, None)
        if specified:
            self._specified[model], self._models[model] = specified, active
        return [] if former is None else [former]

    def _kept(self, model: str) -> dict[str, frozenset[str] | int]:
        """The settings that the model was given; its own count is the number of traces still to be taken."""
        specified = dict(self._specified.get(model, {}))
        if COUNT in specified:
            specified[COUNT] = (self._models[model] if model else self._server).remaining
        return specified

    def _limits_of(self, server: ActiveSetting) -> TraceSetting:
        return msgspec.structs.replace(server.setting, count=server.remaining)

    def _require_valid(self, setting: TraceSetting, changes: Changes) -> None:
        if not setting.levels:
            return
        if not setting.rate and not self._may_be_asked:
            raise InvalidArgument("Attempting to set invalid trace setting :sample rate must be non-zero")
        if not self._has_file:
            raise InvalidArgument("Attempting to set invalid trace setting :trace file name is not given")
        if changes.get(COUNT) == 0:
            raise InvalidArgument("Attempting to set invalid trace setting :")


def _with(setting: TraceSetting, specified: Mapping[str, frozenset[str] | int]) -> TraceSetting:
    names = {LEVEL: "levels", RATE: "rate", COUNT: "count", FREQUENCY: "log_frequency"}
    return msgspec.structs.replace(setting, **{names[name]: value for name, value in specified.items()})


def level_texts(levels: frozenset[str]) -> tuple[str, ...]:
    """The levels as the network shows them."""
    return tuple(name for name in (TIMESTAMPS, TENSORS) if name in levels) or (OFF,)


def parse_updates(updates: Updates) -> Changes:
    """The changes that an update over the network asks for. Levels and settings that nobody knows change nothing, nor does
    `trace_mode`, as in Triton.

    Raises InvalidArgument and Unsupported with Triton's texts.
    """
    if FILE in updates:
        raise Unsupported("trace file location can not be updated through network protocol")
    changes: dict[str, frozenset[str] | int | None] = {}
    for name in (RATE, COUNT, FREQUENCY):
        if name in updates:
            texts = updates[name]
            if len(texts) > 1:
                raise InvalidArgument(f"expect only 1 value for '{name}'")
            changes[name] = _number(name, texts[0]) if texts else None
    levels = updates.get(LEVEL)
    if levels is None:
        return changes
    if OFF in levels and len(levels) > 1:
        raise InvalidArgument("Expect only one trace level 'OFF' is specified")
    known = frozenset(levels) & {TIMESTAMPS, TENSORS}
    if known or OFF in levels:
        changes[LEVEL] = known
    elif not levels:
        changes[LEVEL] = None
    return changes


def _number(name: str, text: str) -> int:
    minimum, maximum, limit = (-1, _INT32_MAX, _INT32_MAX) if name == COUNT else (0, _UINT32_MAX, _UINT32_MAX - 1)
    if re.fullmatch(r"\s*[+-]?[0-9]{1,40}\s*", text, re.ASCII) is None:
        raise InvalidArgument(f"Unable to parse '{name}', got: {echo(text)}")
    number = int(text)
    if name == COUNT and -_INT32_MAX <= number < minimum:
        raise InvalidArgument(f"Unable to parse 'trace_count'. Expecting value >= -1, got:{number}")
    if not minimum <= number <= limit:
        raise InvalidArgument(f"Unable to parse '{name}', value is out of range [ {minimum}, {maximum} ], got: {echo(text)}")
    return number
