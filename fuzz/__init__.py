"""Fuzzing: each target states an invariant and tries random histories against it. Never part of the product.

`registry.py` lists the targets, `runner.py` runs them, `python -m fuzz --help` says how. A target's history is a function of one
seed, so that a failure is repeated by its number alone.
"""
