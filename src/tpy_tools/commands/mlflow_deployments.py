"""The target `tpy` of `mlflow deployments`, found by its entry point: models of MLflow in the repository of a running server.

MLflow calls `target_help`, `run_local` and the one class. The server has to run with --model-control-mode=explicit, and its
repository has to be a folder of this machine.
"""

from __future__ import annotations

import contextlib
import os
import ssl
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol, TypeVar
from urllib.parse import quote

import orjson
from mlflow.artifacts import download_artifacts
from mlflow.deployments import BaseDeploymentClient, PredictionsResponse
from mlflow.exceptions import MlflowException
from mlflow.protos.databricks_pb2 import (
    INVALID_PARAMETER_VALUE,
    RESOURCE_ALREADY_EXISTS,
    RESOURCE_DOES_NOT_EXIST,
    TEMPORARILY_UNAVAILABLE,
)
from mlflow.utils.proto_json_utils import dump_input_data

from tpy_tools.commands.client import Client, ClientError
from tpy_tools.commands.importing.core.deployment_target import API_KEY, REPOSITORY, is_trusted, parse_target
from tpy_tools.commands.importing.core.plan import Unimportable, require_name
from tpy_tools.commands.importing.deployed_models import DeployedModels

Config = Mapping[str, object]
_NOT_FOUND = 404
_START = "tpy serve DIRECTORY --model-control-mode=explicit"
_LOAD_S_MAX = 600.0
"""A model of MLflow imports its libraries when it is loaded, which may take minutes on a busy machine."""

_FORMS = frozenset({"dataframe_split", "dataframe_records", "instances", "inputs"})

_Result = TypeVar("_Result")


class _Put(Protocol):
    """A method of DeployedModels that takes a model."""

    def __call__(self, name: str, source: Path, /, *, flavour: str, trust: bool, load: Callable[[], None]) -> None: ...


def target_help() -> str:
    """The text of `mlflow deployments help -t tpy`."""
    return f"""\
Target: tpy:http://HOST:PORT?repository=DIRECTORY&mlflow-port=N, or tpy for http://localhost:8000.

  HOST:PORT    the HTTP port of a server that runs with --model-control-mode=explicit
  repository   its model repository, as this machine sees it; also ${REPOSITORY}
  mlflow-port  its MLflow port (--allow-mlflow), which predict asks; 5000

A deployment is a model folder, made as tpy import makes it; its name consists of letters, digits, '_', '-' and '.'.
Configuration: -C trust=true also deploys models that run their author's code in the server, as pickles do.
${API_KEY} is the key of a server with --auth-config: it needs the roles manage and observe, and infer for predict.
"""


def run_local(name: str, model_uri: str, flavor: str | None = None, config: Config | None = None) -> None:
    """Serve a model until Ctrl-C, at the ports 8000 and 5000 of this machine alone. MLflow calls it without the target."""
    with tempfile.TemporaryDirectory() as folder:
        _change(lambda: _deploy(DeployedModels(folder).add, name, model_uri, flavor, config, load=lambda: None))
        here = ("--http-address=127.0.0.1", "--grpc-address=127.0.0.1")
        command = [sys.executable, "-m", "tpy", "serve", folder, *here, "--allow-mlflow=true", f"--mlflow-model={name}"]
        with contextlib.suppress(KeyboardInterrupt):
            subprocess.run(command, check=False)


class TpyDeploymentClient(BaseDeploymentClient):  # type: ignore[misc]  # mlflow is not there when types are checked
    """Deployments of one server. `target_help` says what a target is."""

    def __init__(self, target_uri: str) -> None:
        super().__init__(target_uri)
        self._target = _change(lambda: parse_target(target_uri, os.environ))

    def create_deployment(
        self, name: str, model_uri: str, flavor: str | None = None, config: Config | None = None, endpoint: str | None = None
    ) -> dict[str, Any]:
        """Make the model folder of a name that is not taken, and load the model."""
        _require_no(endpoint)
        models = self._models(name)
        if models.has(name):
            raise MlflowException(f"'{name}' is there already: update it, or delete it", RESOURCE_ALREADY_EXISTS)
        _change(lambda: _deploy(models.add, name, model_uri, flavor, config, load=lambda: self._load(name)))
        return {"name": name, "flavor": flavor}

    def update_deployment(
        self,
        name: str,
        model_uri: str | None = None,
        flavor: str | None = None,
        config: Config | None = None,
        endpoint: str | None = None,
    ) -> dict[str, Any]:
        """Put another model into the place of one that is deployed. If it cannot be loaded the former one stays."""
        _require_no(endpoint)
        if model_uri is None:
            raise MlflowException("update: a model (-m) is needed", INVALID_PARAMETER_VALUE)
        models, uri = self._models(name), model_uri
        if not models.has(name):
            raise MlflowException(f"there is no deployment '{name}'", RESOURCE_DOES_NOT_EXIST)
        _change(lambda: _deploy(models.replace, name, uri, flavor, config, load=lambda: self._load(name)))
        return {"name": name, "flavor": flavor}

    def delete_deployment(self, name: str, config: Config | None = None, endpoint: str | None = None) -> None:
        """Unload a model and remove its folder; nothing happens if it is not there."""
        _require_no(endpoint)
        models = self._models(name)
        _change(lambda: models.require_deployed(name))
        if models.has(name):
            self._order(f"/v2/repository/models/{quote(name, safe='')}/unload")
            _change(lambda: models.remove(name))

    def list_deployments(self, endpoint: str | None = None) -> list[dict[str, Any]]:
        """All models of the server, deployed from MLflow or not, with the states of their versions."""
        _require_no(endpoint)
        found: dict[str, list[dict[str, str]]] = {}
        for entry in self._ask("/v2/repository/index", {}):
            versions = found.setdefault(entry["name"], [])
            if entry.get("version"):
                versions.append({"version": entry["version"], "state": entry.get("state", "")})
        return [{"name": name, "versions": versions} for name, versions in found.items()]

    def get_deployment(self, name: str, endpoint: str | None = None) -> dict[str, Any]:
        """The model's metadata: versions, inputs and outputs."""
        _require_no(endpoint)
        _change(lambda: require_name(name))
        document: dict[str, Any] = self._ask(f"/v2/models/{quote(name, safe='')}", None)
        return document

    def predict(
        self, deployment_name: str | None = None, inputs: object = None, endpoint: str | None = None
    ) -> PredictionsResponse:
        """Ask a model over the MLflow port."""
        _require_no(endpoint)
        name = _change(lambda: require_name(deployment_name or ""))
        body = _body(inputs)
        headers = {"Content-Type": "application/json"}
        client = self._client(self._target.mlflow_port, headers, start="tpy serve DIRECTORY --allow-mlflow")
        document: Any = _asked(lambda: client.post(f"/models/{quote(name, safe='')}/invocations", body))
        return PredictionsResponse(document)

    def _models(self, name: str) -> DeployedModels:
        """The repository, for a name that can be one of it."""
        _change(lambda: require_name(name))
        return _change(lambda: DeployedModels(self._target.repository))

    def _load(self, name: str) -> None:
        self._order(f"/v2/repository/models/{quote(name, safe='')}/load")

    def _order(self, path: str) -> None:
        client = self._client(self._target.port, {}, start=_START)
        _asked(lambda: client.order(path, b"{}"))

    def _ask(self, path: str, document: object) -> Any:
        client = self._client(self._target.port, {}, start=_START)
        if document is None:
            return _asked(lambda: client.get(path))
        return _asked(lambda: client.post(path, orjson.dumps(document)))

    def _client(self, port: int, headers: Mapping[str, str], *, start: str) -> Client:
        target = self._target
        tls = ssl.create_default_context() if target.is_tls else None
        return Client(target.host, port, start=start, tls=tls, headers={**target.headers, **headers}, timeout_s=_LOAD_S_MAX)


def _deploy(put: _Put, name: str, model_uri: str, flavor: str | None, config: Config | None, *, load: Callable[[], None]) -> None:
    """Fetch a model, and put it into a repository."""
    trust = is_trusted(config)
    with tempfile.TemporaryDirectory() as folder:
        source = Path(download_artifacts(artifact_uri=model_uri, dst_path=folder))
        put(name, source, flavour=flavor or "", trust=trust, load=load)


def _body(inputs: object) -> bytes:
    """The body of a prediction: of a data frame, an array or a list; of an object with a body's members; of tensors by name."""
    if not isinstance(inputs, dict):
        text: str = dump_input_data(inputs)
        return text.encode()
    document = inputs if _FORMS & inputs.keys() else {"inputs": inputs}
    return orjson.dumps(document, option=orjson.OPT_SERIALIZE_NUMPY)


def _change(action: Callable[[], _Result]) -> _Result:
    """Returns what `action` does. Raises MlflowException for what cannot be deployed."""
    try:
        return action()
    except Unimportable as error:
        raise MlflowException(str(error), INVALID_PARAMETER_VALUE) from None


def _asked(action: Callable[[], _Result]) -> _Result:
    """Returns what `action` does. Raises MlflowException for what the server refuses."""
    try:
        return action()
    except ClientError as error:
        code = RESOURCE_DOES_NOT_EXIST if error.status == _NOT_FOUND else INVALID_PARAMETER_VALUE
        raise MlflowException(str(error), code if error.status else TEMPORARILY_UNAVAILABLE) from None


def _require_no(endpoint: str | None) -> None:
    if endpoint is not None:
        raise MlflowException("endpoints: a server has deployments only", INVALID_PARAMETER_VALUE)
