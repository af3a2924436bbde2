"""Batching that tunes itself, as the engine has it: curves that are kept across restarts, and the driver of tuned cores. What is
chosen is the business of `tpy_data.schedulers.core.batch_tuner`."""
