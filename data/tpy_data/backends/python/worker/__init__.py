"""The code inside a Python model's process: the standard library and numpy, nothing else, so that any interpreter can run it.

Decides: how model.py is imported and called, what `triton_python_backend_utils` offers, how a batch crosses the socket. Never
does: read configuration files, start processes, know of the server's packages. The server imports `core`, `endpoint` and
`segments` from here too, so both ends speak the same code, and all of it for in-process models.

Read `core/frames.py` (bytes on the socket), `core/session.py` (who may say what when), `core/batch.py` (tensors), then
`runner.py` (the model) and `main.py` (the loop). Keep to what Python 3.10 understands: EXECUTION_ENV_PATH may name an old
interpreter.
"""
