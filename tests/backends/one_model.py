"""A small model of one backend, made by one process and run by another: `python -m tests.backends.one_model make|run BACKEND
FOLDER`. So what a process that only loads and runs it does can be told from what making it does."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from tests.backends.hosted import completed, context_of, inputs, outputs, run
from tpy.backend import BackendSettings, InstancePlacement, ModelContext
from tpy.config import ModelConfig
from tpy.config.model_config import InstanceKind
from tpy.messages import DataType
from tpy.testing import HostedModel
from tpy.usage_data import send_none

_INDEX = inputs(("INDEX", DataType.INT64, (1,)))
_GATHERED = outputs(("DOUBLED", DataType.INT64, (1,)), ("ROWS", DataType.FP32, (1, 2)))
ON_CPU = InstancePlacement(name="m_0", kind=InstanceKind.KIND_CPU)


def _onnxruntime(folder: Path) -> None:
    from tests.backends import onnx_models

    (folder / "model.onnx").write_bytes(onnx_models.gathering())


def _pytorch(folder: Path) -> None:
    from tests.backends.pytorch import models

    models.save_script(models.Gathering(), folder / "model.pt")


def _openvino(folder: Path) -> None:
    from tests.backends.openvino import models

    models.save(folder / "model.xml", {"INDEX": ([-1, 1], np.int64)}, models.gathering)


def _tensorflow(folder: Path) -> None:
    from tests.backends.tensorflow import models

    models.save_gathering(folder / "model.savedmodel")


def _litert(folder: Path) -> None:
    from tests.backends.litert import models

    models.save(folder / "model.tflite", serving_default="gather")


def _sklearn(folder: Path) -> None:
    import joblib
    from sklearn import linear_model

    joblib.dump(linear_model.LinearRegression().fit([[0.0], [1.0]], [0.0, 2.0]), folder / "model.joblib")


MAKERS: dict[str, Callable[[Path], None]] = {
    "onnxruntime": _onnxruntime,
    "pytorch": _pytorch,
    "openvino": _openvino,
    "tensorflow": _tensorflow,
    "litert": _litert,
    "sklearn": _sklearn,
}


def _context(backend: str, root: Path) -> ModelContext:
    fields: dict[str, Any] = {"max_batch_size": 8, "input": _INDEX, "output": _GATHERED}
    if backend == "onnxruntime":
        fields["output"] = outputs(("DOUBLED", DataType.INT64, (1,)), ("OUTPUT", DataType.FP32, (1, 2)))
    elif backend == "pytorch":
        fields["output"] = outputs(("OUTPUT__0", DataType.INT64, (1,)), ("OUTPUT__1", DataType.FP32, (1, 2)))
    elif backend == "litert":
        fields["input"] = inputs(("INDEX", DataType.INT32, (1,)))
        fields["output"] = outputs(("DOUBLED", DataType.INT32, (1,)), ("ROWS", DataType.FP32, (1, 2)))
    elif backend == "sklearn":
        fields |= {"input": inputs(("X", DataType.FP64, (1,))), "output": outputs(("predict", DataType.FP64, (1,)))}
    return context_of(root, ModelConfig(name="m", backend=backend, **fields))


def _run(name: str, root: Path) -> None:
    send_none()
    settings = BackendSettings(name=name, config={"allow-pickle": "true"} if name == "sklearn" else {})
    backend = importlib.import_module(f"tpy_backends.{name}").create(settings)
    context = completed(backend, _context(name, root))
    given = context.config.input[0]
    values = np.ones((2, 1), {DataType.INT64: np.int64, DataType.INT32: np.int32, DataType.FP64: np.float64}[given.data_type])
    with HostedModel(backend, context) as model:
        first = next(iter(run(model.instance(ON_CPU), context, **{given.name: values}).values()))
    print(first.ravel().tolist())


if __name__ == "__main__":
    what, backend_name, folder = sys.argv[1:]
    if what == "make":
        MAKERS[backend_name](_context(backend_name, Path(folder)).version_directory)
    else:
        _run(backend_name, Path(folder))
