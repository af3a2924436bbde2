"""Schedulers: sans-IO cores (`core/`) and the one driver that runs them."""
