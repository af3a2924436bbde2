"""Models of other applications that a replica's models call by name: there functions stand for them, which ask through Ray."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from ray import serve
from ray.exceptions import RayError, RayTaskError
from ray.serve.exceptions import RayServeException

from tpy.config import ConfigError, ModelConfig, parse_pbtxt, to_json
from tpy.config.model_config import InstanceGroup, InstanceKind, ModelInput, ModelOutput, ModelParameter
from tpy.embedded.server import Server
from tpy.errors import Internal, InvalidArgument, TpyError, Unavailable
from tpy.limits import RAY_CALLS_MAX
from tpy_data.backends.function import FUNCTIONS, PARAMETER

_FILE = "config.pbtxt"


def config_of(folder: Path) -> ModelConfig:
    """The configuration in a model's folder, an empty one if the file is missing. Raises InvalidArgument."""
    file = folder / _FILE
    if not file.is_file():
        return ModelConfig()
    try:
        return parse_pbtxt(file.read_text(encoding="utf-8"), path=str(file)).config
    except (ConfigError, OSError, UnicodeError) as error:
        raise InvalidArgument(f"tpy.ray: model '{folder.name}': {error}") from None


def add_called(server: Server, repositories: tuple[str, ...], name: str) -> None:
    """Have a running server answer requests for a model by the application of its name. Raises InvalidArgument for a model that a
    call of a function cannot stand for."""
    config = next((config_of(Path(each) / name) for each in repositories if (Path(each) / name).is_dir()), None)
    if config is None:
        raise InvalidArgument(f"tpy.ray: calls names the model '{name}', which is not in {', '.join(repositories)}")
    key = f"ray/{name}"
    FUNCTIONS[key] = _Called(name)
    server.load(name, config=to_json(_as_function(name, config, key)), files={f"1/{name}": b""})


def _as_function(name: str, config: ModelConfig, key: str) -> ModelConfig:
    """The configuration of the function: tensors as the model has them, and several calls at once."""
    if not config.input or not config.output:
        raise InvalidArgument(f"tpy.ray: calls names the model '{name}': its {_FILE} has to say its inputs and outputs")
    if config.sequence_batching is not None or config.decoupled:
        raise InvalidArgument(
            f"tpy.ray: calls names the model '{name}', which has sequences or sends any number of responses: load it beside"
        )
    return ModelConfig(
        name=name,
        backend="function",
        max_batch_size=config.max_batch_size,
        input=tuple(
            ModelInput(name=each.name, data_type=each.data_type, dims=each.dims, optional=each.optional) for each in config.input
        ),
        output=tuple(ModelOutput(name=each.name, data_type=each.data_type, dims=each.dims) for each in config.output),
        instance_group=(InstanceGroup(count=RAY_CALLS_MAX, kind=InstanceKind.KIND_CPU),),
        parameters={PARAMETER: ModelParameter(string_value=key)},
    )


class _Called:
    """Calls the model of an application, and waits for what it answers."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __call__(self, **inputs: np.ndarray[Any, Any]) -> Mapping[str, np.ndarray[Any, Any]]:
        try:
            answer = serve.get_app_handle(self._name).infer_arrays.remote(inputs).result()
        except RayTaskError as error:
            if isinstance(error.cause, TpyError):
                raise error.cause from None
            raise Internal(f"model '{self._name}' of the application '{self._name}' failed: {error.cause}") from None
        except (RayServeException, RayError) as error:
            raise Unavailable(f"the application '{self._name}' does not answer: {' '.join(str(error).split())}") from None
        return dict(answer)
