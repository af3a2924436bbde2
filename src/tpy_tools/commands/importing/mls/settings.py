"""ModelSettings: a model-settings.json as models see it."""

from __future__ import annotations

import json
from typing import Any, ClassVar

from .types import BaseModel, Fields, MetadataTensor


class Settings(BaseModel):
    """A settings.json. Those of the server have no effect here; models that read them find what was written."""

    parallel_workers: int
    debug: bool

    _FIELDS: ClassVar[Fields] = {"parallel_workers": (1, None), "debug": (True, None)}
    _EXTRA: ClassVar[bool] = True


class ModelParameters(BaseModel):
    """`parameters` of a model's settings."""

    uri: str | None
    version: str | None
    environment_path: str | None
    environment_tarball: str | None
    inference_pool_gid: str | None
    autogenerate_inference_pool_gid: bool
    format: str | None
    content_type: str | None
    extra: dict[str, Any] | None

    _FIELDS: ClassVar[Fields] = {
        **dict.fromkeys(
            ("uri", "version", "environment_path", "environment_tarball", "inference_pool_gid", "format", "content_type"),
            (None, None),
        ),
        "autogenerate_inference_pool_gid": (False, None),
        "extra": (None, None),
    }
    _EXTRA: ClassVar[bool] = True

    def __init__(self, **values: Any) -> None:
        super().__init__(**values)
        if self.extra is None:
            object.__setattr__(self, "extra", {})


def _tensors(values: Any) -> list[MetadataTensor]:
    return [MetadataTensor.model_validate(each) for each in values]


class ModelSettings(BaseModel):
    """A model-settings.json. `implementation` is the name of the class."""

    name: str
    implementation: Any
    platform: str
    versions: list[str]
    inputs: list[MetadataTensor]
    outputs: list[MetadataTensor]
    parallel_workers: int | None
    warm_workers: bool
    max_batch_size: int
    max_batch_time: float
    parameters: ModelParameters | None
    cache_enabled: bool

    _FIELDS: ClassVar[Fields] = {
        "name": ("", None),
        "implementation": ("", None),
        "platform": ("", None),
        "versions": ([], list),
        "inputs": ([], _tensors),
        "outputs": ([], _tensors),
        "parallel_workers": (None, None),
        "warm_workers": (False, None),
        "max_batch_size": (0, None),
        "max_batch_time": (0.0, None),
        "parameters": (None, ModelParameters.model_validate),
        "cache_enabled": (False, None),
    }

    def __init__(self, **values: Any) -> None:
        super().__init__(**values)
        object.__setattr__(self, "_source", values.get("_source"))

    _source: str | None
    """The file, or None."""

    @classmethod
    def parse_file(cls, path: str) -> ModelSettings:
        """The settings in a file."""
        with open(path, encoding="utf-8") as file:
            return cls(**{**json.load(file), "_source": path})

    @property
    def version(self) -> str | None:
        """The version, or None."""
        return None if self.parameters is None else self.parameters.version
