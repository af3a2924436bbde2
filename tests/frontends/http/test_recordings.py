"""The route of recordings: what it takes, what it answers, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import trio

from tpy.clock import SystemClock
from tpy.recording.recorder import recording
from tpy.services import NO_DIRECTORY

from .fakes import FakeServices
from .harness import get, post, running

OFF = {
    "state": "off",
    **dict.fromkeys(("directory", "file", "reason"), ""),
    **dict.fromkeys(("requests", "bytes", "dropped", "unfinished", "seconds"), 0),
    "files": [],
}
UNKNOWN_MEMBER = "Object contains unknown field `file`"
WRONG_SAMPLE = "recording: Expected `int`, got `str` - at `$.sample`"


@pytest.mark.parametrize(
    ("request_bytes", "status", "answer"),
    [
        (get("/v2/recording"), 200, OFF),
        (post("/v2/recording", '{"action": "stop"}'), 200, OFF),
        (post("/v2/recording", '{"action": "start"}'), 501, {"error": NO_DIRECTORY}),
        (post("/v2/recording", '{"action": "pause"}'), 400, {"error": "recording: Invalid value 'pause' - at `$.action`"}),
        (post("/v2/recording", "{}"), 400, {"error": "recording: Object missing required field `action`"}),
        (post("/v2/recording", '{"action": "start", "sample": "2"}'), 400, {"error": WRONG_SAMPLE}),
        (post("/v2/recording", '{"action": "stop", "file": "/x"}'), 400, {"error": "recording: " + UNKNOWN_MEMBER}),
    ],
)
async def test_without_a_folder(request_bytes: bytes, status: int, answer: object) -> None:
    async with running(FakeServices()) as server:
        found = await (await server.connect()).ask(request_bytes)
    assert (found.status, json.loads(found.body)) == (status, answer)


async def test_a_recording_is_started_looked_at_and_stopped(tmp_path: Path) -> None:
    services = FakeServices()
    with recording(str(tmp_path), SystemClock(), "triton", frozenset()) as services.recordings:
        async with running(services) as server:
            client = await server.connect()
            document = {"action": "start", "models": ["a*", "b"], "sample": 3, "max_bytes": 10_000, "inputs": "hash"}
            started = json.loads((await client.ask(post("/v2/recording", json.dumps(document)))).body)
            assert started.pop("bytes") > 0
            assert started.pop("seconds") >= 0
            file = Path(started.pop("file"))
            assert file.parent == tmp_path
            (listed,) = started.pop("files")
            assert (listed["name"], listed["bytes"]) == (file.name, (await trio.Path(file).stat()).st_size)
            assert started == {
                "state": "recording",
                "directory": str(tmp_path),
                **dict.fromkeys(("requests", "dropped", "unfinished"), 0),
                "reason": "",
                "models": ["a*", "b"],
                "sample": 3,
                "max_bytes": 10_000,
                "max_requests": 100_000,
                "max_seconds": 3600,
                "inputs": "hash",
                "outputs": "full",
            }
            again = await client.ask(post("/v2/recording", '{"action": "start"}'))
            assert again.status == 400
            assert b"stop it first" in again.body
            wrong = await client.ask(post("/v2/recording", '{"action": "start", "sample": 0}'))
            assert wrong.status == 400
            assert json.loads((await client.ask(get("/v2/recording"))).body)["state"] == "recording"
            stopped = json.loads((await client.ask(post("/v2/recording", '{"action": "stop"}'))).body)
            assert (stopped["state"], stopped["reason"]) == ("stopped", "it was stopped")
