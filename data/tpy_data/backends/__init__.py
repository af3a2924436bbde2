"""The backends that need no framework: python, identity, function; and what all share. The others are in `tpy_backends`.

Each one is found by its entry point (group `tpy.backends`), like any third-party backend: the server imports none by name. They
see neither engine, schedulers, store nor services.
"""
