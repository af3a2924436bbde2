"""The part of TorchServe's Python package `ts` that handlers use. `tpy import` puts a copy beside each model that it makes of an
archive, so nothing here imports tpy, and PyTorch is imported by the stock handlers only.

triton_model    the TritonPythonModel of such a model: requests in, answers of the handler out
entry_point     finds the handler
requests        bytes and headers of HTTP to what handlers are given, and back
context         what handlers are told
metrics         `context.metrics`
torch_handler   the stock handlers
"""

__version__ = "0.12.0"
