"""A short run of the fuzz targets, so that a change that breaks one is seen here first."""

from __future__ import annotations

import logging

import pytest
import trio

from fuzz.chance import Chance
from fuzz.grpc import hostile, targets
from fuzz.grpc.wire import cuts
from fuzz.target import Target, Violation
from tests.streams import StreamWire
from tpy.frontends.grpc.transport import StreamHandler, UnaryHandler
from tpy.frontends.grpc.transport.connection import run_connection
from tpy.frontends.grpc.transport.port import GrpcPort
from tpy.frontends.transport import Ends
from tpy.testing.trio_clock import TrioClock

from .harness import echo, echo_stream, options


@pytest.mark.parametrize(
    ("target", "histories"),
    [(targets.HOSTILE, 150), (targets.CONVERSATION, 30), (targets.FRAMING, 300)],
    ids=lambda value: value.name if isinstance(value, Target) else "",
)
def test_the_invariant_holds(target: Target, histories: int) -> None:
    assert sum(target.try_seed(seed) for seed in range(histories)) > histories


def test_the_canary_is_found() -> None:
    target = targets.FRAMING_CANARY
    with pytest.raises(Violation):
        sum(target.try_seed(seed) for seed in range(target.smoke_examples))


@pytest.mark.parametrize("handler", [UnaryHandler(echo), StreamHandler(echo_stream)], ids=["unary", "stream"])
async def test_a_connection_survives_hostile_clients(
    handler: UnaryHandler | StreamHandler, autojump_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    port = GrpcPort(options(max_receive_bytes=10_000), {"/a.B/C": handler}, TrioClock(autojump_clock))
    for seed in range(100):
        chance = Chance(seed)
        ours, theirs = trio.testing.memory_stream_pair()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(run_connection, port, StreamWire(theirs), Ends())
            for piece in cuts(chance, hostile.history(chance)):
                try:
                    await ours.send_all(piece)
                except trio.BrokenResourceError:
                    break
            await trio.testing.wait_all_tasks_blocked()
            await ours.aclose()
            nursery.cancel_scope.deadline = trio.current_time() + 60
        assert not nursery.cancel_scope.cancelled_caught, f"seed {seed}: the connection did not end"
        assert not port.connections
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []
