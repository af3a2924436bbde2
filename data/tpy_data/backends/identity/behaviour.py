"""Delays and failures of an identity model, from its configuration's parameters."""

from __future__ import annotations

import msgspec

from tpy.config import ModelConfig
from tpy.errors import InvalidArgument
from tpy.units import NS_PER_MS


class Behaviour(msgspec.Struct, frozen=True, kw_only=True):
    """Delays have Triton's names: `execute_delay_ms` before copying, times `instance_wise_delay_multiplier` times the
    instance's number (at least once); `creation_delay_sec` in load. Failures are ours, their values are the errors' texts:
    `fail_load`, `fail_create_instance`, `fail_execute` (the batch), `fail_request` (that request alone), `fail_instance` (the
    instance is lost). `fail_only_id` narrows the last three to the request with that id, or a batch that has it.
    """

    execute_delay_ms: int = 0
    instance_wise_delay_multiplier: int = 0
    creation_delay_sec: int = 0
    fail_load: str = ""
    fail_create_instance: str = ""
    fail_execute: str = ""
    fail_request: str = ""
    fail_instance: str = ""
    fail_only_id: str = ""

    @property
    def fails(self) -> bool:
        """True if any execution may fail."""
        return bool(self.fail_execute or self.fail_request or self.fail_instance)

    def chooses(self, request_id: str) -> bool:
        """Returns True if this request is among those that may fail."""
        return not self.fail_only_id or self.fail_only_id == request_id

    def delay_ns(self, instance_number: int) -> int:
        """The time that instance `instance_number` (from 0) sleeps in each execution."""
        return self.execute_delay_ms * NS_PER_MS * max(1, self.instance_wise_delay_multiplier * instance_number)


def behaviour_of(config: ModelConfig) -> Behaviour:
    """Read `parameters`; those with other names are not ours to judge. Raises InvalidArgument for a bad number."""
    return Behaviour(
        execute_delay_ms=_count(config, "execute_delay_ms"),
        instance_wise_delay_multiplier=_count(config, "instance_wise_delay_multiplier"),
        creation_delay_sec=_count(config, "creation_delay_sec"),
        fail_load=config.parameter("fail_load"),
        fail_create_instance=config.parameter("fail_create_instance"),
        fail_execute=config.parameter("fail_execute"),
        fail_request=config.parameter("fail_request"),
        fail_instance=config.parameter("fail_instance"),
        fail_only_id=config.parameter("fail_only_id"),
    )


def _count(config: ModelConfig, key: str) -> int:
    text = config.parameter(key, "0")
    if not text.isdecimal():
        raise InvalidArgument(f"model '{config.name}', parameter '{key}': expected a whole number >= 0, got '{text}'")
    return int(text)
