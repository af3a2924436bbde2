"""Errors of models, with the status that a client gets."""

from __future__ import annotations


class MLServerError(Exception):
    """Any of them."""

    def __init__(self, msg: str, status_code: int = 400) -> None:
        super().__init__(msg)
        self.status_code = status_code


class InferenceError(MLServerError):
    """A request that the model cannot answer."""

    def __init__(self, msg: str) -> None:
        super().__init__(msg)


class InvalidModelURI(MLServerError):
    """The files of a model are not where its settings say."""

    def __init__(self, name: str, model_uri: str | None = None) -> None:
        super().__init__(f"Invalid URI specified for model {name}" + (f" ({model_uri})" if model_uri else ""), 422)


class ModelNotFound(MLServerError):
    """No model of this name."""

    def __init__(self, name: str, version: str | None = None) -> None:
        super().__init__(f"Model {name}{'' if version is None else f' with version {version}'} not found", 404)


class ModelNotReady(MLServerError):
    """A model that is not loaded."""

    def __init__(self, name: str, version: str | None = None) -> None:
        super().__init__(f"Model {name}{'' if version is None else f' with version {version}'} is not ready yet.")


class ModelParametersMissing(MLServerError):
    """Settings without `parameters`."""

    def __init__(self, model_name: str) -> None:
        super().__init__(f"Parameters missing for model {model_name}")
