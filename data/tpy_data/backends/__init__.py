"""The backends that come with tpy: fil, identity, litert, onnxruntime, openvino, python, pytorch, sklearn,
tensorflow.

Each one is found by its entry point (group `tpy.backends`), like any third-party backend: the server imports none by name. They
see neither engine, schedulers, store nor services.
"""
