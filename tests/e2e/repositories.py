"""Model repositories for the end-to-end tests, written on the spot."""

from __future__ import annotations

from pathlib import Path

from tests.backends import onnx_models

AFFINE_CONFIG = """
backend: "onnxruntime"
max_batch_size: 8
input [ { name: "INPUT" data_type: TYPE_FP32 dims: [ 3 ] } ]
output [ { name: "OUTPUT" data_type: TYPE_FP32 dims: [ 3 ] } ]
"""

IDENTITY_PAIR = """
input [ { name: "INPUT0" data_type: TYPE_INT32 dims: [ 1 ] } ]
output [ { name: "OUTPUT0" data_type: TYPE_INT32 dims: [ 1 ] } ]
"""


class ModelFolder:
    """One model in a repository."""

    def __init__(self, repository: Path, name: str) -> None:
        self.path = repository / name
        self.name = name
        self.path.mkdir(parents=True, exist_ok=True)

    def config(self, text: str) -> ModelFolder:
        """Write config.pbtxt, in one step, as an editor does that renames."""
        return self.file("config.pbtxt", text)

    def file(self, path: str, content: str | bytes) -> ModelFolder:
        """Write a file of the model in one step."""
        target = self.path / path
        target.parent.mkdir(parents=True, exist_ok=True)
        scratch = self.path.parent.parent / f".{self.path.parent.name}-{self.name}-being-written"
        scratch.write_bytes(content.encode() if isinstance(content, str) else content)
        scratch.replace(target)
        return self

    def affine(self, version: int, scale: float, offset: float = 0.0) -> ModelFolder:
        """A version that answers INPUT * scale + offset."""
        return self.file(f"{version}/model.onnx", onnx_models.affine(scale, offset))

    def python(self, source: str, version: int = 1) -> ModelFolder:
        """A version in Python."""
        return self.file(f"{version}/model.py", source)

    def identity(self, more: str = "", *, batch: int = 8, versions: tuple[int, ...] = (1,)) -> ModelFolder:
        """INPUT0 INT32[1] -> OUTPUT0 by the built-in identity backend; `more` is appended to its configuration."""
        for version in versions:
            (self.path / str(version)).mkdir(exist_ok=True)
        return self.config(f'backend: "identity"\nmax_batch_size: {batch}\n{IDENTITY_PAIR}\n{more}\n')


def parameter(key: str, value: object) -> str:
    """A `parameters` entry of a configuration."""
    return f'parameters {{ key: "{key}" value {{ string_value: "{value}" }} }}\n'
