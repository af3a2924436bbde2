"""The targets of the response cache."""

from __future__ import annotations

import zlib

from fuzz.cache.trial import INVARIANT, run_cache, run_flights
from fuzz.chance import Chance
from fuzz.target import Target, Violation
from fuzz.tensors import random_tensor, same
from tpy.messages import ParameterValue
from tpy_data.cache.core.entry import KEY_BYTES
from tpy_data.cache.core.lru import LruCore
from tpy_data.cache.core.wire import NotAnEntry, read_entry, write_entry


def _response_cache(chance: Chance) -> int:
    bytes_max = chance.choice((0, 1, 5, 12))
    return run_cache(LruCore(bytes_max), bytes_max, chance) + run_flights(chance)


class HoardingCore(LruCore[int]):
    """Wrong on purpose: a replaced value's bytes are never given back."""

    def put(self, key: bytes, value: int, size_bytes: int, owner: object = None) -> bool:
        replaced = key in self._kept and 0 < size_bytes <= self.bytes_max
        kept = super().put(key, value, size_bytes, owner)
        self.bytes_used += replaced
        return kept


def _canary(chance: Chance) -> int:
    return run_cache(HoardingCore(5), 5, chance)


def _entry(chance: Chance) -> int:
    """Write an entry, read it; change a few bytes, read that."""
    key = chance.randbytes(KEY_BYTES)
    outputs = [random_tensor(chance, f"OUT{index}") for index in range(chance.randrange(4))]
    values: list[ParameterValue] = [True, 0, -(2**63), 2**63 - 1, 0.5, "", "text", "ä\n"]
    parameters = {f"p{index}": chance.choice(values) for index in range(chance.randrange(3))}
    data = write_entry(key, outputs, parameters)
    again = read_entry(data, key)
    if dict(again.parameters) != parameters or not all(map(same, again.outputs, outputs)) or len(again.outputs) != len(outputs):
        raise Violation(f"{outputs} {parameters} became {again}")
    broken = bytearray(data)
    for _ in range(chance.randint(1, 4)):
        broken[chance.randrange(len(broken))] = chance.randrange(256)
    content = bytes(broken[:-4])
    sealed = content + zlib.crc32(content).to_bytes(4, "little")
    for hostile in (
        bytes(broken),
        sealed,
        data[: chance.randrange(len(data))],
        data + b"\0",
        chance.randbytes(chance.randrange(80)),
    ):
        try:
            read_entry(hostile, key)
        except NotAnEntry:
            continue
    try:
        read_entry(data, bytes(KEY_BYTES - 1) + b"x")
    except NotAnEntry:
        return 6
    raise Violation("the answer to another request was believed")


RULES = ("get", "put", "evict", "forget", "arrive", "give up", "leader gives up", "answer")
RESPONSE_CACHE = Target(name="response_cache", invariant=INVARIANT, run=_response_cache, smoke_examples=4000, rules=RULES)
ENTRY = Target(
    name="cache_entry",
    invariant="what is written for Redis reads back the same; anything else raises NotAnEntry or is a sound entry for the key",
    run=_entry,
    smoke_examples=3000,
)
CANARY = Target(
    name="cache_canary",
    invariant="a cache that does not give bytes back is found out",
    run=_canary,
    smoke_examples=100,
    must_fail=True,
)
