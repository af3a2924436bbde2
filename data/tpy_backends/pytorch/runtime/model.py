"""Serves a class of the user's that extends `torch.nn.Module`: what a worker runs for a model with `runtime: "model.py"`.

The class is in the version's model.py, its weights may lie beside it in model.pt (a `state_dict`).
"""

from __future__ import annotations

import importlib.util
import inspect
import json
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

import triton_python_backend_utils as pb_utils

COMPILE = "TORCH_COMPILE_OPTIONAL_PARAMETERS"
CLASS_FILENAME = "model.py"
_DEFAULT_FILENAMES = ("model.pt", "model.pt2", "")


class TritonPythonModel:
    """One for each instance, in its worker."""

    def initialize(self, args: dict[str, str]) -> None:
        """Make the module and read its weights. Raises what the user's code raises, TritonModelException for what is missing."""
        config = json.loads(args["model_config"])
        parameters = {key: value["string_value"] for key, value in config.get("parameters", {}).items()}
        for key, set_count in (("NUM_THREADS", torch.set_num_threads), ("NUM_INTEROP_THREADS", torch.set_num_interop_threads)):
            if key in parameters:
                set_count(int(parameters[key]))
        self._inputs = [entry["name"] for entry in config["input"]]
        self._outputs = [entry["name"] for entry in config["output"]]
        self._batches = config.get("max_batch_size", 0) > 0
        folder = Path(pb_utils.get_model_dir())
        filename = config.get("default_model_filename", "")
        path = folder / (CLASS_FILENAME if filename in _DEFAULT_FILENAMES else filename)
        module_class = _module_class(_imported(path))
        module = module_class()
        self._device = _device(args, module)
        weights = path.with_suffix(".pt")
        if weights.exists():
            module.load_state_dict(torch.load(weights, map_location=self._device, weights_only=True))
        else:
            pb_utils.Logger.log_info(f"no weights for '{args['model_name']}': there is no {weights.name} beside {path.name}")
        module = module.to(self._device).eval()
        if COMPILE in parameters:
            module = torch.compile(module, **json.loads(parameters[COMPILE] or "{}"))
        self._module = module

    def execute(self, requests: list[Any]) -> list[Any]:
        """One run for all requests of a model that batches, else one for each. What the module raises fails them all."""
        with torch.inference_mode():
            columns = [self._tensors(request) for request in requests]
            if not self._batches or len(columns) == 1:
                return [self._response(_sequence(self._module(*tensors))) for tensors in columns]
            rows = [tensors[0].shape[0] for tensors in columns]
            made = _sequence(self._module(*[torch.cat(column) for column in zip(*columns, strict=True)]))
            parts = [torch.split(each, rows) for each in made]
            return [self._response([part[index] for part in parts]) for index in range(len(columns))]

    def _tensors(self, request: Any) -> list[torch.Tensor]:
        """Copies: the module may write them. Raises ValueError for an input that was not given."""
        tensors = []
        for name in self._inputs:
            given = pb_utils.get_input_tensor_by_name(request, name)
            if given is None:
                raise ValueError(f"input '{name}' was not given")
            tensors.append(torch.from_numpy(given.as_numpy().copy()).to(self._device))
        return tensors

    def _response(self, made: list[torch.Tensor]) -> Any:
        if len(made) < len(self._outputs):
            return pb_utils.InferenceResponse(
                error=pb_utils.TritonError(
                    f"the model returned {len(made)} tensors, the configuration has {len(self._outputs)} outputs"
                )
            )
        arrays = [tensor.detach().cpu().contiguous().numpy() for tensor in made]
        return pb_utils.InferenceResponse(
            output_tensors=[pb_utils.Tensor(name, array) for name, array in zip(self._outputs, arrays, strict=False)]
        )


def _imported(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location("served_torch_model", path)
    if not path.exists() or spec is None or spec.loader is None:
        raise pb_utils.TritonModelException(f"unable to find '{path}'")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _module_class(module: ModuleType) -> type[Any]:
    """The class that is defined in the file: the last one, where several are, because it uses those before it."""
    classes = [
        value
        for value in vars(module).values()
        if inspect.isclass(value) and issubclass(value, torch.nn.Module) and value.__module__ == module.__name__
    ]
    if not classes:
        raise pb_utils.TritonModelException("Cannot find a subclass of torch.nn.Module")
    return classes[-1]


def _device(args: dict[str, str], module: Any) -> torch.device:
    """The instance's device; for KIND_MODEL that of the module's first parameter."""
    kind = args["model_instance_kind"]
    if kind == "GPU":
        return torch.device("cuda", int(args["model_instance_device_id"]))
    if kind == "CPU":
        return torch.device("cpu")
    return next((parameter.device for parameter in module.parameters()), torch.device("cpu"))


def _sequence(made: Any) -> list[torch.Tensor]:
    return list(made) if isinstance(made, (tuple, list)) else [made]
