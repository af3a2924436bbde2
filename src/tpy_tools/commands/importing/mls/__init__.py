"""The part of MLServer's Python package `mlserver` that models use. `tpy import` puts a copy beside each model that it makes of a
folder of MLServer, so nothing here imports tpy, and pandas, XGBoost and LightGBM are imported by those parts only that need them.

triton_model    the TritonPythonModel of such a model: tensors in, responses of the model out
tensors         tensors of Triton as messages of MLServer, and back
batches         requests of one batch as one request, and its response in parts
types, settings what models are given
model           MLModel, the base class
codecs          messages as arrays, data frames, texts, bytes and times, and back
runtimes        MLServer's runtimes for XGBoost and LightGBM
"""

from .metrics import log, register
from .model import MLModel
from .settings import ModelSettings, Settings

__version__ = "1.7.1"

__all__ = ["MLModel", "ModelSettings", "Settings", "__version__", "log", "register"]
