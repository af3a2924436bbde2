"""The targets of the gRPC transport."""

from __future__ import annotations

from fuzz.grpc import conversation, framing, hostile, inference, regions
from fuzz.http.regions import INVARIANT, RULES
from fuzz.target import Target

HOSTILE = Target(
    name="grpc_hostile_frames", invariant=hostile.INVARIANT, run=hostile.run, smoke_examples=5000, attack=hostile.attack
)
CONVERSATION = Target(
    name="grpc_conversation", invariant=conversation.INVARIANT, run=conversation.run, smoke_examples=600, rules=conversation.RULES
)
FRAMING = Target(name="grpc_framing", invariant=framing.INVARIANT, run=framing.run, smoke_examples=15_000)
FRAMING_CANARY = Target(
    name="grpc_framing_canary",
    invariant="a reader that forgets a prefix that was cut is found out",
    run=framing.run_canary,
    smoke_examples=100,
    must_fail=True,
)

REQUESTS = Target(
    name="grpc_requests",
    invariant=inference.REQUESTS,
    run=inference.run_requests,
    smoke_examples=4000,
    attack=inference.attack,
)
RESPONSES = Target(name="grpc_responses", invariant=inference.RESPONSES, run=inference.run_responses, smoke_examples=4000)
REGIONS = Target(name="grpc_regions", invariant=INVARIANT, run=regions.run, smoke_examples=3000, rules=RULES)
