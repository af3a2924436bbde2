"""The backends whose models are known by their files and platforms: the one table of them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Final, NamedTuple


class KnownBackend(NamedTuple):
    """The signs of a backend. The first platform is the one filled in. `is_folder` is None where file and folder both do. A file
    that ends like `filename` is served under any name once a configuration names it, if the ending says enough (`by_suffix`)."""

    backend: str
    platforms: tuple[str, ...]
    filename: str
    is_folder: bool | None = None
    by_suffix: bool = False


TENSORRT_PLAN: Final = "tensorrt_plan"
"""Some fields of a configuration are of this platform only."""

KNOWN_BACKENDS: Final = (
    KnownBackend("tensorflow", ("tensorflow_graphdef",), "model.graphdef", is_folder=False, by_suffix=True),
    KnownBackend("tensorflow", ("tensorflow_savedmodel",), "model.savedmodel", is_folder=True),
    KnownBackend("tensorrt", (TENSORRT_PLAN,), "model.plan", is_folder=False, by_suffix=True),
    KnownBackend("onnxruntime", ("onnxruntime_onnx",), "model.onnx", by_suffix=True),
    KnownBackend("openvino", (), "model.xml"),
    KnownBackend("openvino_genai", (), "model.gguf", is_folder=False, by_suffix=True),
    KnownBackend("pytorch", ("pytorch_libtorch", "libtorch"), "model.pt", is_folder=False, by_suffix=True),
    KnownBackend("pytorch", ("torch_aoti",), "model.pt2", is_folder=False, by_suffix=True),
    KnownBackend("litert", (), "model.tflite", is_folder=False, by_suffix=True),
    KnownBackend("dali", (), "model.dali", is_folder=False, by_suffix=True),
    KnownBackend("dali", (), "dali.py", is_folder=False),
    KnownBackend("python", (), "model.py"),
    KnownBackend("fil", (), "xgboost.json", is_folder=False),
    KnownBackend("fil", (), "xgboost.ubj", is_folder=False, by_suffix=True),
    KnownBackend("fil", (), "xgboost.model", is_folder=False),
    KnownBackend("fil", (), "model.txt", is_folder=False),
    KnownBackend("fil", (), "checkpoint.tl", is_folder=False, by_suffix=True),
)
"""In the order in which they are looked for: other models may have a model.py beside them, and a model.py may have any of the
later ones."""

PLATFORMS_OF_BACKEND: Final[Mapping[str, frozenset[str]]] = {
    known.backend: frozenset(platform for each in KNOWN_BACKENDS if each.backend == known.backend for platform in each.platforms)
    for known in KNOWN_BACKENDS
    if known.platforms
}
"""The platforms that may be given together with a backend; other backends take any platform."""

BACKEND_OF_FILE: Final[Mapping[str, str]] = {known.filename: known.backend for known in KNOWN_BACKENDS}

BACKEND_OF_SUFFIX: Final[Mapping[str, str]] = {
    PurePosixPath(known.filename).suffix: known.backend for known in KNOWN_BACKENDS if known.by_suffix
}
"""Of files that are served under any name once the configuration names them."""
