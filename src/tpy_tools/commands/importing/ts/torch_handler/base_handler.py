"""The base of the stock handlers: loads a network, and runs it between preprocess and postprocess."""

from __future__ import annotations

import abc
import importlib
import logging
import os
import time
from collections.abc import Mapping
from typing import Any

import torch

from ..handler_utils.timer import timed
from ..utils.util import check_valid_pt2_backend, list_classes_from_module, load_label_mapping

logger = logging.getLogger(__name__)


class BaseHandler(abc.ABC):  # noqa: B024 - so it is in TorchServe: subclasses may be abstract
    """Handles batches of tensors."""

    def __init__(self) -> None:
        self.model: Any = None
        self.mapping: dict[str, str] | None = None
        self.device: Any = None
        self.initialized = False
        self.context: Any = None
        self.model_pt_path: str | None = None
        self.manifest: Any = None
        self.map_location: str | None = None
        self.explain = False
        self.target = 0
        self.profiler_args: dict[str, Any] = {}
        self.model_yaml_config: Mapping[str, Any] = {}

    def initialize(self, context: Any) -> None:
        """Load the network that the manifest names. Raises RuntimeError if it names none."""
        self.model_yaml_config = context.model_yaml_config or {}
        self.manifest = context.manifest
        properties = context.system_properties
        self.device = _device(properties.get("gpu_id"))
        self.map_location = self.device.type
        folder, model = properties["model_dir"], self.manifest["model"]
        self.model_pt_path = os.path.join(folder, model["serializedFile"]) if "serializedFile" in model else None
        if model.get("modelFile"):
            self.model = self._load_pickled_model(folder, model["modelFile"], self.model_pt_path)
            self.model.to(self.device).eval()
        elif self.model_pt_path is None:
            raise RuntimeError("the manifest names no network")
        elif self.model_pt_path.endswith(".pt"):
            self.model = self._load_torchscript_model(self.model_pt_path)
            self.model.eval()
        elif self.model_pt_path.endswith(".onnx"):
            self.model = _onnx_session(self.model_pt_path, self.map_location)
        else:
            raise RuntimeError(f"{model['serializedFile']}: expected a .pt or .onnx, or a modelFile with the network's class")
        self._compile()
        self.mapping = load_label_mapping(os.path.join(folder, "index_to_name.json"))
        self.initialized = True

    def _compile(self) -> None:
        """As `pt2` of model-config.yaml says: a backend of torch.compile, or its options."""
        said = self.model_yaml_config.get("pt2")
        if isinstance(said, Mapping) and "compile" in said:
            said = dict(said["compile"])
            if not said.pop("enable", False):
                return
        elif isinstance(said, str):
            said = {"backend": said}
        if not isinstance(said, Mapping) or "export" in said or not check_valid_pt2_backend(said.get("backend", "inductor")):
            return
        try:
            self.model = torch.compile(self.model, **said)
        except Exception:
            logger.warning("the network is not compiled", exc_info=True)

    def _load_torchscript_model(self, model_pt_path: str) -> Any:
        return torch.jit.load(model_pt_path, map_location=self.device)

    def _load_pickled_model(self, model_dir: str, model_file: str, model_pt_path: str | None) -> Any:
        """The network of the only class in a file, with the weights of another."""
        if not os.path.isfile(os.path.join(model_dir, model_file)):
            raise RuntimeError(f"there is no {model_file}, which the manifest names")
        classes = list_classes_from_module(importlib.import_module(model_file.partition(".")[0]))
        if len(classes) != 1:
            raise ValueError(f"{model_file}: expected one class, which is the network, got {classes}")
        network: Any = classes[0]()
        if model_pt_path:
            network.load_state_dict(torch.load(model_pt_path, map_location=self.device, weights_only=True))
        return network

    @timed
    def preprocess(self, data: Any) -> Any:
        """A tensor of what the requests hold."""
        return torch.as_tensor(data, device=self.device)

    @timed
    def inference(self, data: Any, *args: Any, **kwargs: Any) -> Any:
        """Run the network."""
        with torch.inference_mode():
            return self.model(data.to(self.device), *args, **kwargs)

    @timed
    def postprocess(self, data: Any) -> Any:
        """A list with an answer for each request."""
        return data.tolist()

    def handle(self, data: Any, context: Any) -> Any:
        """Handle a batch."""
        begun = time.perf_counter()
        self.context = context
        if self._asks("describe"):
            return [self.describe_handle()]
        prepared = self.preprocess(data)
        if self._asks("explain"):
            self.explain = True
            answers = self.explain_handle(prepared, data)
        else:
            answers = self.postprocess(self.inference(prepared))
        context.metrics.add_time("HandlerTime", round((time.perf_counter() - begun) * 1000, 2), None, "ms")
        return answers

    def _asks(self, what: str) -> bool:
        return bool(self.context.get_request_header(0, what) == "True")

    def explain_handle(self, data_preprocess: Any, raw_data: Any) -> Any:
        """The insights of a subclass into the first request, about the class that its part `target` names."""
        row = raw_data[0]
        inputs, target = (row.get("data") or row.get("body"), row.get("target") or 0) if isinstance(row, dict) else (None, 0)
        insights: Any = getattr(self, "get_insights", None)
        if insights is None:
            raise NotImplementedError(f"{type(self).__name__} has no get_insights")
        return insights(data_preprocess, inputs, target)

    def describe_handle(self) -> Any:
        """A description of the model, for who asks for it."""
        return None

    def get_device(self) -> Any:
        """The device of the network."""
        return self.device


def _device(gpu: int | None) -> Any:
    if gpu is not None and torch.cuda.is_available():
        return torch.device(f"cuda:{gpu}")
    return torch.device("mps" if gpu is not None and torch.backends.mps.is_available() else "cpu")


def _onnx_session(path: str, device: str | None) -> Any:
    import onnxruntime

    providers = ["CUDAExecutionProvider"] if device == "cuda" else []
    return onnxruntime.InferenceSession(path, providers=[*providers, "CPUExecutionProvider"])
