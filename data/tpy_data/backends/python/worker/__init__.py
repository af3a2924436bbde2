"""The code inside a Python model's process: the standard library and numpy, nothing else, so that any interpreter can run it.

Decides: how model.py is imported and called, what `triton_python_backend_utils` offers, how a batch crosses the socket. Never
does: read configuration files, start processes, know of the server's packages. The server imports `wire` from here too, so that
both ends speak the same code, and `pb_utils` and `model` for in-process models.

From the ground up: `wire` (the connection, as both ends have it), `pb_utils` (what a model.py sees), `model` (a model at work),
`link` (the worker's end of the connection), `hosting` (another backend in place of a model.py), `main.py` (the loop).
`template.py` is the process that workers are forked from. Keep to what Python 3.10 understands: EXECUTION_ENV_PATH may name an
old interpreter.
"""
