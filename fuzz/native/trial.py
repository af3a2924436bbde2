"""A history: scripts for the hostile library, each followed by a request that is sound. One worker serves many histories."""

from __future__ import annotations

import contextlib
import functools
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from fuzz.chance import Chance
from fuzz.target import Violation
from tpy.backend import ExecutionResult, InstanceFailure, InstancePlacement, ModelContext
from tpy.config import ModelConfig
from tpy.config.model_config import InstanceKind, ModelInput, ModelOutput, ModelParameter
from tpy.errors import TpyError
from tpy.messages import DataType, Tensor
from tpy.telemetry.custom_metrics import CustomMetrics
from tpy.testing.hosting import HostedInstance, HostedModel
from tpy.testing.requests import SampleRequest
from tpy_data.registry import BackendRegistry
from tpy_native.building import compile_plugin

INVARIANT = (
    "whatever a library calls, in whatever order and of whatever object, the server lives: each execution ends with a result for "
    "each request or with the loss of the instance, an instance made again answers the next request, and no descriptor is left"
)
RULES = ("script", "error", "crash", "sound")

_FUNCTIONS = 33
SOUND = bytes([255, 0, 0])
_PHRASES = (
    ((1, 0, 0), (9, 0, 4), (10, 4, 16), (12, 4, 0), (2, 0, 1), (0, 0, 1)),  # a sound answer: 16 bytes of UINT32
    ((1, 0, 0), (9, 0, 4), (10, 4, 16), (11, 4, 8), (2, 0, 1), (0, 0, 1)),  # bytes beyond the end of the buffer
    ((10, 4, 255), (12, 4, 0)),  # of an output that may be gone
    ((0, 0, 1), (0, 0, 1)),  # a second release
    ((5, 0, 1), (7, 1, 2), (2, 2, 0), (8, 1, 1), (6, 1, 0), (6, 1, 0)),  # a factory, deleted twice
    ((2, 0, 1), (2, 0, 1), (4, 0, 0)),  # a response that is sent, sent and deleted
    ((28, 0, 4), (29, 4, 16), (12, 4, 0), (30, 4, 0), (30, 4, 0)),  # a state that is updated twice
)
_PLACEMENT = InstancePlacement(name="m_0", kind=InstanceKind.KIND_CPU)
_DESCRIPTORS_MAX = 16
"""Descriptors that a worker may have on the server's side."""
_CONFIG = ModelConfig(
    name="m",
    backend="hostile",
    max_batch_size=0,
    input=(ModelInput(name="X", data_type=DataType.UINT8, dims=(-1,)),),
    output=(ModelOutput(name="Y", data_type=DataType.UINT8, dims=(1, 4)),),
    parameters={"TPY_EXECUTE_TIMEOUT_SECONDS": ModelParameter(string_value="10")},
)


class Host:
    """The library in a worker, which comes back when it has died."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="tpy-hostile-")
        folder = Path(self._folder.name)
        compile_plugin(Path(__file__).parent / "hostile.c", folder / "libtriton_hostile.so")
        self._registry = BackendRegistry()
        context = ModelContext(
            name="m",
            version=1,
            generation=1,
            config=_CONFIG,
            model_directory=folder,
            version_directory=folder / "1",
            log=lambda level, text: None,
            metrics=CustomMetrics(),
        )
        self._model = HostedModel(self._registry.for_model(_CONFIG, (folder / "1", folder)), context)
        self._instance: HostedInstance | None = None
        self._descriptors = len(os.listdir("/proc/self/fd"))

    def execute(self, scripts: Sequence[bytes], *, again: bool = True) -> Sequence[ExecutionResult] | None:
        """Run one batch. None: it cost the instance. Raises Violation when the worker is not made `again`."""
        if self._instance is None:
            if not again:
                raise Violation("the instance is gone, and none was made in its place")
            self._instance = self._model.instance(_PLACEMENT)
        requests = [
            SampleRequest(inputs={"X": Tensor("X", DataType.UINT8, np.frombuffer(script, np.uint8))}) for script in scripts
        ]
        try:
            results = self._instance.execute(*requests)
        except (InstanceFailure, TpyError):
            self._lose()
            return None
        if len(results) != len(scripts):
            raise Violation(f"{len(results)} results for {len(scripts)} requests")
        return results

    def check(self) -> None:
        """Raises Violation when something is left of workers that are gone."""
        count = len(os.listdir("/proc/self/fd"))
        if count > self._descriptors + _DESCRIPTORS_MAX:
            raise Violation(f"{count} descriptors are open, there were {self._descriptors}")

    def _lose(self) -> None:
        instance, self._instance = self._instance, None
        if instance is not None:
            with contextlib.suppress(TpyError):  # it is dead
                instance.close()


@functools.cache
def host() -> Host:
    """The one of this process, which its worker does not outlive."""
    return Host()


def run(chance: Chance, *, again: bool = True) -> int:
    """Try one history. Returns how many calls the library was told to make."""
    calls = 0
    for _ in chance.rounds((1, 2, 4)):
        scripts = [_script(chance) for _ in range(chance.choice((1, 1, 1, 3)))]
        calls += sum(len(script) // 3 for script in scripts)
        results = host().execute(scripts, again=again)
        if results is None:
            chance.taken["crash"] += 1
        elif any(result.error is not None for result in results):
            chance.taken["error"] += 1
        else:
            chance.taken["script"] += 1
        _require_sound(chance, again=again)
    host().check()
    return calls


def _require_sound(chance: Chance, *, again: bool) -> None:
    """The next request is answered: by this instance, or, where the script has spoilt its memory, by the one after it."""
    for _ in range(3):
        results = host().execute([SOUND], again=again)
        if results is not None and results[0].error is None and results[0].outputs[0].array.tobytes() == b"done":
            chance.taken["sound"] += 1
            return
    raise Violation(f"a sound request is not answered: {results}")


def _script(chance: Chance) -> bytes:
    calls: list[tuple[int, int, int]] = []
    for _ in chance.rounds((1, 3, 8, 20)):
        if chance.random() < 0.3:
            calls += chance.choice(_PHRASES)
        else:
            of, value = chance.choice((0, 0, 0, 1, 2, 4, 7)), chance.choice((0, 0, 1, 1, 2, 4, 13, 16, 255))
            calls.append((chance.randrange(_FUNCTIONS), of, value))
    end = [chance.randrange(200)] if chance.random() < 0.1 else []
    return bytes([*(byte for call in calls for byte in call), *end])
