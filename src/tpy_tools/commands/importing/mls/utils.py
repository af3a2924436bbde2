"""Small things that models use."""

from __future__ import annotations

import os
import uuid
from collections.abc import Sequence
from urllib.parse import urlparse

from .errors import InvalidModelURI
from .settings import ModelSettings


async def get_model_uri(settings: ModelSettings, wellknown_filenames: Sequence[str] = ()) -> str:
    """The path of the model's file: that of `parameters.uri`, or in that folder the first file of a known name; the folder
    without one. Addresses are returned as they are. Raises InvalidModelURI."""
    return _model_path(settings, wellknown_filenames)


def _model_path(settings: ModelSettings, wellknown_filenames: Sequence[str]) -> str:
    uri = settings.parameters.uri if settings.parameters is not None else None
    if not uri:
        raise InvalidModelURI(settings.name)
    parts = urlparse(uri, scheme="file")
    if parts.scheme != "file":
        return uri
    path = to_absolute_path(settings, parts.path)
    if os.path.isfile(path):
        return path
    if not os.path.isdir(path):
        raise InvalidModelURI(settings.name, path)
    found = (os.path.join(path, name) for name in wellknown_filenames)
    return next((each for each in found if os.path.isfile(each)), path)


def to_absolute_path(model_settings: ModelSettings, uri: str) -> str:
    """A path that is relative to the file of the settings."""
    source = model_settings._source
    return uri if source is None else os.path.normpath(os.path.join(os.path.dirname(source), uri))


def generate_uuid() -> str:
    """A new id."""
    return str(uuid.uuid4())
