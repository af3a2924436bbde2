"""A backend for linear models: `model.json` holds weights and a bias, Y = X . weights + bias."""

import json

import msgspec
import numpy as np

from tpy.backend import BackendCapabilities, gather, scatter
from tpy.config.model_config import ModelInput, ModelOutput
from tpy.errors import InvalidArgument
from tpy.messages import DataType, Tensor


def create(settings):
    """The entry point: called once, before the first model. `settings.config` has the pairs of --backend-config."""
    return LinearBackend(settings)


class LinearBackend:
    def __init__(self, settings):
        self.capabilities = BackendCapabilities(name=settings.name, default_model_filename="model.json", version="1.0")

    def auto_complete(self, context):
        """Inputs and outputs for a configuration without any. Runs in a loader thread, before `load`."""
        config = context.config
        if config.input or config.output:
            return config
        weights = read(context)["weights"]
        return msgspec.structs.replace(
            config,
            max_batch_size=config.max_batch_size or 64,
            input=(ModelInput(name="X", data_type=DataType.FP32, dims=(len(weights),)),),
            output=(ModelOutput(name="Y", data_type=DataType.FP32, dims=(1,)),),
        )

    def load(self, context):
        """A version, with what its instances share. Runs in a loader thread."""
        return LinearModel(read(context), batches=context.config.max_batch_size > 0)

    def close(self):
        """The server ends; every model was unloaded."""


class LinearModel:
    def __init__(self, content, *, batches):
        self.weights = np.array(content["weights"], np.float32)
        self.bias = np.float32(content["bias"])
        self.batches = batches

    def create_instance(self, placement):
        """One instance. Runs in that instance's own thread."""
        return LinearInstance(self)

    def unload(self):
        """Called after the last instance was closed."""


class LinearInstance:
    def __init__(self, model):
        self.model = model

    def execute(self, batch):
        """One result for each request. Runs in the instance's thread, and may block."""
        x = gather(batch.requests)["X"]  # the rows of all requests in one array
        batch.times.inputs_ready()
        if not np.isfinite(x).all():
            raise InvalidArgument("X has to be finite")  # fails the batch with status 400
        y = (x @ self.model.weights + self.model.bias)[..., None]
        batch.times.outputs_begin()
        return scatter(batch.requests, [Tensor("Y", DataType.FP32, y)], batches=self.model.batches)

    def close(self):
        """Release what the instance has: memory of a device, threads."""


def read(context):
    """The content of the model file. What is wrong with it is in the answer to a load, the index and the log."""
    file = context.version_directory / (context.config.default_model_filename or "model.json")
    try:
        content = json.loads(file.read_bytes())
        return {"weights": [float(each) for each in content["weights"]], "bias": float(content["bias"])}
    except FileNotFoundError:
        raise InvalidArgument(f"{file} is not there") from None
    except (ValueError, KeyError, TypeError) as error:
        raise InvalidArgument(f"{file} is not a linear model: {error!r}") from None
