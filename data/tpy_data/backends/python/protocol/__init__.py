"""The server's end of the connection to a worker: frames in and out, calls of its model, responses, metrics.

Read `worker/wire/core/frames.py` (what crosses the socket), then `connection.py` (who reads and writes here).
"""
