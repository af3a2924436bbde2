"""The files that belong to a model file."""

from __future__ import annotations

from pathlib import Path

import pytest

from tpy.config.model_files import files_beside


@pytest.mark.parametrize("name", ["model.onnx", "m[1].onnx"])
def test_weights_beside_a_model(tmp_path: Path, name: str) -> None:
    stem = name.removesuffix(".onnx")
    for each in (name, f"{name}.data", f"{name}_data", f"{stem}.data", "other.onnx", "m1.onnx.data"):
        (tmp_path / each).touch()
    assert [file.name for file in files_beside(tmp_path / name)] == sorted([f"{stem}.data", f"{name}.data", f"{name}_data"])
