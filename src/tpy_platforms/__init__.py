"""Platforms: the protocols by which OpenAI's clients, SageMaker, Vertex AI, MLflow, TorchServe and TensorFlow Serving are asked.

Each is a frontend like those of the server (`tpy.frontends`), over the same transport and services, and is found by its entry
point in the group `tpy.frontends`. Nothing of the server imports this package.
"""
