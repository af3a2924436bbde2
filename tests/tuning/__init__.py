"""Batching that tunes itself, in virtual time, beside fixed sizes and delays: `python -m tests.tuning` prints the whole table."""
