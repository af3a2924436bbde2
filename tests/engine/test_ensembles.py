"""Requests to ensembles: what runs when, what is passed on, what the answer is."""

from __future__ import annotations

import pytest
import trio
from trio.testing import MockClock

from .ensembles import CHAIN, MembersBackend, ensemble, plus, serve_all, step, submit
from .fakes import config, rig


async def test_a_chain(autojump_clock: MockClock) -> None:
    backend = MembersBackend({"a": plus(10), "b": plus(100)})
    async with rig(backend=backend, latency_ms=5) as r:
        await serve_all(r, config("a"), config("b"), CHAIN)
        stream = submit(r, id="x")
        await trio.sleep(0.011)
        assert stream.values == [111]
        response = stream.responses[0]
        assert (response.model_name, response.model_version, response.id, response.final) == ("e", 1, "x", True)
        assert [output.name for output in response.outputs] == ["OUT"]
        assert response.parameters == {"sequence_id": 0, "sequence_start": False, "sequence_end": False}
