"""Hosts an instance of another backend in a worker, for `isolation` `process`: the worker and its protocol are the same, in place
of a `model.py` it runs what implements `tpy.backend`.

Unlike the rest of the worker this is imported by the server's own interpreter only, and knows the packages `tpy` and
`tpy_data.backends`. Read `order.py` (what the server sends), then `runner.py`.
"""
