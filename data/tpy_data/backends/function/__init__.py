"""The backend `function`: a function of the program that the server runs in (`tpy.Server.add_model`).

The configuration names it by the parameter `function`, a key of `FUNCTIONS`, or of `FORWARDERS`: of what has requests answered
elsewhere.
"""

from tpy_data.backends.function.backend import (
    FORWARDERS,
    FUNCTIONS,
    PARAMETER,
    Forwarder,
    Function,
    FunctionBackend,
    create,
    executing,
)

__all__ = ["FORWARDERS", "FUNCTIONS", "PARAMETER", "Forwarder", "Function", "FunctionBackend", "create", "executing"]
