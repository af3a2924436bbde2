"""A data plane in a process of its own. What is desired comes over a pipe; each change that it observes goes back.

Use: python -m tests.planes.data_process DESCRIPTOR
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import trio

from tests.engine.fakes import RecordingSink, values
from tests.submitting import submit_to
from tpy.clock import SystemClock
from tpy.ids import ModelId, Version
from tpy.messages import DataType, InferenceRequest, Tensor
from tpy.state import DesiredModel, DesiredWriter, ModelStateStore, ObservedKey, ObservedVersion, ObservedWriter
from tpy_data.engine import DataPlane, DataPlaneOptions, open_data_plane
from tpy_data.registry import BackendRegistry


class ToldWriter(ObservedWriter):
    """Writes the observed half, and tells the other process."""

    def __init__(self, store: ModelStateStore, pipe: Connection) -> None:
        super().__init__(store)
        self._pipe = pipe

    def move(self, observed: ObservedVersion) -> None:
        """As `ObservedWriter.move`."""
        super().move(observed)
        self._pipe.send(("move", observed))

    def forget(self, key: ObservedKey) -> None:
        """As `ObservedWriter.forget`."""
        super().forget(key)
        self._pipe.send(("forget", key))

    def answer(self, model: ModelId, version: Version | None) -> None:
        """As `ObservedWriter.answer`."""
        super().answer(model, version)
        self._pipe.send(("answer", model, version))


def desire(writer: DesiredWriter, store: ModelStateStore, wanted: Iterable[DesiredModel]) -> None:
    """Bring the desired half to this."""
    models = {each.id: each for each in wanted}
    for gone in store.snapshot().desired.keys() - models.keys():
        writer.remove(gone)
    for each in models.values():
        writer.put(each)


async def infer(plane: DataPlane, model: str, numbers: list[float]) -> tuple[int, list[float]]:
    """The version that has answered, and its output."""
    given = Tensor("INPUT0", DataType.FP32, np.array(numbers, np.float32))
    sink = RecordingSink()
    submit_to(plane.inference, InferenceRequest(model_name=model, inputs=(given,)), sink)
    response = await sink.wait()
    return int(response.model_version), values(response)


async def serve(pipe: Connection) -> None:
    """Until the other end asks for the end, or is closed."""
    clock = SystemClock()
    store = ModelStateStore(clock)
    desired = store.desired_writer()
    backends = BackendRegistry()
    async with open_data_plane(DataPlaneOptions(), store, ToldWriter(store, pipe), backends, clock) as plane:
        while True:
            order: tuple[Any, ...] = await trio.to_thread.run_sync(pipe.recv)
            match order:
                case ("desire", wanted):
                    desire(desired, store, wanted)
                case ("infer", model, numbers):
                    pipe.send(("answered", await infer(plane, model, numbers)))
                case _:
                    break
    backends.close()
    pipe.send(("ended", sorted(name for name in sys.modules if name.partition(".")[0] in ("tpy_control", "tpy_cloud"))))


if __name__ == "__main__":
    trio.run(serve, Connection(int(sys.argv[1])))
