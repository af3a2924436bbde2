"""The benchmark program: `python -m benchmarks --help`.

Decides: which servers are driven, with which requests, by which load generator, how long and in which order, and what is computed
from it. Never does: assert anything about speed, touch a server that it did not start, or import the server under test.

The newcomer's path: `rows/tiny.py` (a row of the table), `servers/process.py` (a server that is being measured), `load/` (what
drives it), `measurement.py` and `report.py` (what comes out).
"""
