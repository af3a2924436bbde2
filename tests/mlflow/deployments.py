"""`python deployments.py TARGET MODEL OTHER PICKLED`, in the environment with MLflow: all that its client of deployments does,
and prints what happened as JSON."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
from mlflow.deployments import get_deploy_client
from mlflow.exceptions import MlflowException

target, model, other, pickled = sys.argv[1:]
client = get_deploy_client(target)
frame = pd.DataFrame([[1.0, 2.0, 3.0]], columns=["a", "b", "c"])
found: dict[str, Any] = {}


def refusal(action: Callable[[], object]) -> list[str]:
    try:
        action()
    except MlflowException as error:
        return [error.error_code, error.message]
    return []


found["created"] = client.create_deployment("mine", model)["name"]
found["listed"] = client.list_deployments()
found["got"] = client.get_deployment("mine")["inputs"]
found["predicted"] = dict(client.predict("mine", frame))
found["again"] = refusal(lambda: client.create_deployment("mine", model))
found["updated"] = client.update_deployment("mine", other, flavor="onnx")["name"]
found["then"] = dict(client.predict("mine", {"inputs": [[1.0, 2.0, 3.0]]}))
found["named"] = dict(client.predict("mine", {"INPUT": np.ones((1, 3), np.float32)}))
found["broken"] = refusal(lambda: client.update_deployment("mine", target))
found["pickle"] = refusal(lambda: client.create_deployment("pickled", pickled))
found["names"] = [
    refusal(lambda name=name, action=action: action(name))
    for name in ("../outside", "/tmp/outside", "a/b", "..", "")
    for action in (
        lambda name: client.create_deployment(name, model),
        lambda name: client.update_deployment(name, model),
        client.delete_deployment,
        client.get_deployment,
        lambda name: client.predict(name, frame),
    )
]
found["foreign"] = refusal(lambda: client.delete_deployment("affine"))
found["endpoint"] = refusal(lambda: client.list_deployments(endpoint="e"))
client.delete_deployment("mine")
client.delete_deployment("mine")
found["gone"] = refusal(lambda: client.get_deployment("mine"))
print(json.dumps(found))
