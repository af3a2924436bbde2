"""The backend `function`: a function of the program that the server runs in (`tpy.Server.add_model`).

The configuration names it by the parameter `function`, a key of `FUNCTIONS`.
"""

from tpy_data.backends.function.backend import FUNCTIONS, PARAMETER, Function, FunctionBackend, create, executing

__all__ = ["FUNCTIONS", "PARAMETER", "Function", "FunctionBackend", "create", "executing"]
