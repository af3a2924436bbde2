"""Writes a folder as MLServer serves it, with a model that weighs words. MLServer itself is not needed."""

import json
import sys
from pathlib import Path

MODEL = """\
from typing import List

import numpy as np
from mlserver import MLModel
from mlserver.codecs import decode_args


class Scales(MLModel):
    async def load(self) -> bool:
        self.gram = self.settings.parameters.extra["gram"]
        return True

    @decode_args
    async def predict(self, words: List[str]) -> np.ndarray:
        return np.array([len(word) * self.gram for word in words])
"""
SETTINGS = {
    "name": "scales",
    "implementation": "models.Scales",
    "inputs": [{"name": "words", "datatype": "BYTES", "shape": [-1, 1]}],
    "outputs": [{"name": "output-0", "datatype": "FP64", "shape": [-1, 1]}],
    "max_batch_size": 16,
    "max_batch_time": 0.002,
    "parameters": {"version": "v1.2.0", "extra": {"gram": 0.5}},
}

repository = Path(sys.argv[1])
folder = repository / "scales"
folder.mkdir(parents=True)
(folder / "model-settings.json").write_text(json.dumps(SETTINGS, indent=2))
(folder / "models.py").write_text(MODEL)
(repository / "settings.json").write_text(json.dumps({"parallel_workers": 2, "http_port": 8080}))
print(f"{repository}: settings.json, scales/model-settings.json, scales/models.py")
