"""Scheduler cores: a reference scheduler (`reference.py`), a trial that holds a core to it (`trial.py`), and the targets.

The Hypothesis state machines of tests/schedulers drive the same trial.
"""
