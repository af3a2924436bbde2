"""The PP-OCRv4 networks (PaddleOCR, Apache-2.0) as their package ships them, and the characters that the reader knows."""

from __future__ import annotations

import shutil
from pathlib import Path

import onnx
from packages import package_file

NETWORKS = {
    "ocr_detector": "ch_PP-OCRv4_det_infer.onnx",
    "ocr_direction": "ch_ppocr_mobile_v2.0_cls_infer.onnx",
    "ocr_reader": "ch_PP-OCRv4_rec_infer.onnx",
}


def write(repository: Path) -> None:
    """The networks' files; the characters are in the metadata of one of them."""
    for model, file in NETWORKS.items():
        shutil.copyfile(package_file("rapidocr_onnxruntime", "models", file), repository / model / "1" / "model.onnx")
    metadata = onnx.load(repository / "ocr_reader" / "1" / "model.onnx").metadata_props
    characters = next(entry.value for entry in metadata if entry.key == "character")
    (repository / "ocr_text" / "1" / "characters.txt").write_text(characters, encoding="utf-8")
