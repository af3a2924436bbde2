"""A model of a compiled backend of ours, with one instance, in the server's process or in a worker."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np

from tests.native.compiled import library
from tpy.backend import Backend, InstancePlacement, ModelContext, ServerCalls
from tpy.config import ModelConfig
from tpy.config.model_config import InstanceKind, ModelInput, ModelOutput, ModelParameter, TransactionPolicy
from tpy.messages import DataType
from tpy.telemetry.custom_metrics import CustomMetrics
from tpy.testing.hosting import HostedInstance, HostedModel
from tpy.testing.requests import RecordingSender, SampleRequest, request_of
from tpy_data.registry import BackendRegistry

PLACEMENT = InstancePlacement(name="m_0", kind=InstanceKind.KIND_CPU)
OUTPUT_OF = {"streams": (DataType.INT32, (1,)), "describes": (DataType.BYTES, (1,))}


class Compiled:
    """`behaviour` is the model's; `source` the plug-in's."""

    def __init__(
        self,
        folder: Path,
        behaviour: str = "",
        *,
        source: str = "behaviours",
        isolation: str = "thread",
        server: ServerCalls | None = None,
        settings: dict[str, str] | None = None,
    ) -> None:
        self.logs: list[str] = []
        self.metrics = CustomMetrics()
        self.registry = BackendRegistry(backend_config={source: settings or {}}, log=self._log)
        datatype, dims = OUTPUT_OF.get(behaviour, (DataType.FP32, (2,)))
        parameters = {"behaviour": behaviour, "isolation": isolation}
        streams = behaviour == "streams"
        self.config = ModelConfig(
            name="m",
            backend=source,
            max_batch_size=0 if streams else 4,
            input=(ModelInput(name="X", data_type=DataType.FP32, dims=(2,)),),
            output=(ModelOutput(name="Y", data_type=datatype, dims=dims),),
            model_transaction_policy=TransactionPolicy(decoupled=streams),
            parameters={key: ModelParameter(string_value=text) for key, text in parameters.items() if text},
        )
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"libtriton_{source}.so").symlink_to(library(source))
        self.context = ModelContext(
            name="m",
            version=3,
            generation=1,
            config=self.config,
            model_directory=folder,
            version_directory=folder / "3",
            log=self._log,
            metrics=self.metrics,
            server=server,
        )
        self.models: list[HostedModel] = []

    def _log(self, level: str, text: str) -> None:
        self.logs.append(f"{level}: {text}")

    @property
    def backend(self) -> Backend:
        return self.registry.for_model(self.config, (self.context.version_directory, self.context.model_directory))

    def instance(self) -> HostedInstance:
        """Make it, as the server does: again, after one that has failed."""
        if not self.models:
            self.models.append(HostedModel(self.backend, self.context))
        return self.models[0].instance(PLACEMENT)

    def request(self, value: float = 1.5, *, sender: RecordingSender | None = None, **more: Any) -> SampleRequest:
        shape = (1, 2) if self.config.max_batch_size else (2,)
        made = request_of(self.config, {"X": np.full(shape, value, np.float32)}, sender=sender)
        return SampleRequest(inputs=made.inputs, sender=sender, **more)

    def logged(self, pattern: str) -> bool:
        return any(re.search(pattern, text) for text in self.logs)

    def close(self) -> None:
        for model in self.models:
            model.close()
        self.registry.close()
