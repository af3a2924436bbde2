"""Tells by its files what a source is."""

from __future__ import annotations

from pathlib import Path

from tpy_tools.commands.importing.core.hugging_face import plan_hugging_face
from tpy_tools.commands.importing.core.mlflow import plan_mlflow
from tpy_tools.commands.importing.core.plan import ImportPlan, Unimportable
from tpy_tools.commands.importing.hugging_face import is_hugging_face_source, read_hugging_face
from tpy_tools.commands.importing.mlflow import is_mlflow_model, read_mlflow
from tpy_tools.commands.importing.mlserver import is_mlserver_source, plan_of_mlserver
from tpy_tools.commands.importing.openvino_server import is_openvino_server_source, plan_of_openvino_server
from tpy_tools.commands.importing.tensorflow_serving import is_serving_source, plan_of_serving
from tpy_tools.commands.importing.torchserve import is_torchserve_source, plan_of_torchserve


def plan_of(source: Path, *, trust: bool) -> ImportPlan:
    """The plan for a source. Raises Unimportable for what cannot be imported."""
    if not source.exists():
        raise Unimportable("no such file or folder")
    if is_mlserver_source(source):
        return plan_of_mlserver(source, trust=trust)
    if is_mlflow_model(source):
        return plan_mlflow(read_mlflow(source), trust=trust)
    if is_serving_source(source):
        return plan_of_serving(source)
    if is_openvino_server_source(source):
        return plan_of_openvino_server(source)
    if is_torchserve_source(source):
        return plan_of_torchserve(source, trust=trust)
    if is_hugging_face_source(source):
        return plan_hugging_face(read_hugging_face(source), trust=trust)
    raise Unimportable(
        "expected the folder of an MLflow model (with an MLmodel), a models.config of TensorFlow Serving, the base path of a "
        "model there, an archive, a model store or a config.properties of TorchServe, a folder with a model-settings.json of "
        "MLServer in it or below, a config.json of OpenVINO Model Server, or the folder of a Hugging Face model; for one model "
        "file: tpy init NAME --from FILE"
    )
