"""Backends over the frameworks that models are made with: ONNX Runtime, PyTorch, TensorFlow, OpenVINO, TensorRT and others.

A folder for each; what they share (`file_backend`, `signature`, `completion`, ...) is beside them. Each is found by its entry
point in the group `tpy.backends`, and sees the backend contract and what `tpy_data.backends` shares with all. Nothing of the
server imports this package.
"""
