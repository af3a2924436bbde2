"""The targets of the HTTP frontend."""

from __future__ import annotations

from fuzz.chance import Chance
from fuzz.http import bodies, pieces, regions, requests
from fuzz.target import Target
from tpy.frontends.http.parser import RequestParser
from tpy.frontends.shared_memory import RegionRange, TensorResolver


class HastyParser(RequestParser):
    """Wrong on purpose: of a body that comes in several pieces the last one is kept."""

    def on_body(self, piece: bytes) -> None:
        self._pieces.clear()
        super().on_body(piece)


class ForgetfulResolver(TensorResolver):
    """Wrong on purpose: every tensor lies at the beginning of its region."""

    def resolve(self, name: str, offset: int, byte_size: int) -> RegionRange:
        return super().resolve(name, 0, byte_size)


def _regions_canary(chance: Chance) -> int:
    return regions.run(chance, ForgetfulResolver)


def _canary(chance: Chance) -> int:
    return requests.run_sound(chance, HastyParser)


SOUND = Target(
    name="http_requests",
    invariant="requests that are right are found as they were written, however they are cut",
    run=requests.run_sound,
    smoke_examples=4000,
)
HOSTILE = Target(
    name="http_hostile_bytes",
    invariant=requests.INVARIANT,
    run=requests.run_hostile,
    smoke_examples=6000,
    attack=requests.attack,
)
CANARY = Target(
    name="http_canary",
    invariant="a parser that loses the beginning of a body is found out",
    run=_canary,
    smoke_examples=100,
    must_fail=True,
)
BODIES = Target(
    name="http_request_bodies",
    invariant=bodies.REQUESTS,
    run=bodies.run_requests,
    smoke_examples=4000,
    attack=bodies.attack,
)
RESPONSES = Target(name="http_response_bodies", invariant=bodies.RESPONSES, run=bodies.run_responses, smoke_examples=4000)
PIECES = Target(name="http_json_pieces", invariant=pieces.INVARIANT, run=pieces.run, smoke_examples=4000, attack=pieces.attack)
REGIONS = Target(name="http_regions", invariant=regions.INVARIANT, run=regions.run, smoke_examples=3000, rules=regions.RULES)
REGIONS_CANARY = Target(
    name="http_regions_canary",
    invariant="a resolver that forgets offsets is found out",
    run=_regions_canary,
    smoke_examples=200,
    must_fail=True,
)
