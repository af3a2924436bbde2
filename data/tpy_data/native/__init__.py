"""The old name of `python -m tpy_native include`, which build scripts of users have."""
