"""A small python model on disk, served in a process of its own or in the test's."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tpy.backend import Backend, BackendSettings, ExecutionResult, InstancePlacement, ModelContext
from tpy.config import ModelConfig
from tpy.config.model_config import InstanceKind, ModelInput, ModelOutput, ModelParameter, TransactionPolicy
from tpy.messages import DataType, Tensor
from tpy.messages.datatypes import from_numpy
from tpy.testing.hosting import HostedInstance, HostedModel
from tpy.testing.requests import SampleRequest
from tpy_data.backends.python import create

PREAMBLE = """
import os, sys, json
import numpy as np
import triton_python_backend_utils as pb_utils

def tensor(array, name="OUT"):
    return pb_utils.Tensor(name, array)

def answer(*tensors):
    return pb_utils.InferenceResponse(list(tensors))

def given(request, name="IN"):
    return pb_utils.get_input_tensor_by_name(request, name).as_numpy()
"""


def request(array: Any = None, /, **options: Any) -> SampleRequest:
    """A request with one input IN (default: three floats)."""
    array = np.arange(3, dtype=np.float32) if array is None else array
    inputs = options.pop("inputs", None) or {"IN": Tensor("IN", from_numpy(array.dtype), array)}
    return SampleRequest(inputs=inputs, **options)


@dataclass
class Served:
    """A model with one instance, opened on first use."""

    backend: Backend
    context: ModelContext
    logs: list[tuple[str, str]]
    name: str = "m_0"
    _open: list[HostedModel] = field(default_factory=list)
    _instance: HostedInstance | None = None

    @property
    def instance(self) -> HostedInstance:
        if self._instance is None:
            self._open.append(HostedModel(self.backend, self.context))
            placement = InstancePlacement(name=self.name, kind=InstanceKind.KIND_CPU)
            self._instance = self._open[-1].instance(placement)
        return self._instance

    @property
    def python(self) -> Any:
        """The ModelInstance itself."""
        return self.instance.model_instance

    def run(self, *requests: SampleRequest) -> list[ExecutionResult]:
        return list(self.instance.execute(*(requests or (request(),))))

    def output(self, *requests: SampleRequest) -> np.ndarray[Any, Any]:
        """The first output of the first answer, which is no error."""
        result = self.run(*requests)[0]
        assert result.error is None, result.error
        return result.outputs[0].array

    def close(self) -> None:
        self._instance = None
        while self._open:
            self._open.pop().close()

    def logged(self, level: str) -> list[str]:
        return [text for given, text in self.logs if given == level]


Serve = Callable[..., Served]


@pytest.fixture(params=["process", "thread"])
def isolation(request: pytest.FixtureRequest) -> str:
    return str(request.param)


class Backends:
    """Backends by their settings: tests with the same share the process that their workers are forked from."""

    def __init__(self) -> None:
        self._open: dict[tuple[object, ...], Backend] = {}

    def get(self, settings: Mapping[str, str], directory: Path | None) -> Backend:
        key = tuple(sorted(settings.items())), directory
        if key not in self._open:
            self._open[key] = create(BackendSettings(name="python", config=dict(settings), backend_directory=directory))
        return self._open[key]

    def close(self) -> None:
        while self._open:
            self._open.popitem()[1].close()


@pytest.fixture(scope="module")
def backends() -> Iterator[Backends]:
    """Those of a file of tests."""
    backends = Backends()
    yield backends
    backends.close()


@pytest.fixture
def make(tmp_path: Path, backends: Backends) -> Iterator[Serve]:
    """Write a model and make it ready to be served. `code` is model.py (a preamble goes in front unless `raw`), None for none."""
    made: list[Served] = []

    def make(
        code: str | None,
        isolation: str = "process",
        *,
        settings: Mapping[str, str] | None = None,
        parameters: Mapping[str, str] | None = None,
        files: Mapping[str, str] | None = None,
        raw: bool = False,
        decoupled: bool = False,
        backend_directory: Path | None = None,
        **config: Any,
    ) -> Served:
        model_directory = tmp_path / f"repository{len(made)}" / "m"
        version = model_directory / "1"
        version.mkdir(parents=True)
        if code is not None:
            text = textwrap.dedent(code) if raw else PREAMBLE + textwrap.dedent(code)
            (version / config.get("default_model_filename", "model.py")).write_text(text)
        for name, text in (files or {}).items():
            (model_directory / name).write_text(textwrap.dedent(text))
        chosen = {"TPY_PYTHON_ISOLATION": isolation} if isolation != "process" else {}
        values: dict[str, Any] = {
            "input": (ModelInput(name="IN", data_type=DataType.FP32, dims=(-1,)),),
            "output": (ModelOutput(name="OUT", data_type=DataType.FP32, dims=(-1,)),),
            **config,
        }
        if decoupled:
            values["model_transaction_policy"] = TransactionPolicy(decoupled=True)
        all_parameters = {key: ModelParameter(string_value=text) for key, text in {**chosen, **(parameters or {})}.items()}
        logs: list[tuple[str, str]] = []
        served = Served(
            backends.get(settings or {}, backend_directory),
            ModelContext(
                name="m",
                version=1,
                generation=1,
                config=ModelConfig(name="m", backend="python", parameters=all_parameters, **values),
                model_directory=model_directory,
                version_directory=version,
                log=lambda level, text: logs.append((level, text)),
            ),
            logs,
        )
        made.append(served)
        return served

    yield make
    for served in made:
        served.close()


@pytest.fixture
def serve(make: Serve, isolation: str) -> Serve:
    """`make`, once for each way of isolation."""

    def serve(code: str | None, **options: Any) -> Served:
        return make(code, isolation, **options)

    return serve
