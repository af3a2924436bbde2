"""Growth of costs: `python -m benchmarks.growth --help`.

Decides: what is varied, on which models, and how points, tables and plots come out. Never does: compare with limits or assert.

The newcomer's path: `curves.py` (which curves there are), `served.py` and `scheduling.py` (what measures them), `page.py` and
`plots.py` (what comes out).
"""
