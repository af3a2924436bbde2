"""HTTP clients: steady, pipelining, slow, streaming, half-hearted and vanishing ones."""

from __future__ import annotations

import json
import math
import random

import trio

from tests.simulation.journal import Violation
from tests.simulation.network import ClientStream
from tests.simulation.world import ECHOES, KEPT, MODELS, TALK, World
from tpy.frontends.http.options import HttpOptions

PATIENCE_S = 5000.0
"""Longer than anything takes, hangs and restarts included: a request that is not answered by then is lost."""

_GONE = (trio.BrokenResourceError, trio.ClosedResourceError, EOFError)


class _Answers:
    """Reads responses, slowly if so asked."""

    def __init__(self, stream: ClientStream, *, bytes_at_once: int, pause_s: float) -> None:
        self._stream = stream
        self._bytes_at_once = bytes_at_once
        self._pause_s = pause_s
        self._read = b""

    async def _more(self) -> None:
        if self._pause_s:
            await trio.sleep(self._pause_s)
        data = await self._stream.receive_some(self._bytes_at_once)
        if not data:
            raise EOFError
        self._read += data

    async def _until(self, mark: bytes) -> bytes:
        while mark not in self._read:
            await self._more()
        found, _, self._read = self._read.partition(mark)
        return found

    async def _take(self, size: int) -> bytes:
        while len(self._read) < size:
            await self._more()
        taken, self._read = self._read[:size], self._read[size:]
        return taken

    async def next(self) -> tuple[int, bytes]:
        """Status and body of the next response; interim ones are passed over."""
        while True:
            lines = (await self._until(b"\r\n\r\n")).decode("latin-1").lower().split("\r\n")
            status = int(lines[0].split(" ")[1])
            if status >= 200:
                break
        headers = dict(line.split(": ", 1) for line in lines[1:])
        if headers.get("transfer-encoding") != "chunked":
            return status, await self._take(int(headers.get("content-length", "0")))
        body = b""
        while size := int(await self._until(b"\r\n"), 16):
            body += await self._take(size)
            await self._until(b"\r\n")
        await self._until(b"\r\n")
        return status, body


class HttpClient:
    """One client: a connection after the other, some requests on each."""

    def __init__(self, world: World, number: int) -> None:
        self._world = world
        self._name = f"h{number}"
        self._chance = random.Random(f"{world.seed}/{self._name}")
        self._sent = 0

    async def run(self) -> None:
        """Until the server stops or the client has had enough."""
        for _ in range(self._chance.choice((1, 2, 4))):
            await trio.sleep(self._chance.choice((0, 0.01, 0.5, 2)))
            if self._world.stopping:
                return
            await self._connection()

    async def _connection(self) -> None:
        chance = self._chance
        stream = self._world.connect_http()
        slow = chance.random() < 0.2
        answers = _Answers(
            stream, bytes_at_once=chance.choice((16, 100)) if slow else 65536, pause_s=chance.choice((0.001, 0.01)) if slow else 0
        )
        began_s = math.inf
        try:
            for _ in range(chance.choice((1, 5, 20))):
                await trio.sleep(chance.choice((0, 0, 0, 0.001, 0.05)))
                began_s = trio.current_time()
                if not await self._turn(stream, answers):
                    break
        except* _GONE:
            self._world.journal.count("http connection ended by the server")
            # Who reads slowly while the clock jumps has not read for longer than the server waits.
            given_up = slow and trio.current_time() - began_s > HttpOptions().write_timeout_s
            if not self._world.stopping and not given_up:
                self._world.journal.broken(f"the server closed a connection of {self._name} that it should serve")
        finally:
            with trio.CancelScope(shield=True):
                await stream.aclose()

    async def _turn(self, stream: ClientStream, answers: _Answers) -> bool:
        """One thing that clients do; false: the connection is over."""
        doing = self._chance.random()
        self._world.journal.note("turn", self._name, doing)
        if doing < 0.72:
            await self._infer(stream, answers, count=1)
        elif doing < 0.82:
            await self._infer(stream, answers, count=self._chance.choice((2, 3, 5)))
        elif doing < 0.88:
            await self._stream_words(stream, answers)
        elif doing < 0.92:
            await self._look(stream, answers)
        elif doing < 0.94:
            await self._nonsense(stream, answers)
        elif doing < 0.97:
            await self._talk(stream, answers)
        else:
            await self._leave(stream)
            return False
        return True

    async def _infer(self, stream: ClientStream, answers: _Answers, *, count: int) -> None:
        requests = [self._request() for _ in range(count)]
        # Sent beside reading: who sends and does not read is given up by the server, and rightly.
        async with trio.open_nursery() as sending:
            sending.start_soon(stream.send_all, b"".join(data for data, _, _, _ in requests))
            replies = [await self._answer(answers, name) for _, _, name, _ in requests]
        for (_, model, name, values), (status, body) in zip(requests, replies, strict=True):
            self._world.journal.count(f"http {status}")
            document = json.loads(body)
            if status == 200:
                got = (document["model_name"], document.get("id"), document["outputs"][0]["data"])
                if got != (model, name, values):
                    self._world.journal.broken(f"{name} asked {model} for {values} and got {got}")
            elif status not in (404, 500, 503) or not document["error"]:
                self._world.journal.broken(f"{name} got status {status}: {document}")

    async def _answer(self, answers: _Answers, name: str) -> tuple[int, bytes]:
        with trio.move_on_after(PATIENCE_S):
            return await answers.next()
        self._world.journal.broken(f"{name} got no answer")
        raise Violation(f"{name} got no answer")

    def _request(self) -> tuple[bytes, str, str, list[float]]:
        chance = self._chance
        model = chance.choice(ECHOES)
        self._sent += 1
        name = f"{self._name}.{self._sent}"
        rows = chance.choice((1, 1, 2))
        # Of few values, some are asked for again; of many, an answer says whose it is.
        values = [float(chance.randrange(3 if model == KEPT else 2**20)) for _ in range(2 * rows)]
        document: dict[str, object] = {
            "id": name,
            "inputs": [{"name": "IN", "shape": [rows, 2], "datatype": "FP32", "data": values}],
        }
        if chance.random() < 0.2:
            document["parameters"] = {"timeout": chance.choice((1, 2000, 100_000)), "priority": chance.choice((0, 1, 3))}
        return _post(f"/v2/models/{model}/infer", json.dumps(document)), model, name, values

    async def _stream_words(self, stream: ClientStream, answers: _Answers) -> None:
        self._sent += 1
        name = f"{self._name}.{self._sent}"
        values = [float(self._chance.randrange(2**20)) for _ in range(2)]
        await stream.send_all(_post("/v2/models/words/generate_stream", json.dumps({"id": name, "IN": values})))
        status, body = await self._answer(answers, name)
        self._world.journal.count(f"generate_stream {status}")
        if status != 200:
            return
        for event in body.decode().split("\n\n"):
            if event:
                document = json.loads(event.removeprefix("data: "))
                if "error" not in document and document["OUT"] != values:
                    self._world.journal.broken(f"{name} streamed {document} for {values}")

    async def _talk(self, stream: ClientStream, answers: _Answers) -> None:
        """A sequence: each answer is the sum of what was said so far."""
        chance, journal = self._chance, self._world.journal
        sequence = chance.randrange(1, 2**40)
        length = chance.choice((1, 3, 8))
        total = [0.0, 0.0]
        for index in range(length):
            self._sent += 1
            name = f"{self._name}.{self._sent}"
            values = [float(chance.randrange(1000)) for _ in range(2)]
            document = {
                "id": name,
                "inputs": [{"name": "IN", "shape": [1, 2], "datatype": "FP32", "data": values}],
                "parameters": {
                    "sequence_id": sequence,
                    "sequence_start": index == 0,
                    # Some leave without a word; their slot must come free all the same.
                    "sequence_end": index == length - 1 and chance.random() < 0.8,
                },
            }
            await stream.send_all(_post(f"/v2/models/{TALK}/infer", json.dumps(document)))
            status, body = await self._answer(answers, name)
            journal.count(f"sequence {status}")
            answer = json.loads(body)
            if status != 200:
                if "strayed" in answer["error"] or status not in (400, 404, 500, 503):
                    journal.broken(f"{name} of sequence {sequence} got {status}: {answer}")
                return
            total = [one + other for one, other in zip(total, values, strict=True)]
            if answer["outputs"][0]["data"] != total:
                journal.broken(f"{name} of sequence {sequence} got {answer['outputs']} and not {total}")
            await trio.sleep(chance.choice((0, 0, 0.01, 0.3, 1.5)))

    async def _look(self, stream: ClientStream, answers: _Answers) -> None:
        model = self._chance.choice(MODELS)
        path = self._chance.choice(
            (
                "/v2/health/ready",
                "/v2/models/stats",
                f"/v2/models/{model}",
                f"/v2/models/{model}/ready",
                f"/v2/models/{model}/config",
            )
        )
        await stream.send_all(f"GET {path} HTTP/1.1\r\nHost: s\r\n\r\n".encode())
        status, _ = await self._answer(answers, path)
        self._world.journal.count(f"http control {status}")
        if status not in (200, 400, 404, 503):
            self._world.journal.broken(f"{path} was answered with {status}")

    async def _nonsense(self, stream: ClientStream, answers: _Answers) -> None:
        body = self._chance.choice(
            ("{", "[]", '{"inputs": 7}', '{"inputs": [{"name": "IN", "shape": [1, 3], "datatype": "FP32", "data": [1, 2, 3]}]}')
        )
        await stream.send_all(_post("/v2/models/plain/infer", body))
        status, answer = await self._answer(answers, "nonsense")
        self._world.journal.count(f"http nonsense {status}")
        if status not in (400, 404, 500, 503) or not json.loads(answer)["error"]:
            self._world.journal.broken(f"nonsense was answered with {status}: {answer!r}")

    async def _leave(self, stream: ClientStream) -> None:
        """Go in the middle of a request, or before its answer."""
        data, _, _, _ = self._request()
        if self._chance.random() < 0.5:
            data = data[: self._chance.randrange(len(data))]
        await stream.send_all(data)
        pause_s = self._chance.choice((0, 0.001, 0.02, 30))
        if pause_s == 30:
            self._world.journal.note("lingers", self._name)  # a stop waits for the rest of its request
        await trio.sleep(pause_s)
        if self._chance.random() < 0.7:
            stream.vanish()
        self._world.journal.count("http client gone")


def _post(path: str, body: str) -> bytes:
    return f"POST {path} HTTP/1.1\r\nHost: s\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode()
