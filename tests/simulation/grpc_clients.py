"""gRPC clients: unary calls side by side with deadlines and cancellations, streams, and clients that vanish."""

from __future__ import annotations

import random

import h2.errors
import numpy as np
import trio
from tritonclient.grpc import service_pb2 as pb

from tests.frontends.grpc.transport.harness import Client
from tests.frontends.grpc.transport.peer import message
from tests.simulation.http_clients import PATIENCE_S
from tests.simulation.world import ECHOES, WORDS, World
from tpy.frontends.grpc.transport.core.timing import LifetimeStep

_INFER = "/inference.GRPCInferenceService/ModelInfer"
_STREAM = "/inference.GRPCInferenceService/ModelStreamInfer"

_OK = 0
_EXPECTED = {1, 4, 5, 13, 14}
"""CANCELLED, DEADLINE_EXCEEDED, NOT_FOUND, INTERNAL, UNAVAILABLE."""


class GrpcClient:
    """One connection with several calls at a time."""

    def __init__(self, world: World, number: int) -> None:
        self._world = world
        self._name = f"g{number}"
        self._chance = random.Random(f"{world.seed}/{self._name}")
        self._sent = 0
        self._vanished = False
        self._connected_s = 0.0

    async def run(self) -> None:
        """Until its calls are answered, or it vanishes."""
        chance = self._chance
        await trio.sleep(chance.choice((0, 0.01, 0.5, 2)))
        if self._world.stopping:
            return
        stream = self._world.connect_grpc()
        self._connected_s = trio.current_time()
        client = Client(stream)
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._pump, client)
                await client.flush()
                for _ in range(chance.choice((1, 3, 6))):
                    if client.eof or self._world.stopping:
                        break
                    await trio.sleep(chance.choice((0, 0, 0.01, 0.2)))
                    if chance.random() < 0.06:
                        self._vanished = True
                        self._world.journal.count("grpc client gone")
                        stream.vanish()
                    elif chance.random() < 0.3:
                        await self._stream(client)
                    else:
                        await self._calls(client, chance.choice((1, 1, 4)))
                nursery.cancel_scope.cancel()
        except* (trio.BrokenResourceError, trio.ClosedResourceError):
            if not self._vanished and not self._world.stopping:
                self._world.journal.broken(f"the connection of {self._name} was lost")
        finally:
            with trio.CancelScope(shield=True):
                await stream.aclose()

    async def _pump(self, client: Client) -> None:
        while not client.eof:
            await client.read()

    def _is_unsettled_by_a_jump(self, client: Client) -> bool:
        """Returns True if the clock jumped over the time that the server gives the set-up, while it was under way."""
        reasons = [goaway.additional_data for goaway in client.goaways]
        return self._world.jumped_s >= self._connected_s and reasons == [LifetimeStep.CLOSE_UNSETTLED.value.encode()]

    async def _until(self, client: Client, streams: list[int], what: str) -> bool:
        """Wait until these have ended; false when the connection went first."""
        with trio.move_on_after(PATIENCE_S) as patience:
            while not all(client.replies[stream].ended for stream in streams):
                if client.eof:
                    if not self._world.stopping and not self._is_unsettled_by_a_jump(client):
                        reasons = [(goaway.error_code, goaway.additional_data) for goaway in client.goaways]
                        self._world.journal.broken(f"{what}: the server closed the connection: {reasons}")
                    return False
                await trio.sleep(0.001)
        if patience.cancelled_caught:
            self._world.journal.broken(f"{what} got no answer")
            return False
        return True

    async def _calls(self, client: Client, count: int) -> None:
        chance = self._chance
        asked: dict[int, tuple[str, str, np.ndarray[tuple[int, ...], np.dtype[np.float32]]]] = {}
        cancelled = set()
        for _ in range(count):
            model = chance.choice(ECHOES)
            request, name, values = self._request(model)
            extra = [("grpc-timeout", chance.choice(("1m", "20m", "1S")))] if chance.random() < 0.2 else []
            stream = await client.begin(_INFER, *extra)
            await client.send(stream, message(request.SerializeToString()), end=True)
            asked[stream] = (model, name, values)
            if chance.random() < 0.15:
                await trio.sleep(chance.choice((0, 0.001, 0.01)))
                if not client.replies[stream].ended:
                    client.h2.reset_stream(stream, h2.errors.ErrorCodes.CANCEL)
                    client.replies[stream].ended = True
                    cancelled.add(stream)
                    await client.flush()
        if not await self._until(client, list(asked), self._name):
            return
        for stream, (model, name, values) in asked.items():
            reply = client.replies[stream]
            self._world.journal.count("grpc cancelled" if stream in cancelled else f"grpc {reply.status}")
            if stream in cancelled:
                continue
            if reply.status == _OK:
                response = pb.ModelInferResponse.FromString(reply.messages[0])
                if (response.model_name, response.id, response.raw_output_contents[0]) != (model, name, values.tobytes()):
                    self._world.journal.broken(f"{name} asked {model} for {values} and got {response}")
            elif reply.status not in _EXPECTED and not self._world.stopping:
                self._world.journal.broken(f"{name} got status {reply.status} {reply.text}")

    async def _stream(self, client: Client) -> None:
        chance = self._chance
        stream = await client.begin(_STREAM)
        asked = {}
        for _ in range(chance.choice((0, 1, 3, 10))):
            request, name, values = self._request(chance.choice((*ECHOES, WORDS)))
            request.parameters["triton_enable_empty_final_response"].bool_param = True
            asked[name] = values
            if client.replies[stream].ended or client.eof:
                break
            await client.send(stream, message(request.SerializeToString()))
            await trio.sleep(chance.choice((0, 0, 0.002)))
        if chance.random() < 0.15 and not client.replies[stream].ended:
            client.h2.reset_stream(stream, h2.errors.ErrorCodes.CANCEL)
            client.replies[stream].ended = True
            await client.flush()
            self._world.journal.count("grpc stream cancelled")
            return
        if not client.replies[stream].ended:
            client.h2.end_stream(stream)
            await client.flush()
        if await self._until(client, [stream], f"a stream of {self._name}"):
            self._check_stream([pb.ModelStreamInferResponse.FromString(each) for each in client.replies[stream].messages], asked)

    def _check_stream(self, responses: list[pb.ModelStreamInferResponse], asked: dict[str, object]) -> None:
        ended = set()
        for response in responses:
            inner = response.infer_response
            self._world.journal.count("grpc stream error" if response.error_message else "grpc stream response")
            if response.error_message or not inner.id:
                ended.add(inner.id)
                continue
            if inner.id in ended:
                self._world.journal.broken(f"{inner.id} got a response after its final one")
            if inner.parameters["triton_final_response"].bool_param:
                ended.add(inner.id)
            values = asked[inner.id]
            assert isinstance(values, np.ndarray)
            if inner.raw_output_contents and inner.raw_output_contents[0] != values.tobytes():
                self._world.journal.broken(f"{inner.id} streamed another request's values")
        errors = sum(1 for response in responses if response.error_message)
        if len(ended - {""}) + errors < len(asked) and not self._world.stopping:
            self._world.journal.broken(f"a stream answered {sorted(ended)} of {sorted(asked)}, and {errors} errors")

    def _request(self, model: str) -> tuple[pb.ModelInferRequest, str, np.ndarray[tuple[int, ...], np.dtype[np.float32]]]:
        self._sent += 1
        name = f"{self._name}.{self._sent}"
        rows = self._chance.choice((1, 1, 2))
        values = np.array([[self._chance.randrange(2**20) for _ in range(2)] for _ in range(rows)], np.float32)
        request = pb.ModelInferRequest(model_name=model, id=name)
        request.inputs.add(name="IN", datatype="FP32", shape=(rows, 2))
        request.raw_input_contents.append(values.tobytes())
        if self._chance.random() < 0.1:
            request.parameters["timeout"].int64_param = self._chance.choice((1, 2000, 100_000))
        return request, name, values
