"""The backends that come with tpy: identity, onnxruntime, python.

Each one is found by its entry point (group `tpy.backends`), like any third-party backend: nothing imports them by name. They see
`tpy.backend`, `tpy.messages`, `tpy.config` and `tpy.errors` only.
"""
