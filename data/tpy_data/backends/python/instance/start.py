"""The parameters with which an instance is started."""

from __future__ import annotations

import json
from collections.abc import Mapping

import msgspec

from tpy.backend import HostPolicy, ModelMetrics, ServerCalls
from tpy.backend.host_policy import ANYWHERE
from tpy.devices import NO_DEVICES, Devices
from tpy.telemetry.custom_metrics import CustomMetrics
from tpy_data.backends.python.environment.interpreters import Interpreter
from tpy_data.backends.python.sandboxing import Sandbox
from tpy_data.backends.python.worker.model.loader import ModelSource


class InstanceStart(msgspec.Struct, frozen=True, kw_only=True):
    """`directory` is the model's version folder, `output_names` the configured outputs; `arguments` are those of initialize."""

    name: str
    source: ModelSource
    directory: str
    output_names: tuple[str, ...] = ()
    decoupled: bool = False
    arguments: Mapping[str, str] = msgspec.field(default_factory=dict)
    metrics: ModelMetrics = msgspec.field(default_factory=CustomMetrics)
    """Without any, as for auto_complete_config, metrics that the model makes go nowhere."""
    server: ServerCalls | None = None
    iterative: bool = False
    """True if the model may give requests back."""


class WorkerStart(InstanceStart, frozen=True, kw_only=True):
    """An instance in its own process; `mode` is "instance" or "auto_complete", which has the configuration as JSON in
    `config`."""

    mode: str
    interpreter: Interpreter
    config: str = ""
    host: HostPolicy = ANYWHERE
    devices: Devices = NO_DEVICES
    takes_devices: bool = False
    """True if the model takes tensors on devices; else it gets copies in host memory."""
    sandbox: Sandbox | None = None
    hosting: str = ""
    """A packed `HostingOrder`: the worker hosts another backend, and has no model.py."""

    def _sharing_module(self) -> str:
        """Of the devices there are, which are all of one kind."""
        return next((str(self.devices.get(number).sharing_module) for number in self.devices.ids), "")

    def order(self) -> bytes:
        """The LOAD message."""
        return json.dumps(
            {
                "name": self.name,
                "mode": self.mode,
                "source": self.source._asdict(),
                "directory": self.directory,
                "bin": self.interpreter.bin_directory,
                "outputs": self.output_names,
                "decoupled": self.decoupled,
                "arguments": dict(self.arguments),
                "config": self.config,
                "iterative": self.iterative,
                "hosting": self.hosting,
                "sharing": self._sharing_module() if not self.hosting else "",
            }
        ).encode()
